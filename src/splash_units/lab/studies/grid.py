"""The words studies are declared with: the paper's networks and units, and trainings of them."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from splash_units.lab.spec import Scale, TrainSpec


class Choice(NamedTuple):
    """A unit of the catalogue and its options, where they depart from the defaults."""

    unit: str
    options: dict[str, Any] = {}  # noqa: RUF012 - never written to


class Setting(NamedTuple):
    """What a column of a table is about: a network on a data set, with an augmentation."""

    model: str
    data: str
    augment: Literal["none", "moderate", "heavy"] = "none"


# In the order of the paper's caption; maxout has nine features and APL five hinges by default.
UNITS = tuple(
    Choice(unit)
    for unit in (
        "relu", "leaky_relu", "prelu", "tanh", "sigmoid", "elu", "maxout", "swish", "apl", "splash",
    )
)  # fmt: skip
ATTACKED_UNITS = tuple(Choice(unit) for unit in ("relu", "swish", "apl", "splash"))
NUMBERS_OF_HINGES = (3, 5, 7, 9, 11)

# The paper does not say which of its networks it attacks. Those trained with augmentation are the
# better ones; LeNet5 is attacked without, too.
ATTACKED = (
    *(Setting(model, "cifar-10", "moderate") for model in ("lenet5", "nin", "allcnn", "resnet20")),
    Setting("lenet5", "cifar-10"),
)


def splash(num_hinges: int, **options: Any) -> Choice:
    """SPLASH with S hinges; the default is left unsaid, so that its runs are those of `splash`."""
    return Choice("splash", options if num_hinges == 7 else {"num_hinges": num_hinges, **options})


def training(setting: Setting, choice: Choice, scale: Scale, seed: int, **fields: Any) -> TrainSpec:
    """The training of one unit in one setting."""
    return TrainSpec(
        model=setting.model,
        data=setting.data,
        augment=setting.augment,
        unit=choice.unit,
        unit_options=dict(choice.options),
        scale=scale,
        seed=seed,
        **fields,
    )


def trainings(
    settings: Iterable[Setting], choices: Iterable[Choice], scale: Scale, seed: int
) -> Iterator[TrainSpec]:
    """Every unit in every setting."""
    choices = tuple(choices)
    return (training(setting, choice, scale, seed) for setting in settings for choice in choices)
