"""Who imports whom, read from the syntax trees: downward only, and the library stands alone."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import splash_units

PACKAGE = "splash_units"
ROOT = Path(splash_units.__file__).parent


@dataclass(frozen=True)
class Import:
    """One name imported: the module it comes from, and whether importing the importer needs it."""

    target: str
    lazy: bool


def module_name(path: Path) -> str:
    parts = (PACKAGE, *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports_in(source: str, module: str, is_package: bool) -> set[Import]:
    return set(_walk(ast.parse(source), module, is_package, lazy=False))


def _walk(node: ast.AST, module: str, is_package: bool, lazy: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, lazy) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        source = _absolute(node, module, is_package)
        for alias in node.names:
            submodule = f"{source}.{alias.name}"
            yield Import(submodule if submodule in FILES else source, lazy)
    lazy = lazy or _runs_later(node)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, module, is_package, lazy)


def _runs_later(node: ast.AST) -> bool:
    """Inside a function, or for the type checker's eyes only."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.split(".")
    above = parts[: len(parts) - node.level + is_package]
    return ".".join([*above, node.module] if node.module else above)


IMPORTS = {
    name: imports_in(path.read_text(encoding="utf-8"), name, path.name == "__init__.py")
    for name, path in FILES.items()
}


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def third_party(module: str, *, lazy: bool) -> set[str]:
    """Packages of others that a module names; `lazy` counts those its functions ask for."""
    tops = {i.target.split(".")[0] for i in IMPORTS[module] if lazy or not i.lazy}
    return tops - sys.stdlib_module_names - {PACKAGE}


LIBRARY = [name for name in FILES if not within(name, f"{PACKAGE}.lab")]
TRITON = f"{PACKAGE}.kernels.triton"
KERNELS = [name for name in FILES if within(name, f"{PACKAGE}.kernels")]
ATTACKS = [name for name in FILES if within(name, f"{PACKAGE}.lab.attacks")]
# One picks a kernel; kernels know of each other, and benchmarks compare them.
MAY_NAME_A_KERNEL = {
    f"{PACKAGE}.functional",
    *KERNELS,
    *(name for name in FILES if within(name, f"{PACKAGE}.lab.benchmarks")),
}
# How C++ becomes a library says nothing about kernels.
BUILDS_CPP = {f"{PACKAGE}.kernels.native.{name}" for name in ("building", "cache", "toolchain")}

# What runs nothing, and what must therefore stay out of it.
RUNS_THINGS = ("training", "robustness", "cluster", "runner", "process", "models", "timing")
FORBIDDEN = {
    "studies": RUNS_THINGS,  # only declare
    "tables": RUNS_THINGS,  # read the store, never train
    "figures": RUNS_THINGS,
    "report": RUNS_THINGS,
    "statistics": (*RUNS_THINGS, "store"),
    "store": RUNS_THINGS,
    "data": ("models", "training", "store"),
    "models": ("training", "store", "data"),
    "training": ("cluster", "runner", "cli", "studies", "tables", "figures", "report"),
    "robustness": ("cluster", "runner", "cli", "studies", "tables", "figures", "report"),
}
EDGES = [
    (name, i.target)
    for name in FILES
    for i in sorted(IMPORTS[name], key=lambda i: i.target)
    if within(i.target, PACKAGE)
]


def test_the_reader_sees_every_form_of_import() -> None:
    source = (
        "import torch.nn as nn\n"
        "from . import unit\n"
        "from ..functional import splash\n"
        "if True:\n    from splash_units.lab import spec\n"
        "if TYPE_CHECKING:\n    from rich import print\n"
        "def f():\n    import matplotlib.pyplot\n"
    )
    assert imports_in(source, f"{PACKAGE}.shape.drawing", is_package=False) == {
        Import("torch.nn", lazy=False),
        Import(f"{PACKAGE}.shape", lazy=False),
        Import(f"{PACKAGE}.functional", lazy=False),
        Import(f"{PACKAGE}.lab.spec", lazy=False),
        Import("rich", lazy=True),
        Import("matplotlib.pyplot", lazy=True),
    }


def test_downward_only() -> None:
    """No module imports one that, by whatever way, imports it: there is an above and a below."""
    graph = {name: {t for source, t in EDGES if source == name and t != name} for name in FILES}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("module", KERNELS)
def test_kernels_import_torch_alone(module: str) -> None:
    allowed = {"torch", "triton"} if within(module, TRITON) else {"torch"}
    assert third_party(module, lazy=True) <= allowed
    assert all(within(t, f"{PACKAGE}.kernels") for source, t in EDGES if source == module)


@pytest.mark.parametrize("module", LIBRARY)
def test_the_library_never_imports_the_lab(module: str) -> None:
    assert not [t for source, t in EDGES if source == module and within(t, f"{PACKAGE}.lab")]


@pytest.mark.parametrize("module", LIBRARY)
def test_the_library_needs_torch_and_numpy_only(module: str) -> None:
    """What a function asks for when it is called, a picture or an export, is another matter."""
    extras = {"triton"} if within(module, TRITON) else set()
    assert third_party(module, lazy=False) <= {"torch", "numpy"} | extras


@pytest.mark.parametrize("module", [m for m in FILES if m not in MAY_NAME_A_KERNEL])
def test_only_functional_picks_a_kernel(module: str) -> None:
    named = {t for source, t in EDGES if source == module and within(t, f"{PACKAGE}.kernels")}
    assert not named - BUILDS_CPP


@pytest.mark.parametrize("module", ATTACKS)
def test_attacks_know_neither_models_nor_data(module: str) -> None:
    assert all(within(t, f"{PACKAGE}.lab.attacks") for source, t in EDGES if source == module)
    assert third_party(module, lazy=False) <= {"torch", "numpy"}


@pytest.mark.parametrize(
    ("part", "module"),
    [
        (part, module)
        for part in FORBIDDEN
        for module in FILES
        if within(module, f"{PACKAGE}.lab.{part}")
    ],
)
def test_the_lab_keeps_its_parts_apart(part: str, module: str) -> None:
    above = [f"{PACKAGE}.lab.{name}" for name in FORBIDDEN[part]]
    reached = {t for source, t in EDGES if source == module}
    assert not [t for t in reached if any(within(t, name) for name in above)]


def test_import_brings_nothing_but_torch_and_numpy() -> None:
    """Asked of a fresh interpreter: whatever torch itself imports is torch's business."""
    torch_alone, ours = (
        _modules_after(statement)
        for statement in ("import torch, numpy", "import torch, numpy, splash_units")
    )
    added = {name.split(".")[0] for name in ours - torch_alone}
    assert added - sys.stdlib_module_names - {"torch", "numpy"} == {PACKAGE}
    assert not [name for name in ours if within(name, f"{PACKAGE}.lab")]


def _modules_after(statement: str) -> set[str]:
    code = f"{statement}; import json, sys; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    return set(json.loads(output))
