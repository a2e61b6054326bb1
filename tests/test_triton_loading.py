"""The GPU kernel where there is no triton, no GPU, or both."""

import os
import re
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


WITHOUT = {
    "no triton": ("sys.modules['triton'] = None", "Install .* triton==3"),
    "a GPU that runs nothing": ("torch.cuda.is_available = lambda: True", "can't run a kernel"),
}


@pytest.mark.parametrize("cause", WITHOUT)
def test_where_it_cannot_be_had_one_warning_says_why(cause: str) -> None:
    fault, explanation = WITHOUT[cause]
    code = f"""
import sys, warnings
import torch
{fault}
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
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(explanation, done.stdout)
