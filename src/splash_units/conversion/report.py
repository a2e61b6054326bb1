"""What a conversion did: every change, everything left as it was, and why."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

Exactness = Literal["exact", "fitted", "own start"]


@dataclass(frozen=True)
class Change:
    """One place of the network that has a unit now.

    Attributes:
        path: where the unit is in the network.
        was: what it took over: a module, or a call.
        where: file:line of a call; empty for a module.
        unit: the unit, as it prints.
        exactness: "exact" (to the last bit from ReLU, up to rounding from the others), "fitted", or
            "own start" for a unit that starts as something else.
        largest_error: the largest difference from what was there, for inputs in `span`; NaN where
            it could not be measured.
        notes: what else one should know.
    """

    path: str
    was: str
    where: str
    unit: str
    exactness: Exactness
    largest_error: float
    span: tuple[float, float]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        was = f"{self.was} at {self.where}" if self.where else self.was
        error = ""
        if self.exactness != "exact" and not math.isnan(self.largest_error):
            low, high = self.span
            error = f", off by at most {self.largest_error:.3g} on [{low:g}, {high:g}]"
        notes = "".join(f"\n      {note}" for note in self.notes)
        return (
            f"{self.path or '(the network)'}: {was} -> {self.unit} ({self.exactness}{error}){notes}"
        )


@dataclass(frozen=True)
class Left:
    """One activation that stayed as it was.

    Attributes:
        path: the module that has it.
        what: the module or call.
        where: file:line of a call; empty for a module.
        why: the reason.
    """

    path: str
    what: str
    where: str
    why: str

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        return f"{self.path or '(the network)'}: {self.what}{at}: {self.why}"


@dataclass(frozen=True)
class Report:
    """What was changed, and what was not.

    Attributes:
        changed: the places that have a unit now.
        left: activations that were asked for, and stayed.
        ignored: activations that were not among `from_`.
        output_difference: the largest difference of the network's outputs before and after, in eval
            mode, on the `example_inputs` that were given; None without them.
    """

    changed: tuple[Change, ...]
    left: tuple[Left, ...]
    ignored: tuple[Left, ...]
    output_difference: float | None = None

    @property
    def largest_error(self) -> float:
        """The largest of the errors of all units; 0.0 if there is none."""
        return max((c.largest_error for c in self.changed), default=0.0)

    def __str__(self) -> str:
        lines = [f"changed: {len(self.changed)}", *(f"  {c}" for c in self.changed)]
        lines += [f"left: {len(self.left)}", *(f"  {item}" for item in self.left)]
        kinds = Counter(item.what.partition("(")[0] for item in self.ignored)
        if kinds:
            counted = ", ".join(f"{name} ({number})" for name, number in kinds.items())
            lines.append(f"not among from_: {counted}")
        if self.output_difference is not None:
            lines.append(f"largest difference of the outputs: {self.output_difference:.3g}")
        return "\n".join(lines)
