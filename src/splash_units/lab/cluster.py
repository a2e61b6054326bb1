"""Runs on Dask: on this machine, or on any Dask cluster that is reachable.

Here, processes with one thread for each core (or one for each GPU) write into the store itself,
which keeps checkpoints too. Elsewhere nothing but the scheduler's address is shared: orders and
results travel as plain values, and results are published in the store here.

The driver gives each worker one spec at a time, so the order is its own: see `campaign`. A spec
whose worker dies is done again by another, twice at most. What fails is told, and the others go on.

Dask's own transport pickles messages: whoever can reach a scheduler can run code on its workers.
The one started here therefore listens on the loopback interface alone, and has no dashboard.
"""

import logging
import os
import queue
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from splash_units.lab import plugins
from splash_units.lab.campaign import Began, Campaign, Event, Failed, Moved, Waiting
from splash_units.lab.estimates import Estimates
from splash_units.lab.parcels import pack_needs, take_in
from splash_units.lab.spec import AnySpec, CostSpec, TrainSpec, digest
from splash_units.lab.store import Store
from splash_units.lab.worker import Answer, Order, carry_out

# Distributed's own classes are all but untyped.
Client = Any
Future = Any

REPETITIONS = 2
LISTEN_SECONDS = 0.5
CONNECT_SECONDS = 30
# Networks that gain nothing from a second thread.
SMALL = ("mlp", "lenet5")
LOOPBACK = "127.0.0.1"


