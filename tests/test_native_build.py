"""How the CPU kernel is built, kept and found again, and what happens where it can't be.

A small stand-in for the kernel, of the same make, is built with a compiler that keeps a diary.
"""

import ctypes
import errno
import fcntl
import os
import platform
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from splash_units.kernels.native import building, cache, toolchain
from splash_units.kernels.native.toolchain import FLAGS, Compiler, Unavailable

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the kernel is built on POSIX only")


@dataclass(frozen=True)
class Workshop:
    """Sources of a library, a compiler that writes down what it does, and a cache folder."""

    sources: Path
    folder: Path
    compiler: Compiler
    diary: Path

    def library(self, instruction_set: str = "portable") -> Path:
        return building.library(self.folder, instruction_set, self.compiler, self.sources)

    def done(self) -> list[str]:
        """What was compiled and linked since the last time this was asked."""
        entries = self.diary.read_text().split() if self.diary.exists() else []
        self.diary.unlink(missing_ok=True)
        return sorted(entries)


EVERYTHING = ["library.so", "tiny.cpp.o", "tiny_ops.cpp.o"]


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "tiny.h").write_text("int arithmetic();\n")
    (sources / "number.h").write_text("constexpr int number = 42;\n")
    (sources / "tiny.cpp").write_text(
        '#include "tiny.h"\n#include "number.h"\nint arithmetic() { return number; }\n'
    )
    (sources / "tiny_ops.cpp").write_text(
        '#include "tiny.h"\nextern "C" int answer() { return arithmetic(); }\n'
    )
    diary = tmp_path / "diary"
    real = toolchain.find_compiler()
    # The last argument is what it makes.
    noting = f'for made; do :; done; basename "$made" >> {diary}; exec "$@"'
    compiler = Compiler(("sh", "-c", noting, "sh", *real.command), real.identity)
    return Workshop(sources, tmp_path / "cache", compiler, diary)


def answer(library: Path) -> int:
    result: int = ctypes.CDLL(str(library)).answer()
    return result


# --- the cache -----------------------------------------------------------------------------------


def test_builds_once_with_one_line_then_finds_it_in_silence(
    workshop: Workshop, capfd: pytest.CaptureFixture[str]
) -> None:
    first = workshop.library()
    said = capfd.readouterr()
    assert workshop.done() == EVERYTHING
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "building" in said.err
    assert str(workshop.folder) in said.err

    assert workshop.library() == first
    assert workshop.done() == []
    assert capfd.readouterr() == ("", "")
    assert answer(first) == 42


def test_leaves_nothing_unfinished_and_nothing_others_can_write(workshop: Workshop) -> None:
    workshop.library()
    assert not list(workshop.folder.glob("building-*"))
    assert stat.S_IMODE(workshop.folder.stat().st_mode) == 0o700


def test_clears_away_what_a_killed_build_left(workshop: Workshop) -> None:
    long_ago, just_now = (workshop.folder / f"building-{name}" for name in ("old", "new"))
    for left in (long_ago, just_now):
        left.mkdir(mode=0o700, parents=True)
        (left / "native.cpp").touch()
    os.utime(long_ago, (0, 0))
    workshop.folder.chmod(0o700)
    workshop.library()
    assert list(workshop.folder.glob("building-*/")) == [just_now]


def test_another_instruction_set_reuses_the_operators(workshop: Workshop) -> None:
    available = list(FLAGS) if platform.machine() in ("x86_64", "AMD64") else ["portable"]
    libraries = {workshop.library(name) for name in available}
    assert len(libraries) == len(available)
    assert workshop.done().count("tiny_ops.cpp.o") == 1


def test_a_changed_header_compiles_only_what_includes_it(workshop: Workshop) -> None:
    before = workshop.library()
    workshop.done()
    (workshop.sources / "number.h").write_text("constexpr int number = 43;\n")
    after = workshop.library()
    assert workshop.done() == ["library.so", "tiny.cpp.o"]
    assert (answer(before), answer(after)) == (42, 43)


