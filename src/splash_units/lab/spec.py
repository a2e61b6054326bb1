"""What a run is: a frozen, validated record with a hash that names its folder on disk.

A spec holds what changes a result and nothing else. Device and threads stay out of it: they belong
to the machine and are recorded beside the result; the experiment is the same. `TrainSpec` is a
training; the others say what is done with trained networks, and hold the trainings they need.
"""

import difflib
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

# Part of every hash: raise it when a default below or the meaning of a field changes, so that old
# results are not taken for new ones.
HASH_VERSION = 2  # 2: slopes that a layer shares learn with 3/√n by default, not 1/√n

Scale = Literal["smoke", "short", "paper"]


def _plain_number(value: Any) -> Any:
    """Numbers as RFC 8785 writes them, 1.0 as 1: equal settings must have equal hashes."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {str(key): _plain_number(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_number(item) for item in value]
    if value is None or isinstance(value, str | int):
        return value
    raise ValueError(f"{value!r} is a {type(value).__name__}; only JSON values can be options")


Name = Annotated[str, Field(min_length=1, max_length=100)]
Options = Annotated[dict[str, Any], BeforeValidator(_plain_number)]


class Spec(BaseModel):
    """What all specs have in common: they don't change, know their fields, and hash by content."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )

    def __hash__(self) -> int:
        return hash(digest(self))


class TrainSpec(Spec):
    """One training: a network with a unit on a data set, from a seed, at a scale.

    None leaves the choice to the network's recipe, or for `epochs` and `fraction` to the scale.
    """

    kind: Literal["train"] = "train"
    model: Name = Field(
        default="lenet5", description="the network: mlp, lenet5, nin, allcnn, resnet20"
    )
    model_options: Options = Field(default={}, description="options of the network")
    data: Name = Field(default="digits", description="the data set: see splash data list")
    unit: Name = Field(
        default="splash", description="the unit: splash, relu, prelu, apl, swish and others"
    )
    unit_options: Options = Field(default={}, description="options of the unit")
    seed: int = Field(default=0, ge=0, lt=2**63, description="fixes all that is random")
    scale: Scale = Field(
        default="short", description="how much: smoke (seconds), short (a part) or paper (all)"
    )
    augment: Literal["none", "moderate", "heavy"] = Field(
        default="none", description="augmentation: none, moderate (flips, shifts) or heavy"
    )
    recipe: Name = Field(default="primary", description="a variant of the network's recipe")
    epochs: int | None = Field(default=None, ge=1, description="epochs, instead of the scale's")
    fraction: float | None = Field(
        default=None, gt=0, le=1, description="part of the images, instead of the scale's"
    )
    batch_size: int | None = Field(
        default=None, ge=2, description="images a step, instead of the recipe's"
    )
    optimizer: Literal["sgd", "adam"] = Field(
        default="sgd", description="the optimizer: sgd or adam"
    )
    lr: float | None = Field(
        default=None, gt=0, description="learning rate at the start, instead of the recipe's"
    )
    slope_lr: float = Field(
        default=1.0, gt=0, description="factor on the learning rate of the units' slopes"
    )
    weight_decay: float | None = Field(
        default=None, ge=0, description="weight decay of the kernels, instead of the recipe's"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="the precision: float32, or bfloat16 by autocast"
    )
    compile: bool = Field(default=False, description="use torch.compile")
    source: "TrainSpec | None" = Field(
        default=None, description="a training whose shapes or weights this one begins with"
    )
    take: Literal["shapes", "weights"] = Field(
        default="shapes",
        description="what it takes: every unit's final shape, or all weights, converted",
    )

    @model_validator(mode="after")
    def _takes_from_somewhere(self) -> "TrainSpec":
        if self.source is None and self.take != "shapes":
            raise ValueError(f"take = {self.take!r}: needs a source to take from")
        return self


class AttackSpec(Spec):
    """One attack on the network of a training, on images drawn from its test set.

    `options` are the attack's own. `choose` draws among the images that the network classifies
    right, or among all: both readings of the paper.
    """

    kind: Literal["attack"] = "attack"
    train: TrainSpec
    attack: Name
    options: Options = {}
    images: int = Field(default=1000, ge=1)
    choose: Literal["right", "all"] = "right"
    seed: int = Field(default=0, ge=0, lt=2**63)


class TransferSpec(Spec):
    """One attack on each of several networks, and what its images do to all the others."""

    kind: Literal["transfer"] = "transfer"
    trains: tuple[TrainSpec, ...] = Field(min_length=2)
    attack: Name = "pgd"
    options: Options = {}
    images: int = Field(default=1000, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**63)


class SeparationSpec(Spec):
    """How far apart two classes lie in front of a network's softmax, by t-SNE and by numbers.

    The default classes are CIFAR-10's frogs and ships.
    """

    kind: Literal["separation"] = "separation"
    train: TrainSpec
    classes: tuple[int, int] = (6, 8)
    images_per_class: int = Field(default=100, ge=2)
    perplexity: float = Field(default=40, gt=0)
    learning_rate: float = Field(default=30, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**63)


class UnitChoice(Spec):
    """A unit of the catalogue with its options, and what a table calls it."""

    label: Name
    unit: Name
    options: Options = {}


