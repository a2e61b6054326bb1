"""The shapes that units learned, moment by moment, small enough to be played on a page.

SPLASH units are sent as their slopes, from which the page draws them exactly; a unit with a shape a
channel or a neuron as its mean shape. Other units are asked on a grid.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from splash_units.lab import pictures
from splash_units.lab.evolution import short_name
from splash_units.lab.report.content import Content, rounded, spread
from splash_units.lab.store import Run, Store

MOST_MOMENTS = 40
# Beyond these the page says how to see the others: a thousand runs would make it heavy, and asking
# another unit than SPLASH means building its network.
MOST_RUNS, MOST_ASKED = 80, 16
GRID_STEP = 5  # every fifth point of pictures.GRID: APL's hinges and PReLU's are among them

Array = np.ndarray[Any, Any]


def players(content: Content, store: Store) -> list[dict[str, Any]]:
    """Shapes of as many runs as a page can hold: first the first seed of every unit."""
    by_turn = [
        (turn, group.label.split()[0] != "splash", run["id"])
        for group in content.groups
        for turn, run in enumerate(run for run in group.runs if run["slopes"])
    ]
    found: list[dict[str, Any]] = []
    asked = 0
    for _, must_ask, name in sorted(by_turn, key=lambda entry: entry[:2]):
        if len(found) == MOST_RUNS:
            break
        if must_ask:
            asked += 1
            if asked > MOST_ASKED:
                continue
        shapes = shapes_of(Run(store.root, name))
        if shapes is not None:
            found.append({"run": name, **shapes})
    return found


def shapes_of(run: Run) -> dict[str, Any] | None:
    """One run's shapes over time; None if there are none, or none that can be read."""
    try:
        slopes = run.shapes()
        if any(name.endswith(".hinges") for name in slopes):
            return _splash(slopes, run.inputs(), list(run.record().get("layout", {})))
        return _asked(run)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # damaged, or a unit whose plugin is not loaded


def _splash(
    slopes: Mapping[str, Array], inputs: Mapping[str, Array], in_order: Sequence[str]
) -> dict[str, Any] | None:
    moments = spread(len(slopes["time"]), MOST_MOMENTS)
    layers = dict.fromkeys(name.rpartition(".")[0] for name in in_order)
    if not moments:
        return None
    return {
        "times": _numbers(slopes["time"][moments]),
        "layers": [
            {
                "name": short_name(layer),
                "hinges": _numbers(slopes[f"{layer}.hinges"]),
                "right": _rows(_mean_shape(slopes[f"{layer}.a_pos"][moments])),
                "left": _rows(_mean_shape(slopes[f"{layer}.a_neg"][moments])),
                **({"inputs": _heights(inputs[layer])} if layer in inputs else {}),
            }
            for layer in layers
            if f"{layer}.hinges" in slopes
        ],
    }


def _asked(run: Run) -> dict[str, Any] | None:
    evolutions = pictures.evolutions(run)
    if not evolutions:
        return None
    return {
        "times": _numbers(evolutions[0].times),
        "grid": _numbers(pictures.GRID.numpy()[::GRID_STEP]),
        "layers": [
            {"name": evolution.layer, "curves": _rows(evolution.curves[:, ::GRID_STEP])}
            for evolution in evolutions
        ],
    }


def _mean_shape(slopes: Array) -> Array:
    """Slopes (moments, hinges, *features) averaged over features: h is linear in them."""
    mean: Array = slopes.reshape(*slopes.shape[:2], -1).mean(-1)
    return mean


def _heights(histogram: Array) -> list[float | None]:
    return _numbers(histogram / max(float(histogram.max()), 1.0))


def _numbers(values: Array) -> list[float | None]:
    return [rounded(value) for value in values.tolist()]


def _rows(values: Array) -> list[list[float | None]]:
    return [_numbers(row) for row in values]