@pytest.mark.parametrize("change", ["torch", "machine", "compiler"])
def test_is_not_shared_by_what_is_not_alike(
    workshop: Workshop, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = workshop.library()
    workshop.done()
    compiler = workshop.compiler
    if change == "torch":
        monkeypatch.setattr(torch, "__version__", "2.13.1+cpu")
    elif change == "machine":
        monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    else:
        compiler = Compiler(compiler.command, compiler.identity + ", patched")
    after = building.library(workshop.folder, "portable", compiler, workshop.sources)
    assert after != before
    assert workshop.done() == EVERYTHING


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip_a_byte])
def test_a_damaged_library_is_linked_again(
    workshop: Workshop, damage: Callable[[Path], None]
) -> None:
    damage(workshop.library())
    workshop.done()
    assert answer(workshop.library()) == 42
    assert workshop.done() == ["library.so"]


def test_a_damaged_object_is_compiled_again(workshop: Workshop) -> None:
    workshop.library().unlink()
    workshop.done()
    (damaged,) = workshop.folder.glob("tiny_ops-*.o")
    truncate(damaged)
    assert answer(workshop.library()) == 42
    assert workshop.done() == ["library.so", "tiny_ops.cpp.o"]


ONE_OF_TWO = """
import sys, time
from pathlib import Path
from splash_units.kernels.native import building
from splash_units.kernels.native.toolchain import Compiler
sources, folder, ready, identity, *command = sys.argv[1:]
Path(ready).touch()
while len(list(Path(ready).parent.glob("ready-*"))) < 2:
    time.sleep(0.01)
print(building.library(Path(folder), "portable", Compiler(tuple(command), identity), Path(sources)))
"""


def test_two_processes_at_once_build_once(workshop: Workshop, tmp_path: Path) -> None:
    places = (workshop.sources, workshop.folder)
    compiler = (workshop.compiler.identity, *workshop.compiler.command)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_OF_TWO, *places, tmp_path / f"ready-{i}", *compiler],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    first, second = (process.communicate(timeout=120)[0].strip() for process in processes)
    assert first == second
    assert answer(Path(first)) == 42
    assert workshop.done() == EVERYTHING


def test_without_locks_whoever_comes_second_is_right_too(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("no locks on this file system")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    both_are_linking = threading.Barrier(2)
    store = cache.store

    def store_together(folder: Path, name: str, file: Path) -> Path:
        if file.suffix == ".so":
            both_are_linking.wait(60)
        return store(folder, name, file)

    monkeypatch.setattr(cache, "store", store_together)
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(workshop.library())) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer(result) for result in results] == [42, 42]
    assert workshop.done() == sorted(EVERYTHING * 2)


# --- whom the cache trusts -----------------------------------------------------------------------


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `path` another user's; who may not do that becomes another user instead."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)


