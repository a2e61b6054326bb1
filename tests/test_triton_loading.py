"""The GPU kernel where there is no triton, no GPU, or both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from splash_units.kernels import triton as kernel
from triton_kernel import OPERATORS

KERNELS = (
    *("splash_forward", "splash_backward", "moments", "join_moments"),
    *("normalised_forward", "normalised_sums", "normalised_backward"),
)


def test_the_operators_are_there() -> None:
    assert kernel.load() is OPERATORS
    assert kernel.why_not() is None


def test_every_kernel_compiles_for_gpus(tmp_path: Path) -> None:
    """The interpreter forgives what Triton's compiler does not; that needs no GPU either."""
    script = Path(__file__).with_name("compile_for_gpus.py")
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    compiled = set(done.stdout.split())
    assert compiled == {f"{name}-{gpu}" for name in KERNELS for gpu in ("cuda", "hip")}


def test_without_triton_one_warning_says_what_to_install() -> None:
    code = """
import sys, warnings
sys.modules["triton"] = None
from splash_units.kernels import triton as kernel
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert kernel.load() is None
    assert kernel.load() is None
    assert not kernel.interpreted()
(warning,) = caught
assert warning.category is RuntimeWarning
assert kernel.why_not() in str(warning.message)
print(kernel.why_not())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "triton==" in done.stdout


def test_where_triton_runs_nothing_one_warning_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(splash: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(kernel, "_outcome", None)
    monkeypatch.setattr(kernel, "_has_warned", False)
    monkeypatch.setattr(kernel, "_launch_once", launch)
    explanation = "can't run a kernel on this GPU .*Failed to find C compiler"
    with pytest.warns(RuntimeWarning, match=explanation):
        assert kernel.load() is None
    assert kernel.load() is None  # warnings are errors: a second one would show
    assert "Failed to find C compiler" in str(kernel.why_not())
