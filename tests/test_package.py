"""What a user gets who installs the package: its metadata, its types, and every source file."""

import tomllib
import zipfile
from importlib import metadata, resources
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import splash_units

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCES = REPOSITORY / "src" / "splash_units"
NOT_SHIPPED = {"__pycache__", ".so", ".pyc", ".o"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel as it would be published, built from this tree."""
    directory = tmp_path_factory.mktemp("wheel")
    (path,) = WheelBuilder(str(REPOSITORY)).build(directory=str(directory), versions=["standard"])
    return zipfile.ZipFile(path)


def test_one_version() -> None:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["version"]
    assert metadata.version("splash-units") == splash_units.__version__ == declared


def test_needs_torch_and_numpy_only() -> None:
    required = [
        requirement
        for requirement in metadata.requires("splash-units") or []
        if "extra ==" not in requirement
    ]
    assert {requirement.split(">")[0].split("<")[0] for requirement in required} == {
        "torch",
        "numpy",
    }


def test_has_its_extras_and_its_licence() -> None:
    described = metadata.metadata("splash-units")
    assert {"lab", "plot", "onnx", "dev"} <= set(described.get_all("Provides-Extra") or [])
    assert described["License-Expression"] == "MIT"
    assert (REPOSITORY / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")


def test_is_typed() -> None:
    assert resources.files("splash_units").joinpath("py.typed").is_file()


@pytest.mark.parametrize(
    "name", ["Splash", "splash", "convert", "parameter_groups", "fold", "freeze_shapes"]
)
def test_public_names_are_callable(name: str) -> None:
    """`convert` above all: a submodule of the same name must not hide the function."""
    assert callable(getattr(splash_units, name))


def test_wheel_carries_every_source_file(wheel: zipfile.ZipFile) -> None:
    """Kernels are built where they run, so their C++ must travel with the Python."""
    expected = {
        path.relative_to(SOURCES.parent).as_posix()
        for path in SOURCES.rglob("*")
        if path.is_file() and not NOT_SHIPPED & {path.suffix, *path.parts}
    }
    shipped = {name for name in wheel.namelist() if name.startswith("splash_units/")}
    assert shipped == expected
    assert "splash_units/py.typed" in shipped


def test_wheel_carries_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"splash_units", f"splash_units-{splash_units.__version__}.dist-info"}
