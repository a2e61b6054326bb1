"""What the page shows, as plain values: settings, units, runs, learning curves.

A *setting* is all of a spec but the unit, what belongs to the unit, and the seed: only runs of one
setting may be compared. A *group* is the runs of one unit in one setting, one for each seed.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from splash_units.lab import names
from splash_units.lab.frames import Frames
from splash_units.lab.report.commands import train_command
from splash_units.lab.spec import TrainSpec
from splash_units.lab.statistics import summarise

# What a spec says about its unit rather than about the experiment.
OF_THE_UNIT = {"kind", "unit", "unit_options", "seed", "slope_lr", "source", "take"}
MOST_POINTS = 100  # of a curve: more than a small chart has room for
CURVES = ("train_loss", "test_error")
DIGITS = 4  # significant ones, in what only charts show


@dataclass(frozen=True)
class Setting:
    """An experiment in which units can be compared."""

    model: str
    data: str
    augment: str
    scale: str
    extras: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        parts = [
            names.network_name(self.model),
            names.data_name(self.data),
            names.AUGMENTATIONS.get(self.augment, self.augment),
        ]
        return " · ".join(part for part in parts if part)

    @property
    def words(self) -> str:
        """All of it but the scale, on one line."""
        return ", ".join([self.title, *(f"{key} {value}" for key, value in self.extras)])

    @property
    def subtitle(self) -> str:
        return ", ".join([f"scale {self.scale}", *(f"{key} {value}" for key, value in self.extras)])


def setting_of(spec: TrainSpec) -> Setting:
    fields = spec.model_dump(mode="json", exclude_defaults=True, exclude=OF_THE_UNIT)
    named = {"model", "data", "augment", "scale"}
    extras = tuple(
        (key.replace("_", " "), value if isinstance(value, str) else json.dumps(value))
        for key, value in sorted(fields.items())
        if key not in named
    )
    return Setting(spec.model, spec.data, spec.augment, spec.scale, extras)


@dataclass(frozen=True)
class Group:
    """The runs of one unit in one setting."""

    setting: Setting
    label: str
    runs: tuple[Mapping[str, Any], ...] = field(repr=False)  #: rows of `Frames.runs`

    @property
    def done(self) -> list[Mapping[str, Any]]:
        return [run for run in self.runs if run["state"] == "done"]

    def values(self, column: str) -> dict[int, float]:
        """A number of every finished run, by seed."""
        return {run["seed"]: run[column] for run in self.done if run[column] is not None}

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(run["id"] for run in self.done)


@dataclass(frozen=True)
class Content:
    """A store, sorted for reading."""

    frames: Frames
    settings: tuple[Setting, ...]
    labels: tuple[str, ...]
    groups: tuple[Group, ...]

    def group(self, setting: Setting, label: str) -> Group | None:
        return next((g for g in self.groups if (g.setting, g.label) == (setting, label)), None)

    def in_setting(self, setting: Setting) -> list[Group]:
        return [group for group in self.groups if group.setting == setting]


def sort_content(frames: Frames) -> Content:
    """Bring a store's runs into settings and groups, the paper's order first."""
    gathered: dict[tuple[Setting, str], list[dict[str, Any]]] = {}
    for row in frames.runs.iter_rows(named=True):
        key = (setting_of(frames.specs[row["id"]]), row["label"])
        gathered.setdefault(key, []).append(row)
    ordered = sorted(gathered, key=lambda key: (_setting_rank(key[0]), names.unit_rank(key[1])))
    groups = [
        Group(setting, label, tuple(sorted(gathered[setting, label], key=lambda r: r["seed"])))
        for setting, label in ordered
    ]
    return Content(
        frames=frames,
        settings=tuple(dict.fromkeys(group.setting for group in groups)),
        labels=tuple(sorted({group.label for group in groups}, key=names.unit_rank)),
        groups=tuple(groups),
    )


def _setting_rank(setting: Setting) -> tuple[Any, ...]:
    def place(name: str, known: Iterable[str]) -> int:
        order = list(known)
        return order.index(name) if name in order else len(order)

    # The larger the scale, the more a result weighs, the earlier it comes.
    return (
        ("paper", "short", "smoke").index(setting.scale),
        place(setting.data, names.DATA_SETS),
        setting.data,
        place(setting.model, names.NETWORKS),
        setting.model,
        setting.augment,
        setting.extras,
    )


def payload(content: Content) -> dict[str, Any]:
    """What the page's script needs to draw and to explain every number."""
    places = {setting: place for place, setting in enumerate(content.settings)}
    units = {label: place for place, label in enumerate(content.labels)}
    return {
        "settings": [
            {
                "model": names.network_name(setting.model),
                "data": names.data_name(setting.data),
                "scale": setting.scale,
                "title": setting.title,
                "subtitle": setting.subtitle,
            }
            for setting in content.settings
        ],
        "units": [names.unit_name(label) for label in content.labels],
        "runs": {
            row["id"]: _run(row, content.frames.specs[row["id"]], places[group.setting], units)
            for group in content.groups
            for row in group.runs
        },
        "groups": [_summary(group, places, units) for group in content.groups],
        "curves": _curves(content, places, units),
    }


