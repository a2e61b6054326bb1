"""A first look: five units in LeNet5 on scikit-learn's digits, without a download.

Not in the paper, whose units these are. It shows that everything works and what results look like;
on so small a data set the differences say little.

Cost: 5 trainings of 15 epochs a seed, about a minute for three seeds on two cores: 15 at `short`.

    splash quickstart
    splash table quickstart
"""

from collections.abc import Iterator

from splash_units.lab.spec import Scale, TrainSpec
from splash_units.lab.studies.grid import Choice, Setting, training
from splash_units.lab.studies.study import Study

SETTING = Setting("lenet5", "digits")
UNITS = ("relu", "prelu", "apl", "swish", "splash")
EPOCHS = 15


def declare(scale: Scale, seed: int) -> Iterator[TrainSpec]:
    epochs = None if scale == "smoke" else EPOCHS
    return (training(SETTING, Choice(unit), scale, seed, epochs=epochs) for unit in UNITS)


STUDY = Study(
    name="quickstart",
    title="Five units in LeNet5 on digits",
    text=__doc__,
    declare=declare,
    tables=("results", "comparison"),
)
