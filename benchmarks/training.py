"""What the lab's training costs beside a bare loop, and what threads are good for.

    python benchmarks/training.py [--data cifar-10] [--augment none] [--unit relu] [--threads 2]
    python benchmarks/training.py --side-by-side [--results FILE]

The first trains LeNet5 for an epoch as `splash train` does, recording included, and after every
report of it does as many steps of a bare loop: the same network without input normalisation, on
normalised batches that lie in memory. Testing is left out of both. Printed is the ratio, by sum and
by the median over reports. The second compares one run of two threads with two of one thread.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import torch
from keeping import keep
from torch import nn
from torch.nn import functional as F

from splash_units.lab import data
from splash_units.lab.assembly import (
    build_network,
    laid_out,
    network_arguments,
    wants_channels_last,
)
from splash_units.lab.events import EpochDone, Progress
from splash_units.lab.runner import run
from splash_units.lab.spec import TrainSpec
from splash_units.lab.store import Store

BATCH = 128


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", default="cifar-10")
    parser.add_argument("--augment", default="none", choices=["none", "moderate", "heavy"])
    parser.add_argument("--unit", default="relu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--fraction", type=float, default=1.0, help="part of the epoch")
    parser.add_argument(
        "--processor-time", action="store_true", help="for one thread on a machine others use, too"
    )
    parser.add_argument("--side-by-side", action="store_true")
    parser.add_argument("--results", type=Path, help="a JSON file to keep the numbers in")
    arguments = parser.parse_args()
    if arguments.side_by_side:
        numbers = compare_threads(arguments.data, arguments.unit)
    else:
        spec = TrainSpec(
            data=arguments.data,
            unit=arguments.unit,
            augment=arguments.augment,
            fraction=arguments.fraction,
            epochs=1,
        )
        clock = time.process_time if arguments.processor_time else time.perf_counter
        numbers = compare_with_bare_loop(spec, arguments.threads, clock)
    if arguments.results:
        keep(arguments.results, numbers)


def compare_with_bare_loop(
    spec: TrainSpec, threads: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Alternate between the lab and the bare loop, report by report, over one epoch."""
    torch.set_num_threads(threads)
    take_steps = bare_loop(spec)
    take_steps(5)
    lab: list[float] = []
    bare: list[float] = []
    counts: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        events = run(spec, Store(folder), threads=threads)
        next(events)
        while True:
            began, began_by_the_wall = clock(), time.perf_counter()
            event = next(events)
            seconds = clock() - began
            if isinstance(event, EpochDone):
                end_of_epoch = time.perf_counter() - began_by_the_wall - event.numbers.test_seconds
                break
            assert isinstance(event, Progress)
            counts.append(event.step - sum(counts))
            lab.append(seconds)
            began = clock()
            take_steps(counts[-1])
            bare.append(clock() - began)
    ratios = sorted(ours / theirs for ours, theirs in zip(lab, bare, strict=True))
    print(f"LeNet5, {spec.unit}, {spec.data}, augment {spec.augment}, {threads} thread(s)")
    print(f"{sum(counts)} steps in {len(lab)} reports")
    print(f"lab   {1e3 * sum(lab) / sum(counts):7.3f} ms a step, {end_of_epoch:.3f} s to record it")
    print(f"bare  {1e3 * sum(bare) / sum(counts):7.3f} ms a step")
    whole = (sum(lab) + end_of_epoch) / sum(bare)
    median = statistics.median(ratios)
    lower, upper = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
    print(f"epoch, lab / bare: {whole:.3f}")
    print(f"reports, lab / bare: median {median:.3f}, quartiles {lower:.3f} to {upper:.3f}")
    return {
        "steps": sum(counts),
        "lab_ms_a_step": 1e3 * sum(lab) / sum(counts),
        "bare_ms_a_step": 1e3 * sum(bare) / sum(counts),
        "seconds_to_record": end_of_epoch,
        "epoch_ratio": whole,
        "median_ratio": median,
        "lower_quartile": lower,
        "upper_quartile": upper,
    }


def bare_loop(spec: TrainSpec) -> Callable[[int], None]:
    """What anyone would write by hand: no recording, no normalisation, batches in memory."""
    images = data.load(spec.data)
    network = laid_out(build_network(spec, network_arguments(images)))
    layout = torch.channels_last if wants_channels_last(network) else torch.contiguous_format
    normalise = network.get_submodule("input")
    with torch.no_grad():
        batches = [
            (normalise(x).contiguous(memory_format=layout), y)
            for x, y in data.batches(
                images.train_images[:12_800], images.train_labels[:12_800], BATCH
            )
        ]
    network.add_module("input", nn.Identity())
    optimizer = torch.optim.SGD(
        network.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=2e-4, fused=True
    )
    endless = cycle(batches)

    def take_steps(count: int) -> None:
        for _ in range(count):
            x, y = next(endless)
            loss = F.cross_entropy(network(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return take_steps


def compare_threads(name: str, unit: str) -> dict[str, list[float]]:
    """Steps a second: one process with two threads, then two processes with one thread each."""
    spec = TrainSpec(data=name, unit=unit)
    rates: dict[str, list[float]] = {"one run, two threads": [], "two runs, one thread": []}
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        pool.starmap(steps_a_second, [(spec, 1), (spec, 1)], chunksize=1)  # imports, caches
        for _ in range(3):
            rates["one run, two threads"].append(pool.apply(steps_a_second, (spec, 2)))
            both = pool.starmap(steps_a_second, [(spec, 1), (spec, 1)], chunksize=1)
            rates["two runs, one thread"].append(sum(both))
    for label, values in rates.items():
        print(f"{label}: {statistics.median(values):.1f} steps a second")
    return rates


def steps_a_second(spec: TrainSpec, threads: int, seconds: float = 3.0) -> float:
    torch.set_num_threads(threads)
    take_steps = bare_loop(spec)
    take_steps(5)
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        take_steps(1)
        done += 1
    return done / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
