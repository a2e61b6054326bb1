"""From C++ to a library: compile what is not compiled yet, link, and keep both in the cache.

Sources named `*_ops.cpp` hold torch's operators. They need all of torch's headers, which takes most
of the time, and are the same for every instruction set; so objects are kept one by one. Sources
named `*_python.cpp` also need Python's headers, and are left out where there are none. All others
hold arithmetic and are compiled for one instruction set.

A name in the cache is made of all that the result depends on: torch, the compiler and its flags,
the kind of machine, and the text of a source with all that it includes.
"""

import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

import torch

from splash_units.kernels.native import cache
from splash_units.kernels.native.cache import digest
from splash_units.kernels.native.toolchain import FLAGS, Compiler, Unavailable

SOURCES: Final = Path(__file__).resolve().parent

_TORCH = Path(torch.__file__).resolve().parent
_LANGUAGE = ("-std=c++20", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=1")
_ARITHMETIC = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi")
_OPERATORS = ("-O2",)
# Other for each Python that an object is compiled for, and so is what it is called. (The suffix of
# its extension modules is known without reading all of sysconfig.)
_PYTHON = (f"-DSPLASH_PYTHON_ABI={EXTENSION_SUFFIXES[0].split('.')[1]}",)
# Without a search path for torch's libraries: they are in the process already, wherever torch is.
_LINK = ("-shared", "-ltorch_python", "-ltorch_cpu", "-lc10")
# Python itself is in the process too, but macOS's linker has to be told.
_LINK_ON_MACOS = ("-undefined", "dynamic_lookup")

_QUOTED_INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_UNFINISHED = "building-"
_TIME_LIMIT = 900.0  # seconds; some forty are usual
_NOTICE = "building the CPU kernel, once, in {folder}; it takes about a minute"


@dataclass(frozen=True)
class TranslationUnit:
    """A source file with the flags it is compiled with and the text of all that it includes."""

    source: str
    flags: tuple[str, ...]
    texts: tuple[tuple[str, bytes], ...]

    @property
    def key(self) -> str:
        texts = (part for name, text in self.texts for part in (name, text))
        return digest(_foundation(), *self.flags, *texts)

    @property
    def name(self) -> str:
        return f"{Path(self.source).stem}-{self.key}"


def _foundation() -> str:
    """What every object rests on beside its compiler."""
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
    version = (torch.__version__, torch.version.git_version)
    return repr((*version, platform.system(), platform.machine(), libc))


def translation_units(sources: Path, instruction_set: str) -> tuple[TranslationUnit, ...]:
    """What the library is made of, read once: an edit while compilers run must not be half in."""
    return tuple(
        TranslationUnit(path.name, _flags(path, instruction_set), tuple(_texts(path, {}).items()))
        for path in sorted(sources.glob("*.cpp"))
        if has_python_headers() or not path.stem.endswith("_python")
    )


def has_python_headers() -> bool:
    """Whether this Python came with its headers, which many distributions pack apart."""
    return (_python_include() / "Python.h").is_file()


def _python_include() -> Path:
    return Path(sysconfig.get_path("include"))


def _flags(source: Path, instruction_set: str) -> tuple[str, ...]:
    if source.stem.endswith("_python"):
        return _LANGUAGE + _OPERATORS + _PYTHON
    if source.stem.endswith("_ops"):
        return _LANGUAGE + _OPERATORS
    return _LANGUAGE + _ARITHMETIC + FLAGS[instruction_set]


def _texts(file: Path, seen: dict[str, bytes]) -> dict[str, bytes]:
    """The text of `file` and of its neighbours that it includes, added to `seen`."""
    seen[file.name] = file.read_bytes()
    for name in _QUOTED_INCLUDE.findall(seen[file.name]):
        if name.decode() not in seen:
            _texts(file.with_name(name.decode()), seen)
    return seen


def library(
    folder: Path,
    instruction_set: str,
    compiler: Compiler | Unavailable,
    sources: Path = SOURCES,
    notice: str | None = _NOTICE,
) -> Path:
    """The library for `instruction_set` in the cache `folder`, built if it is not there.

    Without a compiler, what any compiler has built will do. A `notice` tells who waits for one.
    """
    units = translation_units(sources, instruction_set)
    name = f"{instruction_set}-torch-{torch.__version__}-{digest(*(unit.key for unit in units))}"
    cache.open_folder(folder)
    if isinstance(compiler, Unavailable):
        if built := cache.find(folder, name, ".so"):
            return built
        raise compiler
    maker = digest(compiler.identity)
    name = f"{name}-{maker}"
    if built := cache.find(folder, name, ".so"):
        return built
    with cache.lock(folder):
        if (built := cache.find(folder, name, ".so")) is None:
            built = _build(folder, name, units, compiler, notice)
        return built


def _build(
    folder: Path,
    name: str,
    units: Sequence[TranslationUnit],
    compiler: Compiler,
    notice: str | None,
) -> Path:
    _clear_away_what_was_cut_short(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder) as work:
            objects = _objects(folder, Path(work), units, compiler, notice)
            linked = Path(work, "library.so")
            link = [*compiler.command, *map(str, objects), f"-L{_TORCH / 'lib'}", *_LINK]
            link += _LINK_ON_MACOS if sys.platform == "darwin" else ()
            _run_together([[*link, "-o", str(linked)]], Path(work))
            return cache.store(folder, name, linked)
    except OSError as error:
        raise cache.not_writable(folder, error) from error


def _clear_away_what_was_cut_short(folder: Path) -> None:
    """Remove what builds left that were killed; one that still runs is younger than the limit."""
    for work in folder.glob(f"{_UNFINISHED}*/"):
        with suppress(OSError):
            if time.time() - work.stat().st_mtime > 2 * _TIME_LIMIT:
                shutil.rmtree(work)


def _objects(
    folder: Path,
    work: Path,
    units: Iterable[TranslationUnit],
    compiler: Compiler,
    notice: str | None,
) -> list[Path]:
    maker = digest(compiler.identity)
    found = {unit: cache.find(folder, f"{unit.name}-{maker}", ".o") for unit in units}
    missing = [unit for unit, path in found.items() if path is None]
    if missing:
        if notice:
            print("splash_units:", notice.format(folder=folder), file=sys.stderr, flush=True)
        _compile(missing, work, compiler)
    for unit in missing:
        found[unit] = cache.store(folder, f"{unit.name}-{maker}", work / f"{unit.source}.o")
    return [path for path in found.values() if path is not None]


def _compile(units: Iterable[TranslationUnit], work: Path, compiler: Compiler) -> None:
    include = (_TORCH / "include", _TORCH / "include/torch/csrc/api/include", _python_include())
    commands = []
    for unit in units:
        for name, text in unit.texts:
            (work / name).write_bytes(text)
        output = ("-c", unit.source, "-o", f"{unit.source}.o")
        commands.append(
            [*compiler.command, *unit.flags, *(f"-isystem{path}" for path in include), *output]
        )
    _run_together(commands, work)


def _run_together(commands: Sequence[Sequence[str]], work: Path) -> None:
    """Run `commands` at the same time; none outlives this call. Each ends with what it makes."""
    deadline = time.monotonic() + _TIME_LIMIT
    with ExitStack() as running:
        processes = []
        for command in commands:
            process = subprocess.Popen(
                command,
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C"},  # its errors are looked for in English
                process_group=0,
            )
            running.enter_context(process)
            running.callback(_stop, process)
            processes.append(process)
        for process, command in zip(processes, commands, strict=True):
            _finish(process, deadline)
            if not (work / command[-1]).is_file():
                raise Unavailable(
                    f"the compiler {command[0]} says that all went well, but {command[-1]} is not "
                    "there: name another in CXX",
                    shlex.join(command),
                )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End `process` if it still runs, and what it has started: a compiler is a few programs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _finish(process: "subprocess.Popen[bytes]", deadline: float) -> None:
    command = shlex.join(map(str, process.args))  # type: ignore[arg-type]
    try:
        output, _ = process.communicate(timeout=deadline - time.monotonic())
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the compiler took over {_TIME_LIMIT:.0f} s: {command}") from error
    if process.returncode != 0:
        said = output.decode(errors="replace").strip()
        raise Unavailable(
            f"the build failed with exit code {process.returncode}:\n{_excerpt(said)}\n"
            "It needs torch's headers and C++20, which g++ 12 is known to do; CXX names another "
            "compiler. `python -m splash_units.kernels.native` tries again and shows all it says",
            f"{command}\n{said}",
        )


def _excerpt(said: str, length: int = 6) -> str:
    """From the first error on: a compiler begins with where it was included from."""
    lines = said.splitlines()
    first = next((i for i, line in enumerate(lines) if "error" in line.lower()), 0)
    first = max(0, min(first, len(lines) - length))  # a linker ends with its one line of error
    return "\n".join(lines[first : first + length])
