"""A study of one's own, from a TOML file: a grid of data, networks, units and seeds, and attacks.

    models = ["lenet5"]
    data = ["cifar-10"]
    units = ["relu", "splash", { name = "splash", num_hinges = 9 }]
    attacks = ["cw", { name = "fgsm", eps = 0.02 }]

Everything is checked when the file is read: a wrong key or value is a ValueError that begins with
the file and the line, and names the nearest thing there is. Python's TOML reader gives no lines, so
they are looked up in the text.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from splash_units.lab import vocabulary
from splash_units.lab.budgets import budget
from splash_units.lab.spec import AnySpec, AttackSpec, Scale, TrainSpec, train_spec, unknown
from splash_units.lab.studies.grid import Choice
from splash_units.lab.studies.study import SCALES, SEEDS, Study

KEYS = (
    "title", "text", "models", "data", "augment", "units", "seeds", "train", "attacks", "tables",
    "figures",
)  # fmt: skip
REQUIRED = ("models", "data", "units")
#: What any study can show: see `tables` and `figures`.
TABLES = ("results", "comparison", "attacks")
FIGURES = ("success-eps", "success-l2", "worst-case", "adversarial")
# The fields of a training that the grid or the command line settles.
_SETTLED = {
    "kind", "model", "data", "augment", "unit", "unit_options", "seed", "scale", "source", "take",
}  # fmt: skip
TRAIN_KEYS = tuple(name for name in TrainSpec.model_fields if name not in _SETTLED)

# What to look for in the text: a key or a value, or a key with its value.
Place = str | tuple[str, Any]


@dataclass(frozen=True)
class Attack:
    """An attack as a file asks for it; what it doesn't say, the scale's budget does."""

    name: str
    options: Mapping[str, Any]
    images: int | None = None
    choose: str = "right"


@dataclass(frozen=True)
class Grid:
    """What a file declares."""

    models: Sequence[str]
    data: Sequence[str]
    augment: Sequence[str]
    units: Sequence[Choice]
    train: Mapping[str, Any]
    attacks: Sequence[Attack]

    def declare(self, scale: Scale, seed: int) -> Iterator[AnySpec]:
        """Every unit in every setting, each training before the attacks on it."""
        for model, data, augment in product(self.models, self.data, self.augment):
            for unit in self.units:
                train = train_spec(
                    {
                        **self.train,
                        "model": model,
                        "data": data,
                        "augment": augment,
                        "unit": unit.unit,
                        "unit_options": unit.options,
                        "scale": scale,
                        "seed": seed,
                    }
                )
                yield train
                yield from (_attack_spec(attack, train) for attack in self.attacks)


def read_study(path: Path) -> Study:
    """The study in a file, all of it checked."""
    text = path.read_text(encoding="utf-8")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not TOML: {error}") from None
    return _Reader(path, text.splitlines(), values).study()


def _attack_spec(attack: Attack, train: TrainSpec) -> AttackSpec:
    options, images = budget(attack.name, train.scale)
    return AttackSpec.model_validate(
        {
            "train": train,
            "attack": attack.name,
            "options": {**options, **attack.options},
            "images": attack.images or images,
            "choose": attack.choose,
            "seed": train.seed,
        }
    )


@dataclass(frozen=True)
class _Reader:
    """A file's values beside its text, so that a complaint can name the line."""

    path: Path
    lines: Sequence[str]
    values: Mapping[str, Any]

    def study(self) -> Study:
        for key in self.values:
            if key not in KEYS:
                raise self.wrong(unknown("key", key, KEYS), key)
        for key in REQUIRED:
            if key not in self.values:
                raise ValueError(f"{self.path}: {key} is missing; a study needs {_and(REQUIRED)}")
        grid = Grid(
            models=self.names("models", vocabulary.check_model),
            data=self.names("data", vocabulary.check_data),
            augment=self.names("augment", self.check_augment, default=["none"]),
            units=[self.unit(entry) for entry in self.list_of("units", (str, dict))],
            train=self.train(),
            attacks=[self.attack(entry) for entry in self.list_of("attacks", (str, dict))],
        )
        shown = ["results", "comparison", *(["attacks"] if grid.attacks else [])]
        study = Study(
            name=self.path.stem,
            title=self.word("title", self.path.stem),
            text=self.word("text", f"A study of one's own: {self.path.name}."),
            declare=grid.declare,
            tables=self.names("tables", _among("table", TABLES), default=shown),
            figures=self.names("figures", _among("figure", FIGURES), default=[]),
            seeds=self.seeds(),
            file=str(self.path),
        )
        try:  # What is wrong only together shows here, not in the middle of a run.
            vocabulary.check(study.specs("smoke", seeds=1))
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        return study

    def names(
        self, key: str, check: Callable[[str], None], default: Sequence[str] = ()
    ) -> tuple[str, ...]:
        if key not in self.values:
            return tuple(default)
        given = self.values[key]
        found = self.list_of(key, (str,)) if not isinstance(given, str) else [given]
        for name in found:
            self.attempt([key, name], check, name)
        return tuple(dict.fromkeys(found))

    def list_of(self, key: str, kinds: tuple[type, ...]) -> list[Any]:
        given = self.values.get(key, [])
        words = "names or tables" if dict in kinds else "names"
        if not isinstance(given, list) or not all(isinstance(item, kinds) for item in given):
            raise self.wrong(f"{key} = {given!r}: must be a list of {words}", key)
        if not given and key in self.values:
            raise self.wrong(f"{key} is empty", key)
        return given

    def word(self, key: str, default: str) -> str:
        given = self.values.get(key, default)
        if not isinstance(given, str):
            raise self.wrong(f"{key} = {given!r}: must be a text", key)
        return given

    def seeds(self) -> Mapping[Scale, int]:
        if "seeds" not in self.values:
            return SEEDS
        given = self.values["seeds"]
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise self.wrong(f"seeds = {given!r}: must be a number of seeds, 1 or more", "seeds")
        return dict.fromkeys(SCALES, given)

    def unit(self, entry: str | dict[str, Any]) -> Choice:
        name, options = self.named("units", entry)
        self.attempt(["units", name, *options.items()], vocabulary.check_unit, name, options)
        return Choice(name, options)

    def attack(self, entry: str | dict[str, Any]) -> Attack:
        name, options = self.named("attacks", entry)
        images, choose = options.pop("images", None), options.pop("choose", "right")
        if images is not None and (not isinstance(images, int) or images < 1):
            raise self.wrong(f"images = {images!r}: must be 1 or more", "attacks", "images")
        if choose not in ("right", "all"):
            raise self.wrong(f"choose = {choose!r}: must be 'right' or 'all'", "attacks", "choose")
        usual, _ = self.attempt(["attacks", name], budget, name, "paper")
        places: list[Place] = ["attacks", name, *options.items()]
        self.attempt(places, vocabulary.check_attack, name, {**usual, **options})
        return Attack(name, options, images, choose)

    def named(self, key: str, entry: str | dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """An entry's name and the rest: `"splash"` or `{ name = "splash", ... }`."""
        if isinstance(entry, str):
            return entry, {}
        options = dict(entry)
        name = options.pop("name", None)
        if not isinstance(name, str):
            message = f"{entry!r} has no name; write {{ name = ..., OPTION = VALUE }}"
            raise self.wrong(message, key, *options)
        return name, options

    def train(self) -> Mapping[str, Any]:
        given = self.values.get("train", {})
        if not isinstance(given, dict):
            raise self.wrong(f"train = {given!r}: must be a table of settings", "train")
        for key, value in given.items():
            if key not in TRAIN_KEYS:
                raise self.wrong(unknown("setting", key, TRAIN_KEYS), "train", key)
            self.attempt(["train", key], train_spec, {key: value})
        return given

    def check_augment(self, name: str) -> None:
        train_spec({"augment": name})

    def attempt(self, places: Sequence[Place], action: Callable[..., Any], *arguments: Any) -> Any:
        """Do it; a complaint gets the line of the last of these places that the complaint names."""
        try:
            return action(*arguments)
        except ValueError as error:
            named = [place for place in places[2:] if re.search(rf"\b{_key(place)}\b", str(error))]
            raise self.wrong(str(error), *places[:2], *named[-1:]) from None

    def wrong(self, message: str, *places: Place) -> ValueError:
        return ValueError(f"{self.path}, line {self.line_of(*places)}: {message}")

    def line_of(self, *places: Place) -> int:
        """The line of a key, or of a key or value after another: each is looked for in turn."""
        line = 0
        for place in places:
            numbers = range(line, len(self.lines))
            line = next((n for n in numbers if _mentions(self.lines[n], place)), line)
        return line + 1


def _key(place: Place) -> str:
    return re.escape(place if isinstance(place, str) else place[0])


def _mentions(line: str, place: Place) -> bool:
    """Whether a line has a word as a key, a table's name or a value, and not in a comment."""
    before_comment = re.sub(r"""("[^"]*"|'[^']*')|#.*""", r"\1", line)
    word, value = _key(place), ""
    if isinstance(place, tuple) and isinstance(place[1], str | int | float):
        value = rf"""["']?{re.escape(str(place[1]))}"""
    return bool(
        re.search(rf"""(^|[\s{{,.\["']){word}["']?\s*(=\s*{value}|\.|\])""", before_comment)
        or (isinstance(place, str) and re.search(rf"""["']{word}["']""", before_comment))
    )


def _among(what: str, known: Sequence[str]) -> Callable[[str], None]:
    def check(name: str) -> None:
        if name not in known:
            raise ValueError(unknown(what, name, known))

    return check


def _and(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"
