"""Which of a store's runs a figure is about: one network, data set and scale, with its units."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from splash_units.lab.frames import SETTING, Frames
from splash_units.lab.names import data_name, network_name
from splash_units.lab.store import Run, Store

SCALES = ("paper", "short", "smoke")


class Missing(Exception):
    """What a figure needs is not in the store; `command` would bring it there."""

    def __init__(self, reason: str, command: str) -> None:
        super().__init__(f"{reason}; {command} brings it")
        self.reason = reason
        self.command = command


@dataclass(frozen=True)
class Chosen:
    """The finished runs of one setting, with what a figure says about where they come from."""

    runs: pl.DataFrame
    setting: dict[str, Any]

    @property
    def words(self) -> str:
        """The setting as a subtitle."""
        return setting_words(*(self.setting[name] for name in SETTING))

    def labels(self, order: Sequence[str] = ()) -> list[str]:
        """The units' labels: the given ones first, in that order, then the others."""
        there = self.runs["label"].unique(maintain_order=True).to_list()
        return [name for name in order if name in there] + [n for n in there if n not in order]


def setting_words(model: str, data: str, augment: str, scale: str) -> str:
    """A setting as a subtitle says it: network, data, augmentation, scale."""
    augmented = "" if augment == "none" else f", {augment} augmentation"
    return f"{network_name(model)} on {data_name(data)}{augmented}, scale {scale}"


def choose(
    frames: Frames,
    wanted: pl.Expr,
    *,
    prefer: dict[str, str],
    at_least: int,
    study: str,
    enough: Callable[[pl.DataFrame], int] | None = None,
) -> Chosen:
    """The setting whose finished runs answer the question best.

    Only runs that `wanted` lets pass count. The setting with the most different labels wins (or
    what `enough` counts), then the larger scale, then the one that the paper used (`prefer`), then
    the one with more runs. Fewer labels than `at_least` are no figure.
    """
    finished = frames.runs.filter((pl.col("state") == "done") & wanted)
    candidates = []
    for key, group in finished.group_by(SETTING, maintain_order=True):
        setting = dict(zip(SETTING, key, strict=True))
        count = enough(group) if enough else group["label"].n_unique()
        liked = sum(setting.get(name) == value for name, value in prefer.items())
        rank = (count, -SCALES.index(str(setting["scale"])), liked, len(group))
        candidates.append((rank, setting, group))
    best = max(candidates, key=lambda candidate: candidate[0], default=None)
    if best is None or best[0][0] < at_least:
        found = 0 if best is None else best[0][0]
        raise Missing(
            f"this figure compares at least {at_least} kinds of finished runs, there are {found}",
            f"splash run {study}",
        )
    return Chosen(best[2].sort("label", "seed"), best[1])


def curves(frames: Frames, chosen: Chosen, value: str) -> list[dict[str, Any]]:
    """Mean and 95 % interval over the seeds of a number, by label and epoch."""
    from splash_units.lab.statistics import summarise

    joined = frames.epochs.join(chosen.runs.select("id", "label"), on="id").drop_nulls(value)
    rows = []
    for (name, epoch), group in joined.group_by("label", "epoch", maintain_order=True):
        summary = summarise(group[value].to_list())
        if summary is None:
            continue
        low, high = summary.interval or (None, None)
        rows.append(
            {"label": name, "epoch": epoch, "mean": summary.mean, "low": low, "high": high,
             "n": summary.n}
        )  # fmt: skip
    return sorted(rows, key=lambda row: (row["label"], row["epoch"]))


def means(rows: Iterable[dict[str, Any]], by: Sequence[str], value: str) -> list[dict[str, Any]]:
    """Mean and 95 % interval of `value` over the rows that agree in `by`."""
    from splash_units.lab.statistics import summarise

    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row[value] is not None:
            groups.setdefault(tuple(row[name] for name in by), []).append(row[value])
    found = []
    for key, values in groups.items():
        summary = summarise(values)
        assert summary is not None
        low, high = summary.interval or (None, None)
        numbers = {"mean": summary.mean, "low": low, "high": high, "n": summary.n}
        found.append({**dict(zip(by, key, strict=True)), **numbers})
    return found


def runs_named(store: Store, chosen: Chosen) -> list[Run]:
    """The runs themselves, in the frame's order."""
    return [Run(store.root, name) for name in chosen.runs["id"]]
