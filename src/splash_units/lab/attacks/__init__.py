"""Adversarial attacks on any callable that takes images in [0, 1] to logits."""

from splash_units.lab.attacks.attack import Attack, fooled_when_rounded
from splash_units.lab.attacks.boundary import Boundary
from splash_units.lab.attacks.carlini_wagner import CarliniWagnerL2
from splash_units.lab.attacks.gradient import FGSM, PGD, UniformNoise
from splash_units.lab.attacks.pixels import Pixels
from splash_units.lab.attacks.threat import Budget, Outcome

__all__ = [
    "FGSM",
    "PGD",
    "Attack",
    "Boundary",
    "Budget",
    "CarliniWagnerL2",
    "Outcome",
    "Pixels",
    "UniformNoise",
    "fooled_when_rounded",
]
