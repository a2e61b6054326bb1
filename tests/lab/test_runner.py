"""The runner: once, recorded, and the same bits however often it is stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_lab
import torch

from splash_units import Splash
from splash_units.lab import runner
from splash_units.lab.data import native
from splash_units.lab.events import EpochDone, Progress, Started
from splash_units.lab.runner import Found, Waiting, complete, load_network, run
from splash_units.lab.spec import TrainSpec
from splash_units.lab.store import Store
from splash_units.lab.training import train

# 8 steps an epoch
SPEC = TrainSpec(model="tiny", data="blobs", scale="smoke", batch_size=32, epochs=4)
SPLASH = [sys.executable, "-c", "from splash_units.lab.cli import main; main()"]
TRAIN = [
    *SPLASH,
    "train",
    "--plugin",
    tiny_lab.__file__,
    *("--model", "tiny", "--data", "blobs", "--scale", "smoke"),
    *("--batch-size", "32", "--epochs", "4", "--threads", "1"),
]


def start(store, **variables):
    """The real command in a real process."""
    return subprocess.Popen(
        [*TRAIN, "--store", str(store)],
        env={**os.environ, **{name: str(value) for name, value in variables.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The run that nothing happened to."""
    return complete(SPEC, Store(tmp_path_factory.mktemp("store")), threads=1)


def test_a_finished_run_has_all_it_should(finished):
    result = finished.result()
    assert result["status"] == "done"
    assert result["scale"] == "smoke"
    assert result["epochs"] == 4
    assert (result["train_images"], result["test_images"]) == (256, 160)
    assert result["test_error"] < 0.8  # a guess would be at 0.9
    history = finished.history()
    assert [line["epoch"] for line in history] == [1, 2, 3, 4]
    assert history[-1]["test_error"] == result["test_error"]
    assert min(line["test_error"] for line in history) == result["best_test_error"]
    assert {"train_loss", "train_error", "test_loss", "test_error", "lr", "seconds"} <= set(
        history[0]
    )
    record = finished.record()
    assert record["plan"]["recipe"]["batch_size"] == 32
    (session,) = record["sessions"]
    assert session["threads"] == 1
    assert session["versions"]["torch"] == torch.__version__
    assert session["kernel"].startswith(("native", "reference"))
    shapes = finished.shapes()
    assert shapes["time"].tolist() == [0, 0.125, 0.25, 0.5, 1, 2, 3, 4]
    assert {name.rpartition(".")[2] for name in shapes} == {"time", "a_pos", "a_neg", "hinges"}


def started(**changes):
    return next(train(SPEC.model_copy(update=changes), threads=1))


@pytest.mark.parametrize("forced", [None, "native", "reference"])
def test_a_compiled_run_says_what_stands_in_its_graph(monkeypatch, forced):
    if forced is None:
        monkeypatch.delenv("SPLASH_KERNEL", raising=False)
    else:
        monkeypatch.setenv("SPLASH_KERNEL", forced)
    targets = set()

    def backend(graph, _):
        targets.update(node.target for node in graph.graph.nodes)
        return graph.forward

    torch.compiler.reset()
    torch.compile(Splash(), backend=backend)(torch.randn(4, 3))
    assert targets
    kernel = runner._kernel(SPEC.model_copy(update={"compile": True}), started())
    if torch.ops.splash_units.splash.default in targets:
        assert kernel.startswith("native")
    else:
        assert kernel == "the equation, compiled"
    assert forced is None or (kernel.startswith("native") == (forced == "native"))


def test_a_run_without_splash_units_names_no_kernel():
    assert runner._kernel(SPEC, started(unit="relu")) is None


def test_a_run_says_what_augments_its_images(monkeypatch):
    moderate = SPEC.model_copy(update={"augment": "moderate"})
    monkeypatch.setenv("SPLASH_KERNEL", "reference")
    assert runner._augmentation(moderate, started()) == "torch"
    assert runner._augmentation(SPEC, started()) is None
    monkeypatch.delenv("SPLASH_KERNEL")
    found = "native" if native.load() else "torch"
    assert runner._augmentation(moderate, started()) == found


def test_the_network_comes_back_without_its_data(finished):
    network = load_network(finished)
    assert not network.training
    state = finished.model()
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    assert network(torch.rand(2, 1, 12, 12)).shape == (2, 10)


