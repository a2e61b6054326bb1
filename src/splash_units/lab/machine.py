"""Where a result comes from: machine, versions, commit. Every result keeps it."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_RECORDED_PACKAGES = ("splash-units", "torch", "numpy", "scikit-learn", "triton")


def now() -> str:
    """This moment, in UTC, as ISO 8601 writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def describe_machine() -> dict[str, Any]:
    """Host, processor, system, versions of what computes, and the commits of package and study."""
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: found for name in _RECORDED_PACKAGES if (found := version_of(name))},
        "commit": commit_of(Path(__file__).parent),
        "study_commit": commit_of(Path.cwd()),
    }


def commit_of(folder: Path) -> str | None:
    """The commit of a folder, with "+changes" if its files differ from it; None outside git."""
    git = ["git", "-C", str(folder)]
    try:
        commit = _output([*git, "rev-parse", "HEAD"])
        changed = _output([*git, "status", "--porcelain", "--untracked-files=no", "--", "."])
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changed else commit


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def version_of(package: str) -> str | None:
    """The installed version, or None."""
    if package == "torch":
        import torch  # late: it takes seconds

        return str(torch.__version__)  # with its build, such as +cu130, which metadata may lack
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name as the system gives it; `platform` knows it on few systems only."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
