"""The paper's claims and whether the runs of a store confirm them."""

from splash_units.lab.report.content import Content
from splash_units.lab.report.verdicts import learning, measured, robustness
from splash_units.lab.report.verdicts.judging import Evidence, Outcome, Verdict
from splash_units.lab.store import Store

__all__ = ["Evidence", "Outcome", "Verdict", "verdicts"]


def verdicts(content: Content, store: Store) -> list[Verdict]:
    """Every claim, judged, in the order of the questions: does it help, cost, protect, hold?"""
    attacked = robustness.attacked_groups(content)
    return [
        learning.better_than_relu(content),
        learning.better_than_all(content),
        learning.starts(content),
        learning.ablation(content),
        learning.hinges(content),
        measured.parameters(content, store),
        measured.cost(store),
        *robustness.robust(attacked),
        robustness.strong(attacked),
        robustness.separation(store),
        measured.theorem(),
    ]
