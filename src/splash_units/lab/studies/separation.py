"""Do frogs and ships lie farther apart? The pre-softmax layer of LeNet5, with ReLU and SPLASH.

Reproduces the t-SNE figure (learning rate 30, perplexity 40), in which the paper sees less overlap
with SPLASH. So that the eye is not the judge, two numbers stand beside the picture, computed on the
scores themselves and not on the map: the silhouette, and how often the nearest neighbour is of the
same class. "100 random samples of frog and ship" is read as 100 of each.

Cost: 2 trainings of LeNet5 a seed, both among those of `accuracy`, and seconds for the rest. Core
time from an empty store, roughly: 12 s (smoke), 14 min (short), 4 h (paper).

    splash run separation --scale short
    splash table separation
    splash figure separation
"""

from collections.abc import Iterator
from typing import Any

from splash_units.lab.spec import Scale, SeparationSpec
from splash_units.lab.studies.grid import Choice, Setting, trainings
from splash_units.lab.studies.study import Study

SETTING = Setting("lenet5", "cifar-10", "moderate")
# A smoke run tests on 256 images, of which a class has some 25.
_SMALL: dict[str, Any] = {"images_per_class": 12, "perplexity": 5}


def declare(scale: Scale, seed: int) -> Iterator[SeparationSpec]:
    size = _SMALL if scale == "smoke" else {}
    for train in trainings([SETTING], [Choice("relu"), Choice("splash")], scale, seed):
        yield SeparationSpec(train=train, seed=seed, **size)


STUDY = Study(
    name="separation",
    title="Frogs and ships in front of the softmax",
    text=__doc__,
    declare=declare,
    tables=("separation",),
    figures=("separation",),
)
