"""What is attacked: a network, the labelled images it may be attacked on, and which of them are."""

from dataclasses import dataclass

import torch
from torch import Tensor

from splash_units.lab import data
from splash_units.lab.assembly import load_network
from splash_units.lab.attacks import classified_right
from splash_units.lab.attacks.frozen import Model
from splash_units.lab.process import stream
from splash_units.lab.store import Run

LOOKED_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class Target:
    """A network on its device, and all images there are: bytes, or floats in [0, 1]."""

    network: Model
    images: Tensor
    labels: Tensor
    place: torch.device
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def shown(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Some images as the network takes them, and their labels."""
        images = floats(self.images[index].to(self.place))
        return images.contiguous(), self.labels[index].to(self.place)


def floats(images: Tensor) -> Tensor:
    """Images in [0, 1] from bytes, or as they are."""
    return images.to(torch.float32) / 255 if images.dtype == torch.uint8 else images


def target_of(run: Run, place: torch.device) -> Target:
    """The trained network of a run and the test images of its data set."""
    result = run.result() or {}
    if result.get("status") != "done":
        how = result.get("status", "is not done")
        raise ValueError(f"run {run.id} has no trained network: it {how} {result.get('why', '')}")
    images = data.load(run.spec().data)
    return Target(
        network=load_network(run).to(place),
        images=images.test_images,
        labels=images.test_labels,
        place=place,
        classes=images.class_names,
    )


def draw(target: Target, count: int, choose: str, seed: int) -> Tensor:
    """Up to `count` images by their place: in a random order, all or only those that are right.

    The order depends on the seed and the number of images alone, not on the network, so that
    networks are attacked on common images as far as both get them right.
    """
    order = torch.randperm(len(target), generator=stream(seed, "images"))
    if choose == "all":
        return order[:count]
    found: list[Tensor] = []
    for block in torch.split(order, LOOKED_AT_ONCE):
        right = classified_right(target.network, *target.shown(block))
        found.append(block[right.cpu()])
        if sum(map(len, found)) >= count:
            break
    drawn = torch.cat(found)[:count]
    if not len(drawn):
        raise ValueError(
            f"there is no image to attack: the network gets none of {len(target)} images right"
        )
    return drawn
