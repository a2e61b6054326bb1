"""A store filled by hand: results, divergences, failures and attacks that no one had to compute."""

from collections.abc import Mapping
from typing import Any

import torch

from splash_units.lab.findings import Finding, claim, finding
from splash_units.lab.spec import AnySpec, AttackSpec, TrainSpec
from splash_units.lab.store import Store

RECORD: Mapping[str, Any] = {
    "plan": {"epochs": 2},
    "parameters": 1234,
    "layout": {"act1.a_pos": [4], "act1.a_neg": [4]},
    "constants": {},
}
EPOCHS = [
    {"epoch": 1, "train_loss": 1.5, "train_error": 0.5, "test_loss": 1.4, "test_error": 0.4,
     "lr": 0.01, "seconds": 2.0, "test_seconds": 0.5},
    {"epoch": 2, "train_loss": 0.5, "train_error": 0.3, "test_loss": 0.9, "test_error": 0.3,
     "lr": 0.01, "seconds": 4.0, "test_seconds": 0.5},
]  # fmt: skip


def add_run(store: Store, spec: TrainSpec, test_error: float, train_loss: float = 0.5) -> None:
    """A training that ended well."""
    with store.claim(spec) as work:
        work.begin(RECORD, resumed=False)
        for epoch in EPOCHS:
            work.append_epoch(epoch)
        numbers = {"test_error": test_error, "best_test_error": test_error, "train_error": 0.1}
        work.finish({"status": "done", "train_loss": train_loss, **numbers}, {})


def add_divergence(store: Store, spec: TrainSpec) -> None:
    with store.claim(spec) as work:
        work.begin(RECORD, resumed=False)
        work.finish({"status": "diverged", "why": "train loss not finite in epoch 1"}, {})


def add_failure(store: Store, spec: TrainSpec) -> None:
    with store.claim(spec) as work:
        work.begin(RECORD, resumed=False)
        work.fail("MemoryError: none left", "Traceback ...")


def add_finding(
    store: Store, spec: AnySpec, result: Mapping[str, Any], **tensors: torch.Tensor
) -> Finding:
    """Any finding, with numbers and rows given."""
    with claim(store, spec) as draft:
        draft.begin({})
        draft.finish({"status": "done", **result}, tensors)
    return finding(store, spec)


def add_attack(
    store: Store, spec: AttackSpec, fooled: int, attempts: int, **numbers: Any
) -> Finding:
    """An attack of which the first `fooled` of `attempts` images succeeded."""
    rows = torch.arange(attempts)
    result = {
        "scale": spec.train.scale,
        "attack": spec.attack,
        "images": attempts,
        "attempts": attempts,
        "fooled": fooled,
        "fooled_interval": [0.1, 0.9],
        "wrong_after": fooled,
        "clean_accuracy": 1.0,
        "robust_accuracy": 1 - fooled / attempts,
        "median_l2": 0.25,
        "own_gap": 0.5,
        "success_at_l2": None,
        "warnings": [],
        **numbers,
    }
    return add_finding(
        store,
        spec,
        result,
        index=rows,
        fooled=rows < fooled,
        probability_true=torch.full((attempts,), 0.25),
        probability_predicted=torch.full((attempts,), 0.75),
    )
