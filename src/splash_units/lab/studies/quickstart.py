"""A first look: five units in LeNet5 on scikit-learn's digits, trained and attacked, no download.

Not in the paper, whose units these are. It shows that everything works and what results look like;
on so small a data set the differences say little, and the attacks are cut short.

Cost: 5 trainings of 10 epochs and 25 small attacks a seed, about two minutes for three seeds on two
cores: 15 and 75 at `short`.

    splash quickstart
    splash table quickstart
"""

from collections.abc import Iterator, Mapping
from typing import Any

from splash_units.lab.spec import AnySpec, AttackSpec, Scale, TrainSpec
from splash_units.lab.studies.grid import Choice, Setting, training
from splash_units.lab.studies.study import Study

SETTING = Setting("lenet5", "digits")
UNITS = ("relu", "prelu", "apl", "swish", "splash")
EPOCHS = 10
# One step must go farther than ten to do as much.
EPS: Mapping[str, tuple[float, ...]] = {"fgsm": (0.05, 0.1), "pgd": (0.02, 0.05)}
IMAGES: Mapping[str, int] = {"fgsm": 200, "pgd": 100, "pixels": 50}
_PIXELS = {"k": 1, "population": 50, "generations": 5, "base": "random"}


def trainings(scale: Scale, seed: int, epochs: int | None = EPOCHS) -> Iterator[TrainSpec]:
    return (training(SETTING, Choice(unit), scale, seed, epochs=epochs) for unit in UNITS)


def attacks_on(train: TrainSpec) -> list[AttackSpec]:
    """FGSM and PGD at two budgets each, and one pixel, on a few images."""
    wanted: list[tuple[str, dict[str, Any]]] = [
        *(("fgsm", {"eps": eps, "random_start": True}) for eps in EPS["fgsm"]),
        *(("pgd", {"eps": eps, "steps": 10}) for eps in EPS["pgd"]),
        ("pixels", _PIXELS),
    ]
    return [
        AttackSpec(train=train, attack=name, options=options, images=IMAGES[name], seed=train.seed)
        for name, options in wanted
    ]


def declare(scale: Scale, seed: int) -> Iterator[AnySpec]:
    for train in trainings(scale, seed, None if scale == "smoke" else EPOCHS):
        yield train
        yield from attacks_on(train)


STUDY = Study(
    name="quickstart",
    title="Five units in LeNet5 on digits",
    text=__doc__,
    declare=declare,
    tables=("results", "comparison", "attacks"),
)