class CostSpec(Spec):
    """Seconds of a training step of one network with several units, interleaved in one process."""

    kind: Literal["cost"] = "cost"
    model: Name = "lenet5"
    data: Name = "digits"
    units: tuple[UnitChoice, ...] = Field(min_length=2)
    batch_size: int = Field(default=128, ge=2)
    rounds: int = Field(default=30, ge=1)

    @model_validator(mode="after")
    def _begins_with_the_measure(self) -> "CostSpec":
        if self.units[0].unit != "relu":
            raise ValueError(
                f"the first unit is what others are compared with: relu, not {self.units[0].unit}"
            )
        return self


AnySpec = Annotated[
    TrainSpec | AttackSpec | TransferSpec | SeparationSpec | CostSpec, Field(discriminator="kind")
]
_any_spec: TypeAdapter[Any] = TypeAdapter(AnySpec)


def read_spec(values: Mapping[str, Any]) -> "AnySpec":
    """A spec of any kind from what `model_dump` gave."""
    try:
        spec: AnySpec = _any_spec.validate_python(values)
    except ValidationError as error:
        raise ValueError(explain(error)) from None
    return spec


def needs(spec: "AnySpec") -> tuple[TrainSpec, ...]:
    """The trainings that must be done before a spec can be."""
    match spec:
        case TrainSpec(source=source):
            return () if source is None else (source,)
        case AttackSpec(train=train) | SeparationSpec(train=train):
            return (train,)
        case TransferSpec(trains=trains):
            return trains
        case _:
            return ()


def canonical_json(spec: BaseModel) -> str:
    """The one text of a spec: sorted, without blanks, and without fields at their defaults.

    Leaving defaults out lets a later version add a field without renaming every run there is.
    """
    kind = getattr(spec, "kind", type(spec).__name__)
    return _canonical(kind, HASH_VERSION, spec.model_dump_json(exclude_defaults=True))


@functools.lru_cache(maxsize=2**16)  # whoever reads a large store asks for each many times
def _canonical(kind: str, version: int, fields: str) -> str:
    tagged = {"kind": kind, "version": version, **_plain_number(json.loads(fields))}
    return json.dumps(
        tagged, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def digest(spec: BaseModel) -> str:
    """SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(canonical_json(spec).encode()).hexdigest()


def stream_seed(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose, as a pure function of the run's seed.

    Every random stream (the start, the order of an epoch, its augmentation, ...) has its own, so
    that none depends on how much another has drawn, and a resumed run needs no generator's state.
    """
    text = json.dumps([seed, *purpose])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def train_spec(values: Mapping[str, Any]) -> TrainSpec:
    """A TrainSpec from plain values, or one ValueError that lists all that is wrong with them."""
    try:
        return TrainSpec.model_validate(dict(values))
    except ValidationError as error:
        raise ValueError(explain(error)) from None


def explain(error: ValidationError) -> str:
    """A validation error as one line a problem: the field, the value, what is allowed."""
    lines = []
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(unknown("setting", field, TrainSpec.model_fields))
        elif problem["type"] == "value_error":
            about = f"{field}: " if field else ""  # or it is about several fields at once
            lines.append(f"{about}{problem['ctx']['error']}")
        else:
            allowed = problem["msg"].removeprefix("Input should be ")
            lines.append(f"{field} = {problem['input']!r}: must be {allowed}")
    return "\n".join(lines)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A sentence for a name nobody knows: the nearest known ones, or all if none is near."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    if nearest:
        return f"unknown {what} {name!r}; did you mean {' or '.join(nearest)}?"
    return f"unknown {what} {name!r}; there is {', '.join(names) or 'none'}"


def describe(spec: "AnySpec") -> str:
    """A spec in a few words: what it is at first sight, then what departs from the defaults."""
    match spec:
        case TrainSpec():
            return _describe_training(spec)
        case AttackSpec(train=train):
            return f"{_describe_attack(spec)} on {describe(train)}"
        case TransferSpec(trains=trains):
            units = ", ".join(train.unit for train in trains)
            return f"{_describe_attack(spec)} from each to each of {units} · {describe(trains[0])}"
        case SeparationSpec(train=train, classes=(one, other)):
            return f"separation of classes {one} and {other} by {describe(train)}"
        case CostSpec():
            return f"cost of {len(spec.units)} units · {spec.model} · {spec.data}"


def _describe_training(spec: TrainSpec) -> str:
    head = f"{spec.model} · {spec.data} · {spec.unit} · seed {spec.seed} · {spec.scale}"
    shown = {"kind", "model", "data", "unit", "seed", "scale", "source", "take"}
    extras = spec.model_dump(exclude_defaults=True, exclude=shown)
    parts = [f"{key}={value}" for key, value in _flat(extras)]
    if spec.source:
        parts.append(f"{spec.take} of {digest(spec.source)[:8]}")
    return " · ".join([head, *parts])


def _describe_attack(spec: AttackSpec | TransferSpec) -> str:
    return " ".join([spec.attack, *(f"{key}={value}" for key, value in spec.options.items())])


def _flat(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            flat.extend(
                (f"{key.removesuffix('_options')}.{option}", item) for option, item in value.items()
            )
        else:
            flat.append((key, value))
    return flat
