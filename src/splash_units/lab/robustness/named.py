"""Attacks by name, with options that JSON can hold: what a spec or a command line says."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from splash_units.lab.attacks import (
    APGD,
    FGSM,
    PGD,
    Attack,
    AutoAttack,
    Boundary,
    CarliniWagnerL2,
    Pixels,
    Square,
    UniformNoise,
    WorstCase,
)
from splash_units.lab.spec import unknown


@dataclass(frozen=True)
class Named:
    """How an attack is made from its options, and what it is, in a few words."""

    make: Callable[..., Attack]
    text: str

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.make).parameters


def worst_case(
    eps: float,
    steps: int = 100,
    restarts: int = 1,
    queries: int = 5000,
    losses: Sequence[str] = ("cross-entropy", "dlr"),
) -> WorstCase:
    """FGSM, APGD on each loss, and Square within one Linf budget; the DLR loss needs 3 classes."""
    return WorstCase(
        [
            FGSM(eps),
            *(APGD(eps, steps=steps, restarts=restarts, loss=loss) for loss in losses),  # type: ignore[arg-type]
            Square(eps, queries=queries),
        ]
    )


def autoattack(eps: float, attacks: Sequence[str] | None = None, seed: int = 0) -> AutoAttack:
    """The published ensemble, or some of its members."""
    if attacks is None:
        return AutoAttack(eps, seed=seed)
    return AutoAttack(eps, attacks=tuple(attacks), seed=seed)  # type: ignore[arg-type]


ATTACKS: Mapping[str, Named] = {
    "noise": Named(UniformNoise, "uniform noise within eps (Linf): the baseline"),
    "fgsm": Named(FGSM, "one step along the gradient's sign, within eps (Linf)"),
    "pgd": Named(PGD, "many steps along the gradient's sign, within eps (Linf)"),
    "apgd": Named(APGD, "PGD that adapts its steps, on cross-entropy or DLR, within eps (Linf)"),
    "square": Named(Square, "random squares, from logits alone, within eps (Linf)"),
    "cw": Named(CarliniWagnerL2, "Carlini and Wagner's: the nearest wrong image in L2"),
    "boundary": Named(Boundary, "a walk along the boundary, from labels alone: nearest in L2"),
    "pixels": Named(Pixels, "k pixels changed at will, by differential evolution"),
    "worst_case": Named(worst_case, "FGSM, APGD on both losses and Square, whichever succeeds"),
    "autoattack": Named(autoattack, "AutoAttack, through the package pyautoattack"),
}


def check_attack(name: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError, naming what is near or missing, unless the attack can be made."""
    make_attack(name, options)


def make_attack(name: str, options: Mapping[str, Any]) -> Attack:
    """The attack of a name with its options."""
    if name not in ATTACKS:
        raise ValueError(unknown("attack", name, ATTACKS))
    allowed = ATTACKS[name].options
    for key, value in options.items():
        if key not in allowed:
            raise ValueError(unknown(f"option of {name}", key, allowed))
        if isinstance(allowed[key].default, bool) and not isinstance(value, bool):
            raise ValueError(f"{name}: {key} must be true or false, got {value!r}")
    needed = [key for key, option in allowed.items() if option.default is option.empty]
    if missing := [key for key in needed if key not in options]:
        raise ValueError(f"{name} needs {' and '.join(missing)}")
    try:
        return ATTACKS[name].make(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def describe_attack(name: str, options: Mapping[str, Any]) -> str:
    """An attack in a few words: `fgsm eps=0.02 random_start`."""
    words = [name]
    # What distinguishes two attacks of one name comes first.
    for key in sorted(options, key=lambda key: (key not in ("eps", "k"), key)):
        value = options[key]
        if value is True:
            words.append(key)
        elif value is False:
            words.append(f"no {key}")
        else:
            words.append(f"{key}={','.join(value) if isinstance(value, list | tuple) else value}")
    return " ".join(words)
