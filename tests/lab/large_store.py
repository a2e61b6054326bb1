"""Stores with made-up numbers, for what shows results: no training, only files as runs leave them.

    python tests/lab/large_store.py DIR --runs 1000

makes one as large as the paper's own experiments, to see how a report of it does.
"""

import argparse
import json
import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file as save_arrays

from splash_units.lab import studies
from splash_units.lab.assembly import build_network, slopes_of
from splash_units.lab.findings import finding
from splash_units.lab.spec import AttackSpec, TrainSpec
from splash_units.lab.statistics import wilson
from splash_units.lab.store import Run, Store
from splash_units.lab.studies.grid import UNITS

LAYERS = {"mlp": 3, "lenet5": 4, "nin": 9, "allcnn": 8, "resnet20": 19}
WITHOUT_SHAPES = [choice.unit for choice in UNITS if choice.unit != "splash"]
WITH_OTHER_SHAPES = ("prelu", "apl", "swish")
NETWORK_ARGUMENTS = {
    "num_classes": 10, "in_channels": 3, "image_size": (32, 32),
    "mean": [0.5] * 3, "std": [0.25] * 3,
}  # fmt: skip
IMAGES = 5  # of an attack: no page or figure shows more
ERRORS = {"splash": 0.20, "relu": 0.22}