def _run(
    row: Mapping[str, Any], spec: TrainSpec, setting: int, units: Mapping[str, int]
) -> dict[str, Any]:
    kept = ("seed", "state", "why", "epochs", "parameters", "slopes")
    return {
        "setting": setting,
        "unit": units[row["label"]],
        **{name: row[name] for name in kept if row[name] not in (None, "")},
        **{
            name: rounded(row[name])
            for name in ("epochs_done", "test_error", "best_test_error", "train_loss", "seconds")
            if row[name] is not None
        },
        "command": train_command(spec),
        "spec": spec.model_dump(mode="json", exclude_defaults=True),
    }


def _summary(
    group: Group, places: Mapping[Setting, int], units: Mapping[str, int]
) -> dict[str, Any]:
    """Test errors of one unit in one setting: every run's, their mean and its 95 % interval."""
    summary = summarise(list(group.values("test_error").values()))
    interval = summary.interval if summary else None
    return {
        "setting": places[group.setting],
        "unit": units[group.label],
        "runs": [run["id"] for run in group.runs],
        "mean": rounded(summary.mean) if summary else None,
        "interval": [rounded(end) for end in interval] if interval else None,
        "n": summary.n if summary else 0,
    }


def _curves(
    content: Content, places: Mapping[Setting, int], units: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Mean and range over seeds, epoch by epoch, of each group that has finished runs."""
    columns = ["id", "epoch", *CURVES]
    histories: dict[str, list[tuple[Any, ...]]] = {}
    for row in content.frames.epochs.select(columns).iter_rows():
        histories.setdefault(row[0], []).append(row[1:])
    curves = []
    for group in content.groups:
        # One seed that stopped early would bend the mean: whole runs only, if there are any.
        ids = group.ids or tuple(run["id"] for run in group.runs)
        found = [histories[name] for name in ids if name in histories]
        if not found:
            continue
        length = min(len(history) for history in found)
        chosen = spread(length, MOST_POINTS)
        curves.append(
            {
                "setting": places[group.setting],
                "unit": units[group.label],
                "n": len(found),
                "whole": bool(group.ids),
                "epoch": [found[0][at][0] for at in chosen],
                **{
                    name: _band([[h[at][column + 1] for h in found] for at in chosen])
                    for column, name in enumerate(CURVES)
                },
            }
        )
    return curves


def _band(values: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    """Mean, least and largest of each row; None where a number is missing or not finite."""
    rows = [[v for v in row if v is not None and math.isfinite(v)] for row in values]
    return [
        [rounded(sum(row) / len(row)) if row else None for row in rows],
        [rounded(min(row)) if row else None for row in rows],
        [rounded(max(row)) if row else None for row in rows],
    ]


def spread(count: int, most: int) -> list[int]:
    """At most so many of `count` places, evenly, first and last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def rounded(value: float) -> float | None:
    """A number short enough for a page of thousands; None if it is none."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
