"""How the verbs speak: answers on stdout, errors on stderr, no traceback for a user's mistake."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

# A file or a pipe has no width: there a line stays a line. A name such as module:factory: is no
# picture of a factory.
out = Console(
    highlight=False, soft_wrap=True, emoji=False, width=None if sys.stdout.isatty() else 500
)
err = Console(highlight=False, soft_wrap=True, emoji=False, stderr=True)

WRONG_INPUT = 2
FAILED = 1
INTERRUPTED = 130  # as a shell reports Ctrl-C


@contextmanager
def user_errors() -> Iterator[None]:
    """A mistake of the user's is a sentence on stderr and exit code 2."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        complain(str(error))
        raise typer.Exit(WRONG_INPUT) from error


def complain(message: str) -> None:
    err.print(f"[red]error:[/red] {escape(message)}")


def a_folder(path: Path) -> Path:
    """An option's folder, there or not; refused at once, not after minutes, if it can't be one."""
    with user_errors():
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
        if not there.is_dir():
            raise ValueError(f"{there} is a file; a folder is needed there")
    return path


def a_file(path: Path | None) -> Path | None:
    """An option's file, refused like a folder that can't be one."""
    if path is None:
        return None
    with user_errors():
        if path.is_dir():
            raise ValueError(f"{path} is a folder; name a file in it")
    a_folder(path.parent)
    return path


StoreOption = Annotated[
    Path,
    typer.Option(
        "--store",
        metavar="DIR",
        help="The folder of runs.",
        envvar="SPLASH_STORE",
        callback=a_folder,
    ),
]


def bars(*beside: ProgressColumn, width: int = 40) -> Progress:
    """Bars on a terminal, gone when all is done; none elsewhere, where lines have to serve."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(width),
        *beside,
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"


def epoch_line(numbers: Mapping[str, Any], epochs: int) -> str:
    """One epoch's numbers on one line."""
    return (
        f"epoch {numbers['epoch']:>{len(str(epochs))}}/{epochs}"
        f"  train loss {numbers['train_loss']:.4f}"
        f"  train error {percent(numbers['train_error']):>8}"
        f"  test error {percent(numbers['test_error']):>8}"
        f"  lr {numbers['lr']:.4g}"
        f"  {numbers['seconds'] + numbers['test_seconds']:.1f} s"
    )
