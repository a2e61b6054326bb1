"""One spec of any kind: is it done, what is missing for it, and doing it.

What several specs need is done once; what needs a training that diverged can never be done, and
says so instead of being tried.
"""

from collections.abc import Iterable, Iterator
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


def perform(
    spec: AnySpec, store: Store, *, device: str = "auto", threads: int | None = None
) -> None:
    """Bring the result of a spec into the store, unless it is there; what it needs must be."""
    for _ in steps(spec, store, device=device, threads=threads):
        pass


def steps(
    spec: AnySpec, store: Store, *, device: str = "auto", threads: int | None = None
) -> Iterator[float]:
    """Perform a spec and yield, now and then, which part of it is done.

    Whoever stops asking stops a training; its checkpoints stay.
    """
    for needed in needs(spec):
        if not is_done(needed, store):
            raise ValueError(f"needs {describe(needed)}, which is not there")
    if why := hopeless(spec, store):
        raise ValueError(why)
    options: dict[str, Any] = {"device": device, "threads": threads}
    match spec:
        case TrainSpec():
            yield from _train(spec, store, options)
        case AttackSpec():
            from splash_units.lab.robustness import attack

            attack(spec, store, **options)
        case TransferSpec():
            from splash_units.lab.robustness import transfer

            transfer(spec, store, **options)
        case SeparationSpec():
            from splash_units.lab.separation import separate

            separate(spec, store, **options)
        case CostSpec():
            from splash_units.lab.costs import measure

            measure(spec, store, **options)


def _train(spec: TrainSpec, store: Store, options: dict[str, Any]) -> Iterator[float]:
    from splash_units.lab.events import Progress, Started
    from splash_units.lab.runner import run

    epochs, in_an_epoch = 1, 1
    for event in run(spec, store, **options):
        if isinstance(event, Started):
            epochs, in_an_epoch = event.plan.epochs, event.plan.steps
            yield event.epochs_done / epochs
        elif isinstance(event, Progress):
            yield (event.epoch - 1 + event.step / in_an_epoch) / epochs


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
