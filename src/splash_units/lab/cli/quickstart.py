"""`splash quickstart`: see it all work on a small data set that needs no download."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn, TimeRemainingColumn
from rich.table import Table

from splash_units.lab.cli.progress import run_and_follow
from splash_units.lab.cli.report import write
from splash_units.lab.cli.terminal import FAILED, StoreOption, a_folder, bars, complain, out
from splash_units.lab.quickstart import (
    SEEDS,
    SHOWN,
    Row,
    attack_each,
    attacks,
    by_unit,
    rows,
    specs,
)
from splash_units.lab.spec import AttackSpec, describe
from splash_units.lab.statistics import LEVEL, Summary
from splash_units.lab.store import Run, Store
from splash_units.lab.studies.quickstart import EPOCHS


def quickstart(
    output: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Where the report and the pictures go.", callback=a_folder
        ),
    ] = Path("quickstart"),
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each unit.")] = len(SEEDS),
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each run.")] = EPOCHS,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs side by side; else one a core.")
    ] = None,
    store: StoreOption = Path("runs"),
) -> None:
    """Compare five units on handwritten digits: errors, attacks, learned shapes, and a report.

    Takes about two minutes on two cores and downloads nothing.
    """
    began = time.monotonic()
    wanted = specs(range(seeds), epochs)
    out.print(f"LeNet5 on scikit-learn's digits: {len(wanted)} runs of {epochs} epochs")
    runs = Store(store)
    summary = run_and_follow(wanted, runs, processes=processes)
    if summary.failed:
        for failed in summary.failed:
            complain(f"{describe(failed.spec)}: {failed.why}")
        complain(f"see splash status --store {store}; what is done is kept")
        raise typer.Exit(FAILED)
    trained = [runs.run(spec) for spec in wanted]
    _attack(attacks(trained), runs)
    groups = by_unit(trained)
    results = rows(groups)
    out.print(_table(results, wanted[0].scale, epochs))
    out.print(_finding(results))
    for picture in _draw(groups, output):
        out.print(f"picture: {picture}")
    page = write(runs, output / "report.html")
    out.print(f"[dim]{time.monotonic() - began:.0f} s; runs: splash status --store {store}[/dim]")
    out.print(f"report: {page}")


def _attack(wanted: Sequence[AttackSpec], store: Store) -> None:
    with bars(MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("attacking", total=len(wanted))
        for _ in attack_each(wanted, store):
            bar.advance(task)


def _table(results: Sequence[Row], scale: str, epochs: int) -> Table:
    table = Table(
        "unit",
        "test error, mean ± std (n)",
        "against ReLU",
        "p",
        "training loss",
        *(f"fooled by {_attack_name(name)}" for name in SHOWN),
        title=f"LeNet5 on digits, {epochs} epochs, scale {scale}",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for row in results:
        diverged = f", {row.diverged} diverged" if row.diverged else ""
        table.add_row(
            row.unit,
            _mean(row.error, 2) + diverged,
            "" if row.against_relu is None else f"{100 * row.against_relu.difference:+.2f}",
            "" if row.p is None else f"{row.p:.3f}",
            "–" if row.train_loss is None else f"{row.train_loss:.4f}",
            *(_mean(row.fooled[name], 0) for name in SHOWN),
        )
    return table


def _attack_name(name: str) -> str:
    eps = SHOWN[name]
    return "one pixel" if eps is None else f"{name.upper()} {eps:g}"


def _mean(summary: Summary | None, digits: int) -> str:
    """Percents; one value has no deviation."""
    if summary is None:
        return "–"
    spread = "" if summary.std is None else f" ± {100 * summary.std:.{digits}f}"
    return f"{100 * summary.mean:.{digits}f}{spread} % ({summary.n})"


def _finding(results: Sequence[Row]) -> str:
    """What the errors say about SPLASH and ReLU, in a sentence."""
    found = next(row.against_relu for row in results if row.unit == "splash")
    if found is None or found.interval is None:
        return f"SPLASH and ReLU: {found.why_not if found else 'not both have a result'}"
    low, high = (100 * end for end in found.interval)
    needed = f"; about {found.seeds_needed:,} seeds would tell" if found.seeds_needed else ""
    seen = found.welch_p is not None and found.welch_p < LEVEL
    says = "more than chance explains" if seen else f"which chance explains as well{needed}"
    return (
        f"SPLASH against ReLU: {100 * found.difference:+.2f} points of error, 95 % interval "
        f"{low:+.2f} to {high:+.2f}, {says} (p: Welch's test, Holm's correction)"
    )


def _draw(groups: Mapping[str, Sequence[Run]], output: Path) -> list[Path]:
    from splash_units.lab.pictures import draw_comparison, draw_learned_shapes

    return [
        draw_comparison(groups, output / "curves.png"),
        draw_learned_shapes(groups, output / "shapes.png"),
    ]
