"""How shapes come to be: units of ResNet-20, of the MLP and of LeNet5 during training.

Reproduces the three figures of shapes over time. The paper sees leaky ReLUs early and nearly
symmetric functions late, in six layers of ResNet-20 that it does not name; ours are the 1st, 4th,
8th, 12th, 16th and last of 19. Shapes are recorded at the start, six times in the first epoch and
after every epoch.

Cost: 3 trainings, of one seed; all are among those of `accuracy` and `hinges`. Core time from an
empty store, roughly: 7 s (smoke), 13 min (short), 17 h (paper).

    splash run evolution --scale short
    splash figure evolution-resnet20
"""

from collections.abc import Iterator

from splash_units.lab.spec import Scale, TrainSpec
from splash_units.lab.studies.grid import Choice, Setting, trainings
from splash_units.lab.studies.study import Study

SETTINGS = (
    Setting("resnet20", "cifar-10", "moderate"),
    Setting("mlp", "mnist"),
    Setting("lenet5", "cifar-10"),
)
#: Which of ResNet-20's 19 activations the figure shows, counted from 1.
LAYERS = (1, 4, 8, 12, 16, 19)


def declare(scale: Scale, seed: int) -> Iterator[TrainSpec]:
    return trainings(SETTINGS, [Choice("splash")], scale, seed)


STUDY = Study(
    name="evolution",
    title="Shapes of SPLASH units during training",
    text=__doc__,
    declare=declare,
    figures=("evolution-resnet20", "evolution-mlp", "evolution-lenet5"),
    seeds={"smoke": 1, "short": 1, "paper": 1},
)
