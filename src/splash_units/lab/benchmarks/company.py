"""How busy others kept the processor while we measured: what makes a result worth its decimals."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

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
