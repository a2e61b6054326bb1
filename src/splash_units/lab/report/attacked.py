"""Attacks as curves: which part of the images fools each unit, against the attack's budget."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from splash_units.lab import names
from splash_units.lab.report.content import Content, Setting, rounded, setting_of
from splash_units.lab.statistics import summarise

BUDGETS = {"eps": "ε (L∞, images in [0, 1])", "k": "pixels", "l2": "L2 distance allowed"}

Row = Mapping[str, Any]  #: of `Frames.attacks`
Panel = tuple[Setting, str, str, str]  #: setting, attack, its other options, what the budget is


def attack_curves(content: Content) -> list[dict[str, Any]]:
    """One entry a unit and panel; a panel is an attack in a setting with all but its budget equal.

    Each point is the mean over networks of different seeds with its 95 % interval; of a single
    network, the interval is that of its images (Wilson's).
    """
    places = {setting: place for place, setting in enumerate(content.settings)}
    units = {label: place for place, label in enumerate(content.labels)}
    points: dict[tuple[Panel, str], dict[float, dict[int, tuple[Row, float]]]] = {}
    for row in content.frames.attacks.iter_rows(named=True):
        for panel, budget, part in _points(row, setting_of(content.frames.specs[row["run"]])):
            seeds = points.setdefault((panel, row["label"]), {}).setdefault(budget, {})
            seeds[row["seed"]] = (row, part)
    return [
        {
            "setting": places[panel[0]],
            "unit": units[label],
            "attack": names.attack_name(panel[1]),
            "options": panel[2],
            "budget": BUDGETS[panel[3]],
            "x": sorted(budgets),
            **_bands([budgets[x] for x in sorted(budgets)]),
        }
        for (panel, label), budgets in sorted(points.items(), key=lambda item: str(item[0]))
    ]


def _points(row: Row, setting: Setting) -> Iterator[tuple[Panel, float, float]]:
    """Where an attack stands: one point of a budgeted attack, several of one that minimises."""
    options = json.loads(row["options"])
    within = json.loads(row["success_at_l2"] or "null") or {}
    budget = next((name for name in ("eps", "k") if name in options), None)
    rest = ", ".join(
        f"{name} {value}" for name, value in {**options, "images": row["images"]}.items()
        if name != budget
    )  # fmt: skip
    if budget is not None and row["attempts"]:
        panel = (setting, row["attack"], rest, budget)
        yield panel, float(options[budget]), row["fooled"] / row["attempts"]
    for limit, part in within.items():
        if budget is None and limit != "none":
            yield (setting, row["attack"], rest, "l2"), float(limit), float(part)


def _bands(points: list[dict[int, tuple[Row, float]]]) -> dict[str, Any]:
    """Mean, interval and number of networks, point by point."""
    middle, low, high, counts = [], [], [], []
    for seeds in points:
        summary = summarise([part for _, part in seeds.values()])
        assert summary is not None  # a point is there because an attack is
        first = next(iter(seeds.values()))[0]
        ends = summary.interval or (first["fooled_low"], first["fooled_high"])
        middle.append(rounded(summary.mean))
        low.append(rounded(max(0.0, ends[0])) if ends[0] is not None else None)
        high.append(rounded(min(1.0, ends[1])) if ends[1] is not None else None)
        counts.append(summary.n)
    runs = sorted({row["run"] for seeds in points for row, _ in seeds.values()})
    return {"y": middle, "low": low, "high": high, "n": counts, "runs": runs}
