"""`splash run`: what it says before, while and after, Ctrl-C, and every study end to end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import tiny_lab
from typer.testing import CliRunner

from splash_units.lab import studies
from splash_units.lab.campaign import Began, Done
from splash_units.lab.cli.app import app
from splash_units.lab.cli.run import check
from splash_units.lab.cluster import run_all
from splash_units.lab.jobs import missing
from splash_units.lab.spec import CostSpec, TrainSpec
from splash_units.lab.store import Store
from splash_units.lab.tables import build_all, render

STUDY = """
title = "Two units"
models = ["tiny"]
data = ["blobs"]
units = ["relu", "splash"]
attacks = [{ name = "fgsm", eps = 0.1, images = 8 }]
tables = ["results", "attacks"]

[train]
batch_size = 32
epochs = 4
"""
SPLASH = [sys.executable, "-c", "from splash_units.lab.cli import main; main()"]


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(STUDY)
    return path


@pytest.fixture
def splash(tmp_path, monkeypatch):
    """Call the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_dry_run_says_what_is_missing_and_runs_nothing(splash, study, tmp_path):
    done = splash("run", study, "--scale", "smoke", "--dry-run")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert len(lines) == 5
    assert "tiny · blobs · relu · seed 0 · smoke" in lines[0]
    assert "fgsm random_start=True eps=0.1 on tiny" in lines[1]
    assert lines[-1].startswith("4 missing for 4 asked for; about ")
    assert not (tmp_path / "runs").exists()
    part = splash("run", study, "--scale", "smoke", "--only", "unit=relu,kind=train", "--dry-run")
    assert part.output.splitlines()[-1].startswith("1 missing for 1 asked for")


def test_a_dry_run_of_many_puts_them_together(splash):
    done = splash("run", "paper", "--scale", "paper", "--data", "digits", "--dry-run")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].split() == ["what", "network", "data", "missing", "time"]
    assert len(lines) < 60
    assert "days on one core" in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["acuracy"], "unknown study 'acuracy'; did you mean accuracy"),
        (["accuracy", "--scale", "tiny"], "unknown scale 'tiny'"),
        (["accuracy", "--only", "unit=rleu"], "did you mean"),
        (["accuracy", "--seeds", "0"], "seeds must be at least 1"),
        (["accuracy", "--data", "cifar-11"], "unknown data set 'cifar-11'"),
        (["nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_mistake_ends_it_before_anything_runs(splash, tmp_path, arguments, said):
    done = splash("run", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"recipe": "fancy"}, "no variant 'fancy'"),
        ({"model_options": {"depth": 3}}, "depth"),
        ({"unit_options": {"num_hinges": 4}}, "num_hinges must be odd"),
        ({"source": TrainSpec(unit="rleu")}, "unknown unit 'rleu'"),
    ],
)
def test_every_name_of_every_training_is_checked(changed, said):
    with pytest.raises(ValueError, match=said):
        check([TrainSpec(**changed)], data_is_here=False)


def test_missing_data_is_said_at_once(splash, tmp_path, monkeypatch):
    monkeypatch.setenv("SPLASH_DATA", str(tmp_path))
    done = splash("run", "hinges", "--scale", "short", "--only", "model=mlp")
    assert done.exit_code == 2
    assert "splash data get mnist" in done.stderr
    check([TrainSpec(data="mnist")], data_is_here=False)  # but perhaps on a cluster's machines


def test_no_scheduler_at_the_address(splash, study, monkeypatch):
    monkeypatch.setattr("splash_units.lab.cluster.CONNECT_SECONDS", 0.2)
    done = splash("run", study, "--scale", "smoke", "--cluster", "tcp://127.0.0.1:9")
    assert done.exit_code == 2
    assert "no Dask scheduler at tcp://127.0.0.1:9" in done.stderr


