"""What a Dask worker does: one spec at a time, in the driver's store or in one of its own.

On the machine of whoever asks, workers write into the store itself, where checkpoints survive them.
Elsewhere they have no disk in common: what a spec needs comes as bytes with the order, is unpacked
in a temporary folder, and the result goes back as bytes. Orders and answers are plain values.
"""

import json
import logging
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict

REPORT_SECONDS = 1.0

# Two runs in one process would share torch's generators and threads: a worker with several threads
# must not do two at a time.
_one_at_a_time = threading.Lock()


class Order(TypedDict):
    """What is to be done, and all that it takes."""

    job: str  #: the digest of the spec, which reports carry
    spec: str  #: as JSON
    store: str | None  #: a folder that worker and driver share, or None
    needs: list[dict[str, bytes]]  #: files of the trainings it needs, where no folder is shared
    plugins: list[tuple[str, bytes | None]]  #: names, and for files their content
    device: str
    threads: int | None
    topic: str  #: where to report
    version: str


class Answer(TypedDict):
    """How it ended: with files (where no folder is shared), or with a reason why not."""

    why: str | None
    traceback: str
    files: dict[str, bytes]


class NotWanted(BaseException):
    """Whoever gave the order wants it no more; not an Exception, for it is no failure."""


def dask_setup(worker: Any) -> None:
    """A preload of local workers: Ctrl-C is for the driver, which then ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)


def carry_out(order: Order) -> Answer:
    """Do what an order says. Errors are answers: a failing spec is nothing to Dask."""
    with _one_at_a_time:
        report = _reporter(order)
        try:
            if (here := version("splash-units")) != order["version"]:
                raise RuntimeError(f"this worker has splash-units {here}, not {order['version']}")
            return _carry_out(order, report)
        except NotWanted:
            return Answer(why="not wanted any more", traceback="", files={})
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            return Answer(why=why, traceback=traceback.format_exc(), files={})


def _carry_out(order: Order, report: Callable[[float], None]) -> Answer:
    from splash_units.lab.jobs import perform
    from splash_units.lab.parcels import pack, unpack_need
    from splash_units.lab.spec import read_spec
    from splash_units.lab.store import Store

    spec = read_spec(json.loads(order["spec"]))
    options: dict[str, Any] = {"device": order["device"], "threads": order["threads"]}
    with tempfile.TemporaryDirectory(prefix="splash-", ignore_cleanup_errors=True) as folder:
        load_plugins(order["plugins"], Path(folder))
        if order["store"] is not None:
            perform(spec, Store(order["store"]), report=report, **options)
            return Answer(why=None, traceback="", files={})
        store = Store(Path(folder) / "runs")
        for files in order["needs"]:
            unpack_need(files, store)
        perform(spec, store, report=report, **options)
        return Answer(why=None, traceback="", files=pack(spec, store))


def load_plugins(wanted: list[tuple[str, bytes | None]], folder: Path) -> None:
    """Load what the driver has loaded; a file that isn't here comes with its content."""
    from splash_units.lab import plugins

    for name, content in wanted:
        if content is None or name in plugins.loaded():
            plugins.load([name])
        else:
            file = folder / Path(name).name
            file.write_bytes(content)
            plugins.load_from(name, str(file))


def _reporter(order: Order) -> Callable[[float], None]:
    """Tells the driver that it began, and the part done every second or so; stops if unwanted."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()
    worker.log_event(order["topic"], {"job": order["job"], "worker": worker.address})
    last = time.monotonic()

    def report(part: float) -> None:
        nonlocal last
        # A task whose future is cancelled, or whose client is gone, is marked so; Dask can't stop
        # the thread that runs it.
        task = worker.state.tasks.get(key)
        if task is None or task.state == "cancelled":
            raise NotWanted
        if time.monotonic() - last >= REPORT_SECONDS:
            last = time.monotonic()
            worker.log_event(order["topic"], {"job": order["job"], "part": part})

    return report
