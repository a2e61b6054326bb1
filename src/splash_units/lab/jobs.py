"""One spec of any kind: is it done, what is missing for it, and doing it.

What several specs need is done once; what needs a training that diverged can never be done, and
says so instead of being tried.
"""

from collections.abc import Callable, Iterable
from typing import Any

from splash_units.lab.findings import Finding, finding
from splash_units.lab.spec import (
    AnySpec,
    AttackSpec,
    CostSpec,
    SeparationSpec,
    TrainSpec,
    TransferSpec,
    describe,
    digest,
    needs,
)
from splash_units.lab.store import Run, Store

Report = Callable[[float], None]


def nobody(part: float) -> None:
    """Nobody wants to know which part is done."""


def perform(
    spec: AnySpec,
    store: Store,
    *,
    device: str = "auto",
    threads: int | None = None,
    report: Report = nobody,
) -> None:
    """Bring the result of a spec into the store, unless it is there; what it needs must be.

    `report` is told now and then which part is done. If it raises, the work ends there, and what
    has been written down of a training or an attack stays for whoever goes on.
    """
    for needed in needs(spec):
        if not is_done(needed, store):
            raise ValueError(f"needs {describe(needed)}, which is not there")
    if why := hopeless(spec, store):
        raise ValueError(why)
    options: dict[str, Any] = {"device": device, "threads": threads}
    match spec:
        case TrainSpec():
            _train(spec, store, options, report)
        case AttackSpec():
            from splash_units.lab.robustness import attack

            attack(spec, store, progress=_Watcher(report), **options)
        case TransferSpec():
            from splash_units.lab.robustness import transfer

            transfer(spec, store, progress=_Watcher(report), **options)
        case SeparationSpec():
            from splash_units.lab.separation import separate

            separate(spec, store, **options)
        case CostSpec():
            from splash_units.lab.costs import measure

            measure(spec, store, **options)


def _train(spec: TrainSpec, store: Store, options: dict[str, Any], report: Report) -> None:
    from splash_units.lab.events import Progress, Started
    from splash_units.lab.runner import run

    epochs, steps = 1, 1
    for event in run(spec, store, **options):
        if isinstance(event, Started):
            epochs, steps = event.plan.epochs, event.plan.steps
            report(event.epochs_done / epochs)
        elif isinstance(event, Progress):
            report((event.epoch - 1 + event.step / steps) / epochs)


class _Watcher:
    """Watches an attack and reports which part of its images is decided."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._total, self._done = 1, 0

    def begin(self, words: str, total: int, done: int = 0) -> None:
        self._total, self._done = max(1, total), done
        self._report(done / self._total)

    def advance(self, images: int) -> None:
        self._done += images
        self._report(min(1.0, self._done / self._total))

    def saved(self, done: int, fooled: int) -> None:
        self._done = done
        self._report(done / self._total)

    def note(self, words: str) -> None:
        self._report(min(1.0, self._done / self._total))


def place(spec: AnySpec, store: Store) -> Run | Finding:
    """Where the result of a spec lies, or will."""
    return store.run(spec) if isinstance(spec, TrainSpec) else finding(store, spec)


def is_done(spec: AnySpec, store: Store) -> bool:
    """Whether there is a result; that a training diverged is one."""
    return place(spec, store).result() is not None


def hopeless(spec: AnySpec, store: Store) -> str | None:
    """Why a spec can never be done, if a training that it needs diverged."""
    for needed in needs(spec):
        result = store.run(needed).result()
        if result is not None and result["status"] != "done":
            return f"needs {describe(needed)}, which {result['status']}"
        if why := hopeless(needed, store):
            return why
    return None


def missing(specs: Iterable[AnySpec], store: Store) -> list[AnySpec]:
    """What has to be done to have them all: each once, and after what it needs."""
    found: dict[str, AnySpec] = {}
    for spec in specs:
        _add_missing(spec, store, found)
    return list(found.values())


def _add_missing(spec: AnySpec, store: Store, found: dict[str, AnySpec]) -> None:
    name = digest(spec)
    if name in found or is_done(spec, store):
        return
    for needed in needs(spec):
        _add_missing(needed, store, found)
    found[name] = spec
