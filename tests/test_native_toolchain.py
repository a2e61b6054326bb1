"""Which compiler builds the CPU kernel, and for which instruction set."""

import platform
import subprocess
from pathlib import Path

import pytest
import torch

from splash_units.kernels import native
from splash_units.kernels.native import building, toolchain
from splash_units.kernels.native.toolchain import EMULATED, FLAGS, Unavailable


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_a_compiler_is_what_CXX_names_else_a_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("c++", "mine"):
        script(tmp_path / name, f'echo "{name} 1.0"')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    usual = toolchain.find_compiler()
    monkeypatch.setenv("CXX", "mine")
    mine = toolchain.find_compiler()
    monkeypatch.setenv("CXX", "mine -m64")
    with_argument = toolchain.find_compiler()
    assert usual.command == (str(tmp_path / "c++"),)
    assert mine.command == (str(tmp_path / "mine"),)
    assert with_argument.command == (str(tmp_path / "mine"), "-m64")
    assert len({usual.identity, mine.identity, with_argument.identity}) == 3


def test_without_a_compiler_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(Unavailable, match=r"no C\+\+ compiler.*apt install g\+\+"):
        toolchain.find_compiler()
    monkeypatch.setenv("CXX", "nothing-like-it")
    with pytest.raises(Unavailable, match=r"CXX names, 'nothing-like-it', is not there.*apt"):
        toolchain.find_compiler()


def test_a_compiler_that_does_not_run_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", script(tmp_path / "stub", "echo 'no developer tools' >&2; exit 1"))
    with pytest.raises(Unavailable, match=r"does not run: no developer tools.*xcode-select"):
        toolchain.find_compiler()


@pytest.mark.parametrize(
    ("capability", "available"),
    [
        ("AVX512", ("avx512", "avx2", "portable")),
        ("AVX2", ("avx2", "portable")),
        ("DEFAULT", ("portable",)),
        ("SVE256", ("portable",)),
    ],
)
def test_the_widest_instruction_set_unless_one_is_forced(
    capability: str, available: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.delenv("SPLASH_NATIVE_ISA", raising=False)
    assert toolchain.chosen_instruction_set() == available[0]
    for name in FLAGS:
        monkeypatch.setenv("SPLASH_NATIVE_ISA", name)
        if name in available or (name == EMULATED and "avx2" in available):
            assert toolchain.chosen_instruction_set() == name
        else:
            allowed = f"{name}: this CPU does not run it; allowed here: {', '.join(available)}$"
            with pytest.raises(ValueError, match=allowed):
                toolchain.chosen_instruction_set()


def test_an_unknown_instruction_set_is_the_callers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_outcome", None)
    monkeypatch.setenv("SPLASH_NATIVE_ISA", "sse9")
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"sse9: there is no such kernel; allowed here: .*portable"
        ):
            native.load()


NOT_RUN_HERE = sorted({*FLAGS} - {EMULATED, *toolchain.available_instruction_sets()})


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are for x86-64")
@pytest.mark.skipif(not NOT_RUN_HERE, reason="this CPU runs them all")
@pytest.mark.parametrize("name", NOT_RUN_HERE or [""])
def test_what_this_cpu_does_not_run_is_at_least_cpp(name: str) -> None:
    compiler = toolchain.find_compiler()
    headers = f"-isystem{Path(torch.__file__).parent / 'include'}"
    for unit in building.translation_units(building.SOURCES, name):
        if FLAGS[name][0] in unit.flags:
            source = building.SOURCES / unit.source
            subprocess.run(
                [*compiler.command, *unit.flags, headers, "-fsyntax-only", source], check=True
            )
