"""Data sets by name: load, get, list and register them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .canonical import CANONICAL
from .dataset import DataError, DataSet
from .digits import load_digits
from .download import fetch_set
from .formats import find, read_set

Loader = Callable[..., DataSet]

_registered: dict[str, Loader] = {}


@dataclass(frozen=True)
class Availability:
    """Whether a data set is there, where, and how large in bytes."""

    name: str
    present: bool
    path: Path | None
    bytes: int
    note: str


def names() -> tuple[str, ...]:
    """The names that `load` knows: the embedded set, the canonical ones, then registered ones."""
    return ("digits", *CANONICAL, *_registered)


def load(name: str, *, root: Path | None = None, verify: bool = True, **options: Any) -> DataSet:
    """Load a data set by name.

    Canonical files are looked for under `root`, else under the folder that the environment
    variable SPLASH_DATA names, else in the user's cache folder. `verify` compares them with their
    known digests. `options` are for the loader of a registered set.
    """
    _check_name(name)
    if name in _registered:
        return _registered[name](**options)
    if options:
        raise TypeError(f"{name}: takes no options, got {', '.join(sorted(options))}")
    if name == "digits":
        return load_digits()
    return read_set(CANONICAL[name], data_root(root), verify=verify)


def get(
    name: str,
    *,
    root: Path | None = None,
    progress: bool | None = None,
    mirrors: Sequence[str] | None = None,
) -> Path:
    """Download what is missing of a data set, check it, and return its folder.

    Files already there are checked and kept. `progress` shows a bar; None means on a terminal.
    `mirrors` are base addresses to use instead of the public ones.
    """
    _check_name(name)
    if name not in CANONICAL:
        raise DataError(f"{name}: nothing to download, it needs no files")
    return fetch_set(CANONICAL[name], data_root(root), progress=progress, mirrors=mirrors)


def available(root: Path | None = None) -> list[Availability]:
    """What is there of every data set. Sizes are looked at, digests only by `load` and `get`."""
    folder = data_root(root)
    return [
        Availability("digits", True, None, 0, "embedded, needs no files"),
        *(_canonical_availability(name, folder) for name in CANONICAL),
        *(Availability(name, True, None, 0, "registered") for name in _registered),
    ]


def count(name: str) -> tuple[int, int]:
    """How many training and test images a data set has; canonical files need not be there."""
    _check_name(name)
    if name in CANONICAL:
        source = CANONICAL[name]
        return source.count(source.train_files), source.count(source.test_files)
    images = load(name)
    return len(images.train_labels), len(images.test_labels)


def register(name: str, source: DataSet | Loader, *, replace: bool = False) -> None:
    """Make a data set, or a function that returns one, known by `name` everywhere in the lab.

    The options given to `load` are passed on to the function.
    """
    if not name or not all(part.isalnum() for part in name.replace("_", "-").split("-")):
        raise ValueError(f"data set name {name!r}: use letters, digits, - and _ only")
    if name in names() and not (replace and name in _registered):
        raise ValueError(f"data set name {name!r} is taken; known are {', '.join(names())}")
    if isinstance(source, DataSet):
        data = source
        _registered[name] = lambda: data
    elif callable(source):
        _registered[name] = source
    else:
        raise TypeError(
            f"register a DataSet or a function that returns one, got {type(source).__name__}"
        )


def data_root(root: str | Path | None = None) -> Path:
    """The folder of data files: `root`, else SPLASH_DATA, else the user's cache folder."""
    if root is not None:
        return Path(root).expanduser()
    if folder := os.environ.get("SPLASH_DATA"):
        return Path(folder).expanduser()
    import pooch

    return Path(pooch.os_cache("splash-units")) / "data"


def _canonical_availability(name: str, root: Path) -> Availability:
    source = CANONICAL[name]
    found = [path for file in source.files if (path := find(root, file)) is not None]
    missing = len(source.files) - len(found)
    if not missing:
        note = ""
    elif found:
        note = f"{missing} of {len(source.files)} files missing: splash data get {name}"
    else:
        note = f"not there: splash data get {name}"
    size = sum(path.stat().st_size for path in found)
    return Availability(name, not missing, root / source.folder, size, note)


def _check_name(name: str) -> None:
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names())}"
        raise DataError(f"unknown data set {name!r}; {hint}")
