"""The store: whole or not there, whatever happens meanwhile."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from filelock import Timeout

from splash_units.lab.durable import load_tensors, read_json, save_tensors, write_bytes
from splash_units.lab.spec import TrainSpec, digest
from splash_units.lab.store import Store

SPEC = TrainSpec(seed=5)
SLOPES = {"act.a_pos": torch.arange(4.0), "act.a_neg": torch.ones(2, 3)}
RECORD = {
    "plan": {"epochs": 3},
    "layout": {name: list(slope.shape) for name, slope in SLOPES.items()},
    "constants": {"act.hinges": [0.0, 1.0, 2.0, 2.5]},
}
TENSORS = {"network/w": torch.randn(3, 2).t(), "network/n": torch.tensor(7)}


def begun(work, epochs=1):
    """A run in the works with this many epochs recorded and a checkpoint after the last."""
    work.begin(RECORD, resumed=False)
    work.append_slopes(0.0, SLOPES)
    for epoch in range(1, epochs + 1):
        work.append_epoch({"epoch": epoch, "train_loss": 1 / epoch})
        work.append_slopes(epoch, SLOPES)
    if epochs:
        work.save_checkpoint({"epoch": epochs}, TENSORS)


def in_another_process(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_run_is_in_the_works_until_it_is_whole(tmp_path):
    store = Store(tmp_path)
    run = store.run(SPEC)
    assert run.status().state == "missing"
    assert store.runs() == []
    with store.claim(SPEC) as work:
        begun(work)
        assert run.status().state == "running"
        assert (run.status().epochs_done, run.status().epochs) == (1, 3)
        work.progress(1.25)
        assert run.status().epochs_done == 1.25
        assert run.result() is None
    assert run.status().state == "interrupted"
    with store.claim(SPEC) as work:
        work.finish({"status": "done", "test_error": 0.25}, {"w": torch.ones(2)})
    assert run.status().state == "done"
    assert run.result()["test_error"] == 0.25
    assert run.spec() == SPEC
    assert run.history() == [{"epoch": 1, "train_loss": 1.0}]
    assert torch.equal(run.model()["w"], torch.ones(2))
    assert store.runs() == [run]
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "history.jsonl",
        "inputs.safetensors",
        "model.safetensors",
        "record.json",
        "result.json",
        "shapes.safetensors",
        "spec.json",
    ]
    assert not run.part.exists()


def test_shapes_are_the_slopes_over_time(tmp_path):
    store = Store(tmp_path)
    with store.claim(SPEC) as work:
        begun(work, epochs=2)
        running = store.run(SPEC).shapes()
        work.finish({"status": "done"}, {})
    shapes = store.run(SPEC).shapes()
    assert set(shapes) == {"time", "act.a_pos", "act.a_neg", "act.hinges"}
    assert shapes["time"].tolist() == [0, 1, 2]
    assert shapes["act.a_pos"].tolist() == [[0, 1, 2, 3]] * 3
    assert shapes["act.a_neg"].shape == (3, 2, 3)
    assert shapes["act.hinges"].tolist() == [0, 1, 2, 2.5]
    for name, values in shapes.items():
        assert np.array_equal(running[name], values)


def test_the_folder_is_named_by_the_hash(tmp_path):
    assert digest(SPEC).startswith(Store(tmp_path).run(SPEC).id)


def test_a_checkpoint_brings_back_state_and_tensors(tmp_path):
    store = Store(tmp_path)
    with store.claim(SPEC) as work:
        begun(work, epochs=2)
        state, tensors = work.load_checkpoint()
    assert state == {"epoch": 2}
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_what_came_after_the_checkpoint_is_cut_off(tmp_path):
    store = Store(tmp_path)
    with store.claim(SPEC) as work:
        begun(work, epochs=2)
        work.append_epoch({"epoch": 3})
        work.append_slopes(3.0, SLOPES)
        with open(work.folder / "history.jsonl", "a") as file:
            file.write('{"epoch": 4, "tra')
        work.load_checkpoint()
        assert [line["epoch"] for line in store.run(SPEC).history()] == [1, 2]
        assert store.run(SPEC).shapes()["time"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda part: (part / "checkpoint.safetensors").unlink(),
        lambda part: os.truncate(part / "checkpoint.safetensors", 100),
        lambda part: (part / "checkpoint.safetensors").write_bytes(b""),
        lambda part: (part / "checkpoint.safetensors").write_bytes(b"\xff" * 1000),
        lambda part: save_tensors(part / "checkpoint.safetensors", TENSORS, {"epoch": 2}),
        lambda part: os.truncate(part / "history.jsonl", 3),
        lambda part: (part / "slopes.f32").unlink(),
    ],
    ids=["gone", "cut", "empty", "noise", "no lengths", "history cut", "slopes gone"],
)
def test_a_checkpoint_that_cannot_be_trusted_is_not_used(tmp_path, spoil):
    store = Store(tmp_path)
    with store.claim(SPEC) as work:
        begun(work, epochs=2)
        spoil(work.folder)
        assert work.load_checkpoint() is None
        begun(work, epochs=1)
        assert [line["epoch"] for line in store.run(SPEC).history()] == [1]


def test_a_cut_or_spoilt_line_of_history_is_left_out(tmp_path):
    store = Store(tmp_path)
    with store.claim(SPEC) as work:
        begun(work, epochs=2)
        with open(work.folder / "history.jsonl", "ab") as file:
            file.write(b'\x00\x00\xff\n[1, 2]\n{"epoch": 3}\n{"epoch": 4, "tr')
    run = store.run(SPEC)
    assert [line["epoch"] for line in run.history()] == [1, 2, 3]
    assert run.status().state == "interrupted"


def test_a_damaged_result_is_said_to_be_and_is_replaced(tmp_path):
    store = Store(tmp_path)
    for text in ("first", "second"):
        with store.claim(SPEC) as work:
            begun(work)
            work.finish({"status": "done", "text": text}, {})
        run = store.run(SPEC)
        assert run.result()["text"] == text
        os.truncate(run.whole / "result.json", 5)
        assert run.result() is None
        assert run.status().state == "failed"
        assert "damaged" in run.status().why
        (run.whole / "spec.json").write_text("{")
        with pytest.raises(ValueError, match="is not a spec"):
            run.spec()


def test_a_kill_between_the_last_file_and_the_rename_loses_nothing(tmp_path, monkeypatch):
    store = Store(tmp_path)
    run = store.run(SPEC)
    with store.claim(SPEC) as work:
        begun(work)
        with monkeypatch.context() as patch:
            patch.setattr(type(work), "_publish", lambda self: None)
            work.finish({"status": "done"}, {})
    assert run.result() is None
    with store.claim(SPEC):
        assert run.result()["status"] == "done"


def test_failures_say_why_and_a_new_try_forgets_them(tmp_path):
    store = Store(tmp_path)
    run = store.run(SPEC)
    with store.claim(SPEC) as work:
        begun(work)
        work.fail("ValueError: no such thing", "Traceback ...")
    assert run.status().state == "failed"
    assert run.status().why == "ValueError: no such thing"
    with store.claim(SPEC) as work:
        work.begin(RECORD, resumed=True)
    assert run.status().state == "interrupted"
    assert run.status().epochs_done == 1


def test_only_one_process_holds_a_spec_and_its_death_frees_it(tmp_path):
    holder = in_another_process(
        """
        import sys, time
        from splash_units.lab.spec import TrainSpec
        from splash_units.lab.store import Store
        with Store(sys.argv[1]).claim(TrainSpec(seed=5)) as work:
            work.begin({}, resumed=False)
            print("held", flush=True)
            time.sleep(60)
        """,
        tmp_path,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        store = Store(tmp_path)
        assert store.run(SPEC).status().state == "running"
        with pytest.raises(Timeout), store.claim(SPEC, timeout=0.1):
            pass
        with store.claim(TrainSpec(seed=6), timeout=0.1):
            pass  # Another spec is free.
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert store.run(SPEC).status().state == "interrupted"
        with store.claim(SPEC, timeout=5) as work:
            begun(work)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


@pytest.mark.skipif(os.name != "posix", reason="needs a limit on the size of files")
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    store = Store(tmp_path)
    with store.claim(SPEC) as work:
        begun(work, epochs=2)
    child = in_another_process(
        """
        import resource, signal, sys
        import torch
        from splash_units.lab.spec import TrainSpec
        from splash_units.lab.store import Store
        with Store(sys.argv[1]).claim(TrainSpec(seed=5)) as work:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            try:
                work.save_checkpoint({"epoch": 3}, {"network/w": torch.ones(100_000)})
            except OSError as error:
                print(type(error).__name__)
        """,
        tmp_path,
    )
    told, _ = child.communicate(timeout=60)
    assert told == "OSError\n"
    part = store.run(SPEC).part
    assert not list(part.glob("*.aside"))
    with store.claim(SPEC) as work:
        state, tensors = work.load_checkpoint()
    assert state == {"epoch": 2}
    assert torch.equal(tensors["network/w"], TENSORS["network/w"])


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_bytes(path, b"old")

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="No space"):
            write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_tensors_are_a_clear_error(tmp_path):
    path = tmp_path / "a.safetensors"
    save_tensors(path, TENSORS, {"epoch": 1})
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(ValueError, match=r"a\.safetensors is damaged"):
        load_tensors(path)


def test_numbers_that_are_not_finite_never_reach_the_disk(tmp_path):
    with Store(tmp_path).claim(SPEC) as work:
        begun(work)
        with pytest.raises(ValueError):
            work.append_epoch({"train_loss": float("nan")})


def test_find_takes_the_beginning_of_a_name(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(ValueError, match="no runs in"):
        store.find("00")
    names = []
    for seed in range(20):
        with store.claim(TrainSpec(seed=seed)) as work:
            begun(work, epochs=0)
            names.append(work.run.id)
    assert len(store.runs()) == 20
    assert store.find(names[3]).id == names[3]
    shared = next(a[0] for a in names if sum(b[0] == a[0] for b in names) > 1)
    with pytest.raises(ValueError, match=f"several runs begin with '{shared}'"):
        store.find(shared)
    with pytest.raises(ValueError, match="unknown run 'xyz'"):
        store.find("xyz")


def test_folders_that_are_no_runs_are_not_listed(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "file.txt").write_text("")
    assert Store(tmp_path).runs() == []
    assert read_json(tmp_path / "file.txt") is None


def test_json_on_disk_is_json(tmp_path):
    store = Store(tmp_path)
    with store.claim(SPEC) as work:
        begun(work)
        work.finish({"status": "done"}, {})
    folder = store.run(SPEC).folder
    assert json.loads((folder / "spec.json").read_text())["seed"] == 5
    assert len(json.loads((folder / "result.json").read_text())["model_sha256"]) == 64
