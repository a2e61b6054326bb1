"""`splash status` and `splash show`: what is in the store."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from splash_units.lab.cli.attack import show_attacks
from splash_units.lab.cli.terminal import StoreOption, a_file, epoch_line, out, percent, user_errors
from splash_units.lab.cli.train import show_result
from splash_units.lab.findings import attacks_on
from splash_units.lab.spec import describe
from splash_units.lab.store import Run, Store

_COLOURS = {
    "done": "green",
    "running": "cyan",
    "diverged": "yellow",
    "interrupted": "magenta",
    "failed": "red",
}


def status(store: StoreOption = Path("runs")) -> None:
    """List the runs of a store: done, running, interrupted, failed or diverged, and why."""
    runs = Store(store).runs()
    if not runs:
        out.print(f"no runs in {store}")
        return
    headings = ("run", "what", "state", "epochs", "test error", "attacks", "why")
    table = Table(*headings, box=None, pad_edge=False)
    for run in runs:
        table.add_row(*_row(run))
    out.print(table)


def _row(run: Run) -> tuple[str, ...]:
    now = run.status()
    colour = _COLOURS.get(now.state, "white")
    result = run.result() or {}
    error = percent(result["test_error"]) if "test_error" in result else ""
    try:
        what = describe(run.spec())
    except ValueError as problem:
        what = f"unreadable: {problem}"
    epochs = f"{now.epochs_done:g}/{now.epochs or '?'}"
    attacks = f"{len(attacks_on(run)) or ''}"
    state = f"[{colour}]{now.state}[/{colour}]"
    return run.id[:8], what, state, epochs, error, attacks, now.why


def show(
    run: Annotated[str, typer.Argument(help="The beginning of a run's name: see splash status.")],
    output: Annotated[
        Path | None,
        typer.Option(
            help="Where the picture goes, .png or .svg; else into the run's folder.",
            callback=a_file,
        ),
    ] = None,
    store: StoreOption = Path("runs"),
) -> None:
    """Show a run: its numbers and attacks here, its curves and learned shapes as a picture."""
    from splash_units.lab.pictures import draw_run

    with user_errors():
        found = Store(store).find(run)
        out.print(f"[bold]{describe(found.spec())}[/bold]")
        now = found.status()
        for numbers in found.history():
            out.print(epoch_line(numbers, now.epochs or numbers["epoch"]))
        if found.result():
            show_result(found)
        else:
            out.print(f"{now.state} {now.why}")
        if attacks := attacks_on(found):
            show_attacks(attacks)
        if found.history():
            out.print(f"picture: {draw_run(found, output or found.folder / 'picture.png')}")
