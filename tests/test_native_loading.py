"""The CPU kernel as a caller meets it: operators, or one warning that says why there are none."""

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from splash_units import BatchNormSplash, Splash
from splash_units.kernels import native
from splash_units.kernels.native import toolchain
from splash_units.kernels.native.toolchain import Unavailable

FAILING_COMPILER = """
[ "$1" = --version ] && { echo "failing compiler 1.0"; exit 0; }
echo "In file included from somewhere:"
echo "native.cpp:1:2: error: expected a better machine"
seq 100
exit 1
"""


def failing_compiler(folder: Path) -> str:
    """What CXX must be for a compiler that always fails."""
    (folder / "fails.sh").write_text(FAILING_COMPILER)
    return f"sh {folder / 'fails.sh'}"


@pytest.fixture
def nothing_tried_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_outcome", None)
    monkeypatch.setattr(native, "_has_warned", False)
    monkeypatch.setenv("SPLASH_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("nothing_tried_yet")
@pytest.mark.parametrize("trouble", ["no compiler", "failed build", "no folder"])
def test_one_warning_says_why_there_is_no_kernel(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trouble == "no compiler":
        monkeypatch.setenv("CXX", "nothing-like-it")
        reason = r"nothing-like-it.*apt install g\+\+"
    elif trouble == "failed build":
        monkeypatch.setenv("CXX", failing_compiler(tmp_path))
        reason = r"exit code 1:\nnative.cpp:1:2: error: expected a better machine"
    else:
        (tmp_path / "cache").touch()
        reason = r"can't write.*set SPLASH_CACHE"
    with pytest.warns(RuntimeWarning, match=rf"(?s){reason}.*SPLASH_KERNEL=reference") as warned:
        assert native.load() is None
    assert len(warned) == 1
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert native.load() is None
        said = native.why_not()
    assert said is not None
    assert said in str(warned[0].message)


@pytest.mark.usefixtures("nothing_tried_yet")
@pytest.mark.parametrize("make", [Splash, lambda: BatchNormSplash(3)])
def test_a_wrong_setting_is_no_reason_for_another_kernel(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "calls", None)
    monkeypatch.delenv("SPLASH_KERNEL", raising=False)
    monkeypatch.setenv("SPLASH_NATIVE_ISA", "nonsense")
    with pytest.raises(ValueError, match=r"SPLASH_NATIVE_ISA=nonsense.*allowed here"):
        make()(torch.randn(4, 3))


@pytest.mark.usefixtures("nothing_tried_yet")
def test_a_compiler_that_cannot_be_read_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", '"g++')
    assert 'CXX="g++ is no command: No closing quotation' in str(native.why_not())


@pytest.mark.usefixtures("nothing_tried_yet")
def test_asking_why_not_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "nothing-like-it")
    said = native.why_not()
    assert said is not None
    assert "nothing-like-it" in said


@pytest.mark.usefixtures("nothing_tried_yet")
def test_a_library_that_does_not_load_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no.so").write_text("not a library")
    monkeypatch.setattr(native, "_library", lambda: tmp_path / "no.so")
    said = native.why_not()
    assert said is not None
    assert "does not load" in said
    assert "no.so" in said


@pytest.mark.usefixtures("nothing_tried_yet")
def test_threads_try_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def slow() -> Path:
        tries.append(threading.get_ident())
        time.sleep(0.1)
        raise Unavailable("tried")

    monkeypatch.setattr(native, "_library", slow)
    threads = [threading.Thread(target=native.why_not) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tries) == 1


def python(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_the_command_names_what_it_built() -> None:
    done = python("-m", "splash_units.kernels.native")
    assert done.returncode == 0, done.stderr
    path, told = done.stdout.splitlines()
    assert Path(path).is_file()
    assert told.startswith(f"{toolchain.chosen_instruction_set()}, ready after ")


def test_the_command_fails_with_the_compilers_words(tmp_path: Path) -> None:
    done = python(
        *("-m", "splash_units.kernels.native"),
        CXX=failing_compiler(tmp_path),
        SPLASH_CACHE=str(tmp_path / "cache"),
    )
    assert done.returncode == 1
    assert "In file included from somewhere:" in done.stderr
    assert "error: expected a better machine" in done.stderr
    assert "Traceback" not in done.stderr
