"""How much each attack may spend at each scale, and on how many images: plain data, in one place.

`paper` is what the paper states (or, for attacks it does not have, what their authors propose),
`short` a reduced version that ends in minutes on one core for the small networks, `smoke` shows
that all works. An attack that is cut short fools fewer images, so numbers of different scales are
not comparable; every result names its options.

    options, images = budget("pixels", "short")
    AttackSpec(train=train, attack="pixels", options={**options, "k": 3}, images=images)
"""

from collections.abc import Mapping
from typing import Any, get_args

from splash_units.lab.spec import Scale, unknown

# The paper's: Linf budgets of FGSM on images in [0, 1], and numbers of pixels.
EPS = (0.02, 0.04, 0.06)
PIXELS = (1, 3, 5)
# What attacks of a fixed budget are compared at: more leaves nothing of an undefended network.
EPS_OF_COMPARISON = EPS[0]

Options = dict[str, Any]

# The paper's FGSM starts from noise within the budget, as foolbox's `random_start` does, and its
# evolution of pixels mutates random candidates.
_OPTIONS: Mapping[str, Mapping[str, Options]] = {
    "noise": {"smoke": {}, "short": {}, "paper": {}},
    "fgsm": {
        "smoke": {"random_start": True},
        "short": {"random_start": True},
        "paper": {"random_start": True},
    },
    "pgd": {"smoke": {"steps": 5}, "short": {"steps": 20}, "paper": {"steps": 40}},
    "apgd": {"smoke": {"steps": 5}, "short": {"steps": 30}, "paper": {"steps": 100}},
    "square": {"smoke": {"queries": 20}, "short": {"queries": 500}, "paper": {"queries": 5000}},
    "cw": {
        "smoke": {"binary_search_steps": 5, "steps": 20},
        "short": {"binary_search_steps": 5, "steps": 100},
        "paper": {"binary_search_steps": 7, "steps": 1000},
    },
    "boundary": {"smoke": {"steps": 50}, "short": {"steps": 1000}, "paper": {"steps": 6000}},
    "pixels": {
        "smoke": {"population": 20, "generations": 2, "base": "random"},
        "short": {"population": 100, "generations": 10, "base": "random"},
        "paper": {"population": 400, "generations": 40, "base": "random"},
    },
    "worst_case": {
        "smoke": {"steps": 5, "queries": 20},
        "short": {"steps": 30, "queries": 500},
        "paper": {"steps": 100, "queries": 5000},
    },
    "autoattack": {
        "smoke": {"attacks": ["apgd-ce"]},
        "short": {"attacks": ["apgd-ce", "apgd-dlr"]},
        "paper": {},
    },
}
_NEED_EPS = ("noise", "fgsm", "pgd", "apgd", "square", "worst_case", "autoattack")
_DEAR = ("cw", "boundary", "pixels", "square", "worst_case", "autoattack")
_IMAGES: Mapping[str, int] = {"smoke": 16, "short": 200, "paper": 1000}
_IMAGES_OF_DEAR: Mapping[str, int] = {**_IMAGES, "short": 100}


def budget(attack: str, scale: str) -> tuple[Options, int]:
    """The options of an attack at a scale, and the number of images it is tried on.

    Where several budgets are usual the options hold the smallest (`eps` 0.02, `k` 1); put another
    in its place.
    """
    if attack not in _OPTIONS:
        raise ValueError(unknown("attack", attack, _OPTIONS))
    if scale not in get_args(Scale):
        raise ValueError(unknown("scale", scale, get_args(Scale)))
    options = dict(_OPTIONS[attack][scale])
    if attack in _NEED_EPS:
        options["eps"] = EPS_OF_COMPARISON
    if attack == "pixels":
        options["k"] = PIXELS[0]
    return options, (_IMAGES_OF_DEAR if attack in _DEAR else _IMAGES)[scale]


def transfer_budget(scale: str) -> tuple[Options, int]:
    """The options of the PGD whose images are shown to other networks, and the number of images.

    It takes all its steps: an image that stops at its first success sits on one network's own
    boundary, and says little about any other's.
    """
    options, images = budget("pgd", scale)
    return {**options, "eps": EPS[1], "stop_when_fooled": False}, images


def battery(scale: str) -> list[tuple[str, Options, int]]:
    """Every attack that `all` means, cheapest first: name, options, images."""
    several: Mapping[str, list[Options]] = {
        "noise": [{"eps": eps} for eps in EPS],
        "fgsm": [{"eps": eps} for eps in EPS],
        "pixels": [{"k": k} for k in PIXELS],
    }
    names = ("noise", "fgsm", "pgd", "apgd", "square", "cw", "boundary", "pixels", "worst_case")
    found = []
    for name in names:
        options, images = budget(name, scale)
        found += [(name, {**options, **variant}, images) for variant in several.get(name, [{}])]
    return found
