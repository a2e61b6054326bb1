"""Every number the paper prints, and its p-values computed again from its own means and deviations.

`published.csv` has a row for each: table, dataset, augmentation, model, activation, setting,
metric, mean, std. Names are the paper's; `value` speaks the lab's and translates. `augmentation` is
none, D-A-moderate, D-A-heavy (All-CNN), D-A-as-cited, or "not stated".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import polars as pl

from splash_units.lab.statistics import Comparison, Summary, compare_summaries

#: Five runs behind every mean with a deviation, as the paper says.
RUNS = 5

MODELS: Mapping[str, str] = {
    "mlp": "MLP", "lenet5": "LeNet5", "nin": "NiN", "allcnn": "All-CNN", "resnet20": "ResNet-20",
}  # fmt: skip
DATA: Mapping[str, str] = {"mnist": "MNIST", "cifar-10": "CIFAR-10", "cifar-100": "CIFAR-100"}
UNITS: Mapping[str, str] = {
    "relu": "ReLU", "leaky_relu": "leaky ReLU", "prelu": "PReLU", "tanh": "tanh",
    "sigmoid": "sigmoid", "elu": "ELU", "maxout": "maxout", "swish": "Swish", "apl": "APL",
    "splash": "SPLASH",
}  # fmt: skip

Row = Mapping[str, Any]  #: of `frame`
Place = tuple[str, str, str, str, str]  #: table, metric, network, data set, unit


@dataclass(frozen=True)
class PValue:
    """One of the paper's p-values beside what its printed numbers give.

    `against` is the unit the paper names. Where it prints no error for that unit, `computed_with`
    is the one it prints instead, and the two are not strictly comparable.
    """

    model: str
    data: str
    augment: str
    against: str
    computed_with: str
    printed: float
    computed: Comparison

    @property
    def comparable(self) -> bool:
        return self.against == self.computed_with

    @property
    def reproduced(self) -> bool:
        """Whether Welch's or Student's p-value is the printed one, to the digits it has."""
        found = (self.computed.welch_p, self.computed.student_p)
        return any(p is not None and abs(p - self.printed) < 0.0005 for p in found)


@cache
def frame() -> pl.DataFrame:
    """The file as it is."""
    text = resources.files(__package__).joinpath("published.csv").read_bytes()
    numbers = {"mean": pl.Float64, "std": pl.Float64}
    return pl.read_csv(text, schema_overrides=numbers).with_columns(pl.col("setting").fill_null(""))


@cache
def _own_results() -> Mapping[Place, Sequence[Row]]:
    """The authors' own results, without those they cite."""
    found: dict[Place, list[Row]] = {}
    for row in frame().iter_rows(named=True):
        if not row["setting"].startswith("cited:"):
            place = (row["table"], row["metric"], row["model"], row["dataset"], row["activation"])
            found.setdefault(place, []).append(row)
    return found


def value(
    table: str,
    metric: str,
    *,
    model: str,
    data: str,
    unit: str,
    augment: str | None = None,
    setting: str | None = None,
) -> Summary | None:
    """One printed value, where there is one.

    `augment` "moderate" finds what the paper calls heavy, too; None looks at no augmentation.
    """
    place = (table, metric, MODELS.get(model, model), DATA.get(data, data), UNITS.get(unit, unit))
    found = _own_results().get(place, ())
    if augment is not None:
        wanted = ["none"] if augment == "none" else ["D-A-moderate", "D-A-heavy"]
        found = [row for row in found if row["augmentation"] in wanted]
    if setting is not None:
        # Settings are lists such as "S=7;shared": one is meant by what stands in it.
        parts = set(setting.split(";"))
        found = [row for row in found if parts <= set(row["setting"].split(";"))]
    return _summary(found[0]) if found else None


def _summary(row: Row) -> Summary:
    return Summary(row["mean"], row["std"], RUNS)


def p_values() -> list[PValue]:
    """The paper's 15 p-values, recomputed; the order is the paper's.

    None is reproduced but one, All-CNN on CIFAR-100, and that only approximately (0.069 by Welch
    and 0.067 by Student for its 0.066). The others miss in both directions, so neither one-sided
    tests nor any common mistake explains them; a paired test might, and needs the raw runs.
    """
    return [_p_value(row) for row in frame().filter(table="p_values").iter_rows(named=True)]


def _p_value(row: Row) -> PValue:
    network, data, augmentation = row["model"], row["dataset"], row["augmentation"]
    printed = {
        unit: found
        for (*place, unit), every in _own_results().items()
        if place == ["accuracy", "error_rate_pct", network, data]
        for found in every
        if found["augmentation"] == augmentation
    }
    against = row["setting"].removeprefix("vs=")
    others = [unit for unit in printed if unit not in ("SPLASH", "ReLU")]
    used = against if against in printed else others[0]
    splash, other = _summary(printed["SPLASH"]), _summary(printed[used])
    return PValue(
        model=_key(MODELS, network),
        data=_key(DATA, data),
        augment="none" if augmentation == "none" else "moderate",
        against=_key(UNITS, against),
        computed_with=_key(UNITS, used),
        printed=row["mean"],
        computed=compare_summaries(splash, other),
    )


def _key(names: Mapping[str, str], printed: str) -> str:
    return next(key for key, name in names.items() if name == printed)
