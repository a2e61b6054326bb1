"""Why it works, if it does: ReLU, SPLASH, fixed SPLASH, SPLASH-positive and SPLASH-negative.

Reproduces the figure of training losses of ResNet-20 on CIFAR-10. In the paper SPLASH ends lowest,
fixed SPLASH (the final shapes, from the start and for good) and ReLU highest, SPLASH-negative below
SPLASH-positive; it concludes that the way of the shape matters, not only its end. No numbers are
printed.

Fixed SPLASH: every layer keeps the final shape of the same layer in the SPLASH network of the same
seed, and the kernels start afresh. Positive and negative are meant by what h does left of zero; the
paper's text has the sign of the coefficient the other way round.

Cost: 5 trainings of ResNet-20 a seed, two of them those of `accuracy`: 25 at `paper`, 15 at
`short`, 5 at `smoke`. Core time from an empty store, roughly: 24 s (smoke), 2.4 h (short), 17 days
(paper).

    splash run ablation --scale short
    splash table ablation
    splash figure ablation
"""

from collections.abc import Iterator

from splash_units.lab.spec import Scale, TrainSpec
from splash_units.lab.studies.grid import Choice, Setting, training
from splash_units.lab.studies.study import Study

SETTING = Setting("resnet20", "cifar-10", "moderate")


def declare(scale: Scale, seed: int) -> Iterator[TrainSpec]:
    source = training(SETTING, Choice("splash"), scale, seed)
    yield training(SETTING, Choice("relu"), scale, seed)
    yield source
    yield training(SETTING, Choice("splash_fixed"), scale, seed, source=source, take="shapes")
    yield training(SETTING, Choice("splash_positive"), scale, seed)
    yield training(SETTING, Choice("splash_negative"), scale, seed)


STUDY = Study(
    name="ablation",
    title="ReLU, SPLASH, fixed, positive and negative SPLASH",
    text=__doc__,
    declare=declare,
    tables=("ablation",),
    figures=("ablation",),
)
