"""The paper's tables from the runs of a store, with the paper's numbers beside ours.

A table is built from its study's declaration and what the store has of it; it reads, and runs
nothing. Cells whose runs are missing, failed or diverged say so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from splash_units.lab.spec import unknown
from splash_units.lab.store import Store
from splash_units.lab.studies import Study, load
from splash_units.lab.tables import accuracy, attacked, cost, learning, own, theory, verdict
from splash_units.lab.tables.rendering import FORMATS as FORMATS
from splash_units.lab.tables.rendering import render as render
from splash_units.lab.tables.results import Results as Results
from splash_units.lab.tables.results import View, view
from splash_units.lab.tables.results import read as read
from splash_units.lab.tables.table import Cell as Cell
from splash_units.lab.tables.table import Table as Table


@dataclass(frozen=True)
class Entry:
    """A table by name: the study whose runs it shows, and what it is about."""

    study: str
    text: str
    build: Callable[[View], Table]


TABLES: Mapping[str, Entry] = {
    "accuracy": Entry("accuracy", "test error of ten units in four networks", accuracy.accuracy),
    "significance": Entry(
        "accuracy", "SPLASH against the best other unit, tested", accuracy.significance
    ),
    "p_values": Entry(
        "accuracy", "the paper's p-values from its own numbers", lambda _: accuracy.p_values()
    ),
    "cost": Entry("cost", "time of a training step, and the error it buys", cost.cost),
    "hinges": Entry("hinges", "error and parameters against the number of hinges", learning.hinges),
    "initialisation": Entry("initialisation", "starting shapes", learning.initialisation),
    "ablation": Entry("ablation", "fixed, positive and negative SPLASH", learning.ablation),
    "pixels": Entry("pixels", "attacks on one, three and five pixels", attacked.pixels),
    "boundary": Entry("boundary", "the boundary attack", attacked.boundary),
    "fgsm": Entry("fgsm", "the fast gradient sign method", attacked.fgsm),
    "cw": Entry("cw", "the attack of Carlini and Wagner", attacked.cw),
    "separation": Entry("separation", "frogs and ships by numbers", verdict.separation),
    "family": Entry("family", "parameters of piecewise-linear families", lambda _: theory.family()),
    "approximation": Entry(
        "family", "the approximation theorem as numbers", lambda _: theory.approximation()
    ),
    "verdict": Entry("verdict", "accuracy left under strong attacks", verdict.verdict),
    "transfer": Entry("verdict", "what one unit's images do to another", verdict.transfer),
    "finetune": Entry("finetune", "a converted network, fine-tuned", learning.finetune),
}
NAMES = tuple(TABLES)
NEED_NO_RUNS = ("p_values", "family", "approximation")
# For any study, such as one from a file.
OWN: Mapping[str, Callable[[View], Table]] = {
    "results": own.results,
    "comparison": own.comparison,
    "attacks": own.attacks,
}


def build(
    name: str,
    source: Store | Results,
    *,
    study: Study | None = None,
    scale: str | None = None,
    data: str | None = None,
    only: str | None = None,
) -> Table:
    """A table by name, from a store or from what `read` made of it.

    `results`, `comparison` and `attacks` are for any `study`; the others have their own. Without a
    scale it is that of which the store has most. `only` is a part of the study, as for its specs.
    """
    results = read(source) if isinstance(source, Store) else source
    if name in OWN:
        if study is None:
            raise ValueError(f"the table {name!r} needs a study: give one's name or file")
        return OWN[name](view(study, results, scale, data, only))
    if name not in TABLES:
        raise ValueError(unknown("table", name, (*NAMES, *OWN)))
    entry = TABLES[name]
    if name in NEED_NO_RUNS:
        only = None
    return entry.build(view(study or load(entry.study), results, scale, data, only))


def build_all(
    study: Study,
    source: Store | Results,
    *,
    scale: str | None = None,
    data: str | None = None,
    only: str | None = None,
) -> list[Table]:
    """All tables of a study, in its order."""
    results = read(source) if isinstance(source, Store) else source
    return [
        build(
            name, results, study=study if name in OWN else None, scale=scale, data=data, only=only
        )
        for name in study.tables
    ]
