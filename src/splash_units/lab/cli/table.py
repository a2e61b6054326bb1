"""`splash table`: the paper's tables, from the runs there are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splash_units.lab.cli.terminal import StoreOption, out, user_errors
from splash_units.lab.store import Store

if TYPE_CHECKING:
    from splash_units.lab.studies import Study


def table(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="A table; or paper, quickstart or a FILE.toml for all of a study's.",
        ),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="text, markdown, latex or csv.")] = "text",
    scale: Annotated[
        str | None,
        typer.Option(help="smoke, short or paper; else that of which the store has most."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="The data set that stood in for the study's own, if one did."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE,...", help="A part: model=lenet5,unit=relu+splash."),
    ] = None,
    store: StoreOption = Path("runs"),
) -> None:
    """Print a table of the paper with our numbers beside its own; without a name, list them.

    Runs that are missing, failed or diverged show in their cells. Nothing is run.

    Example: splash table accuracy --format markdown
    """
    from splash_units.lab import tables

    if name is None:
        _list()
        return
    with user_errors():
        if format not in tables.FORMATS:
            raise ValueError(f"format {format!r}: must be one of {', '.join(tables.FORMATS)}")
        results = tables.read(Store(store))
        if name in tables.NAMES:
            found = [tables.build(name, results, scale=scale, data=data, only=only)]
        else:
            study = _study(name)
            found = tables.build_all(study, results, scale=scale, data=data, only=only)
            if not found:
                raise ValueError(
                    f"the study {name} has no tables, only figures: {', '.join(study.figures)}"
                )
    for one in found:
        # Not through rich: brackets are the table's own, and a wide line stays one line.
        out.file.write(tables.render(one, format) + ("" if one is found[-1] else "\n"))


def _study(name: str) -> "Study":
    from splash_units.lab import studies, tables
    from splash_units.lab.spec import unknown

    if name.endswith(".toml") or name in studies.NAMES:
        return studies.load(name)
    raise ValueError(unknown("table", name, {*tables.NAMES, *studies.NAMES}))


def _list() -> None:
    from splash_units.lab import tables

    width = max(len(name) for name in tables.NAMES)
    for name, entry in tables.TABLES.items():
        out.print(f"{name:<{width}}  {entry.text} [dim](study {entry.study})[/dim]")
    out.print("or all of a study's: splash table paper, quickstart or FILE.toml")
