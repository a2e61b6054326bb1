"""A folder of built files that hold what their names say.

A file is called `<name>-<digest of its content><suffix>`. It is written aside and renamed, so it is
there whole or not at all, and one that was damaged afterwards no longer fits its name and is passed
over. Loading a damaged library to find out may end in a signal instead of an error.

The folder's libraries are run as code, so only its owner may be able to write to it.
"""

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from splash_units.kernels.native.toolchain import Unavailable

_CHOOSE_ANOTHER = "set SPLASH_CACHE to a folder that only you can write to"


def digest(*parts: str | bytes) -> str:
    """A short name for `parts`, other for other parts however they are divided."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(b"%d:" % len(data) + data)
    return whole.hexdigest()[:20]


def default_folder() -> Path:
    """What SPLASH_CACHE names, else `splash-units/kernels` where the platform keeps caches."""
    if chosen := os.environ.get("SPLASH_CACHE", "").strip():
        return Path(chosen).expanduser().absolute()
    try:
        usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
        named = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # The XDG specification has relative paths ignored.
        root = named if named.is_absolute() else Path(usual).expanduser()
    except RuntimeError as error:
        raise Unavailable(f"no home folder to cache it in: {_CHOOSE_ANOTHER}") from error
    return root / "splash-units" / "kernels"


def open_folder(folder: Path) -> None:
    """Make `folder` if it is missing, and refuse one that others could put code into."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise not_writable(folder, error) from error
    if not _belongs_to_us(status):
        raise Unavailable(
            f"the cache folder {folder} belongs to another user (uid {status.st_uid}), whose code "
            f"would run here: {_CHOOSE_ANOTHER}"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unavailable(
            f"others can write to the cache folder {folder}, and their code would run here: "
            f"`chmod go-w {folder}` or {_CHOOSE_ANOTHER}"
        )


def _belongs_to_us(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), 0)  # root can replace all of our files anyway


def not_writable(folder: Path, error: OSError) -> Unavailable:
    return Unavailable(f"can't write to the cache folder {folder} ({error}): {_CHOOSE_ANOTHER}")


def find(folder: Path, name: str, suffix: str) -> Path | None:
    """An undamaged file of that name, if there is one."""
    return next(filter(_is_intact, sorted(folder.glob(f"{escape(name)}-*{suffix}"))), None)


def _is_intact(file: Path) -> bool:
    content = file.stem.rpartition("-")[2]
    try:
        return _belongs_to_us(file.stat()) and digest(file.read_bytes()) == content
    except OSError:
        return False


def store(folder: Path, name: str, file: Path) -> Path:
    """Move `file`, which lies on the folder's file system, to its place under `name`."""
    place = folder / f"{name}-{digest(file.read_bytes())}{file.suffix}"
    file.replace(place)
    return place


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Wait while another process builds in `folder`.

    It only saves work: where a network file system knows no locks, both build and both results are
    good.
    """
    import fcntl  # Windows, which has none, must still be able to import the package

    try:
        file = (folder / "building.lock").open("w")
    except OSError as error:
        raise not_writable(folder, error) from error
    with file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
