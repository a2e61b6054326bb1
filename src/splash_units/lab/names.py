"""Names as the paper prints them, and the order in which units are listed.

A name that nobody knows, such as that of a user's own unit, stays as it is.
"""

from splash_units.lab.studies import published

NETWORKS = published.MODELS
DATA_SETS = {"digits": "digits", **published.DATA, "fashion-mnist": "Fashion-MNIST"}
UNITS = (
    {"splash": "SPLASH"}
    | dict(published.UNITS)
    | {
        "splash_fixed": "fixed SPLASH",
        "splash_positive": "SPLASH-positive",
        "splash_negative": "SPLASH-negative",
        "splash_literal": "literal SPLASH",
    }
)
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


def network_name(model: str) -> str:
    return NETWORKS.get(model, model)


def data_name(data: str) -> str:
    return DATA_SETS.get(data, data)


def attack_name(attack: str, *, eps: float | None = None, k: int | None = None) -> str:
    """An attack, with its budget if one is given."""
    budget = f" ε = {eps:g}" if eps else f" k = {k}" if k else ""
    return f"{ATTACKS.get(attack, attack)}{budget}"


def unit_name(label: str) -> str:
    """A unit's label as the paper would print it: splash S=9 is SPLASH S=9.

    One that begins with what another learned names that, too: SPLASH, weights of ReLU.
    """
    head, of, source = label.partition(" of ")
    if of:
        head, _, taken = head.rpartition(" ")
        return f"{unit_name(head)}, {taken} of {unit_name(source)}"
    first, blank, rest = label.partition(" ")
    return f"{UNITS.get(first, first)}{blank}{rest}"


def unit_rank(label: str) -> tuple[int, str]:
    """SPLASH first, then the paper's order, then the others; variants follow their unit."""
    first = label.partition(" ")[0]
    order = list(UNITS)
    return (order.index(first) if first in order else len(order), label)
