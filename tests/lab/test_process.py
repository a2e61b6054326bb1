"""What a run borrows from its process, and where it says it ran."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from splash_units.lab import plugins
from splash_units.lab.machine import commit_of, describe_machine, now
from splash_units.lab.process import Clock, own_settings, pick_device, pick_threads, stream

CPU = torch.device("cpu")


def test_settings_are_given_back_even_after_an_error():
    cudnn = torch.backends.cudnn
    before = torch.get_num_threads(), cudnn.deterministic, cudnn.benchmark, torch.get_rng_state()

    @own_settings(CPU, threads=3)
    def fails():
        assert torch.get_num_threads() == 3
        assert (cudnn.deterministic, cudnn.benchmark) == (True, False)
        torch.manual_seed(99)
        raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert (torch.get_num_threads(), cudnn.deterministic, cudnn.benchmark) == before[:3]
    assert torch.equal(torch.get_rng_state(), before[3])


def test_streams_are_repeatable_and_apart():
    one, two, other = (
        torch.rand(4, generator=stream(*key))
        for key in ((3, "order", 0), (3, "order", 0), (3, "order", 1))
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_runs_side_by_side_share_the_threads():
    torch.set_num_threads(2)
    assert pick_threads() == 2
    assert pick_threads(side_by_side=2) == 1
    assert pick_threads(side_by_side=5) == 1
    assert pick_threads(7) == 7
    torch.set_num_threads(1)


def test_auto_is_the_best_device_there_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device().type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device().type == "cuda"
    assert pick_device("cpu") == CPU


def test_a_clock_counts_only_between_start_and_stop(monkeypatch):
    ticks = iter(float(tick) for tick in (0, 1, 3, 7, 100, 101, 105))
    monkeypatch.setattr("splash_units.lab.process.time.perf_counter", lambda: next(ticks))
    clock = Clock(CPU, by_phase=True).start()
    assert clock.lap("data") == 1
    assert clock.lap("forward") == 3
    clock.stop()
    clock.start()
    clock.lap("data")
    clock.stop()
    assert clock.seconds == 7 + 5
    assert clock.split == {"data": 2, "forward": 2}


def test_a_commit_is_told_with_its_changes(tmp_path):
    assert commit_of(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    commit = commit_of(tmp_path)
    assert len(commit) == 40
    (tmp_path / "file").write_text("one")
    assert commit_of(tmp_path) == commit  # not tracked, so not of the commit
    subprocess.run([*git, "add", "file"], check=True)
    assert commit_of(tmp_path) == f"{commit}+changes"


def test_the_machine_is_described():
    told = describe_machine()
    assert told["cores"] == os.cpu_count()
    assert told["versions"]["torch"] == torch.__version__
    assert told["processor"]
    assert now().endswith("+00:00")


def test_a_plugin_is_imported_once_and_remembered(tmp_path):
    path = tmp_path / "counting_plugin.py"
    path.write_text("import os\nos.environ['COUNTED'] = os.environ.get('COUNTED', '') + '.'\n")
    os.environ.pop("COUNTED", None)
    plugins.load([str(path), str(path)])
    plugins.load([str(path)])
    assert os.environ.pop("COUNTED") == "."
    assert str(path) in plugins.loaded()
    assert Path(sys.modules["counting_plugin"].__file__) == path


def test_a_plugin_that_fails_is_named_and_not_remembered(tmp_path):
    path = tmp_path / "failing_plugin.py"
    path.write_text("raise RuntimeError('not today')\n")
    with pytest.raises(ValueError, match=r"failing_plugin\.py': RuntimeError: not today"):
        plugins.load([str(path)])
    assert str(path) not in plugins.loaded()
    assert "failing_plugin" not in sys.modules


def test_installed_packages_can_announce_plugins(monkeypatch, tmp_path):
    (tmp_path / "announced_plugin.py").write_text("loaded = True\n")
    information = tmp_path / "announced-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: announced\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{plugins.GROUP}]\nmine = announced_plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins.load_installed()
    assert sys.modules["announced_plugin"].loaded
