"""How others disturbed a measurement: what makes a result worth its decimals, or not.

Processes of this system are counted. Those of another tenant of the same hardware are not seen, yet
they share caches and, on the other half of a core, its units; they show in arithmetic that takes
longer at one time than at another.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from splash_units.lab.timing import Work

_BUSY_FIELDS = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq: seconds of work, not of waiting


@dataclass(frozen=True)
class Usage:
    """Processor seconds so far: of all cores by everyone, and by us and what we started."""

    wall: float
    everyone: float
    own: float


def usage() -> Usage | None:
    """The use of the processor up to now; None where the system doesn't tell."""
    try:
        total = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except (OSError, IndexError):
        return None
    ticks_a_second = os.sysconf("SC_CLK_TCK")
    everyone = sum(int(total[i]) for i in _BUSY_FIELDS) / ticks_a_second
    return Usage(time.monotonic(), everyone, sum(os.times()[:4]))


def cores_taken_by_others(before: Usage | None, after: Usage | None) -> float | None:
    """How many cores others kept busy on average between two moments."""
    if before is None or after is None or after.wall <= before.wall:
        return None
    by_others = (after.everyone - before.everyone) - (after.own - before.own)
    return round(max(by_others, 0.0) / (after.wall - before.wall), 3)


def arithmetic() -> Work:
    """A product of matrices that stay in the second cache: bound by a core's units alone."""
    factor = torch.randn(160, 160, generator=torch.Generator().manual_seed(0))
    product = torch.empty_like(factor)

    def work() -> None:
        with torch.no_grad():
            torch.mm(factor, factor, out=product)

    return work


def slowed(seconds: Sequence[float]) -> float | None:
    """How many times as long as at best the same work took in half of its rounds."""
    best = min(seconds, default=0.0)
    return round(float(np.median(seconds)) / best, 2) if best > 0 else None
