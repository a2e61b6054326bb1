"""Every name that a spec may use: is there such a network, unit, data set, recipe or attack?

For whoever must know before work begins. Plugins count once they are loaded.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from splash_units.lab.spec import (
    AnySpec,
    AttackSpec,
    CostSpec,
    SeparationSpec,
    TrainSpec,
    TransferSpec,
    unknown,
)


def check_model(name: str, options: Mapping[str, Any] | None = None) -> None:
    import torch

    from splash_units import catalogue
    from splash_units.lab import models

    if name not in models.names():
        raise ValueError(unknown("network", name, models.names()))
    if options:  # its builder alone knows which are right, so one is built
        images = {"mean": (0.0,), "std": (1.0,), "in_channels": 1}
        try:
            with torch.random.fork_rng(devices=[]):
                models.build(name, catalogue.unit("relu"), **{**images, **options})
        except TypeError as error:
            raise ValueError(f"network {name!r}: {error}") from None


def check_data(name: str) -> None:
    from splash_units.lab import data

    if name not in data.names():
        raise ValueError(unknown("data set", name, data.names()))


def check_unit(name: str, options: Mapping[str, Any]) -> None:
    from splash_units import catalogue

    if name not in catalogue.names():
        raise ValueError(unknown("unit", name, catalogue.names()))
    try:
        catalogue.unit(name, **options)
    except TypeError as error:
        raise ValueError(str(error)) from None


def check_attack(name: str, options: Mapping[str, Any]) -> None:
    from splash_units.lab.robustness import check_attack

    check_attack(name, dict(options))


def check(specs: Iterable[AnySpec]) -> None:
    """ValueError for the first name that there is not, in any of these specs."""
    for spec in specs:
        match spec:
            case TrainSpec():
                _check_training(spec)
            case AttackSpec():
                _check_training(spec.train)
                check_attack(spec.attack, spec.options)
            case TransferSpec():
                for train in spec.trains:
                    _check_training(train)
                check_attack(spec.attack, spec.options)
            case SeparationSpec():
                _check_training(spec.train)
            case CostSpec():
                check_model(spec.model)
                check_data(spec.data)
                for choice in spec.units:
                    check_unit(choice.unit, choice.options)


def _check_training(spec: TrainSpec) -> None:
    from splash_units.lab.recipes import recipe

    check_model(spec.model, spec.model_options)
    check_data(spec.data)
    check_unit(spec.unit, spec.unit_options)
    recipe(spec.model, spec.data, variant=spec.recipe)
    if spec.source is not None:
        _check_training(spec.source)
