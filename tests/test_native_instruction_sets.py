"""The CPU kernel's tests once more, for each instruction set that is not the usual one here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from splash_units.kernels import native
from splash_units.kernels.native import toolchain
from splash_units.kernels.native.toolchain import EMULATED

if native.load() is None:
    pytest.skip(f"no CPU kernel here: {native.why_not()}", allow_module_level=True)

OF_THE_ARITHMETIC = (
    "test_native.py",
    "test_native_bfloat16.py",
    "test_native_batch_norm.py",
    "test_native_own_slopes.py",
    "test_native_layout.py",
)
# What takes long and would find no more: torch's own checks, and much of the same.
OTHERS = "promises or ten_million or four_million or saved or compiled"

RUN = """
import sys
import pytest
from splash_units.kernels import native
name, *arguments = sys.argv[1:]
assert native.load().instruction_set() == name
sys.exit(pytest.main(arguments))
"""


def other_instruction_sets() -> list[str]:
    """All that this CPU runs, but for the one that the rest of the tests is run with."""
    available = toolchain.available_instruction_sets()
    emulated = (EMULATED,) if "avx2" in available and "avx512" not in available else ()
    return sorted({*available, *emulated} - {toolchain.chosen_instruction_set()})


@pytest.mark.parametrize("name", other_instruction_sets())
def test_each_passes_the_tests_of_the_arithmetic(name: str) -> None:
    files = (str(Path(__file__).with_name(file)) for file in OF_THE_ARITHMETIC)
    options = ("-q", "-x", "-p", "no:cacheprovider", "-k", f"not ({OTHERS})")
    done = subprocess.run(
        [sys.executable, "-c", RUN, name, *options, *files],
        env={**os.environ, "SPLASH_NATIVE_ISA": name},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
