"""`splash data`: get data sets and see what is there."""

from typing import Annotated

import typer
from rich.table import Table

from splash_units.lab.cli.terminal import out, user_errors

app = typer.Typer(no_args_is_help=True, help="Get data sets, and see which are there.")


@app.command("list")
def list_() -> None:
    """Show which data sets are there, where, and how large."""
    from splash_units.lab import data

    table = Table("name", "there", "size", "where", box=None, pad_edge=False)
    with user_errors():
        for found in data.available():
            size = f"{found.bytes / 1e6:.1f} MB" if found.bytes else ""
            where = found.note or str(found.path)
            table.add_row(found.name, "yes" if found.present else "no", size, where)
    out.print(table)


@app.command("get")
def get(
    names: Annotated[list[str], typer.Argument(help="Such as mnist, fashion-mnist, cifar-10.")],
) -> None:
    """Download data sets (or check the files that are there) and say where they lie.

    They go to the folder that SPLASH_DATA names, else to your cache folder.
    """
    from splash_units.lab import data

    for name in names:
        with user_errors():
            out.print(f"{name}: {data.get(name)}")
