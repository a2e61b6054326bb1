"""Beyond the paper: is it worth giving SPLASH units to a network that is already trained?

A trained ReLU network is converted, which changes none of its outputs, and trained on at a tenth of
the learning rate; the same network goes on with ReLU for the same number of epochs. The difference
is what the units bring, and not what more training brings.

Cost: 6 trainings a seed, two of them those of `accuracy` and four short: 30 at `paper` (20 epochs
of fine-tuning), 18 at `short` (3 epochs), 6 at `smoke`. Core time from an empty store, roughly: 18
s (smoke), 1 h (short), 4 days (paper).

    splash run finetune --scale short --only model=lenet5
    splash table finetune
"""

from collections.abc import Iterator, Mapping

from splash_units.lab.spec import Scale, TrainSpec
from splash_units.lab.studies.grid import Choice, Setting, training
from splash_units.lab.studies.study import Study

# A tenth of the recipe's learning rate, network by network.
LEARNING_RATES: Mapping[Setting, float] = {
    Setting("lenet5", "cifar-10", "moderate"): 0.001,
    Setting("resnet20", "cifar-10", "moderate"): 0.01,
}
EPOCHS: Mapping[Scale, int | None] = {"smoke": None, "short": 3, "paper": 20}


def declare(scale: Scale, seed: int) -> Iterator[TrainSpec]:
    for setting, lr in LEARNING_RATES.items():
        source = training(setting, Choice("relu"), scale, seed)
        yield source
        for unit in ("relu", "splash"):
            yield training(
                setting,
                Choice(unit),
                scale,
                seed,
                source=source,
                take="weights",
                epochs=EPOCHS[scale],
                lr=lr,
            )


STUDY = Study(
    name="finetune",
    title="A trained ReLU network, converted and fine-tuned",
    text=__doc__,
    declare=declare,
    tables=("finetune",),
)
