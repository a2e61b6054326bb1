"""A fixed number of slots, each working on one image, refilled as images are decided.

An iterative attack is two functions: `begin` makes the rows of some images, `advance` takes every
row one network call further and says which are decided. A decided image leaves at once and the next
takes its slot, so that the network is always asked about a full block: nothing is spent on decided
images while others wait, and the block has one shape (why that matters: `victim`). An image's path
depends on nothing but its row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

from splash_units.lab.attacks.attack import Task
from splash_units.lab.attacks.victim import Victim


@dataclass
class Rows:
    """What an attack knows of the images it is working on: tensors with one row a slot.

    Attacks add their own tensors in a subclass, or numpy's arrays, whose operations on a few
    numbers take a fifth of the time. `best` is what the attack returns for the image.
    """

    clean: Tensor
    label: Tensor
    best: Tensor

    def put(self, slots: Tensor, rows: Rows) -> None:
        """Replace some slots by other rows."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(rows, field.name)
            mine[slots if isinstance(mine, Tensor) else slots.numpy(force=True)] = theirs


R = TypeVar("R", bound=Rows)


def run(
    victim: Victim,
    task: Task,
    *,
    begin: Callable[[Task], R],
    advance: Callable[[R], Tensor],
) -> Tensor:
    """Take every image of the task through `advance` until decided; return each one's `best`."""
    count, device = len(task), task.images.device
    results = torch.empty_like(task.images)
    # Slots without an image of their own repeat the first one, and nobody reads them.
    working_on = torch.arange(victim.width, device=device)
    working_on[count:] = -1
    rows = begin(task.part(working_on.clamp(min=0)))
    following = min(victim.width, count)
    while True:
        busy = working_on >= 0
        victim.ask_for(task.owners[working_on[busy]])
        decided = advance(rows) & busy
        while not bool(decided.any()):
            decided = advance(rows) & busy
        (slots,) = decided.nonzero(as_tuple=True)
        results[working_on[slots]] = rows.best[slots]
        task.ticker.advance(len(slots))
        working_on[slots] = -1
        fresh = torch.arange(following, min(following + len(slots), count), device=device)
        if len(fresh):
            refilled = slots[: len(fresh)]
            rows.put(refilled, begin(task.part(fresh)))
            working_on[refilled] = fresh
            following += len(fresh)
        elif bool((working_on < 0).all()):
            return results
