"""`splash run`: bring all that a study needs into the store, and show its tables."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from splash_units.lab.campaign import Skipped
from splash_units.lab.cli.progress import Summary, duration, run_and_follow
from splash_units.lab.cli.terminal import FAILED, StoreOption, out, user_errors
from splash_units.lab.spec import AnySpec, CostSpec, TrainSpec, describe, needs
from splash_units.lab.store import Store
from splash_units.lab.studies import Study, data_of, load, stand_in

LISTED = 30  # runs that a dry run lists one by one; more are put together


def run(
    study: Annotated[
        str, typer.Argument(help="A study by name, a FILE.toml, or paper for all of them.")
    ],
    scale: Annotated[
        str, typer.Option(help="How much: smoke (seconds), short (a part) or paper (all).")
    ] = "short",
    only: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE,...", help="A part: model=lenet5,unit=relu+splash."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds, instead of the scale's.")] = None,
    data: Annotated[
        str | None, typer.Option(help="One data set instead of all the study's own.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="tcp://HOST:PORT", help="A Dask scheduler; else this machine."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs side by side here; else one a core or GPU.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what is missing and what it will cost.")
    ] = False,
    store: StoreOption = Path("runs"),
) -> None:
    """Run what a study needs and the store lacks, then show the study's tables.

    Stopped by Ctrl-C or worse, the same command goes on where it was. What is there is not run
    again, whichever study asked for it.

    Example: splash run accuracy --scale short --only model=lenet5,unit=relu+splash --dry-run
    """
    runs = Store(store)
    with user_errors():
        chosen = load(study)
        data = data or _stand_in(chosen, scale, seeds, only)
        specs = chosen.specs(scale, seeds, only, data)
        if dry_run:
            _show_plan(specs, runs)
            return
        check(specs, data_is_here=cluster is None)
    out.print(f"[bold]{escape(chosen.title)}[/bold]: {len(specs)} asked for")
    summary = run_and_follow(specs, runs, address=cluster, processes=processes, device=device)
    _show_end(summary, runs)
    show_tables(chosen, runs, scale, data, only)
    if summary.failed:
        raise typer.Exit(FAILED)


def _stand_in(study: Study, scale: str, seeds: int | None, only: str | None) -> str | None:
    """What to take where a data set is missing: in a smoke run, the embedded digits."""
    instead = stand_in(study.specs(scale, seeds, only), scale)
    if instead:
        out.print(f"not all data sets are there: this smoke run takes {instead} instead")
    return instead


def check(specs: Sequence[AnySpec], *, data_is_here: bool) -> None:
    """Raise ValueError for a name that there is not, or data that are not here, before work."""
    from splash_units.lab import data, vocabulary

    vocabulary.check(specs)
    if not data_is_here:
        return
    states = {state.name: state for state in data.available()}
    for name in sorted(data_of(specs)):
        if not states[name].present:
            raise ValueError(f"data set {name}: {states[name].note}")


def _show_plan(specs: Sequence[AnySpec], store: Store) -> None:
    """What is missing, and what it will cost on one core."""
    from splash_units.lab.estimates import Estimates, total
    from splash_units.lab.jobs import hopeless, missing

    lacking = [spec for spec in missing(specs, store) if not hopeless(spec, store)]
    guess = Estimates(store)
    costs = {spec: guess.of(spec) for spec in lacking}
    if len(lacking) <= LISTED:
        for spec, cost in costs.items():
            out.print(f"{duration(cost.seconds):>8}  {escape(describe(spec))}")
    else:
        groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for spec, cost in costs.items():
            groups[_group(spec)].append(cost.seconds)
        table = Table("what", "network", "data", "missing", "time", box=None, pad_edge=False)
        for group, seconds in groups.items():
            table.add_row(*group, str(len(seconds)), duration(sum(seconds)))
        out.print(table)
    whole = total(costs.values())
    basis = {
        "measured": "as measured in this store",
        "rough": "in part by rough figures, good to a factor of two or three",
    }[whole.basis]
    out.print(
        f"[bold]{len(lacking)} missing[/bold] for {len(specs)} asked for; "
        + (f"about {duration(whole.seconds)} on one core ({basis})" if lacking else "all is there")
    )


def _group(spec: AnySpec) -> tuple[str, str, str]:
    if isinstance(spec, TrainSpec | CostSpec):
        return spec.kind, spec.model, spec.data
    needed = needs(spec)[0]
    return getattr(spec, "attack", spec.kind), needed.model, needed.data


def _show_end(summary: Summary, store: Store) -> None:
    out.print(f"[bold]{summary.words()}[/bold]")
    for ended in summary.failed:
        kind = "[yellow]skipped[/yellow]" if isinstance(ended, Skipped) else "[red]failed[/red]"
        out.print(f"{kind} {escape(describe(ended.spec))}: {escape(ended.why)}")
    if summary.failed:
        out.print(f"[dim]more: splash status --store {escape(str(store.root))}[/dim]")


def show_tables(
    study: Study, store: Store, scale: str, data: str | None, only: str | None = None
) -> None:
    """The study's tables, and where to look next."""
    from splash_units.lab.tables import build_all, render

    for table in build_all(study, store, scale=scale, data=data, only=only):
        out.print()
        out.print(render(table, "text"), markup=False)
    where = "" if store.root == Path("runs") else f" --store {store.root}"
    on = f" --data {data}" if data else ""
    hints = [f"splash table {study.called} --format markdown{on}{where}"]
    hints += [f"splash figure {name}{where}" for name in study.figures[:1]]
    out.print(f"\n[dim]next: {escape('; '.join([*hints, f'splash report{where}']))}[/dim]")
