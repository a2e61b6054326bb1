"""The command: what it says, where it says it, and how it ends."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import tiny_lab
from typer.testing import CliRunner

from splash_units.lab.cli.app import app
from splash_units.lab.cli.train import parse_value, spec_values
from splash_units.lab.events import EpochDone
from splash_units.lab.plan import SHORT, SHORT_OF_ANY_OTHER, plan
from splash_units.lab.spec import TrainSpec
from splash_units.lab.store import Store

TINY = [
    *("train", "--model", "tiny", "--data", "blobs", "--scale", "smoke"),
    *("--batch-size", "32", "--threads", "1"),
]


@pytest.fixture
def splash(tmp_path, monkeypatch):
    """Call the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


def entry_point(*arguments):
    """The installed command in a real process; only the way to it is spelt out."""
    (point,) = (p for p in entry_points(group="console_scripts") if p.name == "splash")
    module, function = point.value.split(":")
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"from {module} import {function}; {function}()",
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_train_through_the_entry_point(tmp_path):
    store = ("--store", tmp_path / "runs")
    plugin = ("--plugin", tiny_lab.__file__)
    trained = entry_point(*TINY, *plugin, *store)
    assert trained.returncode == 0, trained.stderr
    assert trained.stderr == ""
    lines = trained.stdout.splitlines()
    assert lines[0] == "tiny · blobs · splash · seed 0 · smoke · batch_size=32"
    assert lines[2].startswith("epoch 1/2  train loss ")
    assert lines[4].startswith("test error ")
    assert "scale smoke" in lines[4]
    assert len(Store(tmp_path / "runs").runs()) == 1


@pytest.mark.parametrize(
    "arguments", [["trian"], ["train", "--seed", "x"], ["train", "--sed", "1"]]
)
def test_a_command_that_is_mistyped_ends_with_exit_code_2(splash, arguments):
    done = splash(*arguments)
    assert done.exit_code == 2
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "train" in done.stderr
    assert "Traceback" not in done.output


def test_version_and_help(splash):
    assert splash("--version").output.startswith("splash-units ")
    help_text = splash("--help").output
    for verb in ("quickstart", "train", "run", "status", "show", "data"):
        assert verb in help_text
    help_text = splash("train", "--help").output
    for field in set(TrainSpec.model_fields) - {"kind", "model_options", "unit_options"}:
        assert f"--{field.replace('_', '-')}" in help_text


def test_every_verb_explains_itself(splash):
    for verb in (
        ["quickstart"],
        ["train"],
        ["status"],
        ["show"],
        ["data", "get"],
        ["data", "list"],
    ):
        done = splash(*verb, "--help")
        assert done.exit_code == 0
        assert "Usage" in done.output


def test_settings_become_fields_and_options():
    given = {"seed": 3, "model": None, "lr": 0.5}
    settings = ["unit.num_hinges=9", "unit.share=channel", "model.widths=[8,4]", "weight-decay=0"]
    assert spec_values(given, settings) == {
        "seed": 3,
        "lr": 0.5,
        "unit_options": {"num_hinges": 9, "share": "channel"},
        "model_options": {"widths": [8, 4]},
        "weight_decay": 0,
    }
    for wrong in ("seed", "=3", ""):
        with pytest.raises(ValueError, match="KEY=VALUE"):
            spec_values({}, [wrong])


FILES = [["bench", "sizes"], ["report"], ["show", "a"]]
FOLDERS = [["quickstart"], ["figure", "all"], ["attack", "a"]]


@pytest.mark.parametrize("verb", [*FILES, *FOLDERS], ids=lambda verb: verb[0])
def test_an_output_that_cannot_be_is_told_before_any_work(splash, tmp_path, verb):
    (tmp_path / "note").write_text("hello")
    (tmp_path / "folder").mkdir()
    no_folder = "note is a file; a folder is needed there"
    itself = ("folder", "folder is a folder; name a file") if verb in FILES else ("note", no_folder)
    for output, told in (itself, ("note/below", no_folder), ("note/far/below", no_folder)):
        done = splash(*verb, "--output", output)
        assert done.exit_code == 2
        assert told in done.stderr
        assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "note"]


