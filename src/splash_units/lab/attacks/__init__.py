"""Adversarial attacks on any callable that takes images in [0, 1] to logits."""

from splash_units.lab.attacks.apgd import APGD
from splash_units.lab.attacks.attack import Attack, fooled_when_rounded
from splash_units.lab.attacks.autoattack import AutoAttack
from splash_units.lab.attacks.boundary import Boundary
from splash_units.lab.attacks.carlini_wagner import CarliniWagnerL2
from splash_units.lab.attacks.gradient import FGSM, PGD, UniformNoise
from splash_units.lab.attacks.inspection import classified_right, without_gradient
from splash_units.lab.attacks.pixels import Pixels
from splash_units.lab.attacks.square import Square
from splash_units.lab.attacks.threat import Budget, Outcome
from splash_units.lab.attacks.transfer import TransferMatrix, transfer, transfer_matrix
from splash_units.lab.attacks.worst_case import WorstCase

__all__ = [
    "APGD",
    "FGSM",
    "PGD",
    "Attack",
    "AutoAttack",
    "Boundary",
    "Budget",
    "CarliniWagnerL2",
    "Outcome",
    "Pixels",
    "Square",
    "TransferMatrix",
    "UniformNoise",
    "WorstCase",
    "classified_right",
    "fooled_when_rounded",
    "transfer",
    "transfer_matrix",
    "without_gradient",
]
