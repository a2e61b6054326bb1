"""`splash quickstart`: see it all work on a small data set that needs no download."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from splash_units.lab.cli.progress import run_and_follow
from splash_units.lab.cli.terminal import FAILED, StoreOption, complain, out
from splash_units.lab.quickstart import SEEDS, Row, by_unit, rows, specs
from splash_units.lab.spec import describe
from splash_units.lab.store import Run, Store
from splash_units.lab.studies.quickstart import EPOCHS


def quickstart(
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where the pictures go.")] = Path(
        "quickstart"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each unit.")] = len(SEEDS),
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each run.")] = EPOCHS,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs side by side; else one a core.")
    ] = None,
    store: StoreOption = Path("runs"),
) -> None:
    """Compare five units on handwritten digits: test errors, loss curves, learned shapes.

    Takes about a minute on two cores and downloads nothing.
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
    groups = by_unit([runs.run(spec) for spec in wanted])
    out.print(_table(rows(groups), wanted[0].scale, epochs))
    for picture in _draw(groups, output):
        out.print(f"picture: {picture}")
    out.print(
        f"[dim]{time.monotonic() - began:.0f} s; the runs: splash status --store {store}[/dim]"
    )


def _table(results: Sequence[Row], scale: str, epochs: int) -> Table:
    table = Table(
        "unit",
        "test error, mean ± std (n)",
        "training loss",
        title=f"LeNet5 on digits, {epochs} epochs, scale {scale}",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for row in results:
        deviation = "" if row.error_deviation is None else f" ± {100 * row.error_deviation:.2f}"
        error = "–" if row.error is None else f"{100 * row.error:.2f}{deviation} % ({row.count})"
        diverged = f", {row.diverged} diverged" if row.diverged else ""
        loss = "–" if row.train_loss is None else f"{row.train_loss:.4f}"
        table.add_row(row.unit, error + diverged, loss)
    return table


def _draw(groups: Mapping[str, Sequence[Run]], output: Path) -> list[Path]:
    from splash_units.lab.pictures import draw_comparison, draw_learned_shapes

    return [
        draw_comparison(groups, output / "curves.png"),
        draw_learned_shapes(groups, output / "shapes.png"),
    ]