def test_refuses_a_folder_of_another_user(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.library()
    give_away(workshop.folder, monkeypatch)
    with pytest.raises(Unavailable, match=r"belongs to another user.*SPLASH_CACHE"):
        workshop.library()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_refuses_a_folder_that_others_can_write_to(workshop: Workshop, mode: int) -> None:
    workshop.library()
    workshop.folder.chmod(mode)
    with pytest.raises(Unavailable, match=r"others can write.*chmod go-w.*SPLASH_CACHE"):
        workshop.library()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_passes_over_a_file_of_another_user(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_away(workshop.library(), monkeypatch)
    workshop.done()
    workshop.library()
    assert workshop.done() == ["library.so"]


def make_read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mode has it; no mode keeps root from writing, so there `open` has to."""
    folder.chmod(0o500)
    if os.geteuid() == 0:
        plain = Path.open

        def refuse(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if "w" in mode:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return plain(path, mode, *rest, **options)

        monkeypatch.setattr(Path, "open", refuse)


def test_a_folder_that_cannot_be_made_is_explained(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"can't write to the cache folder.*SPLASH_CACHE"):
        building.library(
            tmp_path / "file" / "cache", "portable", workshop.compiler, workshop.sources
        )


def test_a_read_only_folder_is_explained_but_serves_what_it_has(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = workshop.library()
    make_read_only(workshop.folder, monkeypatch)
    assert workshop.library() == built
    with pytest.raises(Unavailable, match=r"can't write to the cache folder.*SPLASH_CACHE"):
        workshop.library("avx2")


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("SPLASH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.default_folder() == Path("/home/me/.cache/splash-units/kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache.default_folder() == Path("/home/me/.cache/splash-units/kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.default_folder() == Path("/xdg/splash-units/kernels")
    monkeypatch.setenv("SPLASH_CACHE", "~/mine")
    assert cache.default_folder() == Path("/home/me/mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPLASH_CACHE", "here")
    assert cache.default_folder() == tmp_path / "here"


# --- builds that fail ----------------------------------------------------------------------------


def test_without_a_compiler_what_was_built_serves(workshop: Workshop) -> None:
    missing = Unavailable("no compiler")
    with pytest.raises(Unavailable, match="no compiler"):
        building.library(workshop.folder, "portable", missing, workshop.sources)
    built = workshop.library()
    assert building.library(workshop.folder, "portable", missing, workshop.sources) == built


@pytest.mark.parametrize(
    ("source", "objection"),
    [
        ("int arithmetic() { return nowhere; }\n", "error:.*nowhere"),
        ("int arithmetic();\nint answer = arithmetic();\n", "multiple definition|duplicate symbol"),
    ],
    ids=["compiler", "linker"],
)
def test_a_failed_build_leaves_nothing_but_the_tools_own_words(
    workshop: Workshop, source: str, objection: str
) -> None:
    (workshop.sources / "tiny.cpp").write_text(source)
    with pytest.raises(Unavailable, match=f"exit code 1:\n(.*\n)*.*({objection})") as raised:
        workshop.library()
    assert "tiny" in raised.value.compiler_output
    assert not list(workshop.folder.glob("*.so"))
    assert not list(workshop.folder.glob("building-*"))


@pytest.mark.parametrize("links_nothing", [False, True], ids=["compiler", "linker"])
def test_a_compiler_that_makes_nothing_is_named(workshop: Workshop, links_nothing: bool) -> None:
    compiler, made = Compiler(("true",), "idle"), "tiny.cpp.o"
    if links_nothing:
        only_compile = 'case "$*" in *" -c tiny"*) exec "$@";; esac'
        command = ("sh", "-c", only_compile, "sh", *workshop.compiler.command)
        compiler, made = Compiler(command, "idle"), "library.so"
    with pytest.raises(Unavailable, match=rf"compiler {compiler.command[0]} .*{made} is not there"):
        building.library(workshop.folder, "portable", compiler, workshop.sources)
    assert not list(workshop.folder.glob("building-*"))


def test_of_long_errors_the_first_is_quoted(workshop: Workshop) -> None:
    many = "".join(f"int wrong_{i} = nowhere_{i};\n" for i in range(30))
    (workshop.sources / "number.h").write_text(many)
    with pytest.raises(Unavailable) as raised:
        workshop.library()
    message = str(raised.value)
    assert "nowhere_0" in message
    assert "nowhere_29" not in message
    assert "nowhere_29" in raised.value.compiler_output


def test_no_compiler_outlives_its_time(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heart = tmp_path / "beats"
    endless = f"(while :; do echo >> {heart}; sleep 0.02; done) & wait"
    monkeypatch.setattr(building, "_TIME_LIMIT", 0.3)
    with pytest.raises(Unavailable, match="took over"):
        building.library(
            workshop.folder,
            "portable",
            Compiler(("sh", "-c", endless), "endless"),
            workshop.sources,
        )
    beats = heart.stat().st_size
    assert beats > 0
    time.sleep(0.2)
    assert heart.stat().st_size == beats