def run_all(
    specs: Iterable[AnySpec],
    store: Store,
    *,
    address: str | None = None,
    processes: int | None = None,
    device: str = "auto",
) -> Iterator[Event]:
    """Bring the results of all specs into the store, and yield what happens.

    Closing the iterator (or an interrupt) stops all work; a later call goes on from there.
    """
    campaign = Campaign(specs, store, Estimates(store).of)
    yield campaign.planned()
    yield from campaign.skip_impossible()
    if campaign.is_over:
        return
    if address is not None:
        with _connected(address) as client:
            yield from _Driver(client, campaign, store_is_shared=False, device=device).drive()
        return
    environments = worker_environments(processes or usable_cores(), _gpus(device))
    environments = environments[: len(campaign.waiting)]
    with _local_client(environments) as client:
        threads = max(1, usable_cores() // len(environments))
        driver = _Driver(client, campaign, store_is_shared=True, device=device, threads=threads)
        yield from driver.drive()


class _Driver:
    """Hands out the specs of a campaign and hears how they fare."""

    def __init__(
        self,
        client: Client,
        campaign: Campaign,
        *,
        store_is_shared: bool,
        device: str,
        threads: int = 1,
    ) -> None:
        self.client = client
        self.campaign = campaign
        self.store = campaign.store
        self.store_is_shared = store_is_shared
        self.device = device
        self.threads = threads
        self.topic = f"splash-{os.urandom(8).hex()}"
        self.heard: queue.SimpleQueue[Future | Mapping[str, Any]] = queue.SimpleQueue()
        self.futures: dict[str, Future] = {}
        self.attempts: Counter[str] = Counter()

    def drive(self) -> Iterator[Event]:
        self.client.subscribe_topic(self.topic, lambda event: self.heard.put(event[1]))
        try:
            while not self.campaign.is_over:
                yield from self.campaign.skip_impossible()
                workers = self._workers()
                if not workers:
                    yield Waiting()
                while len(self.futures) < workers and (spec := self.campaign.start_next()):
                    yield from self._submit(spec)
                yield from self._listen()
        finally:
            # Cancelled tasks see it and stop; without this, those elsewhere would go on.
            for future in self.futures.values():
                future.cancel(force=True)

    def _workers(self) -> int:
        if self.client.status not in ("running", "connecting"):
            raise ConnectionError("the scheduler is gone; what is done is kept")
        return len(self.client.nthreads())

    def _submit(self, spec: AnySpec) -> Iterator[Event]:
        try:
            order = self._order(spec)
        except OSError as error:  # what it needs was there a moment ago
            yield self._end(spec, f"{type(error).__name__}: {error}")
            return
        name = digest(spec)
        future = self.client.submit(
            carry_out, order, key=f"{self.topic}-{name}", pure=False, retries=0
        )
        self.futures[name] = future
        future.add_done_callback(self.heard.put)

    def _order(self, spec: AnySpec) -> Order:
        return Order(
            job=digest(spec),
            spec=spec.model_dump_json(),
            store=str(self.store.root.resolve()) if self.store_is_shared else None,
            needs=[] if self.store_is_shared else pack_needs(spec, self.store),
            plugins=[(name, _content(name)) for name in plugins.loaded()],
            device=self.device,
            threads=self._threads_for(spec),
            topic=self.topic,
            version=version("splash-units"),
        )

    def _threads_for(self, spec: AnySpec) -> int | None:
        """Threads of a run: elsewhere one; here a share of the cores where it is of use."""
        if isinstance(spec, CostSpec):
            return usable_cores() if self.store_is_shared else None
        if not isinstance(spec, TrainSpec):
            return self.threads
        if self.store_is_shared and self.store.run(spec).part.is_dir():
            return None  # it goes on with the threads it began with, and ends with the same bits
        return 1 if spec.model in SMALL else self.threads

    def _listen(self) -> Iterator[Event]:
        """Everything there is to hear; if there is nothing, wait a little."""
        try:
            said = self.heard.get(timeout=LISTEN_SECONDS)
            while True:
                yield from self._understand(said)
                said = self.heard.get_nowait()
        except queue.Empty:
            return

    def _understand(self, said: Future | Mapping[str, Any]) -> Iterator[Event]:
        if not isinstance(said, Mapping):
            yield from self._ended(said)
            return
        name = said["job"]
        spec = self.campaign.running.get(name)
        if spec is None or name not in self.futures:
            return  # the last word of one that has ended
        if "part" in said:
            yield Moved(spec, said["part"])
            return
        self.attempts[name] += 1
        if self.attempts[name] > 1 + REPETITIONS:
            # A scheduler started by others may be more patient.
            self.futures.pop(name).cancel(force=True)
            yield self._end(spec, _died(self.attempts[name] - 1))
        else:
            yield Began(spec, said["worker"], self.attempts[name])

    def _ended(self, future: Future) -> Iterator[Event]:
        name = next((name for name, known in self.futures.items() if known is future), None)
        if name is None:
            return  # one that was given up
        del self.futures[name]
        spec = self.campaign.running[name]
        yield self._end(spec, self._why_not(spec, future))

    def _end(self, spec: AnySpec, why: str | None) -> Event:
        ended = self.campaign.ended(spec, why)
        if isinstance(ended, Failed) and not self.store_is_shared:
            self._note_failure(ended)
        return ended

    def _why_not(self, spec: AnySpec, future: Future) -> str | None:
        """Take in what came back; why there is nothing to take in, if so."""
        from distributed import KilledWorker

        if future.status != "finished":
            error = future.exception() if future.status == "error" else None
            if isinstance(error, KilledWorker):
                return _died(max(1, self.attempts[digest(spec)]))
            return f"the cluster lost it ({error or future.status})"
        answer: Answer = future.result()
        if answer["why"] is not None or self.store_is_shared:
            return answer["why"]
        try:
            take_in(spec, answer["files"], self.store)
        except (ValueError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _note_failure(self, failed: Failed) -> None:
        """For `splash status`: a worker elsewhere could not leave a word in the store here."""
        if isinstance(failed.spec, TrainSpec):
            with self.store.claim(failed.spec) as work:
                if not work.folder.is_dir():  # else a checkpoint made here stays
                    work.begin({}, resumed=False)
                work.fail(failed.why, "")


def _died(times: int) -> str:
    return f"its worker died {'once' if times == 1 else f'{times} times'}"


def _content(plugin: str) -> bytes | None:
    """The content of a plugin that is a file, for workers that don't have it."""
    return Path(plugin).read_bytes() if plugin.endswith(".py") else None


def usable_cores() -> int:
    """The cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worker_environments(processes: int, gpus: int) -> list[dict[str, str]]:
    """The environment of each local worker: on a machine with GPUs, each sees one of its own."""
    if processes < 1:
        raise ValueError(f"processes = {processes}: must be at least 1")
    if not gpus:
        return [{} for _ in range(processes)]
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named else [str(i) for i in range(gpus)]
    return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in visible[:gpus]]


def _gpus(device: str) -> int:
    if device not in ("auto", "cuda"):
        return 0
    import torch

    return torch.cuda.device_count()


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    import distributed

    try:
        client = distributed.Client(  # type: ignore[no-untyped-call]
            address, timeout=CONNECT_SECONDS, set_as_default=False
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"no Dask scheduler at {address}: {error}") from None
    with _configured(), client:
        yield client


@contextmanager
def _local_client(environments: list[dict[str, str]]) -> Iterator[Client]:
    """A scheduler and workers on this machine, reachable from it alone, for as long as needed."""
    import distributed
    from distributed import Nanny, Scheduler, SpecCluster

    # Even so there is an HTTP server, which says nothing and must not take a port from another.
    without_dashboard = {"dashboard": False, "dashboard_address": f"{LOOPBACK}:0"}
    scheduler = {
        "cls": Scheduler,
        "options": {
            "host": LOOPBACK,
            "port": 0,
            **without_dashboard,
            "allowed_failures": REPETITIONS,
        },
    }
    options = {
        "host": LOOPBACK,
        "nthreads": 1,
        **without_dashboard,
        "memory_limit": 0,  # a run is no collection of chunks: there is nothing to spill
        "preload": ["splash_units.lab.worker"],
        "silence_logs": logging.CRITICAL,
    }
    workers = {
        place: {"cls": Nanny, "options": {**options, "env": environment}}
        for place, environment in enumerate(environments)
    }
    with (
        _configured(),
        SpecCluster(  # type: ignore[no-untyped-call]
            scheduler=scheduler, workers=workers, silence_logs=logging.CRITICAL
        ) as cluster,
        distributed.Client(  # type: ignore[no-untyped-call]
            cluster, set_as_default=False
        ) as client,
    ):
        yield client


@contextmanager
def _configured() -> Iterator[None]:
    """Settings of Dask, for as long as needed.

    Trained networks travel with orders; Dask means graphs when it warns of large ones. Nobody asks
    the HTTP servers of a local cluster anything.
    """
    import dask

    settings = {
        "distributed.admin.large-graph-warning-threshold": "1 GiB",
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
    }
    with dask.config.set(settings):
        yield
