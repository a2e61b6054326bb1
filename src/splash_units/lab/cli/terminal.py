"""How the verbs speak: answers on stdout, errors on stderr, no traceback for a user's mistake."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

# A file or a pipe has no width: there a line stays a line. A name such as module:factory: is no
# picture of a factory.
out = Console(
    highlight=False, soft_wrap=True, emoji=False, width=None if sys.stdout.isatty() else 500
)
err = Console(highlight=False, soft_wrap=True, emoji=False, stderr=True)

WRONG_INPUT = 2
FAILED = 1
INTERRUPTED = 130  # as a shell reports Ctrl-C

StoreOption = Annotated[
    Path, typer.Option("--store", metavar="DIR", help="The folder of runs.", envvar="SPLASH_STORE")
]


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
