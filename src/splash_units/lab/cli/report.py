"""`splash report`: what a store's runs say, as a page."""

import time
from pathlib import Path
from typing import Annotated

import typer

from splash_units.lab.cli.terminal import StoreOption, a_file, out, user_errors
from splash_units.lab.store import Store

PORT = 8765


def report(
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the page goes.", callback=a_file)
    ] = Path("report.html"),
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Serve it to this machine instead, anew as runs finish."),
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --serve; 0 takes a free one.")] = (
        PORT
    ),
    store: StoreOption = Path("runs"),
) -> None:
    """Make one HTML page of a store: verdicts on the paper's claims, tables, figures, every run.

    The page needs no network and no other file. A store without runs gives a page that says what
    to run.

    Example: splash report --store runs --output report.html
    """
    runs = Store(store)
    if serve:
        _serve(runs, port)
        return
    with user_errors():
        made = write(runs, output)
    out.print(f"report: {made}")


def write(store: Store, output: Path) -> Path:
    """Write the page, whole or not at all."""
    from splash_units.lab.durable import write_bytes
    from splash_units.lab.report import render

    output.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(output, render(store).encode())
    return output


def _serve(store: Store, port: int) -> None:
    from splash_units.lab.report.serving import serving

    with user_errors(), serving(store, port) as server:
        began = time.strftime("%H:%M")
        out.print(f"http://127.0.0.1:{server.server_address[1]} since {began}; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            out.print("ended")
