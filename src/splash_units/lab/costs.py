"""What a unit costs: seconds of a training step of one network with each unit, and ratios to ReLU.

All units take turns in one process, on a batch of the data set's own images, and are compared by
ratio: seconds on two machines, or an hour apart on one, can't be compared. The paper prints seconds
an epoch on a TITAN V; only its ratios say something here.
"""

import traceback
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from splash_units.lab import data, plugins
from splash_units.lab.assembly import (
    build_network,
    build_optimizer,
    laid_out,
    network_arguments,
    wants_channels_last,
)
from splash_units.lab.findings import Draft, Finding, claim, finding
from splash_units.lab.machine import describe_machine, now
from splash_units.lab.plan import plan
from splash_units.lab.process import own_settings, pick_device, pick_threads, synchronize
from splash_units.lab.spec import CostSpec, TrainSpec, UnitChoice
from splash_units.lab.store import Store
from splash_units.lab.timing import Effort, Samples, Stopwatch, Work, ratio, spread

LR = 1e-4  # small, for hundreds of steps on one batch must stay where numbers are usual


def measure(
    spec: CostSpec, store: Store, *, device: str = "auto", threads: int | None = None
) -> Finding:
    """Bring the costs of a spec into the store, unless they are there."""
    there = finding(store, spec)
    if there.result() is not None:
        return there
    if len({choice.label for choice in spec.units}) < len(spec.units):
        raise ValueError(f"two units have one label: {[choice.label for choice in spec.units]}")
    images = data.load(spec.data)
    place, threads = pick_device(device), pick_threads(threads)
    with claim(store, spec) as draft:
        if there.result() is None:
            started = {"device": str(place), "threads": threads, "started": now()}
            draft.begin({**describe_machine(), "plugins": list(plugins.loaded()), **started})
            try:
                with own_settings(place, threads):
                    samples = _compare(spec, images, place)
                _finish(draft, spec, images, samples)
            except Exception as error:
                draft.fail(f"{type(error).__name__}: {error}", traceback.format_exc())
                raise
    return there


def _compare(spec: CostSpec, images: data.DataSet, place: torch.device) -> dict[str, Samples]:
    contenders = {
        choice.label: partial(training_step, spec, choice, images, place) for choice in spec.units
    }
    effort = Effort(fewest_rounds=spec.rounds, most_rounds=spec.rounds)
    return Stopwatch(synchronize=partial(synchronize, place)).compare(contenders, effort)


def training_step(
    spec: CostSpec, choice: UnitChoice, images: data.DataSet, place: torch.device
) -> Work:
    """Forward, loss, backward and the recipe's optimizer, on the first batch of the data set."""
    training = TrainSpec(
        model=spec.model, data=spec.data, unit=choice.unit, unit_options=choice.options, lr=LR
    )
    network: nn.Module = laid_out(build_network(training, network_arguments(images)).to(place))
    network.train()
    planned = plan(training, len(images.train_labels), len(images.test_labels))
    optimizer = build_optimizer(training, planned, network)
    x, y = next(
        iter(
            data.batches(
                images.train_images[: spec.batch_size],
                images.train_labels[: spec.batch_size],
                spec.batch_size,
                device=place,
                channels_last=wants_channels_last(network),
            )
        )
    )

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _finish(
    draft: Draft, spec: CostSpec, images: data.DataSet, samples: Mapping[str, Samples]
) -> None:
    yardstick = samples[spec.units[0].label]
    if yardstick.failure is not None:
        raise RuntimeError(
            f"{spec.units[0].label}, the measure of all, failed: {yardstick.failure}"
        )
    rows = [_row(sample, yardstick) for sample in samples.values()]
    steps = -(-len(images.train_labels) // spec.batch_size)
    result: dict[str, Any] = {
        "status": "done",
        "labels": list(samples),
        **{key: [row[key] for row in rows] for key in rows[0]},
        "steps_an_epoch": steps,
        "rounds": spec.rounds,
        "ended": now(),
    }
    measured = {name: sample for name, sample in samples.items() if not sample.failure}
    seconds = torch.tensor([sample.seconds for sample in measured.values()], dtype=torch.float64)
    draft.finish(result, {"seconds": seconds})


def _row(sample: Samples, yardstick: Samples) -> dict[str, Any]:
    """Median seconds, the ratio of medians, and between which it lies in 80 % of resamples."""
    if sample.failure is not None:
        return {
            "seconds_per_step": None,
            "ratio": None,
            "quantiles": None,
            "failures": sample.failure,
        }
    compared = ratio(sample.seconds, yardstick.seconds)
    return {
        "seconds_per_step": spread(sample.seconds).median,
        "ratio": compared.median,
        "quantiles": [compared.lower, compared.upper],
        "failures": None,
    }
