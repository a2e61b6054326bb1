"""Part of a study: `model=lenet5,unit=relu+splash` as a filter on specs."""

from collections.abc import Iterable, Mapping, Sequence

from splash_units.lab.frames import label
from splash_units.lab.spec import (
    AnySpec,
    AttackSpec,
    CostSpec,
    SeparationSpec,
    TrainSpec,
    TransferSpec,
    unknown,
)

KEYS = ("model", "data", "augment", "unit", "seed", "attack", "kind")

Wanted = Mapping[str, frozenset[str]]
Facts = Mapping[str, frozenset[str]]


def parse(text: str) -> Wanted:
    """`key=value+value,key=value` as a mapping; ValueError names what can't be read."""
    wanted: dict[str, frozenset[str]] = {}
    for part in text.split(","):
        key, equals, values = (piece.strip() for piece in part.partition("="))
        if not equals or not values:
            raise ValueError(f"{part!r}: write it as KEY=VALUE or KEY=VALUE+VALUE")
        if key not in KEYS:
            raise ValueError(unknown("key", key, KEYS))
        if key in wanted:
            raise ValueError(f"{key} is given twice; join its values with +")
        wanted[key] = frozenset(value.strip() for value in values.split("+"))
    return wanted


def select(specs: Sequence[AnySpec], only: str, study: str) -> list[AnySpec]:
    """The specs that a text asks for.

    A unit is meant by its name, or by its name and options as tables write them. A comparison of
    several networks or units keeps those asked for, if two or more are left; ReLU stays in a
    comparison of costs, since it is the measure. ValueError for a value that no spec has.
    """
    wanted = parse(only)
    known = _known(specs)
    for key, values in wanted.items():
        for value in sorted(values - known[key]):
            raise ValueError(f"{unknown(key, value, known[key])} (in the study {study})")
    chosen = (_narrowed(spec, wanted) for spec in specs)
    return [spec for spec in chosen if spec is not None]


def _known(specs: Iterable[AnySpec]) -> dict[str, set[str]]:
    known: dict[str, set[str]] = {key: set() for key in KEYS}
    for spec in specs:
        for facts in (_own_facts(spec), *map(_train_facts, _trains(spec)), *_unit_facts(spec)):
            for key, values in facts.items():
                known[key] |= values
    return known


def _narrowed(spec: AnySpec, wanted: Wanted) -> AnySpec | None:
    if not _agrees(_own_facts(spec), wanted):
        return None
    if isinstance(spec, TransferSpec):
        trains = tuple(train for train in spec.trains if _agrees(_train_facts(train), wanted))
        return spec.model_copy(update={"trains": trains}) if len(trains) > 1 else None
    if isinstance(spec, CostSpec):
        units = tuple(
            unit
            for unit, facts in zip(spec.units, _unit_facts(spec), strict=True)
            if unit is spec.units[0] or _agrees(facts, wanted)
        )
        # A cost has no seed and no augmentation: asking for those asks for trainings.
        plain = not wanted.keys() & {"seed", "augment", "attack"}
        return spec.model_copy(update={"units": units}) if plain and len(units) > 1 else None
    return spec if all(_agrees(_train_facts(train), wanted) for train in _trains(spec)) else None


def _agrees(facts: Facts, wanted: Wanted) -> bool:
    return all(facts[key] & values for key, values in wanted.items() if key in facts)


def _own_facts(spec: AnySpec) -> Facts:
    """What a spec is, beside the trainings it holds; no training has an attack."""
    facts = {"kind": frozenset({spec.kind}), "attack": frozenset[str]()}
    if isinstance(spec, AttackSpec | TransferSpec):
        facts["attack"] = frozenset({spec.attack})
    if isinstance(spec, CostSpec):
        facts |= {"model": frozenset({spec.model}), "data": frozenset({spec.data})}
    return facts


def _trains(spec: AnySpec) -> tuple[TrainSpec, ...]:
    match spec:
        case TrainSpec():
            return (spec,)
        case AttackSpec(train=train) | SeparationSpec(train=train):
            return (train,)
        case TransferSpec(trains=trains):
            return trains
        case CostSpec():
            return ()


def _train_facts(spec: TrainSpec) -> Facts:
    return {
        "model": frozenset({spec.model}),
        "data": frozenset({spec.data}),
        "augment": frozenset({spec.augment}),
        "unit": frozenset({spec.unit, label(spec)}),
        "seed": frozenset({str(spec.seed)}),
    }


def _unit_facts(spec: AnySpec) -> list[Facts]:
    if not isinstance(spec, CostSpec):
        return []
    return [{"unit": frozenset({choice.unit, choice.label})} for choice in spec.units]
