"""`splash train`: one run, shown while it goes."""

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import TextColumn, TimeRemainingColumn

from splash_units.lab.cli.terminal import (
    FAILED,
    INTERRUPTED,
    StoreOption,
    bars,
    complain,
    epoch_line,
    out,
    percent,
    user_errors,
)
from splash_units.lab.spec import TrainSpec, describe, train_spec
from splash_units.lab.store import Run, Store

if TYPE_CHECKING:
    from splash_units.lab.events import Started

_FIELDS = TrainSpec.model_fields


def _help(field: str, *, default: str | None = None) -> str:
    text = _FIELDS[field].description or ""
    shown = default or _FIELDS[field].default
    return f"{text[0].upper()}{text[1:]}." + ("" if shown is None else f" [dim]({shown})[/dim]")


def train(
    model: Annotated[str | None, typer.Option(help=_help("model"))] = None,
    data: Annotated[str | None, typer.Option(help=_help("data"))] = None,
    unit: Annotated[str | None, typer.Option(help=_help("unit"))] = None,
    seed: Annotated[int | None, typer.Option(help=_help("seed"))] = None,
    scale: Annotated[str | None, typer.Option(help=_help("scale"))] = None,
    augment: Annotated[str | None, typer.Option(help=_help("augment"))] = None,
    recipe: Annotated[str | None, typer.Option(help=_help("recipe"))] = None,
    epochs: Annotated[int | None, typer.Option(help=_help("epochs"))] = None,
    fraction: Annotated[float | None, typer.Option(help=_help("fraction"))] = None,
    batch_size: Annotated[int | None, typer.Option(help=_help("batch_size"))] = None,
    optimizer: Annotated[str | None, typer.Option(help=_help("optimizer"))] = None,
    lr: Annotated[float | None, typer.Option(help=_help("lr"))] = None,
    slope_lr: Annotated[float | None, typer.Option(help=_help("slope_lr"))] = None,
    weight_decay: Annotated[float | None, typer.Option(help=_help("weight_decay"))] = None,
    precision: Annotated[str | None, typer.Option(help=_help("precision"))] = None,
    compile: Annotated[bool | None, typer.Option(help=_help("compile"))] = None,
    source: Annotated[
        str | None, typer.Option(metavar="RUN", help=f"{_help('source')} See splash status.")
    ] = None,
    take: Annotated[str | None, typer.Option(help=_help("take"))] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any field, or an option of unit or network: --set unit.num_hinges=9.",
        ),
    ] = None,
    store: StoreOption = Path("runs"),
    resume: Annotated[
        bool,
        typer.Option(
            help="Go on where an earlier try stopped, and take a result that is there; "
            "--no-resume runs it anew."
        ),
    ] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads; results depend on it in the last bits.")
    ] = None,
    timing: Annotated[
        bool, typer.Option("--timing", help="Split the seconds in data, forward, backward, step.")
    ] = False,
) -> None:
    """Train a network and keep what comes of it.

    The same command ends with the same numbers every time; if it was stopped, it goes on where it
    was; if it is done, the result is shown.

    Example: splash train --model lenet5 --data cifar-10 --unit splash --seed 0
    """
    given = {name: value for name, value in locals().items() if name in _FIELDS}
    runs = Store(store)
    with user_errors():
        given["source"] = runs.find(source).spec() if source else None
        spec = train_spec(spec_values(given, settings or []))
    out.print(f"[bold]{describe(spec)}[/bold]")
    options = {"device": device, "threads": threads, "again": not resume}
    run = _follow(spec, runs, {**options, "split_seconds": timing})
    show_result(run)


def spec_values(given: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Options that were given, and `--set` pairs: `unit.x` and `model.x` are options of those."""
    values = {name: value for name, value in given.items() if value is not None}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise ValueError(f"--set {setting!r}: write it as KEY=VALUE")
        owner, dot, option = key.partition(".")
        if dot and f"{owner}_options" in _FIELDS:
            values.setdefault(f"{owner}_options", {})[option] = parse_value(text)
        else:
            values[key.replace("-", "_")] = parse_value(text)
    return values


def parse_value(text: str) -> Any:
    """Numbers, true, false, null and lists as JSON has them; anything else is a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _follow(spec: TrainSpec, store: Store, options: dict[str, Any]) -> Run:
    """Run a spec and show what happens; the first event comes once everything asked for exists."""
    from splash_units.lab.runner import run

    events = run(spec, store, **options)
    with user_errors():
        first = next(events)
    try:
        _show(first, events)
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on after the last whole epoch")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        complain(f"{type(error).__name__}: {error}")
        complain(f"the whole story is in {store.run(spec).part / 'failure.json'}")
        raise typer.Exit(FAILED) from error
    return store.run(spec)


def _show(first: Any, events: Iterator[Any]) -> None:
    from splash_units.lab import events as event_types
    from splash_units.lab.runner import Found, Waiting

    if isinstance(first, Waiting):
        out.print(f"another process is at it; waiting for its result ({first.run.part})")
        first = next(events)
    if isinstance(first, Found):
        out.print("the result is there already; --no-resume runs it anew")
        return
    start: Started = first
    _announce(start)
    epochs = start.plan.epochs
    with bars(TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn()) as bar:
        task = bar.add_task("epoch 1", total=epochs, completed=start.epochs_done)
        for event in events:
            if isinstance(event, event_types.Progress):
                passed = event.epoch - 1 + event.step / start.plan.steps
                words = f"epoch {event.epoch}/{epochs}, loss {event.train_loss:.3f}"
                bar.update(task, completed=passed, description=words)
            elif isinstance(event, event_types.EpochDone):
                out.print(epoch_line(asdict(event.numbers), epochs))
                sys.stdout.flush()


def _announce(start: "Started") -> None:
    plan = start.plan
    again = f", going on after epoch {start.epochs_done}" if start.epochs_done else ""
    out.print(
        f"{start.parameters:,} parameters; "
        f"{plan.epochs} epochs (the recipe has {plan.paper_epochs}), "
        f"{plan.train_images:,} of {plan.all_train_images:,} images; "
        f"{start.device}, {start.threads} thread{'s' * (start.threads > 1)}{again}"
    )


def show_result(run: Run) -> None:
    """The numbers a run came to."""
    result = run.result()
    if result is None:
        complain(f"no readable result in {run.folder}")
        raise typer.Exit(FAILED)
    if result["status"] == "diverged":
        out.print(f"[yellow]diverged:[/yellow] {result['why']}")
    else:
        out.print(
            f"test error [bold]{percent(result['test_error'])}[/bold] "
            f"after {result['epochs']} epochs "
            f"(best {percent(result['best_test_error'])} after {result['best_epoch']}), "
            f"train loss {result['train_loss']:.4f}, scale {result['scale']}"
        )
    # "runs" is where the command looks by itself.
    where = "" if run.root == Path("runs") else f" --store {shlex.quote(str(run.root))}"
    hint = f"{run.folder}; curves and shapes: splash show {run.id[:8]}{where}"
    out.print(f"[dim]{escape(hint)}[/dim]")
