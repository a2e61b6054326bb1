"""train(spec): one flat loop that yields what happened; the caller records it.

A spec ends with the same bits every time, on one machine and at one number of threads: each random
stream is a pure function of the seed, its purpose, the epoch and (for dropout) the step, so nothing
else in the process matters and a checkpoint holds no generator's state. While the caller looks at
an event, the process has its own threads and generators back.

The training error is the one met in passing, in training mode, as Keras reports it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splash_units.lab import data
from splash_units.lab.assembly import (
    build_network,
    build_optimizer,
    constants_of,
    laid_out,
    network_arguments,
    restore,
    set_learning_rate,
    slopes_of,
    snapshot,
    state_of,
    wants_channels_last,
)
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
from splash_units.lab.inheritance import inherit
from splash_units.lab.inputs import input_histograms
from splash_units.lab.plan import Plan, plan
from splash_units.lab.process import (
    Clock,
    autocast,
    own_settings,
    pick_device,
    pick_threads,
    seed_dropout,
    stream,
)
from splash_units.lab.spec import TrainSpec, stream_seed

# Slopes move most at first: they are also recorded at these parts of the first epoch.
EARLY_SNAPSHOTS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
REPORT_SECONDS = 0.5
TEST_BATCH = 256


def train(
    spec: TrainSpec,
    *,
    device: str = "auto",
    threads: int | None = None,
    resume: Checkpoint | None = None,
    source: nn.Module | None = None,
    split_seconds: bool = False,
) -> Iterator[Event]:
    """Train the network of a spec, from its start or from a checkpoint, and yield what happens.

    `source` is the trained network of `spec.source`, if the spec has one.
    """
    if (spec.source is None) != (source is None):
        raise ValueError("a source is needed if, and only if, the spec has one")
    place = pick_device(device)
    threads = pick_threads(threads)
    images = data.load(spec.data)
    planned = plan(spec, len(images.train_labels), len(images.test_labels))
    network = build_network(spec, network_arguments(images))
    if source is not None:
        inherit(network, spec, source)
    network = laid_out(network.to(place))
    images = resident(images, place, wants_channels_last(network))
    optimizer = build_optimizer(spec, planned, network)
    if resume:
        restore(network, optimizer, resume.tensors)
    last, best = (resume.last, resume.best) if resume else (None, None)
    forward = cast(nn.Module, torch.compile(network)) if spec.compile else network
    slopes = slopes_of(network)
    early = {math.ceil(planned.steps * part) for part in EARLY_SNAPSHOTS} - {planned.steps}
    yield Started(
        plan=planned,
        device=str(place),
        threads=threads,
        epochs_done=last.epoch if last else 0,
        parameters=sum(p.numel() for p in network.parameters()),
        network_arguments=network_arguments(images),
        slopes=snapshot(slopes),
        constants=snapshot(constants_of(network)),
    )

    for epoch in range(last.epoch if last else 0, planned.epochs):
        network.train()
        batches = training_batches(spec, planned, images, epoch, wants_channels_last(network))
        dropout_seed = stream_seed(spec.seed, "dropout", epoch)
        clock, tally, step = Clock(place, split_seconds), Tally(), 0
        while step < planned.steps:
            before = snapshot(slopes)
            pause = min((s for s in early if s > step and epoch == 0), default=planned.steps)
            with own_settings(place, threads):
                clock.start()
                for x, y in islice(batches, pause - step):
                    clock.lap("data")
                    lr = planned.recipe.learning_rate(step, epoch, planned.steps)
                    set_learning_rate(optimizer, lr, spec.slope_lr)
                    seed_dropout(dropout_seed + step, place)
                    with autocast(place, spec.precision):
                        logits = forward(x)
                        loss = F.cross_entropy(logits, y)
                    clock.lap("forward")
                    if not tally.add(loss, logits, y):
                        break
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    clock.lap("backward")
                    optimizer.step()
                    step += 1
                    if clock.lap("step") > REPORT_SECONDS:
                        break
                clock.stop()
            if not math.isfinite(tally.loss()):
                yield diverged("training", epoch, step, network, before)
                return
            due = snapshot(slopes) if epoch == 0 and step in early else None
            yield Progress(epoch + 1, step, tally.loss(), due)

        with own_settings(place, threads):
            test_clock = Clock(place).start()
            test = evaluate(forward, images, planned.test_images, spec.precision)
            test_clock.stop()
        if not math.isfinite(test.loss()):
            yield diverged("test", epoch, step, network, snapshot(slopes))
            return
        last = Epoch(
            epoch=epoch + 1,
            train_loss=tally.loss(),
            train_error=tally.error(),
            test_loss=test.loss(),
            test_error=test.error(),
            lr=lr,
            seconds=clock.seconds,
            test_seconds=test_clock.seconds,
            split=clock.split,
        )
        best = last if best is None or last.test_error < best.test_error else best
        checkpoint = Checkpoint(last, best, state_of(network, optimizer))
        yield EpochDone(last, snapshot(slopes), checkpoint)

    assert last, "a plan has at least one epoch"
    assert best, "the last epoch is a candidate"
    yield Finished(last, best, network.state_dict(), what_units_see(network, images, threads))


class Tally:
    """Loss and errors of batches, put aside and counted when they are asked for.

    Adding a batch waits for no device and costs nothing beside a step. The sum goes batch by batch,
    so that it does not depend on when it was asked for.
    """

    def __init__(self) -> None:
        self._aside: list[tuple[Tensor, Tensor, Tensor]] = []
        self._images, self._loss, self._wrong = 0, 0.0, 0

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> bool:
        """Add a batch; False if its loss is known not to be finite (a CPU knows at once)."""
        self._aside.append((loss.detach(), logits.detach(), labels))
        return not loss.is_cpu or math.isfinite(loss.item())

    def loss(self) -> float:
        self._count()
        return self._loss / max(1, self._images)

    def error(self) -> float:
        self._count()
        return self._wrong / max(1, self._images)

    def _count(self) -> None:
        if not self._aside:
            return
        losses, logits, labels = zip(*self._aside, strict=True)
        self._aside.clear()
        for loss, batch in zip(torch.stack(losses).tolist(), labels, strict=True):
            self._loss += loss * len(batch)
            self._images += len(batch)
        self._wrong += int((torch.cat(logits).argmax(1) != torch.cat(labels)).sum())


def resident(images: data.DataSet, place: torch.device, channels_last: bool) -> data.DataSet:
    """The data set on the device, whole, laid out as its batches will be.

    As bytes it fits, and no step waits for it.
    """
    names = ("train_images", "train_labels", "test_images", "test_labels")
    moved = {name: getattr(images, name).to(place) for name in names}
    if not channels_last:
        for name in ("train_images", "test_images"):
            moved[name] = moved[name].contiguous()
    return replace(images, **moved)


def training_batches(
    spec: TrainSpec, planned: Plan, images: data.DataSet, epoch: int, channels_last: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of one epoch: order and augmentation depend on the seed and the epoch alone."""
    used = part_of(len(images.train_labels), planned.train_images)
    order = torch.randperm(len(used), generator=stream(spec.seed, "order", epoch))
    return iter(
        data.batches(
            images.train_images,
            images.train_labels,
            planned.recipe.batch_size,
            order=used[order],
            augment=spec.augment,
            generator=stream(spec.seed, "augmentation", epoch),
            fill=images.mean,
            device=images.train_images.device,
            channels_last=channels_last,
        )
    )


