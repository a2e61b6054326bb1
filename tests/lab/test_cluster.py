"""Many runs on real schedulers and workers: processes that are killed, specs that fail."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_lab
from distributed import Client, KilledWorker

from splash_units.lab import plugins
from splash_units.lab.campaign import Began, Campaign, Done, Failed, Moved, Planned, Skipped
from splash_units.lab.cluster import _Driver, run_all, usable_cores, worker_environments
from splash_units.lab.estimates import Estimates
from splash_units.lab.jobs import is_done
from splash_units.lab.runner import complete
from splash_units.lab.spec import AttackSpec, CostSpec, TrainSpec, UnitChoice, digest
from splash_units.lab.store import Store

TRAIN = TrainSpec(model="tiny", data="blobs", scale="smoke", batch_size=32, epochs=2)
OTHER = TRAIN.model_copy(update={"seed": 1})
BROKEN = TRAIN.model_copy(update={"unit": "rleu"})
FIXED = TRAIN.model_copy(update={"seed": 2, "source": TRAIN})
ATTACK = AttackSpec(train=FIXED, attack="fgsm", options={"eps": 0.1}, images=8)
# Enough to make OTHER one of the first two to be handed out.
MANY = AttackSpec(train=OTHER, attack="fgsm", options={"eps": 0.1}, images=64)
ENDLESS = TRAIN.model_copy(update={"epochs": 10_000})
QUICK = TRAIN.model_copy(update={"seed": 3})
DOOMED = AttackSpec(train=BROKEN, attack="fgsm", options={"eps": 0.1}, images=8)


@pytest.fixture(autouse=True)
def _tiny_lab_is_a_plugin():
    plugins.load([tiny_lab.__file__])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same trainings, one after the other, in this process."""
    store = Store(tmp_path_factory.mktemp("alone"))
    return {spec: complete(spec, store, threads=1).result() for spec in (TRAIN, OTHER, FIXED)}


@pytest.fixture
def processes():
    """Start processes of Distributed's commands; whatever still runs at the end is killed."""
    started = []

    def start(command, folder, *arguments, **variables):
        folder.mkdir()
        environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{command}", *map(str, arguments)],
                cwd=folder,
                env={**environment, **{name: str(value) for name, value in variables.items()}},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for(path, *running):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert all(process.poll() is None for process in running)
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.05)


def test_a_cluster_without_a_shared_disk_survives_the_death_of_a_worker(tmp_path, processes, alone):
    file = tmp_path / "scheduler.json"
    scheduler = processes(
        *("scheduler", tmp_path / "one"),
        *("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", file),
    )
    wait_for(file, scheduler)
    worker = ("--scheduler-file", file, "--nthreads", "1", "--no-dashboard", "--no-nanny")
    steps = tmp_path / "steps"
    # This one gets stuck in the second epoch of its first training, where the test kills it.
    doomed = processes(
        "worker", tmp_path / "two", *worker, TINY_STEPS=steps, TINY_HANG=10, SPLASH_DATA=tmp_path
    )
    other_steps = tmp_path / "other steps"
    processes("worker", tmp_path / "three", *worker, TINY_STEPS=other_steps)
    store = Store(tmp_path / "here" / "runs")
    address = json.loads(file.read_text())["address"]
    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)
    heard = []
    for event in run_all([ATTACK, DOOMED, MANY], store, address=address):
        heard.append(event)
        if doomed.poll() is None and Path(f"{steps}.hanging").exists():
            doomed.send_signal(signal.SIGKILL)
            doomed.wait()
    assert doomed.returncode == -signal.SIGKILL
    assert isinstance(heard[0], Planned)
    assert set(heard[0].specs) == {TRAIN, FIXED, ATTACK, BROKEN, DOOMED, OTHER, MANY}
    assert {event.spec for event in heard if isinstance(event, Done)} == {
        *(TRAIN, FIXED, ATTACK, OTHER, MANY)
    }
    (failed,) = [event for event in heard if isinstance(event, Failed)]
    assert (failed.spec, failed.why.partition(":")[0]) == (BROKEN, "ValueError")
    (skipped,) = [event for event in heard if isinstance(event, Skipped)]
    assert skipped.spec == DOOMED
    repeated = [event for event in heard if isinstance(event, Began) and event.attempt == 2]
    assert len(repeated) == 1
    # What came back is what would have come of it here, and none of it was written by a worker.
    for spec, result in alone.items():
        assert store.run(spec).result()["model_sha256"] == result["model_sha256"]
    assert is_done(ATTACK, store)
    assert store.run(BROKEN).status().why == failed.why
    assert not list((tmp_path / "two").rglob("result.json"))
    assert not list((tmp_path / "three").rglob("result.json"))
    assert [type(event) for event in run_all([ATTACK, MANY], store, address=address)] == [Planned]
    # Whoever stops listening stops the work: the only worker that is left is free for another.
    endless = run_all([ENDLESS], store, address=address)
    while not isinstance(next(endless), Moved):
        pass
    endless.close()
    assert Done(QUICK) in list(run_all([QUICK], store, address=address))
    assert len(other_steps.read_text()) < 8 * ENDLESS.epochs
    assert not is_done(ENDLESS, store)


