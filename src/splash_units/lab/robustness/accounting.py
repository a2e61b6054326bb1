"""What an attack's rows add up to, and what each count means.

Counts follow two readings of the paper, which does not say which it means: `wrong_after` is every
image that is wrong after the attack, of all that were drawn; `fooled` is those that were right
before, of the `attempts`. An image that was wrong before is never an attack's success.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from splash_units.lab.findings import Finding
from splash_units.lab.statistics import wilson

# Images lie in [0, 1]. The paper gives no limit for the attacks that minimise a distance.
L2_BUDGETS = (0.25, 0.5, 1.0)

Rows = Mapping[str, Tensor]


def account(rows: Rows, *, minimises: bool) -> dict[str, Any]:
    """The numbers of an attack from its rows: an `Outcome`'s tensors and `fooled_rounded`.

    `minimises` says whether the attack looks for the nearest wrong image. Its median distances are
    over all attempts, a failure being infinitely far (None, then, if most of them failed); those of
    an attack with a budget are over the images it fooled.
    """
    was_right, fooled = rows["was_right"], rows["fooled"]
    images, attempts, successes = len(fooled), int(was_right.sum()), int(fooled.sum())
    wrong_after = int((rows["prediction"] != rows["labels"]).sum())
    return {
        "images": images,
        "attempts": attempts,
        "fooled": successes,
        "fooled_interval": list(wilson(successes, attempts)),
        "wrong_after": wrong_after,
        "clean_accuracy": attempts / images,
        "robust_accuracy": 1 - wrong_after / images,
        **{
            f"median_{norm}": _median(rows[norm], fooled, was_right if minimises else fooled)
            for norm in ("l2", "linf", "l0")
        },
        "success_at_l2": success_at_l2(rows) if minimises else None,
        "own_gap": _mean(gap(rows)[fooled]),
        "fooled_after_rounding": int(rows["fooled_rounded"].sum()),
        "queries": _mean(rows["queries"][was_right]),
        "gradient_queries": _mean(rows["gradient_queries"][was_right]),
    }


def success_at_l2(rows: Rows) -> dict[str, float | None]:
    """The share of attempts fooled within each L2 budget, and within none."""
    attempts = int(rows["was_right"].sum())
    within = {str(limit): rows["fooled"] & (rows["l2"] <= limit) for limit in L2_BUDGETS}
    within["none"] = rows["fooled"]
    return {
        limit: int(fooled.sum()) / attempts if attempts else None
        for limit, fooled in within.items()
    }


def gap(rows: Rows) -> Tensor:
    """The paper's |Z_true - Z_adv|: how sure the network is of its mistake, by its softmax.

    Z_adv is the probability of the class that it predicts.
    """
    return (rows["probability_predicted"] - rows["probability_true"]).abs()


def common_gap(findings: Sequence[Finding]) -> list[float | None]:
    """The paper's avg |Z_true - Z_adv| of each finding, over the images that fooled all of them.

    None for all if there is no such image. Images are compared by their place in the test set:
    findings of one `seed` draw theirs in the same order, so that they have most in common.
    """
    names = ("index", "fooled", "probability_true", "probability_predicted")
    tables = [found.tensors(*names) for found in findings]
    common = _common([rows["index"][rows["fooled"]] for rows in tables])
    return [_mean(gap(rows)[torch.isin(rows["index"], common)]) for rows in tables]


def _common(sets: Sequence[Tensor]) -> Tensor:
    """What is in all of several sets of numbers."""
    if not sets:
        return torch.zeros(0, dtype=torch.int64)
    common = sets[0]
    for other in sets[1:]:
        common = common[torch.isin(common, other)]
    return common


def _median(distance: Tensor, fooled: Tensor, of: Tensor) -> float | None:
    """The lower median, a row that was not fooled being infinitely far."""
    reached = torch.where(fooled, distance.double(), math.inf)[of]
    if len(reached) == 0:
        return None
    middle = float(reached.median())
    return middle if math.isfinite(middle) else None


def _mean(values: Tensor) -> float | None:
    return float(values.double().mean()) if len(values) else None
