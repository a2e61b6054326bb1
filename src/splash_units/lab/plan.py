"""From a spec to numbers: how many epochs, images and steps its scale means for its network.

`paper` is the whole recipe. `short` is a stated part of its epochs and of the images, chosen so
that every network is done in minutes to half an hour on one core. `smoke` shows that all works.
The learning-rate drops move with the epochs, so a short run sees every phase of its schedule.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from splash_units.lab.recipes import Recipe, recipe
from splash_units.lab.spec import TrainSpec


@dataclass(frozen=True)
class Share:
    """The part of a recipe's epochs and of a data set's images that a scale uses."""

    epochs: float
    images: float


PAPER = Share(epochs=1.0, images=1.0)
SHORT: Mapping[str, Share] = {
    "mlp": Share(epochs=0.1, images=1.0),
    "lenet5": Share(epochs=0.1, images=1.0),
    "resnet20": Share(epochs=0.05, images=0.2),
    "nin": Share(epochs=0.03, images=0.1),
    "allcnn": Share(epochs=0.02, images=0.1),
}
SHORT_OF_ANY_OTHER = Share(epochs=0.05, images=0.2)
# A part of a small data set would teach nothing: `short` takes at least so many, or all there are.
SHORT_LEAST_IMAGES = 2_000

SMOKE_EPOCHS = 2
SMOKE_IMAGES = 256


@dataclass(frozen=True)
class Plan:
    """What a training will do, all choices made: written into every result beside the spec."""

    epochs: int
    paper_epochs: int
    train_images: int
    all_train_images: int
    test_images: int
    all_test_images: int
    steps: int
    recipe: Recipe

    def as_dict(self) -> dict[str, Any]:
        """As it reads back from JSON, so that two plans can be compared across files."""
        fields: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return fields


def plan(spec: TrainSpec, train_images: int, test_images: int) -> Plan:
    """The plan of a spec on a data set of this size."""
    chosen = _with_overrides(recipe(spec.model, spec.data, variant=spec.recipe), spec)
    share = PAPER if spec.scale == "paper" else SHORT.get(spec.model, SHORT_OF_ANY_OTHER)
    if spec.scale == "smoke":
        epochs = SMOKE_EPOCHS
        used, tested = min(SMOKE_IMAGES, train_images), min(SMOKE_IMAGES, test_images)
    else:
        epochs = max(1, round(chosen.epochs * share.epochs))
        used, tested = _part(train_images, share.images), _part(test_images, share.images)
    if spec.fraction is not None:
        used = max(1, round(train_images * spec.fraction))
    epochs = spec.epochs or epochs
    used = _without_lone_image(used, chosen.batch_size)
    return Plan(
        epochs=epochs,
        paper_epochs=chosen.epochs,
        train_images=used,
        all_train_images=train_images,
        test_images=tested,
        all_test_images=test_images,
        steps=math.ceil(used / chosen.batch_size),
        recipe=chosen.scaled(epochs),
    )


def _with_overrides(chosen: Recipe, spec: TrainSpec) -> Recipe:
    return replace(
        chosen,
        lr=chosen.lr if spec.lr is None else spec.lr,
        batch_size=spec.batch_size or chosen.batch_size,
        weight_decay=chosen.weight_decay if spec.weight_decay is None else spec.weight_decay,
    )


def _part(images: int, share: float) -> int:
    return min(images, max(SHORT_LEAST_IMAGES, round(images * share)))


def _without_lone_image(images: int, batch_size: int) -> int:
    """Batch norm cannot train on one image, so a last batch of one is left out."""
    if images < 2:
        raise ValueError(
            f"{images} image(s) cannot train a network with batch norm: take a larger fraction"
        )
    return images - 1 if images % batch_size == 1 else images