def start(study, store, **variables):
    """The real command in a process group of its own, as a shell would start it."""
    options = ["--plugin", tiny_lab.__file__, "--scale", "smoke", "--processes", "1"]
    return subprocess.Popen(
        [*SPLASH, "run", str(study), *options, "--store", str(store)],
        env={**os.environ, **{name: str(value) for name, value in variables.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_an_interrupt_stops_it_and_the_same_command_goes_on(study, tmp_path):
    steps, store = tmp_path / "steps", Store(tmp_path / "runs")
    # The worker is stuck in step 4 of epoch 3 when Ctrl-C comes, which a shell sends to the group.
    process = start(study, store.root, TINY_STEPS=steps, TINY_HANG=20)
    wait_for(Path(f"{steps}.hanging"), process)
    os.killpg(process.pid, signal.SIGINT)
    told, complaints = process.communicate(timeout=60)
    assert process.returncode == 130, complaints
    assert "interrupted; 0 done, 1 running, 3 to come" in complaints
    assert "Traceback" not in told + complaints
    wait_until_gone(process.pid)
    (begun,) = store.runs()
    assert (begun.status().state, begun.status().epochs_done) == ("interrupted", 2)
    process = start(study, store.root, TINY_STEPS=steps)
    told, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    assert "4 to do" in told
    assert "\n4 done\n" in told
    assert "tiny" in told.partition("\n4 done\n")[2]  # in the tables
    assert "next: splash table" in told
    # Of the one that was interrupted only epochs 3 and 4 were done again; the other had all four.
    assert len(steps.read_text()) == 20 + 2 * 8 + 4 * 8


def wait_for(path, process):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it never got there"
        time.sleep(0.05)


def wait_until_gone(group):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("a worker outlived its driver")


# What of each study is run here: enough to fill a cell of each of its tables.
PART = {
    "accuracy": "model=lenet5,unit=relu+splash,augment=moderate",
    "cost": "model=mlp,unit=relu+splash",
    "hinges": "model=mlp",
    "initialisation": "unit=relu+splash",
    "evolution": "model=mlp+lenet5",
    "ablation": "unit=splash+splash_fixed",
    "pixels": "model=lenet5,augment=moderate,unit=splash",
    "boundary": "model=lenet5,augment=moderate,unit=splash",
    "fgsm": "model=lenet5,augment=moderate,unit=relu+splash",
    "cw": "model=lenet5,augment=moderate,unit=splash",
    "separation": None,
    "family": None,
    "verdict": "model=lenet5,augment=moderate,unit=relu+splash,attack=worst_case+pgd",
    "finetune": "model=lenet5",
}


def specs_of(name):
    return studies.load(name).specs("smoke", 1, PART[name], "digits")


def addresses_listened_to():
    """Of this process and all it has started."""
    here = psutil.Process()
    sockets = [s for p in (here, *here.children(recursive=True)) for s in p.net_connections()]
    return {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}


@pytest.fixture(scope="module")
def all_done(tmp_path_factory):
    """One store for all studies, filled by one campaign: what two of them need is run once."""
    store = Store(tmp_path_factory.mktemp("studies") / "runs")
    specs = [spec for name in PART for spec in specs_of(name)]
    events, listening = [], set()
    for event in run_all(specs, store, processes=2):
        events.append(event)
        if isinstance(event, Began) and not listening:
            listening = addresses_listened_to()
    assert listening == {"127.0.0.1"}  # where others can't reach it
    assert [event for event in events if hasattr(event, "why")] == []
    ended = [event.spec for event in events if isinstance(event, Done)]
    assert len(ended) == len(set(ended))
    costs = [isinstance(spec, CostSpec) for spec in ended]
    assert costs == sorted(costs)
    return store


def test_every_study_is_here():
    assert {*PART, "paper", "quickstart"} == set(studies.NAMES)  # the last has tests of its own


@pytest.mark.parametrize("name", PART)
def test_a_study_ends_with_its_tables(name, all_done, splash):
    assert missing(specs_of(name), all_done) == []
    part = [] if PART[name] is None else ["--only", PART[name]]
    options = ["--scale", "smoke", "--seeds", "1", "--data", "digits", "--store", all_done.root]
    done = splash("run", name, *part, *options)
    assert done.exit_code == 0, done.output
    assert "0 to do" in done.output
    part_of = {"scale": "smoke", "data": "digits", "only": PART[name]}
    for table in build_all(studies.load(name), all_done, **part_of):
        assert render(table, "text") in done.output
        cells = [cell for row in table.rows for cell in row]
        assert any(cell.value is not None for cell in cells), table.name
