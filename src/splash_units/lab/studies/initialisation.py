"""Where the shapes start: five starts of SPLASH, beside a fixed ReLU and a fixed leaky ReLU.

Reproduces the appendix' two figures of training loss in LeNet5 on CIFAR-10. The paper finds the
ReLU and the leaky ReLU start best and takes ReLU. It names only those two of its five; the other
three here, identity, absolute value and small random slopes, are our choice. The fixed leaky ReLU
has the slope of the leaky start, 0.1, so that the two differ only in whether they learn.

Cost: 7 trainings of LeNet5 a seed: 35 at `paper`, 21 at `short`, 7 at `smoke`. Core time from an
empty store, roughly: 8 s (smoke), 50 min (short), 13 h (paper).

    splash run initialisation --scale short
    splash table initialisation
    splash figure initialisation
"""

from collections.abc import Iterator

from splash_units.lab.spec import Scale, TrainSpec
from splash_units.lab.studies.grid import Choice, Setting, trainings
from splash_units.lab.studies.study import Study

SETTING = Setting("lenet5", "cifar-10")
# The ReLU start is the default, so its runs are those of `splash` elsewhere.
STARTS = (
    Choice("splash"),
    *(Choice("splash", {"init": start}) for start in ("leaky_relu", "identity", "abs", "random")),
)
FIXED = (Choice("relu"), Choice("leaky_relu", {"negative_slope": 0.1}))


def declare(scale: Scale, seed: int) -> Iterator[TrainSpec]:
    return trainings([SETTING], (*STARTS, *FIXED), scale, seed)


STUDY = Study(
    name="initialisation",
    title="Five starting shapes, beside fixed ReLU and leaky ReLU",
    text=__doc__,
    declare=declare,
    tables=("initialisation",),
    figures=("initialisation", "initialisation-fixed"),
)
