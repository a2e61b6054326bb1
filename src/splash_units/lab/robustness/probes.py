"""Small attacks on a few images that the sanity checks compare, each kept once it is done.

They lie beside the findings (`.probes`), named by what they are, so that the next attack on the
same network finds them.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from splash_units.lab.attacks import without_gradient
from splash_units.lab.durable import read_json, write_json
from splash_units.lab.robustness.named import describe_attack, make_attack
from splash_units.lab.robustness.targets import Target
from splash_units.lab.robustness.watching import Watcher

WIDTH = 32  # few images, so that few of them fill a block

Rows = Mapping[str, Tensor]


class Probes:
    """Attacks on some images of a target, done or found in a folder.

    `identity` tells the target from any other whose probes lie there.
    """

    def __init__(
        self, target: Target, identity: str, folder: Path, seed: int, watcher: Watcher
    ) -> None:
        self._target, self._identity, self._folder = target, identity, folder
        self._seed, self._watcher = seed, watcher

    @property
    def size(self) -> int:
        """How many numbers an image has."""
        return self._target.images[0].numel()

    def attack(self, name: str, options: Mapping[str, Any], index: Tensor) -> Rows:
        """Which of the images an attack fools, and how far it goes in L2."""

        def compute() -> dict[str, list[Any]]:
            clean, labels = self._target.shown(index)
            outcome = make_attack(name, options)(
                self._target.network, clean, labels, seed=self._seed, width=WIDTH
            )
            return {"fooled": outcome.fooled.tolist(), "l2": outcome.l2.tolist()}

        return self._kept(name, options, index, compute)

    def without_gradient(self, index: Tensor) -> Tensor:
        """Which of the images have a loss gradient of exactly zero."""

        def compute() -> dict[str, list[Any]]:
            found = without_gradient(self._target.network, *self._target.shown(index), width=WIDTH)
            return {"zero": found.tolist()}

        return self._kept("gradient", {}, index, compute)["zero"]

    def _kept(
        self,
        name: str,
        options: Mapping[str, Any],
        index: Tensor,
        compute: Callable[[], dict[str, list[Any]]],
    ) -> dict[str, Tensor]:
        what = {"attack": name, "options": dict(options), "seed": self._seed}
        text = json.dumps([self._identity, what, index.tolist()], sort_keys=True)
        path = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        rows = (read_json(path) or {}).get("rows")
        if rows is None:
            self._watcher.note(f"checking with {describe_attack(name, options)}")
            rows = compute()
            self._folder.mkdir(parents=True, exist_ok=True)
            write_json(path, {**what, "index": index.tolist(), "rows": rows})
        return {key: torch.tensor(values) for key, values in rows.items()}
