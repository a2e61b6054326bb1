"""What a run asks of its process: a device, threads, random streams, a clock.

Whatever is global here is borrowed: `own_settings` gives it back as it was.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from splash_units.lab.spec import stream_seed


def pick_device(name: str = "auto") -> torch.device:
    """The device of this name; "auto" is the first of cuda, mps and cpu that is there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next((kind for kind, here in there.items() if here), "cpu"))
    try:
        place = torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"unknown device {name!r}; allowed: auto, cpu, cuda, cuda:N, mps"
        ) from None
    if not there.get(place.type, place.type == "cpu"):
        raise ValueError(f"device {name!r} is not there for this build of torch on this machine")
    return place


def pick_threads(wanted: int | None = None, *, side_by_side: int = 1) -> int:
    """Threads for one of so many runs side by side: an equal part of torch's own, at least one.

    Small networks gain little from a second thread, so two runs of one thread each are done
    sooner than two runs of two threads one after the other.
    """
    if wanted is not None:
        if wanted < 1:
            raise ValueError(f"threads = {wanted}: must be at least 1")
        return wanted
    return max(1, torch.get_num_threads() // side_by_side)


@contextmanager
def own_settings(place: torch.device, threads: int) -> Iterator[None]:
    """Threads, generators and cuDNN's choices as a run needs them; afterwards as they were."""
    cudnn = torch.backends.cudnn
    before = torch.get_num_threads(), cudnn.deterministic, cudnn.benchmark
    devices = [] if place.type == "cpu" else [place.index or 0]
    kind = "cuda" if place.type == "cpu" else place.type
    torch.set_num_threads(threads)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        with torch.random.fork_rng(devices=devices, device_type=kind):
            yield
    finally:
        threads_before, cudnn.deterministic, cudnn.benchmark = before
        torch.set_num_threads(threads_before)


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """A generator of its own for one purpose."""
    return torch.Generator().manual_seed(stream_seed(seed, *purpose))


def seed_dropout(seed: int, place: torch.device) -> None:
    """Dropout draws from the device's global generator, so that is set anew for every step."""
    if place.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif place.type == "mps":
        torch.mps.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def autocast(place: torch.device, precision: str) -> AbstractContextManager[object]:
    """Mixed precision if the run asks for it; one that is switched off takes time all the same."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(place.type, torch.bfloat16)


def synchronize(place: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    elif place.type == "mps":
        torch.mps.synchronize()


class Clock:
    """Seconds between start and stop, summed; by phase too if asked, which waits for the device."""

    def __init__(self, place: torch.device, by_phase: bool = False) -> None:
        self.seconds = 0.0
        self.split: dict[str, float] | None = {} if by_phase else None
        self._place = place
        self._start = self._last = 0.0

    def start(self) -> "Clock":
        self._start = self._last = time.perf_counter()
        return self

    def lap(self, phase: str) -> float:
        """Book the time since the last lap to a phase; return the seconds since the start."""
        if self.split is None:
            return time.perf_counter() - self._start
        synchronize(self._place)
        now = time.perf_counter()
        self.split[phase] = self.split.get(phase, 0.0) + now - self._last
        self._last = now
        return now - self._start

    def stop(self) -> None:
        synchronize(self._place)
        self.seconds += time.perf_counter() - self._start
