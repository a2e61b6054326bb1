"""Tables and figures of the studies, as the page embeds them, and what is missing for the others.

Runs that no built-in table shows, such as those of a user's own study, get tables of their own.
"""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from splash_units.lab import figures as drawn
from splash_units.lab import tables as built
from splash_units.lab.findings import attacks_on
from splash_units.lab.frames import Snapshot
from splash_units.lab.report.content import Content, Setting
from splash_units.lab.spec import AnySpec
from splash_units.lab.store import Run
from splash_units.lab.studies import Study
from splash_units.lab.tables import Results, Table

# The figures' own greys, as they must be on a dark page.
FIGURES_ON_DARK = {
    "white": "transparent",
    "#222222": "#e4e2de",
    "#666666": "#9aa1ab",
    "#888888": "#7b828c",
    "#bbbbbb": "#565d67",
    "#dddddd": "#3a4049",
    "#eeeeee": "#2b3037",
}
# What is computed without a run; always there, and so never a sign of results.
WITHOUT_RUNS = ("family", "approximation", "p_values")


@dataclass(frozen=True)
class Shown:
    """A table, the command that prints it if there is one, and whether it is open at first."""

    table: Table
    command: str = ""
    open: bool = True

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers, for their heads to stand above them."""
        columns = zip(*self.table.rows, strict=True)
        return [any(cell.value is not None for cell in column) for column in columns]


@dataclass(frozen=True)
class Lacking:
    """A table or figure that can't be shown yet: why, and what would bring it."""

    title: str
    reason: str
    command: str


def figures(snapshot: Snapshot) -> tuple[list[dict[str, Any]], list[Lacking]]:
    """Figures that can be drawn, as Vega-Lite, and those that can't."""
    from altair.utils.schemapi import debug_mode

    there, missing = [], []
    # Without checking every part against Vega-Lite's schema: the figures' own tests do.
    with debug_mode(False):
        for name in drawn.NAMES:
            figure = drawn.figure(name)
            try:
                chart = figure.draw(snapshot).to_dict(validate=False)
            except drawn.Missing as lacking:
                missing.append(Lacking(figure.caption, lacking.reason, lacking.command))
            except Exception as problem:  # One damaged result must not cost the whole page.
                command = f"splash run {figure.study} --scale short"
                missing.append(Lacking(figure.caption, _trouble(problem), command))
            else:
                there.append({"name": name, "chart": chart})
    return there, missing


def _trouble(problem: Exception) -> str:
    return f"could not be made: {type(problem).__name__}: {problem}"


@cache
def vega_bundle() -> Future[str]:
    """The script that draws the figures, fetched while the store is read (see `packing`)."""
    command = [sys.executable, str(Path(__file__).with_name("packing.py"))]

    def pack() -> str:
        packed = subprocess.run(command, capture_output=True, check=True)
        return packed.stdout.decode()

    return ThreadPoolExecutor(max_workers=1).submit(pack)


def tables(snapshot: Snapshot, content: Content) -> tuple[list[Shown], list[Lacking]]:
    """Tables with a number of ours, then those that need none; and what others wait for."""
    results = built.read(snapshot)
    there, theory, missing = [], [], []
    for name, entry in built.TABLES.items():
        command = f"splash run {entry.study} --scale short"
        try:
            table = built.build(name, results)
        except Exception as problem:  # One damaged result must not cost the whole page.
            missing.append(Lacking(entry.text, _trouble(problem), command))
            continue
        shown = Shown(table, f"splash table {name}", open=name not in WITHOUT_RUNS)
        if name in WITHOUT_RUNS:
            theory.append(shown)
        elif cited(table):
            there.append(shown)
        else:
            missing.append(Lacking(table.title, "", command))
    known = {name for shown in there for name in cited(shown.table)}
    own = [
        shown for setting in content.settings for shown in _own(setting, content, results, known)
    ]
    return [*own, *there, *theory], missing


def cited(table: Table) -> set[str]:
    """Runs and findings that a table's numbers come from."""
    return {name for row in table.rows for cell in row for name in cell.runs}


def _own(setting: Setting, content: Content, results: Results, known: set[str]) -> Iterator[Shown]:
    """Results, comparison and attacks of a setting that has runs no built-in table shows."""
    groups = content.in_setting(setting)
    if all(name in known for group in groups for name in group.ids):
        return
    # Others are compared with the first, and ReLU is what everybody compares with.
    groups.sort(key=lambda group: group.label != "relu")
    runs = [Run(results.store.root, row["id"]) for group in groups for row in group.runs]
    specs: list[AnySpec] = [content.frames.specs[run.id] for run in runs]
    specs += [found.spec() for run in runs for found in attacks_on(run)]
    study = Study(
        name="own",
        title=setting.words,
        text="",
        declare=lambda _scale, _seed: specs,
        seeds={"smoke": 1, "short": 1, "paper": 1},
    )
    for name in built.OWN:
        table = built.build(name, results, study=study, scale=setting.scale)
        if table.rows and (name != "comparison" or len(groups) > 1):
            yield Shown(table)
