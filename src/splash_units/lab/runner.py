"""Run a spec once, whoever asks: train it, record it in the store, go on where it stopped."""

import os
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from splash_units.lab import plugins
from splash_units.lab.assembly import load_network as load_network
from splash_units.lab.data import native
from splash_units.lab.events import (
    Checkpoint,
    Diverged,
    Epoch,
    EpochDone,
    Event,
    Finished,
    Progress,
    Started,
)
from splash_units.lab.machine import describe_machine, now
from splash_units.lab.spec import TrainSpec, describe, digest
from splash_units.lab.store import Run, Store, Work
from splash_units.lab.training import train


@dataclass(frozen=True)
class Waiting:
    """Another process runs this spec; its result will do."""

    run: Run


@dataclass(frozen=True)
class Found:
    """The result is there already."""

    run: Run


def run(
    spec: TrainSpec,
    store: Store,
    *,
    device: str = "auto",
    threads: int | None = None,
    again: bool = False,
    split_seconds: bool = False,
) -> Iterator[Event | Waiting | Found]:
    """Bring a spec's result into the store and yield what happens on the way.

    A result that is there is not computed again, unless `again`; an unfinished one goes on from its
    last checkpoint with the threads it began with; another process at work on it is waited for.
    """
    there = store.run(spec)
    if there.result() and not again:
        yield Found(there)
        return
    if there.is_held():
        yield Waiting(there)
    with store.claim(spec) as work:
        if there.result() and not again:
            yield Found(there)
            return
        saved = None if again else work.load_checkpoint()
        try:
            yield from _record(work, spec, saved, device, threads, split_seconds)
        except Exception as error:
            work.fail(f"{type(error).__name__}: {error}", traceback.format_exc())
            raise


def complete(spec: TrainSpec, store: Store, **options: Any) -> Run:
    """Bring a spec's result into the store, quietly, and return the run."""
    for _ in run(spec, store, **options):
        pass
    return store.run(spec)


def source_network(spec: TrainSpec, store: Store) -> nn.Module | None:
    """The trained network that a spec begins with, if it names one; it must be in the store."""
    if spec.source is None:
        return None
    source = store.run(spec.source)
    result = source.result()
    if result is None:
        raise ValueError(f"its source is not there yet: {describe(spec.source)} ({source.whole})")
    if result["status"] != "done":
        raise ValueError(f"its source {source.id} {result['status']}: {result.get('why', '')}")
    return load_network(source)


def _record(
    work: Work,
    spec: TrainSpec,
    saved: tuple[dict[str, Any], dict[str, Tensor]] | None,
    device: str,
    threads: int | None,
    split_seconds: bool,
) -> Iterator[Event]:
    """Train and write down every event before it is passed on."""
    source = source_network(spec, Store(work.run.root))
    options: dict[str, Any] = {"device": device, "split_seconds": split_seconds, "source": source}
    resume, threads_before, plan_before = _checkpoint(saved)
    used = threads_before if threads is None else threads
    events = train(spec, resume=resume, threads=used, **options)
    start = next(events)
    assert isinstance(start, Started)
    if resume and start.plan.as_dict() != plan_before:
        # The recipe has changed since: what was half done would end as neither of the two.
        resume = None
        events = train(spec, threads=threads, **options)
        start = next(events)
        assert isinstance(start, Started)
    resumed = resume is not None
    work.begin(_provenance(work, spec, start, resumed=resumed), resumed=resumed)
    if resume is None:
        work.append_slopes(0.0, start.slopes)
    yield start
    for event in events:
        match event:
            case Progress():
                passed = event.epoch - 1 + event.step / start.plan.steps
                work.progress(passed)
                if event.slopes is not None:
                    work.append_slopes(passed, event.slopes)
            case EpochDone():
                work.append_epoch(asdict(event.numbers))
                work.append_slopes(event.numbers.epoch, event.slopes)
                work.save_checkpoint(_state(event.checkpoint, start), event.checkpoint.tensors)
            case Finished() | Diverged():
                inputs = event.inputs if isinstance(event, Finished) else {}
                work.finish(_result(spec, start, event), event.state, inputs)
        yield event