def made_run(
    store: Store, spec: TrainSpec, *, epochs: int = 3, ask_units: bool = False, **result: Any
) -> Run:
    """A finished run; `result` says otherwise: test_error=..., status="diverged", why=...

    `ask_units` gives units other than SPLASH their shapes, too, for which networks are built.
    """
    chance = random.Random(spec.model_dump_json())
    run = store.run(spec)
    run.whole.mkdir(parents=True)
    _write(run.whole / "spec.json", spec.model_dump(mode="json"))
    shapes, layout, constants = _shapes(spec, epochs, ask_units)
    plan = {"epochs": epochs}
    record = {
        "plan": plan, "parameters": 62006, "layout": layout, "constants": constants,
        "network_arguments": NETWORK_ARGUMENTS,
    }  # fmt: skip
    _write(run.whole / "record.json", record)
    save_arrays(shapes, run.whole / "shapes.safetensors")
    error = ERRORS.get(spec.unit, 0.23) + chance.gauss(0, 0.004)
    lines = [_epoch(number, epochs, error, chance) for number in range(1, epochs + 1)]
    (run.whole / "history.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    last = {key: lines[-1][key] for key in ("train_loss", "train_error", "test_error")}
    best = {"best_test_error": min(line["test_error"] for line in lines), "best_epoch": epochs}
    _write(run.whole / "result.json", {"status": "done", **last, **best, **result})
    return run


def _epoch(number: int, epochs: int, error: float, chance: random.Random) -> dict[str, Any]:
    left = 1 + 3 * (1 - number / epochs)
    return {
        "epoch": number, "train_loss": left * error + chance.gauss(0, 0.002), "lr": 0.01,
        "train_error": 0.8 * left * error, "test_loss": left * error, "test_error": left * error,
        "seconds": 10.0, "test_seconds": 1.0,
    }  # fmt: skip


def _shapes(
    spec: TrainSpec, epochs: int, ask_units: bool
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    times = np.arange(epochs + 1, dtype=np.float32)
    if spec.unit in WITH_OTHER_SHAPES and ask_units:
        starts = _slopes_at_the_start(spec.model, spec.unit)
        growing = {name: np.multiply.outer(1 + times / epochs, s) for name, s in starts.items()}
        return {"time": times, **growing}, {name: s.shape for name, s in starts.items()}, {}
    if spec.unit in WITHOUT_SHAPES or "share" in spec.unit_options:
        return {"time": times}, {}, {}
    hinges = [0.0, *(0.5 * i for i in range(1, (spec.unit_options.get("num_hinges", 7) + 1) // 2))]
    shapes: dict[str, Any] = {"time": times}
    layout, constants = {}, {}
    for layer in range(1, LAYERS.get(spec.model, 2) + 1):
        name = f"body.unit{layer}"
        for side, start in (("a_pos", 1.0), ("a_neg", 0.0)):
            slopes = np.zeros((len(times), len(hinges)), dtype=np.float32)
            slopes[:, 0] = start + 0.05 * layer * times / epochs
            shapes[f"{name}.{side}"] = slopes
            layout[f"{name}.{side}"] = [len(hinges)]
        shapes[f"{name}.hinges"] = np.array(hinges, dtype=np.float32)
        constants[f"{name}.hinges"] = hinges
    return shapes, layout, constants


@cache
def _slopes_at_the_start(model: str, unit: str) -> dict[str, Any]:
    network = build_network(TrainSpec(model=model, unit=unit), NETWORK_ARGUMENTS)
    return {name: slope.detach().numpy() for name, slope in slopes_of(network).items()}


def made_attack(
    store: Store, spec: AttackSpec, fooled: int | None = None, *, images: int = 0
) -> None:
    """A finished attack with its numbers, and as many of its images."""
    chance = random.Random(spec.model_dump_json())
    folder = finding(store, spec).folder
    folder.mkdir(parents=True)
    budget = spec.options.get("eps", 0.02) + 0.01 * spec.options.get("k", 0)
    part = min(0.98, 12 * budget * ERRORS.get(spec.train.unit, 0.23) / 0.2 + chance.gauss(0, 0.01))
    count = max(0, round(part * spec.images)) if fooled is None else fooled
    _write(folder / "spec.json", spec.model_dump(mode="json"))
    minimises = spec.attack in ("cw", "boundary")
    within = {"0.25": 0.3, "0.5": part, "1.0": 0.97, "none": 1.0}
    result = {
        "status": "done", "scale": spec.train.scale, "attack": spec.attack, "checked": True,
        "images": spec.images, "attempts": spec.images, "fooled": count, "wrong_after": count,
        "fooled_interval": wilson(count, spec.images), "clean_accuracy": 0.8,
        "robust_accuracy": 0.8 * (1 - count / spec.images), "median_l2": 0.4,
        "success_at_l2": within if minimises else None, "own_gap": 0.5, "warnings": [],
    }  # fmt: skip
    _write(folder / "result.json", result)
    rows = np.arange(spec.images)
    distances = np.linspace(0, 1.5, spec.images, dtype=np.float32)
    right = np.ones(spec.images, dtype=bool)
    tensors = {
        "index": rows, "fooled": rows < count, "was_right": right, "l2": distances,
        "probability_true": 0.3 * distances, "probability_predicted": 0.5 * distances,
        "labels": rows % 10, "prediction": (rows + 1) % 10,
    }  # fmt: skip
    if images:
        clean = np.random.default_rng(spec.seed).random((images, 3, 32, 32), dtype=np.float32)
        tensors |= {"clean": clean, "images": np.clip(clean + budget, 0, 1).astype(np.float32)}
    save_arrays(tensors, folder / "tensors.safetensors", {"state": "{}"})


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def fill(store: Store, runs: int, *, epochs: int = 100) -> None:
    """Runs of the paper's studies at full scale, and attacks on those that are attacked."""
    wanted: dict[TrainSpec, None] = {}
    attacks: dict[AttackSpec, None] = {}
    for name in ("accuracy", "hinges", "initialisation", "fgsm", "pixels", "cw"):
        for spec in studies.load(name).specs("paper", 5):
            if isinstance(spec, TrainSpec):
                wanted[spec] = None
            elif isinstance(spec, AttackSpec):
                attacks[spec] = None
    chosen = list(_more_seeds(list(wanted), runs))
    for spec in chosen:
        made_run(store, spec, epochs=epochs, ask_units=True)
    there = set(chosen)
    for attack in attacks:
        if attack.train in there:
            made_attack(store, attack, images=IMAGES)


def _more_seeds(specs: list[TrainSpec], count: int) -> Iterable[TrainSpec]:
    """As many specs as asked for; where a study has fewer, more seeds of the same."""
    again = [spec.model_copy(update={"seed": spec.seed + 5}) for spec in specs]
    return (specs + again)[:count]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=1000)
    given = parser.parse_args()
    fill(Store(given.folder), given.runs)
