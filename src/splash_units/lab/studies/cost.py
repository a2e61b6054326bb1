"""What a unit costs in time, and what it gains: SPLASH with 3 to 11 hinges beside five others.

Reproduces the table of run times. On a TITAN V the paper's SPLASH takes 1.7 (S = 3) to 3.2 (S = 11)
times as long as ReLU in an MLP on MNIST, 1.2 to 2.1 times in LeNet5 on CIFAR-10; errors fall from
1.57 to 1.12 and from 30.79 to 30.11 as S grows. Seconds of different machines say nothing, so
ratios to ReLU are compared: training steps of all units take turns in one process.

Cost: two measurements of some minutes, and 20 trainings a seed: 100 at `paper`, 60 at `short`, 20
at `smoke`. Core time from an empty store, roughly: 30 s (smoke), 1.4 h (short), 23 h (paper).

    splash run cost --scale short
    splash table cost
"""

from collections.abc import Iterator, Mapping

from splash_units.lab.frames import label
from splash_units.lab.spec import AnySpec, CostSpec, Scale, TrainSpec, UnitChoice
from splash_units.lab.studies.grid import NUMBERS_OF_HINGES, Choice, Setting, splash, trainings
from splash_units.lab.studies.study import Study

SETTINGS = (Setting("mlp", "mnist"), Setting("lenet5", "cifar-10"))
# ReLU comes first: it is what the others are divided by. Maxout has six features in this table.
CHOICES = (
    Choice("relu"),
    *(splash(number) for number in NUMBERS_OF_HINGES),
    Choice("tanh"),
    Choice("maxout", {"k": 6}),
    Choice("swish"),
    Choice("apl"),
)
ROUNDS: Mapping[Scale, int] = {"smoke": 3, "short": 30, "paper": 100}


def declare(scale: Scale, seed: int) -> Iterator[AnySpec]:
    yield from (measurement(setting, scale) for setting in SETTINGS)
    yield from trainings(SETTINGS, CHOICES, scale, seed)


def measurement(setting: Setting, scale: Scale) -> CostSpec:
    """Steps of all units in one network, in turns."""
    return CostSpec(
        model=setting.model,
        data=setting.data,
        units=tuple(
            UnitChoice(
                label=label(TrainSpec(unit=choice.unit, unit_options=choice.options)),
                unit=choice.unit,
                options=choice.options,
            )
            for choice in CHOICES
        ),
        rounds=ROUNDS[scale],
    )


STUDY = Study(
    name="cost",
    title="Time of a training step beside ReLU's, and the error it buys",
    text=__doc__,
    declare=declare,
    tables=("cost",),
    figures=("cost",),
)
