"""Shapes as they change during training: recorded, kept on disk, read back."""

import operator
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from splash_units.shape.piecewise import Shape, shape_of
from splash_units.shape.tapping import units_of

MOST = 256


@dataclass(frozen=True, eq=False)
class History:
    """The shapes of a network's units at some steps.

    Attributes:
        steps: when each record was made, increasing.
        hinges: each unit's b¹ = 0 < b² < ..., by the unit's qualified name.
        slopes: each unit's a₊ and a₋ at every step: shape (steps, 2, hinges, *features).
    """

    steps: tuple[int, ...]
    hinges: dict[str, Tensor]
    slopes: dict[str, Tensor]

    def shapes(self, name: str) -> Shape:
        """One unit's shapes, one row a step (then, where there are groups, one a group)."""
        if name not in self.slopes:
            raise KeyError(f"no unit {name!r}; there are {', '.join(map(repr, self.slopes))}")
        a_pos, a_neg = self.slopes[name].movedim(1, 0)
        return shape_of(a_pos.movedim(1, 0), a_neg.movedim(1, 0), self.hinges[name])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a NumPy archive of plain arrays: whole, or not at all."""
        arrays = {"steps": np.array(self.steps, dtype=np.int64)}
        arrays |= {f"hinges/{name}": b.numpy() for name, b in self.hinges.items()}
        arrays |= {f"slopes/{name}": a.numpy() for name, a in self.slopes.items()}
        aside = Path(f"{os.fspath(path)}.{os.getpid()}.tmp")
        try:
            with aside.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]  # its third is a flag
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "History":
        """Read what :meth:`save` wrote; no code is run, whatever the file holds."""
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {key: archive[key] for key in archive.files}
        except (ValueError, TypeError, EOFError, BadZipFile) as error:
            raise ValueError(f"{os.fspath(path)} is not an archive of shapes: {error}") from error
        steps = tuple(arrays.get("steps", np.empty(0)).flatten().astype(int).tolist())
        history = cls(steps, _tensors(arrays, "hinges/"), _tensors(arrays, "slopes/"))
        problem = _problem(history)
        if problem:
            raise ValueError(f"{os.fspath(path)} is not an archive of shapes: {problem}")
        return history


def _tensors(arrays: dict[str, Any], prefix: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(prefix): torch.from_numpy(array)
        for key, array in arrays.items()
        if key.startswith(prefix)
    }


def _problem(history: History) -> str | None:
    """What is wrong with arrays that were read from a file, if anything is."""
    steps, hinges, slopes = history.steps, history.hinges, history.slopes
    if not steps or not slopes or hinges.keys() != slopes.keys():
        return "steps, hinges or slopes are missing"
    if any(later <= earlier for earlier, later in pairwise(steps)):
        return f"its steps don't increase: {steps}"
    for name, a in slopes.items():
        if tuple(a.shape[:3]) != (len(steps), 2, hinges[name].numel()) or hinges[name].dim() != 1:
            return f"the slopes of {name!r} have shape {tuple(a.shape)}"
    return None


class Track:
    """Records of a model's shapes; :func:`track` makes one."""

    def __init__(self, model: nn.Module, most: int = MOST) -> None:
        if most < 2:
            raise ValueError(f"most must be at least 2, the first shape and the last, got {most}")
        self.model = model
        self.most = most
        self._units = units_of(model)
        self._slope_ids = {id(a) for u in self._units.values() for a in (u.a_pos, u.a_neg)}
        self._steps: list[int] = []
        self._slopes: dict[str, list[Tensor]] = {name: [] for name in self._units}
        self._taken = 0
        self._every = 1
        self._hook: torch.utils.hooks.RemovableHandle | None = None

    def record(self, step: int) -> None:
        """Note all shapes as they are now, under a number that doesn't fall; the same replaces."""
        step = operator.index(step)
        if self._steps and step < self._steps[-1]:
            raise ValueError(f"step {step} comes after step {self._steps[-1]}")
        if self._steps and step == self._steps[-1]:
            self._forget([len(self._steps) - 1])
        self._steps.append(step)
        for name, unit in self._units.items():
            now = torch.stack([unit.a_pos.detach(), unit.a_neg.detach()])
            wide = torch.promote_types(now.dtype, torch.float32)  # NumPy has no bfloat16
            self._slopes[name].append(now.to("cpu", wide))

    @property
    def history(self) -> History:
        """What was recorded so far."""
        if not self._steps:
            raise ValueError("nothing was recorded yet: call record(step), or train inside `with`")
        hinges = {n: u.hinges.detach().to("cpu", torch.float64) for n, u in self._units.items()}
        slopes = {name: torch.stack(records) for name, records in self._slopes.items()}
        return History(tuple(self._steps), hinges, slopes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was recorded so far; `History.load` reads it."""
        self.history.save(path)

    def __enter__(self) -> "Track":
        if self._steps:
            self._taken = self._steps[-1]
        self.record(self._taken)
        self._hook = register_optimizer_step_post_hook(self._after_step)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._hook is not None
        self._hook.remove()
        self.record(self._taken)

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        groups = optimizer.param_groups
        if not any(id(p) in self._slope_ids for group in groups for p in group["params"]):
            return
        self._taken += 1
        if self._taken % self._every:
            return
        self.record(self._taken)
        if len(self._steps) > self.most:
            self._every *= 2
            self._forget([i for i, s in enumerate(self._steps) if i and s % self._every])

    def _forget(self, records: list[int]) -> None:
        for i in reversed(records):
            del self._steps[i]
            for shapes in self._slopes.values():
                del shapes[i]


def track(model: nn.Module, most: int = MOST) -> Track:
    """Record the shapes of a network's units while it trains; `plot` shows how they evolve.

    Either call `record(step)` when you like, or train inside it, and every optimizer step that
    moves a slope is noticed::

        with track(model) as shapes:
            train(model)
        plot(shapes, path="evolution.png")

    Inside `with` a record is made at each step until there are `most`; then every second is
    forgotten and half as many are made, and so on: the memory is bounded however long it takes.
    The first shape and the last are always kept.
    """
    return Track(model, most)
