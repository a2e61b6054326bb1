"""What an attack may do and what it reports: `Budget`, `Outcome`, and the checks on what is handed
in.

Only two kinds of attack exist: one with a `Budget`, which looks for any wrong answer within a
distance, and one without, which looks for the nearest wrong answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
from torch import Tensor

Norm = Literal["linf", "l2", "l0"]


@dataclass(frozen=True)
class Budget:
    """The largest distance from the clean image an attack may use, in images scaled to [0, 1].

    `l0` counts pixels (positions at which any channel differs), not channel values.
    """

    norm: Norm
    eps: float

    def __post_init__(self) -> None:
        if self.norm not in get_args(Norm):
            raise ValueError(f"norm must be one of {get_args(Norm)}, got {self.norm!r}")
        positive("eps", self.eps)

    @property
    def with_rounding(self) -> float:
        """The budget as arithmetic can keep it: `clean + eps` is rounded to a float in [0, 1]."""
        return self.eps * (1 + 1e-6) + 2.0**-24

    def holds(self, outcome: Outcome) -> Tensor:
        """Which images of the outcome lie within this budget."""
        distance: Tensor = getattr(outcome, self.norm)
        return distance <= self.with_rounding


@dataclass(frozen=True)
class Outcome:
    """What an attack did, one row an image; every field is a tensor of the same length.

    `fooled` means *right before and wrong now*: an image the network got wrong without help is not
    an attack's success, though it counts in `wrong` (the reading "wrong after the attack, of all").
    Such an image is never attacked: its row holds the clean image, distances of 0 and the one query
    that found it wrong. An image that resists a fixed-budget attack keeps the last attempt; one
    that resists a minimising attack keeps the clean image, so that its distances, like those of
    every row that is not `fooled`, are no measure of robustness.

    `prediction`, `fooled` and the probabilities come from a fresh forward of `images` as stored
    here, not from what the attack believed on its way.
    """

    images: Tensor
    labels: Tensor
    clean_prediction: Tensor
    prediction: Tensor
    was_right: Tensor
    fooled: Tensor
    l0: Tensor  #: pixels changed
    l2: Tensor
    linf: Tensor
    probability_true: Tensor  #: of the true class, on `images`
    probability_predicted: Tensor  #: of the predicted class, on `images`
    queries: (
        Tensor  #: images the network was shown for this row: the clean one and the attack's own
    )
    gradient_queries: Tensor  #: how many of the queries also asked for a gradient
    winner: Tensor  #: which of several attacks fooled the image, counted from 0; -1 if none did

    def __post_init__(self) -> None:
        lengths = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"an outcome has one row an image in every field, got {lengths}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def wrong(self) -> Tensor:
        """Wrong now, whether or not it was before: the count a table of "successful attacks" may
        mean.
        """
        return self.prediction != self.labels

    @property
    def robust_accuracy(self) -> float:
        """The share of all images still classified right."""
        return float((~self.wrong).double().mean())

    @property
    def success_rate(self) -> float:
        """The share of the images that were right and are wrong now; NaN when none was right."""
        attempts = int(self.was_right.sum())
        return int(self.fooled.sum()) / attempts if attempts else math.nan

    def fooled_within(self, budget: Budget) -> Tensor:
        """Which images a minimising attack fooled at a distance the budget allows."""
        return self.fooled & budget.holds(self)

    def tensors(self) -> dict[str, Tensor]:
        """The fields by name, ready for a store; `Outcome(**tensors)` is the way back."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def rows(self, index: Tensor) -> Outcome:
        """The outcome of some of the images: a mask or indices."""
        return Outcome(**{name: tensor[index] for name, tensor in self.tensors().items()})

    @staticmethod
    def concatenate(outcomes: Iterable[Outcome]) -> Outcome:
        """One outcome of several, in their order."""
        whole = list(outcomes)
        if not whole:
            raise ValueError("no outcome to concatenate")
        if len(whole) == 1:
            return whole[0]
        parts = [outcome.tensors() for outcome in whole]
        return Outcome(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def distances(images: Tensor, clean: Tensor) -> dict[Norm, Tensor]:
    """L0 in pixels, L2 and Linf from the clean images, as doubles."""
    difference = (images - clean).abs_()
    pixels = difference.amax(1).flatten(1)
    rows = torch.linalg.vector_norm(
        difference, dim=3
    )  # short sums lose nothing in single precision
    return {
        "l2": torch.linalg.vector_norm(rows.flatten(1), dim=1, dtype=torch.float64),
        "linf": pixels.amax(1).double(),
        "l0": pixels.sign_().sum(1).long(),  # a third of what count_nonzero takes
    }


def check_images(images: object, labels: object) -> None:
    """Refuse what no attack could work on, before any work is done."""
    if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
        kinds = f"{type(images).__name__} and {type(labels).__name__}"
        raise TypeError(f"images and labels must be tensors, got {kinds}")
    if images.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"images must be float32 or float64 in [0, 1], got {images.dtype}")
    if images.ndim != 4:
        raise ValueError(f"images must be (N, C, H, W), got shape {tuple(images.shape)}")
    if images.numel() == 0:
        raise ValueError(f"there is no image to attack: images have shape {tuple(images.shape)}")
    if labels.dtype.is_floating_point or labels.dtype in (torch.bool, torch.complex64):
        raise TypeError(f"labels must be integers, got {labels.dtype}")
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must be one an image, shape ({len(images)},), got {tuple(labels.shape)}"
        )
    low, high = float(images.min()), float(images.max())
    if not (low >= 0.0 and high <= 1.0):  # written so that NaN fails too
        raise ValueError(f"images must lie in [0, 1], got values from {low:g} to {high:g}")
    if int(labels.min()) < 0:
        raise ValueError(f"labels must not be negative, got {int(labels.min())}")


def check_labels(labels: Tensor, classes: int) -> None:
    """Labels can be checked only once the network has shown how many classes it knows."""
    if int(labels.max()) >= classes:
        raise ValueError(
            f"labels must be below the network's {classes} classes, got {int(labels.max())}"
        )


def positive(name: str, value: float) -> None:
    """Refuse a setting that must be a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (0 < value < math.inf):
        raise ValueError(f"{name} must be above 0 and finite, got {value!r}")


def whole(name: str, value: int, at_least: int = 1) -> None:
    """Refuse a setting that must be a whole number of some size."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value!r}")
