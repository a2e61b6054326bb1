"""Adversarial attacks on any callable that takes images in [0, 1] to logits; what each promises is
tested.
"""

from splash_units.lab.attacks.attack import Attack, fooled_when_rounded
from splash_units.lab.attacks.gradient import FGSM, PGD, UniformNoise
from splash_units.lab.attacks.threat import Budget, Outcome

__all__ = ["FGSM", "PGD", "Attack", "Budget", "Outcome", "UniformNoise", "fooled_when_rounded"]