def _provenance(work: Work, spec: TrainSpec, start: Started, *, resumed: bool) -> dict[str, Any]:
    """Where a run comes from; a run that was interrupted lists all its sessions."""
    session = {
        **describe_machine(),
        "plugins": list(plugins.loaded()),
        "kernel": _kernel(spec, start),
        "augmentation": _augmentation(spec, start),
        "device": start.device,
        "threads": start.threads,
        "epochs_done": start.epochs_done,
        "started": now(),
    }
    earlier = work.run.record().get("sessions", []) if resumed else []
    return {
        "plan": start.plan.as_dict(),
        "parameters": start.parameters,
        "network_arguments": start.network_arguments,
        "layout": {name: list(slope.shape) for name, slope in start.slopes.items()},
        "constants": {name: value.tolist() for name, value in start.constants.items()},
        "sessions": [*earlier, session],
    }


def _kernel(spec: TrainSpec, start: Started) -> str | None:
    """What computes the SPLASH units of a run; None if it has none."""
    from splash_units.lab.benchmarks.contenders import kernel_in_use

    if not start.constants:
        return None
    forced = os.environ.get("SPLASH_KERNEL")
    if spec.compile and forced != "triton":
        # The operators of the CPU kernel stand in compiled graphs; elsewhere the equation does, and
        # is fused with its neighbours.
        served = "reference" if forced == "reference" else kernel_in_use(start.device)
        return served if served.startswith("native") else "the equation, compiled"
    return forced or kernel_in_use(start.device)


def _augmentation(spec: TrainSpec, start: Started) -> str | None:
    """What augments the images of a run; None if nothing does."""
    if spec.augment == "none":
        return None
    return "native" if start.device == "cpu" and native.load() else "torch"


def _state(checkpoint: Checkpoint, start: Started) -> dict[str, Any]:
    return {
        "last": asdict(checkpoint.last),
        "best": asdict(checkpoint.best),
        "plan": start.plan.as_dict(),
        "threads": start.threads,
    }


def _checkpoint(
    saved: tuple[dict[str, Any], dict[str, Tensor]] | None,
) -> tuple[Checkpoint | None, int | None, dict[str, Any] | None]:
    """What `_state` made, read back: the checkpoint, its threads, its plan."""
    if saved is None:
        return None, None, None
    state, tensors = saved
    checkpoint = Checkpoint(Epoch(**state["last"]), Epoch(**state["best"]), tensors)
    return checkpoint, state["threads"], state["plan"]


def _result(spec: TrainSpec, start: Started, end: Finished | Diverged) -> dict[str, Any]:
    """The numbers of a run; the last epoch's are the result, the best's are told beside them."""
    common = {"spec": digest(spec), "scale": spec.scale, "ended": now()}
    if isinstance(end, Finished):
        return {
            "status": "done",
            **common,
            "epochs": end.last.epoch,
            "train_images": start.plan.train_images,
            "test_images": start.plan.test_images,
            "train_loss": end.last.train_loss,
            "train_error": end.last.train_error,
            "test_loss": end.last.test_loss,
            "test_error": end.last.test_error,
            "best_test_error": end.best.test_error,
            "best_epoch": end.best.epoch,
        }
    return {
        "status": "diverged",
        **common,
        "why": why_diverged(end),
        "epoch": end.epoch,
        "step": end.step,
        "layer": end.layer,
        "largest_slope": end.largest_slope,
    }


def why_diverged(end: Diverged) -> str:
    """A divergence in a sentence."""
    where = f"{end.loss} loss not finite in epoch {end.epoch}, after {end.step} steps"
    if end.layer is None:
        return where
    size = "not finite" if end.largest_slope is None else f"{end.largest_slope:.3g}"
    return f"{where}; largest slope {size}, in {end.layer}"
