"""What this machine builds with and runs: its C++ compiler, the instruction sets of its CPU."""

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from typing import Final

import torch

EMULATED: Final = "avx512-emulated"

# Widest first: each CPU also runs all that stand below its own, and from AVX2 on EMULATED.
FLAGS: Final[dict[str, tuple[str, ...]]] = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "portable": (),
    # AVX-512's own code but for the instructions, for tests where no CPU has them. Its vectors are
    # many registers, which takes long to optimise; the last flag is what fused multiply-adds need.
    EMULATED: (
        *("-mavx2", "-mfma", "-mf16c", "-DSPLASH_AVX512_EMULATED"),
        *("-O1", "-fno-inline", "-fexpensive-optimizations"),
    ),
}

_USUAL_COMPILERS = ("c++", "g++", "clang++")
_HOW_TO_INSTALL = (
    "Install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; "
    "conda: conda install cxx-compiler; macOS: xcode-select --install) or name it in CXX"
)


class Unavailable(Exception):
    """There is no native kernel here: the message says why, and what to do about it."""

    def __init__(self, message: str, compiler_output: str = "") -> None:
        super().__init__(message)
        self.compiler_output = compiler_output


class WrongSetting(ValueError):
    """An environment variable asks for what there is not: nobody goes on without it in silence."""


@dataclass(frozen=True)
class Compiler:
    """How to call a C++ compiler, and what tells it from others: its version and arguments."""

    command: tuple[str, ...]
    identity: str


def find_compiler() -> Compiler:
    """The compiler that CXX names, else the first of the usual ones."""
    chosen = os.environ.get("CXX", "").strip()
    for candidate in (chosen,) if chosen else _USUAL_COMPILERS:
        program, *arguments = _words(candidate)
        if path := shutil.which(program):
            command = (path, *arguments)
            return Compiler(command, shlex.join((_version(command), *arguments)))
    missing = (
        f"the compiler that CXX names, {chosen!r}, is not there"
        if chosen
        else f"no C++ compiler found (looked for {', '.join(_USUAL_COMPILERS)})"
    )
    raise Unavailable(f"{missing}. {_HOW_TO_INSTALL}")


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise Unavailable(f"CXX={command} is no command: {error}. {_HOW_TO_INSTALL}") from error


def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the C++ compiler does not run: {error}. {_HOW_TO_INSTALL}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise Unavailable(
            f"the C++ compiler {shlex.join(command)} does not run: {said}. {_HOW_TO_INSTALL}", said
        )
    return done.stdout


def available_instruction_sets() -> tuple[str, ...]:
    """What this CPU runs, the widest first."""
    names = tuple(name for name in FLAGS if name != EMULATED)
    # torch asks the CPU; whatever it names beside these two has no code of its own here.
    capability = torch.backends.cpu.get_cpu_capability()
    widest = {"AVX512": "avx512", "AVX2": "avx2"}.get(capability, "portable")
    return names[names.index(widest) :]


def chosen_instruction_set() -> str:
    """What SPLASH_NATIVE_ISA names, else the widest that this CPU runs."""
    available = available_instruction_sets()
    chosen = os.environ.get("SPLASH_NATIVE_ISA", "").strip() or available[0]
    if chosen not in available and (chosen != EMULATED or "avx2" not in available):
        reason = "this CPU does not run it" if chosen in FLAGS else "there is no such kernel"
        raise WrongSetting(
            f"SPLASH_NATIVE_ISA={chosen}: {reason}; allowed here: {', '.join(available)}"
        )
    return chosen
