"""Names as the paper prints them, and the order in which units are listed.

A name that nobody knows, such as that of a user's own unit, stays as it is.
"""

from splash_units.lab.studies import published

NETWORKS = published.MODELS
DATA_SETS = {"digits": "digits", **published.DATA, "fashion-mnist": "Fashion-MNIST"}
UNITS = {"splash": "SPLASH"} | dict(published.UNITS)
ATTACKS = {
    "fgsm": "FGSM",
    "pgd": "PGD",
    "cw": "CW-L2",
    "boundary": "boundary",
    "pixels": "pixels",
    "apgd": "APGD",
    "square": "Square",
    "worst_case": "worst case",
    "noise": "random noise",
    "autoattack": "AutoAttack",
}
AUGMENTATIONS = {"none": "", "moderate": "augmented", "heavy": "heavily augmented"}


def unit_name(label: str) -> str:
    """A unit's label with its first word as the paper prints it: splash S=9 is SPLASH S=9."""
    first, blank, rest = label.partition(" ")
    return f"{UNITS.get(first, first)}{blank}{rest}"


def unit_rank(label: str) -> tuple[int, str]:
    """SPLASH first, then the paper's order, then the others; variants follow their unit."""
    first = label.partition(" ")[0]
    order = list(UNITS)
    return (order.index(first) if first in order else len(order), label)
