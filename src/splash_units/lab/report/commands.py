"""The command that brings a result about again, so that every number can be checked."""

import json
import shlex
from typing import Any

from splash_units.lab import budgets
from splash_units.lab.spec import AttackSpec, TrainSpec, digest
from splash_units.lab.store import ID_LENGTH

# Said even where they are the defaults: a command should show what it runs.
_ALWAYS = ("model", "data", "unit", "seed", "scale")
_APART = {"kind", "model_options", "unit_options", "source", "take", "compile"}


def train_command(spec: TrainSpec) -> str:
    """`splash train ...` for one training."""
    given = spec.model_dump(exclude_defaults=True, exclude=_APART)
    fields = {name: getattr(spec, name) for name in _ALWAYS} | given
    words = ["splash", "train"]
    for name, value in fields.items():
        words += [f"--{name.replace('_', '-')}", f"{value}"]
    words += ["--compile"] * spec.compile
    for owner in ("model", "unit"):
        for key, value in getattr(spec, f"{owner}_options").items():
            words += ["--set", f"{owner}.{key}={_written(value)}"]
    if spec.source is not None:
        words += ["--source", digest(spec.source)[:ID_LENGTH], "--take", spec.take]
    return shlex.join(words)


def attack_command(spec: AttackSpec) -> str:
    """`splash attack ...` for one attack on the network of a run."""
    words = ["splash", "attack", digest(spec.train)[:ID_LENGTH], "--attack", spec.attack]
    for name, value in spec.options.items():
        listed = name in ("eps", "k")
        words += [f"--{name}", f"{value}"] if listed else ["--set", f"{name}={_written(value)}"]
    # What the scale would add, and this attack did without.
    usual, _ = budgets.budget(spec.attack, spec.train.scale)
    for name in usual:
        words += ["--set", f"{name}=null"] if name not in spec.options else []
    words += ["--images", f"{spec.images}", "--seed", f"{spec.seed}"]
    words += ["--choose", spec.choose] if spec.choose != "right" else []
    return shlex.join(words)


def _written(value: Any) -> str:
    """A value as `--set` reads it back: JSON, and a word where JSON would not take it for one."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)
