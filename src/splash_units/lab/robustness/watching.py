"""Whoever watches an attack: nobody, a terminal with a bar, or a file that gets a line now and
then.
"""

import sys
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress


class Watcher(Protocol):
    """Is told what begins, how many images are decided, and what has been written down."""

    def begin(self, words: str, total: int, done: int = 0) -> None: ...

    def advance(self, images: int) -> None: ...

    def saved(self, done: int, fooled: int) -> None: ...

    def note(self, words: str) -> None: ...


class Nobody:
    """Nobody is watching."""

    def begin(self, words: str, total: int, done: int = 0) -> None:
        pass

    def advance(self, images: int) -> None:
        pass

    def saved(self, done: int, fooled: int) -> None:
        pass

    def note(self, words: str) -> None:
        pass


class Lines(Nobody):
    """A line on stderr for every chunk: for files, pipes and logs."""

    def begin(self, words: str, total: int, done: int = 0) -> None:
        self._words, self._total = words, total
        already = f", {done} are there already" if done else ""
        print(f"{words}: {total} images{already}", file=sys.stderr, flush=True)

    def saved(self, done: int, fooled: int) -> None:
        text = f"{self._words}: {done} of {self._total} images, {fooled} fooled"
        print(text, file=sys.stderr, flush=True)

    def note(self, words: str) -> None:
        print(f"{self._words}: {words}", file=sys.stderr, flush=True)


class Bars:
    """A bar on a terminal that moves with every image decided; gone when all is done."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> "Bars":
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bars: Progress = self._stack.enter_context(bars)
        self._task: Any = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def begin(self, words: str, total: int, done: int = 0) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(words, total=total, completed=done, words="")

    def advance(self, images: int) -> None:
        self._bars.advance(self._task, images)

    def saved(self, done: int, fooled: int) -> None:
        self._bars.update(self._task, completed=done, words=f"{fooled} fooled")

    def note(self, words: str) -> None:
        self._bars.update(self._task, words=words)
