"""What batches cost beside the training step they feed: LeNet5, batch 128, images like CIFAR-10's.

    python benchmarks/data.py [--unit relu] [--threads 2] [--rounds 200]

Steps and batches alternate in one process; printed are medians and their ratio to the step.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from keeping import keep
from torch.nn import functional as F

from splash_units import catalogue
from splash_units.lab import data, models

BATCH = 128
IMAGES = 10_000
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--unit", default="relu", choices=catalogue.names())
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--results", type=Path, help="a JSON file to keep the numbers in")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    pixels = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 10, (IMAGES,))
    step = training_step(arguments.unit)
    feeds = {name: endless_batches(pixels, labels, name) for name in data.AUGMENTATIONS}
    x, y = next(feeds["none"])

    seconds: dict[str, list[float]] = {name: [] for name in ("step", *feeds)}
    for _ in range(arguments.rounds):
        seconds["step"].append(timed(lambda: step(x, y)))
        for name, feed in feeds.items():
            seconds[name].append(timed(lambda feed=feed: next(feed)))

    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(
        f"LeNet5 with {arguments.unit}, batch {BATCH}, {arguments.threads} threads, "
        f"{arguments.rounds} rounds"
    )
    for name, median in medians.items():
        share = f"  {median / medians['step']:7.2%} of a step" if name != "step" else ""
        print(f"{name:>9}  {1e3 * median:7.3f} ms{share}")
    if arguments.results:
        keep(arguments.results, {f"{name}_ms": 1e3 * median for name, median in medians.items()})


def training_step(unit: str):
    """Forward, backward and an SGD step, as in the recipe of LeNet5; it is faster contiguous."""
    network = models.build("lenet5", catalogue.unit(unit), mean=MEAN, std=STD)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=True
    )

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def endless_batches(pixels: torch.Tensor, labels: torch.Tensor, augment: str):
    """Batches in random order, epoch after epoch."""
    generator = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(labels), generator=generator)
        yield from data.batches(
            pixels,
            labels,
            BATCH,
            order=order,
            augment=augment,
            generator=generator,
            fill=MEAN,
            channels_last=False,
        )


def timed(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
