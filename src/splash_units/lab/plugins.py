"""A user's own units, networks and data sets: modules that register them when imported.

A module is named on the command line (`--plugin my_units`, or a path ending in .py), or by an
installed package's entry point in the group `splash_units.plugins`. Worker processes load what
`loaded()` lists, so a name that works here works there.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

GROUP = "splash_units.plugins"

_loaded: dict[str, None] = {}


def load(names: Iterable[str]) -> None:
    """Import each module once; ValueError names the one that cannot be imported, and why."""
    for name in names:
        if name not in _loaded:
            load_from(name, name)


def load_from(name: str, where: str) -> None:
    """Import a plugin of this name from a module or file that may lie elsewhere here."""
    try:
        _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    except Exception as error:
        raise ValueError(f"plugin {name!r}: {type(error).__name__}: {error}") from error
    _loaded[name] = None


def module_of(name: str) -> ModuleType:
    """The module of a name, or of a path that ends in .py."""
    return _import_file(Path(name)) if name.endswith(".py") else _import_module(name)


def load_installed() -> None:
    """Import the plugins that installed packages announce."""
    load(point.value for point in entry_points(group=GROUP))


def loaded() -> tuple[str, ...]:
    """What was loaded, in order, for a worker process to load too."""
    return tuple(_loaded)


def _import_module(name: str) -> ModuleType:
    # An installed command does not look for modules where it was called; `python -m` does.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name.partition(":")[0])


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError("no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python module")
    module = importlib.util.module_from_spec(spec)
    # Classes of the plugin find their module under its name, as those of any other module do.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
