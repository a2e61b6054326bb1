"""Many runs while they go: bars on a terminal, lines in a file, and the sum of it all."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.markup import escape
from rich.progress import Progress, TaskID, TextColumn

from splash_units.lab.campaign import (
    Began,
    Done,
    Event,
    Failed,
    Moved,
    Planned,
    Skipped,
    Waiting,
)
from splash_units.lab.cli.terminal import FAILED, INTERRUPTED, WRONG_INPUT, bars, complain, out
from splash_units.lab.spec import AnySpec, describe, digest
from splash_units.lab.store import Store


def duration(seconds: float) -> str:
    """Seconds in a unit that fits."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


@dataclass
class Summary:
    """How many specs are where, and when the rest may be done."""

    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)  #: thought to be needed for the rest
    parts: dict[str, float] = field(default_factory=dict)  #: which part of a running one is done
    worked: float = 0.0  #: the seconds that were thought to be needed for what has ended
    done: int = 0
    failed: list[Failed | Skipped] = field(default_factory=list)
    hopeless: int = 0
    began: float = 0.0

    def hear(self, event: Event) -> None:
        match event:
            case Planned():
                self.began = self.clock()
                names = [digest(spec) for spec in event.specs]
                self.seconds = dict(zip(names, event.seconds, strict=True))
            case Began(spec=spec):
                self.parts[digest(spec)] = 0.0
            case Moved(spec=spec, part=part):
                self.parts[digest(spec)] = part
            case Done(spec=spec):
                self.done += 1
                self._ended(spec)
            case Skipped(diverged=True):
                self.hopeless += 1
                self._ended(event.spec)
            case Failed() | Skipped():
                self.failed.append(event)
                self._ended(event.spec)

    def seconds_left(self) -> float | None:
        """By what has been done so far, in the time that it took; None while that is nothing."""
        begun = sum(self.seconds[name] * part for name, part in self.parts.items())
        left, worked = sum(self.seconds.values()) - begun, self.worked + begun
        return (self.clock() - self.began) * left / worked if worked else None

    def words(self) -> str:
        """The numbers in a sentence; what nobody has to hear of is left out."""
        parts = [f"{self.done} done"]
        parts += [f"{len(self.parts)} running"] if self.parts else []
        parts += [f"{len(self.failed)} failed or skipped"] if self.failed else []
        parts += [f"{self.hopeless} impossible after a divergence"] if self.hopeless else []
        waiting = len(self.seconds) - len(self.parts)
        parts += [f"{waiting} to come"] if waiting else []
        left = self.seconds_left()
        parts += [f"about {duration(left)} left"] if left else []
        return ", ".join(parts)

    def _ended(self, spec: AnySpec) -> None:
        name = digest(spec)
        self.parts.pop(name, None)
        self.worked += self.seconds.pop(name)


def run_and_follow(specs: Sequence[AnySpec], store: Store, **options: Any) -> Summary:
    """Bring the results of all specs into the store and show what happens; see `cluster.run_all`.

    An interrupt, a scheduler that isn't there and one that is lost end the command, each with its
    exit code; what is done is kept.
    """
    from splash_units.lab.cluster import run_all

    summary = Summary()
    try:
        follow(run_all(specs, store, **options), summary)
    except KeyboardInterrupt:
        complain(f"interrupted; {summary.words()}. The same command goes on from there")
        raise typer.Exit(INTERRUPTED) from None
    except ValueError as error:
        complain(str(error))
        raise typer.Exit(WRONG_INPUT) from error
    except OSError as error:
        complain(f"{error}; {summary.words()}. The same command goes on from there")
        raise typer.Exit(FAILED) from error
    return summary


def follow(events: Iterator[Event], summary: Summary) -> None:
    """Hear all events and show them."""
    with (
        closing(events) as heard,  # type: ignore[type-var]
        bars(TextColumn("{task.percentage:>3.0f} %"), width=20) as running,
    ):
        shown = _Shown(running, summary)
        for event in heard:
            summary.hear(event)
            shown.show(event)


class _Shown:
    """A bar for all, one for each that runs, and a line for each that ended."""

    def __init__(self, bars: Progress, summary: Summary) -> None:
        self.bars = bars
        self.summary = summary
        self.tasks: dict[str, TaskID] = {}
        self.all = bars.add_task("", total=1)
        self.waits = False

    def show(self, event: Event) -> None:
        if isinstance(event, Waiting):
            if not self.waits:
                self._say("waiting for workers")
            self.waits = True
            return
        self.waits = False
        match event:
            case Planned(specs=specs):
                self._say(f"{len(specs)} to do, about {duration(sum(event.seconds))} on one core")
                self.bars.update(self.all, total=max(1e-9, sum(event.seconds)))
            case Began(spec=spec, attempt=attempt):
                if attempt > 1:
                    self._say(f"its worker died, again: {describe(spec)} (try {attempt})")
                self._bar(spec, 0.0)
            case Moved(spec=spec, part=part):
                self._bar(spec, part)
            case Done(spec=spec):
                self._end(spec, "done", "green")
            case Failed(spec=spec, why=why):
                self._end(spec, "failed", "red", why)
            case Skipped(spec=spec, why=why):
                self._end(spec, "skipped", "yellow", why)
        left = sum(self.summary.seconds.values())
        total = self.bars.tasks[self.all].total or 0.0
        self.bars.update(
            self.all, description=self.summary.words(), completed=max(0.0, total - left)
        )

    def _bar(self, spec: AnySpec, part: float) -> None:
        name = digest(spec)
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(escape(describe(spec)), total=1)
        self.bars.update(self.tasks[name], completed=part)

    def _end(self, spec: AnySpec, word: str, colour: str, why: str = "") -> None:
        task = self.tasks.pop(digest(spec), None)
        if task is not None:
            self.bars.remove_task(task)
        end = f": {escape(why)}" if why else ""
        numbers = "" if out.is_terminal else f" ({self.summary.words()})"
        out.print(f"[{colour}]{word}[/{colour}] {escape(describe(spec))}{end}{numbers}")

    def _say(self, words: Any) -> None:
        out.print(f"[dim]{escape(str(words))}[/dim]")