def test_a_result_that_is_there_is_not_computed_again(finished, monkeypatch):
    def never(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(runner, "train", never)
    (event,) = run(SPEC, Store(finished.root))
    assert event == Found(finished)


def test_again_computes_it_again_and_gets_the_same(tmp_path):
    first = complete(SPEC, Store(tmp_path), threads=1).result()
    events = list(run(SPEC, Store(tmp_path), threads=1, again=True))
    assert isinstance(events[0], Started)
    second = Store(tmp_path).run(SPEC).result()
    assert second["model_sha256"] == first["model_sha256"]


def test_a_run_that_is_dropped_midway_goes_on_with_the_same_bits(tmp_path, finished):
    store = Store(tmp_path)
    for stop in (
        lambda e: isinstance(e, Progress) and e.epoch == 2,
        lambda e: isinstance(e, EpochDone),
    ):
        events = run(SPEC, store, threads=1)
        while not stop(next(events)):
            pass
        assert store.run(SPEC).status().state == "running"
        events.close()
        assert store.run(SPEC).status().state == "interrupted"
    again = complete(SPEC, store)  # with the threads it began with
    assert again.result()["model_sha256"] == finished.result()["model_sha256"]
    assert [s["epochs_done"] for s in again.record()["sessions"]] == [0, 1, 2]
    assert [s["threads"] for s in again.record()["sessions"]] == [1, 1, 1]
    whole, resumed = finished.shapes(), again.shapes()
    assert all((resumed[name] == whole[name]).all() for name in whole)
    for one, other in zip(again.history(), finished.history(), strict=True):
        assert {k: v for k, v in one.items() if "seconds" not in k} == {
            k: v for k, v in other.items() if "seconds" not in k
        }


def test_a_kill_in_the_middle_of_an_epoch_costs_that_epoch_and_no_bit(tmp_path, finished):
    steps = tmp_path / "steps"
    store = Store(tmp_path / "runs")
    process = start(store.root, TINY_STEPS=steps, TINY_HANG=20)  # the fourth step of epoch 3
    try:
        wait_for(Path(f"{steps}.hanging"), process)
        assert store.run(SPEC).status().state == "running"
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    status = store.run(SPEC).status()
    assert (status.state, status.epochs_done) == ("interrupted", 2)
    process = start(store.root, TINY_STEPS=steps)
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert "going on after epoch 2" in told
    assert len(steps.read_text()) == 20 + 2 * 8  # only epochs 3 and 4 were done again
    result = store.run(SPEC).result()
    assert result["model_sha256"] == finished.result()["model_sha256"]


def test_two_processes_that_start_one_spec_run_it_once(tmp_path, finished):
    steps = tmp_path / "steps"
    processes = [start(tmp_path / "runs", TINY_STEPS=steps) for _ in range(2)]
    told = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    assert len(steps.read_text()) == 4 * 8
    result = Store(tmp_path / "runs").run(SPEC).result()
    assert result["model_sha256"] == finished.result()["model_sha256"]
    error = f"test error {100 * result['test_error']:.2f} %"
    assert all(error in text for text in told)


def test_another_process_at_work_is_waited_for(tmp_path, finished):
    store = Store(tmp_path)
    first = run(SPEC, store, threads=1)
    next(first)
    second = run(SPEC, store, threads=1)
    assert next(second) == Waiting(store.run(SPEC))
    for _ in first:
        pass
    assert list(second) == [Found(store.run(SPEC))]


def test_a_failure_is_recorded_and_the_next_try_goes_on(tmp_path, finished, monkeypatch):
    store = Store(tmp_path)
    real_train = runner.train

    def fails_in_epoch_2(*arguments, **options):
        for event in real_train(*arguments, **options):
            if isinstance(event, Progress) and event.epoch == 2:
                raise RuntimeError("the roof fell in")
            yield event

    with monkeypatch.context() as patch:
        patch.setattr(runner, "train", fails_in_epoch_2)
        with pytest.raises(RuntimeError, match="roof"):
            complete(SPEC, store, threads=1)
    status = store.run(SPEC).status()
    assert (status.state, status.epochs_done) == ("failed", 1)
    assert status.why == "RuntimeError: the roof fell in"
    assert complete(SPEC, store).result()["model_sha256"] == finished.result()["model_sha256"]


def test_what_a_user_got_wrong_leaves_nothing_behind(tmp_path):
    with pytest.raises(ValueError, match="unknown unit"):
        complete(SPEC.model_copy(update={"unit": "rleu"}), Store(tmp_path))
    assert Store(tmp_path).runs() == []


def test_a_divergence_is_a_result(tmp_path):
    spec = SPEC.model_copy(update={"unit": "splash_literal", "lr": 1e4, "epochs": 5})
    diverged = complete(spec, Store(tmp_path))
    result = diverged.result()
    assert result["status"] == "diverged"
    assert diverged.status().state == "diverged"
    assert "loss not finite in epoch" in diverged.status().why
    assert "unit" in result["layer"]
    assert len(diverged.history()) == result["epoch"] - 1
    assert len(list(run(spec, Store(tmp_path)))) == 1  # it is there, and not tried again


def test_a_changed_recipe_starts_an_unfinished_run_anew(tmp_path, monkeypatch, finished):
    store = Store(tmp_path)
    events = run(SPEC, store, threads=1)
    while not isinstance(next(events), EpochDone):
        pass
    events.close()
    state, tensors = None, None
    with store.claim(SPEC) as work:
        state, tensors = work.load_checkpoint()
        state["plan"]["recipe"]["momentum"] = 0.5
        work.save_checkpoint(state, tensors)
    first = next(run(SPEC, store, threads=1))
    assert first.epochs_done == 0
    anew = complete(SPEC, store, threads=1)
    assert anew.result()["model_sha256"] == finished.result()["model_sha256"]


def wait_for(path, process):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "it never got there"
        time.sleep(0.05)