def test_no_scheduler_there(tmp_path, monkeypatch):
    monkeypatch.setattr("splash_units.lab.cluster.CONNECT_SECONDS", 0.2)
    with pytest.raises(ValueError, match=r"no Dask scheduler at tcp://127.0.0.1:9"):
        list(run_all([TRAIN], Store(tmp_path), address="tcp://127.0.0.1:9"))


class FakeClient:
    """A cluster of one worker on which `happen(say, order, future)` happens to every order."""

    status = "running"

    def __init__(self, happen):
        self.happen = happen
        self.cancelled = []

    def nthreads(self):
        return {"tcp://a": 1}

    def subscribe_topic(self, topic, handler):
        self.say = lambda message: handler((0.0, message))

    def submit(self, function, order, **options):
        future = SimpleNamespace(status="pending", add_done_callback=lambda hear: None)
        future.cancel = lambda force: self.cancelled.append(order["job"])
        self.happen(self.say, order, future)
        return future


def driven(store, happen):
    client = FakeClient(happen)
    campaign = Campaign([TRAIN], store, Estimates(store).of)
    driver = _Driver(client, campaign, store_is_shared=False, device="cpu")
    return client, list(driver.drive())


def began(say, order):
    say({"job": order["job"], "worker": "tcp://a"})


def test_three_deaths_are_enough_whatever_the_scheduler_thinks(tmp_path):
    def dies_and_dies(say, order, future):
        for _ in range(4):
            began(say, order)

    store = Store(tmp_path)
    client, heard = driven(store, dies_and_dies)
    assert heard[:-1] == [Began(TRAIN, "tcp://a", attempt) for attempt in (1, 2, 3)]
    assert heard[-1] == Failed(TRAIN, "its worker died 3 times")
    assert client.cancelled == [digest(TRAIN)]
    assert store.run(TRAIN).status().why == "its worker died 3 times"


def test_a_scheduler_that_gives_up_is_heard(tmp_path):
    def given_up(say, order, future):
        began(say, order)
        future.status = "error"
        future.exception = lambda: KilledWorker(order["job"], SimpleNamespace(address="a"), 0)
        future.add_done_callback = lambda hear: hear(future)

    _, heard = driven(Store(tmp_path), given_up)
    assert heard[-1] == Failed(TRAIN, "its worker died once")


def test_a_future_that_is_lost_is_a_failure(tmp_path):
    def lost(say, order, future):
        future.status = "cancelled"
        future.add_done_callback = lambda hear: hear(future)

    _, heard = driven(Store(tmp_path), lost)
    assert heard == [Failed(TRAIN, "the cluster lost it (cancelled)")]


def test_a_wrong_parcel_is_a_failure(tmp_path):
    def forged(say, order, future):
        future.status = "finished"
        future.result = lambda: {"why": None, "traceback": "", "files": {"evil.py": b""}}
        future.add_done_callback = lambda hear: hear(future)

    store = Store(tmp_path)
    _, heard = driven(store, forged)
    assert isinstance(heard[-1], Failed)
    assert "evil.py" in heard[-1].why
    assert not is_done(TRAIN, store)


def test_a_scheduler_that_is_gone_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeClient, "status", "closed")
    with pytest.raises(ConnectionError, match="the scheduler is gone"):
        driven(Store(tmp_path), began)


def test_threads_fill_the_cores_where_that_helps(tmp_path, monkeypatch):
    monkeypatch.setattr("splash_units.lab.cluster.usable_cores", lambda: 8)
    store = Store(tmp_path)
    campaign = Campaign([], store, Estimates(store).of)
    options = {"store_is_shared": True, "device": "cpu"}
    driver = _Driver(FakeClient(began), campaign, threads=4, **options)
    small = TrainSpec(model="lenet5")
    large = TrainSpec(model="nin")
    relu, splash = (UnitChoice(label=name, unit=name) for name in ("relu", "splash"))
    timing = CostSpec(units=(relu, splash))
    assert [driver._threads_for(spec) for spec in (small, large, timing)] == [1, 4, 8]
    # One that was interrupted goes on with the threads it has had, whatever that was.
    with store.claim(large) as work:
        work.begin({}, resumed=False)
    assert driver._threads_for(large) is None


def test_workers_on_this_machine(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert worker_environments(3, gpus=0) == [{}, {}, {}]
    assert worker_environments(8, gpus=2) == [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "1"},
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert worker_environments(8, gpus=2)[1] == {"CUDA_VISIBLE_DEVICES": "5"}
    with pytest.raises(ValueError, match="processes = 0"):
        worker_environments(0, gpus=0)
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
