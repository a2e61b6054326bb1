"""Where the GPU kernel can be tested: on a GPU if there is one, else in Triton's interpreter.

The interpreter must be chosen before triton is first imported. If another test of this process was
earlier, a test file runs itself in a process of its own.
"""

import importlib.util
import os
import subprocess
import sys
from unittest import mock

import pytest
import torch
from torch import Tensor

from splash_units.kernels import triton as kernel

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
with mock.patch.dict(os.environ, {} if DEVICE == "cuda" else {"TRITON_INTERPRET": "1"}):
    loaded = kernel.load()
    assert loaded is not None
    OPERATORS = loaded
    RUNS_HERE = DEVICE == "cuda" or kernel.interpreted()
    if RUNS_HERE:  # Triton looks at the variable once more in the first launch
        OPERATORS.splash(*torch.zeros(4, 1, device=DEVICE))

runs_kernel = pytest.mark.skipif(not RUNS_HERE, reason="runs in a process of its own")
runs_no_kernel = pytest.mark.skipif(RUNS_HERE, reason="the other tests run here")

# The slopes' own shape, how many dimensions of x stand to their right, and x's shape; the second of
# each kind is more than one tile.
SHARINGS = {
    "layer": ((), 0, (3, 4, 5, 3)),
    "layer, tiles": ((), 0, (2500,)),
    "channel": ((2,), 2, (3, 2, 5, 3)),
    "channel, tiles": ((2,), 1, (3, 2, 1100)),
    "token": ((6,), 0, (3, 5, 6)),
    "token, tiles": ((18,), 0, (140, 18)),
    "unit": ((4, 5), 0, (3, 4, 5)),
    "middle": ((2, 2), 1, (3, 2, 2, 5)),
    "ones": ((1, 2), 1, (2, 4, 2, 3)),
    "one between": ((2, 1, 3), 1, (2, 2, 1, 3, 4)),
}


def assert_passes_in_a_process_of_its_own(file: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Inputs that reach every segment of the default hinges."""
    return (2 * torch.randn(shape, generator=torch.manual_seed(seed))).to(dtype)


def slopes(hinges: int, *own: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return normal(hinges, *own, dtype=dtype, seed=1), normal(hinges, *own, dtype=dtype, seed=2)


def on_device(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().to(DEVICE) for t in tensors]
