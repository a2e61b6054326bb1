"""How many hinges, and who shares them: S = 3 to 11, one shape a layer or one a neuron.

Reproduces the table of numbers of hinges. In the paper errors fall until S = 7 (MLP on MNIST 1.57
to 1.13, LeNet5 on CIFAR-10 30.79 to 30.20) and hardly after; a shape for every neuron is no better.
Its counts of additional parameters follow for the MLP; for LeNet5 with a shape a neuron it prints
">75k" to ">225k", where the network has 6,508 neurons and so 26,032 to 78,096. The table prints
what the trained networks had.

The hinges of S other than 7 are not given. Ours are nested: 3 {0, 1}, 5 {0, 1, 2},
9 {0, 0.5, 1, 2, 2.5}, 11 {0, 0.5, 1, 1.5, 2, 2.5}.

Cost: 20 trainings a seed, half of them those of the study `cost`: 100 at `paper`, 60 at `short`, 20
at `smoke`. Core time from an empty store, roughly: 20 s (smoke), 1.4 h (short), 23 h (paper).

    splash run hinges --scale short
    splash table hinges
"""

from collections.abc import Iterator

from splash_units.lab.spec import Scale, TrainSpec
from splash_units.lab.studies.grid import NUMBERS_OF_HINGES, Setting, splash, trainings
from splash_units.lab.studies.study import Study

SETTINGS = (Setting("mlp", "mnist"), Setting("lenet5", "cifar-10"))
SHARED = tuple(splash(number) for number in NUMBERS_OF_HINGES)
INDEPENDENT = tuple(splash(number, share="unit") for number in NUMBERS_OF_HINGES)


def declare(scale: Scale, seed: int) -> Iterator[TrainSpec]:
    return trainings(SETTINGS, (*SHARED, *INDEPENDENT), scale, seed)


STUDY = Study(
    name="hinges",
    title="Error and additional parameters for 3 to 11 hinges, shared and independent",
    text=__doc__,
    declare=declare,
    tables=("hinges",),
    figures=("hinges",),
)