@pytest.mark.parametrize("verb", ["train", "status", "quickstart", "report"])
def test_a_store_that_is_a_file_is_told(splash, tmp_path, verb):
    (tmp_path / "note").write_text("hello")
    done = splash(verb, "--store", "note")
    assert done.exit_code == 2
    assert "note is a file; a folder is needed there" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("0.5", 0.5), ("true", True), ("null", None), ("[1, 2]", [1, 2]), ("a b", "a b")],
)
def test_values_are_json_or_words(text, value):
    assert parse_value(text) == value


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "lenet6"], "unknown network 'lenet6'; did you mean lenet5"),
        (["--data", "cifar10"], "unknown data set 'cifar10'; did you mean cifar-10"),
        (["--unit", "rleu"], "unknown unit 'rleu'"),
        (["--scale", "huge"], "scale = 'huge': must be 'smoke', 'short' or 'paper'"),
        (["--epochs", "0"], "epochs = 0: must be greater than or equal to 1"),
        (["--set", "sede=3"], "unknown setting 'sede'; did you mean seed"),
        (["--set", "nonsense"], "KEY=VALUE"),
        (["--set", "unit.num_hinges=8"], "num_hinges must be odd"),
        (["--set", "unit.colour=red"], "colour"),
        (["--recipe", "rescalled"], "rescaled"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--threads", "0"], "threads = 0: must be at least 1"),
        (["--plugin", "no_such_module"], "plugin 'no_such_module': ModuleNotFoundError"),
        (["--plugin", "no_such.py"], "plugin 'no_such.py': FileNotFoundError"),
        (["--precision", "float8"], "must be 'float32' or 'bfloat16'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_answered_with_what_is_right(splash, arguments, told):
    done = splash("train", *arguments)
    assert done.exit_code == 2
    assert told in done.stderr
    assert "Traceback" not in done.output
    assert not Store("runs").runs()


def test_a_result_that_is_there_is_shown(splash):
    first = splash(*TINY)
    assert first.exit_code == 0, first.output
    again = splash(*TINY)
    assert "the result is there already" in again.output
    assert first.output.splitlines()[-2] == again.output.splitlines()[-2]
    anew = splash(*TINY, "--no-resume")
    assert "epoch 2/2" in anew.output
    (run,) = Store("runs").runs()
    assert len(run.record()["sessions"]) == 1


@pytest.mark.parametrize("store", ["runs", "other runs"])
def test_the_command_that_shows_a_run_can_be_copied(splash, store):
    trained = splash(*TINY, "--store", store)
    assert trained.exit_code == 0, trained.output
    told = trained.output.splitlines()[-1]
    command = shlex.split(told.partition("splash show ")[2])
    assert ("--store" in command) == (store != "runs")
    shown = splash("show", *command, "--plugin", tiny_lab.__file__)
    assert shown.exit_code == 0, shown.output


def test_timing_is_recorded_on_request(splash):
    assert splash(*TINY, "--timing").exit_code == 0
    (run,) = Store("runs").runs()
    assert set(run.history()[0]["split"]) == {"data", "forward", "backward", "step"}


def test_status_tells_every_state_and_why(splash):
    assert "no runs in runs" in splash("status").output
    splash(*TINY)
    splash(*TINY, "--set", "unit=splash_literal", "--lr", "1e4", "--epochs", "5")
    store = Store("runs")
    with store.claim(TrainSpec(seed=7)) as work:
        work.begin({"plan": {"epochs": 10}}, resumed=False)
        work.append_epoch({"epoch": 3})
        work.fail("OSError: no space", "")
    with store.claim(TrainSpec(seed=8)) as work:
        work.begin({"plan": {"epochs": 10}}, resumed=False)
    with store.claim(TrainSpec(seed=9)) as work:
        work.begin({"plan": {"epochs": 10}}, resumed=False)
        work.progress(4.5)
        told = splash("status").output
    rows = {line.split()[0]: line for line in told.splitlines()[1:]}
    assert len(rows) == 5
    by_state = {run.status().state: rows[run.id[:8]] for run in store.runs()}
    by_state["running"] = rows[store.run(TrainSpec(seed=9)).id[:8]]
    assert "2/2" in by_state["done"]
    assert "%" in by_state["done"]
    assert "loss not finite in epoch" in by_state["diverged"]
    assert "OSError: no space" in by_state["failed"]
    assert "3/10" in by_state["failed"]
    assert "0/10" in rows[store.run(TrainSpec(seed=8)).id[:8]]
    assert "running" in by_state["running"]
    assert "4.5/10" in by_state["running"]


def test_show_draws_and_tells(splash):
    splash(*TINY)
    (run,) = Store("runs").runs()
    shown = splash("show", run.id[:6])
    assert shown.exit_code == 0, shown.output
    assert "epoch 2/2" in shown.output
    assert (run.folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    wrong = splash("show", run.id[:6], "--output", "picture.bmp")
    assert wrong.exit_code == 2
    assert ".png, .svg" in wrong.stderr
    assert splash("show", "zzz").exit_code == 2


def test_a_run_that_fails_midway_says_where_the_story_is(splash, monkeypatch):
    from splash_units.lab import runner

    real_train = runner.train

    def fails(*arguments, **options):
        yield next(real_train(*arguments, **options))
        raise RuntimeError("the roof fell in")

    monkeypatch.setattr(runner, "train", fails)
    done = splash(*TINY)
    assert done.exit_code == 1
    assert "the roof fell in" in done.stderr
    (run,) = Store("runs").runs()
    assert str(run.part / "failure.json") in done.stderr
    assert "RuntimeError" in json.loads((run.part / "failure.json").read_text())["traceback"]


def test_ctrl_c_says_how_to_go_on(splash, monkeypatch):
    from splash_units.lab import runner

    real_train = runner.train

    def interrupted(*arguments, **options):
        for event in real_train(*arguments, **options):
            yield event
            if isinstance(event, EpochDone):
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner, "train", interrupted)
        done = splash(*TINY)
    assert done.exit_code == 130
    assert "the same command goes on" in done.stderr
    (run,) = Store("runs").runs()
    assert run.status().state == "interrupted"
    assert "going on after epoch 1" in splash(*TINY).output


def test_data_list_and_get(splash, tmp_path, monkeypatch):
    monkeypatch.setenv("SPLASH_DATA", str(tmp_path / "data"))
    listed = splash("data", "list")
    assert listed.exit_code == 0
    for name in ("digits", "mnist", "fashion-mnist", "cifar-10", "cifar-100"):
        assert name in listed.output
    done = splash("data", "get", "cifar-11")
    assert done.exit_code == 2
    assert "did you mean cifar-10" in done.stderr


def test_a_plugin_may_stand_anywhere_and_work_everywhere(splash, tmp_path):
    Path("my_units.py").write_text(
        "from torch import nn\n"
        "from splash_units import catalogue\n"
        "catalogue.register('softsign_for_test', lambda features, dim: nn.Softsign())\n"
    )
    before = splash("--plugin", "my_units", *TINY, "--unit", "softsign_for_test", "--epochs", "1")
    assert before.exit_code == 0, before.output
    after = splash(*TINY, "--unit", "softsign_for_test", "--seed", "1", "--plugin=my_units")
    assert after.exit_code == 0, after.output
    Path("broken.py").write_text("import nothing_of_the_kind")
    broken = splash("status", "--plugin", "broken.py")
    assert broken.exit_code == 2
    assert "plugin 'broken.py': ModuleNotFoundError" in broken.stderr


def test_the_page_on_training_says_what_is(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    shares = [*SHORT.values(), SHORT_OF_ANY_OTHER]
    assert f"| at `short` | {' | '.join(SHORT)} | any other |" in page
    assert f"| {' | '.join(f'{100 * share.epochs:.0f} %' for share in shares)} |" in page
    images = ("all" if share.images == 1 else f"{100 * share.images:.0f} %" for share in shares)
    assert f"| {' | '.join(images)} |" in page
    epochs = (plan(TrainSpec(model=model), 50_000, 10_000).epochs for model in SHORT)
    assert f"| epochs | {' | '.join(map(str, epochs))} | |" in page
    for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(compile(block, "training.md", "exec"), {})
