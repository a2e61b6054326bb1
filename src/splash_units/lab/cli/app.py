"""The verbs of `splash`, put together."""

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from splash_units.lab import plugins
from splash_units.lab.cli import (
    attack,
    bench,
    datasets,
    figure,
    quickstart,
    report,
    run,
    runs,
    table,
    train,
)
from splash_units.lab.cli.terminal import out, user_errors


class PluginsAnywhere(TyperGroup):
    """Takes `--plugin` wherever it stands, since it concerns every verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        plugin_args: list[str] = []
        others: list[str] = []
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                others += [arg, *rest]
            elif arg == "--plugin":
                plugin_args += [arg, *([value] if (value := next(rest, None)) else [])]
            elif arg.startswith("--plugin="):
                plugin_args.append(arg)
            else:
                others.append(arg)
        return super().parse_args(ctx, [*plugin_args, *others])


app = typer.Typer(
    cls=PluginsAnywhere,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="SPLASH units, and the study of their paper. Start with [bold]splash quickstart[/bold].",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"splash-units {version('splash-units')}", highlight=False)
        raise typer.Exit


@app.callback()
def every_verb(
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            help="Import a module (or FILE.py) that registers units, networks or data sets.",
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    with user_errors():
        plugins.load_installed()
        plugins.load(plugin or [])


app.command("quickstart")(quickstart.quickstart)
app.command("train")(train.train)
app.command("run")(run.run)
app.command("attack")(attack.attack)
app.command("status")(runs.status)
app.command("show")(runs.show)
app.command("table")(table.table)
app.command("figure")(figure.figure)
app.command("report")(report.report)
app.command("bench")(bench.bench)
app.add_typer(datasets.app, name="data")
