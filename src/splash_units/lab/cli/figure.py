"""`splash figure`: the paper's figures, from the runs of a store."""

from pathlib import Path
from typing import Annotated

import typer

from splash_units.lab.cli.terminal import FAILED, StoreOption, a_folder, complain, out, user_errors
from splash_units.lab.store import Store


def figure(
    name: Annotated[
        str | None, typer.Argument(help="A figure's name, or all; without one they are listed.")
    ] = None,
    format: Annotated[str, typer.Option(help="svg, png or pdf.")] = "svg",
    output: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The folder the pictures go to.", callback=a_folder),
    ] = Path("figures"),
    store: StoreOption = Path("runs"),
) -> None:
    """Draw a figure of the paper, or one beyond it, from the runs of a store.

    A figure whose runs are missing says so, and which command makes them.
    """
    from splash_units.lab import figures

    if name is None:
        for known in figures.NAMES:
            out.print(f"[bold]{known}[/bold]  {figures.figure(known).caption}")
        return
    with user_errors():
        wanted = figures.NAMES if name == "all" else (figures.figure(name).name,)
        drawn = [_draw(known, format, output, Store(store)) for known in wanted]
    if not any(drawn):
        raise typer.Exit(FAILED)


def _draw(name: str, format: str, output: Path, store: Store) -> bool:
    from splash_units.lab import figures

    try:
        chart = figures.draw(name, store)
    except figures.Missing as missing:
        complain(f"{name}: {missing.reason}; make the runs with {missing.command}")
        return False
    out.print(f"picture: {figures.save(chart, output / f'{name}.{format}', format)}")
    return True