def part_of(available: int, wanted: int) -> Tensor:
    """Which images a part of a data set holds: the same ones for every seed, unit and network.

    They are drawn rather than the first ones, for a data set may be sorted by class.
    """
    if wanted == available:
        return torch.arange(available)
    return torch.randperm(available, generator=stream(0, "part"))[:wanted].sort().values


@torch.inference_mode()
def evaluate(
    network: nn.Module,
    images: data.DataSet,
    count: int,
    precision: str = "float32",
) -> Tally:
    """Loss and error on `count` of the test images, in eval mode; the network's mode is kept."""
    place = images.test_images.device
    tally = Tally()
    was_training = network.training
    network.eval()
    batches = data.batches(
        images.test_images,
        images.test_labels,
        TEST_BATCH,
        order=part_of(len(images.test_labels), count),
        device=place,
        channels_last=wants_channels_last(network),
    )
    for x, y in batches:
        with autocast(place, precision):
            logits = network(x)
            loss = F.cross_entropy(logits, y)
        tally.add(loss, logits, y)
    network.train(was_training)
    return tally


def what_units_see(network: nn.Module, images: data.DataSet, threads: int) -> dict[str, Tensor]:
    """Histograms of the units' inputs on some of the test images."""
    order = part_of(len(images.test_labels), min(TEST_BATCH, len(images.test_labels)))
    place = images.test_images.device
    with own_settings(place, threads):
        x, _ = next(
            iter(data.batches(images.test_images, images.test_labels, TEST_BATCH, order=order))
        )
        return input_histograms(network, x.to(place))


def diverged(
    loss: str, epoch: int, step: int, network: nn.Module, before: Mapping[str, Tensor]
) -> Diverged:
    """Name the unit with the largest slope.

    On a CPU the loss is checked before the backward pass spreads NaN over all parameters, so the
    slopes as they are now tell. Elsewhere NaN may have spread; then those of the last report do.
    """
    now = snapshot(slopes_of(network))
    spread = bool(now) and all(not slope.isfinite().all() for slope in now.values())
    sizes = {
        name: float(slope.abs().nan_to_num(nan=math.inf, posinf=math.inf).max())
        for name, slope in (before if spread else now).items()
    }
    worst = max(sizes, key=lambda name: sizes[name], default=None)
    return Diverged(
        epoch=epoch + 1,
        step=step,
        loss=loss,
        layer=worst.rpartition(".")[0] if worst else None,
        largest_slope=sizes[worst] if worst and math.isfinite(sizes[worst]) else None,
        state=network.state_dict(),
    )
