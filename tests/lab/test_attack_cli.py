"""`splash attack`: what it does, what it says, and what a kill leaves of it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tiny_lab
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from splash_units.lab import budgets
from splash_units.lab.cli.app import app
from splash_units.lab.cli.attack import numbers, plan
from splash_units.lab.findings import Finding, attacks_on
from splash_units.lab.robustness.own import build, load_own, load_weights, read_images
from splash_units.lab.robustness.picture import draw_examples, magnified
from splash_units.lab.runner import complete
from splash_units.lab.spec import TrainSpec
from splash_units.lab.store import Store

NONE = {"eps": None, "k": None}


@pytest.fixture(autouse=True)
def _tiny_is_known():
    tiny_lab.models.register("tiny", tiny_lab.tiny, replace=True)
    tiny_lab.data.register("blobs", tiny_lab.blobs, replace=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    tiny_lab.models.register("tiny", tiny_lab.tiny, replace=True)
    tiny_lab.data.register("blobs", tiny_lab.blobs, replace=True)
    store = Store(tmp_path_factory.mktemp("runs"))
    spec = TrainSpec(model="tiny", data="blobs", scale="smoke", batch_size=32)
    complete(spec, store, threads=1)
    return store


@pytest.fixture
def splash(tmp_path, monkeypatch):
    """Call the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


# --- on a run


def test_attacks_on_a_run_are_shown_kept_and_found_again(splash, store):
    (run,) = store.runs()
    command = ("attack", run.id[:6], "--attack", "fgsm", "--eps", "0.1,0.3", "--images", "20")
    done = splash(*command, "--store", store.root)
    assert done.exit_code == 0, done.output
    found = attacks_on(run)
    assert sorted(f.result()["options"]["eps"] for f in found) == [0.1, 0.3]
    assert all(f.result()["images"] == 20 and f.result()["checked"] for f in found)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("tiny · blobs · splash")
    assert lines[1].split()[:3] == ["attack", "fooled", "of"]
    for eps, line in zip((0.1, 0.3), lines[2:4], strict=True):
        assert line.startswith(f"fgsm eps={eps} random_start")
        assert "passed" in line or "failed" in line
    for name in ("single step <= iterative", "gradients are there"):
        assert len([line for line in lines if f": {name}: " in line]) == 2
    assert "fgsm eps=0.1 random_start: 20 of 20 images" in done.stderr
    for one in found:
        assert (one.folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    stamps = [(f.folder / "result.json").stat().st_mtime_ns for f in found]
    again = splash(*command, "--store", store.root)
    assert again.stdout == done.stdout
    assert again.stderr == ""
    assert stamps == [(f.folder / "result.json").stat().st_mtime_ns for f in found]


def test_status_and_show_tell_of_attacks(splash, store):
    (run,) = store.runs()
    options = ("--attack", "noise", "--eps", "0.2", "--images", "8", "--no-checks")
    assert splash("attack", run.id, *options, "--store", store.root).exit_code == 0
    count = len(attacks_on(run))
    (line,) = [
        line
        for line in splash("status", "--store", store.root).stdout.splitlines()
        if "tiny" in line
    ]
    assert line.split()[-1] == str(count)
    shown = splash("show", run.id, "--store", store.root).stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("noise eps=0.2")]
    assert line.rstrip().endswith("not run")


def test_too_few_images_are_told(splash, store):
    (run,) = store.runs()
    options = ("--attack", "noise", "--eps", "0.1", "--images", "500", "--no-checks")
    done = splash("attack", run.id, *options, "--choose", "all", "--store", store.root)
    assert "there are 160 images, 500 were asked for" in done.stdout


def test_a_run_of_an_earlier_version_is_not_taken_for_one_of_this(splash, store, tmp_path):
    (run,) = store.runs()
    shutil.copytree(run.whole, tmp_path / "old" / ("0" * 16))
    done = splash("attack", "000", "--attack", "fgsm", "--store", "old")
    assert done.exit_code == 2
    assert "is of an earlier version" in done.stderr


def test_ctrl_c_says_how_to_go_on(splash, store, monkeypatch):
    from splash_units.lab.attacks import UniformNoise

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(UniformNoise, "perturb", interrupted)
    options = ("--attack", "noise", "--eps", "0.4", "--images", "8")
    done = splash("attack", store.runs()[0].id, *options, "--store", store.root)
    assert done.exit_code == 130
    assert "the same command goes on" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a run"),
        (["nosuch"], "unknown run 'nosuch'"),
        (["RUN", "--attack", "fgms"], "unknown attack 'fgms'; did you mean fgsm"),
        (["RUN", "--attack", "fgsm", "--eps", "0"], "eps must be above 0"),
        (["RUN", "--attack", "fgsm", "--eps", "-0.1"], "eps must be above 0"),
        (["RUN", "--attack", "fgsm", "--eps", "a,b"], "--eps 'a,b': must be numbers"),
        (["RUN", "--attack", "pixels", "--k", "1.5"], "--k '1.5': must be whole numbers"),
        (["RUN", "--attack", "pixels", "--k", "999"], "k=999 pixels are more than an image"),
        (["RUN", "--attack", "cw", "--eps", "0.1"], "unknown option of cw 'eps'"),
        (["RUN", "--attack", "pgd", "--set", "step=3"], "unknown option of pgd 'step'.*steps"),
        (["RUN", "--attack", "pgd", "--set", "steps"], "write it as KEY=VALUE"),
        (["RUN", "--attack", "pgd", "--images", "0"], "--images '0': must be a whole number"),
        (["RUN", "--attack", "pgd", "--images", "x.npz"], "--images 'x.npz': must be a whole"),
        (["RUN", "--choose", "wrong"], "--choose 'wrong': allowed are right and all"),
        (["RUN", "--scale", "huge"], "unknown scale 'huge'"),
        (["RUN", "--model", "a:b"], "give a run or --model"),
        (["--model", "a:b"], "--model needs --images FILE.npz"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(splash, store, arguments, message):
    run = store.runs()[0].id
    done = splash("attack", *(run if a == "RUN" else a for a in arguments), "--store", store.root)
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(done.stderr)


# --- what a command line asks for


def test_all_is_the_battery_of_the_scale():
    assert plan("all", "paper", NONE, [], None) == budgets.battery("paper")


def test_lists_and_settings_replace_what_is_usual():
    found = plan("all", "smoke", {"eps": [0.1, 0.2], "k": [7]}, ["steps=9"], 5)
    assert [o["eps"] for n, o, _ in found if n == "fgsm"] == [0.1, 0.2]
    assert [o["eps"] for n, o, _ in found if n == "pgd"] == [0.1, 0.2]
    assert [o["k"] for n, o, _ in found if n == "pixels"] == [7]
    assert {o["steps"] for n, o, _ in found if n in ("pgd", "apgd", "cw", "boundary")} == {9}
    assert all("steps" not in o for n, o, _ in found if n in ("fgsm", "pixels"))
    assert {images for _, _, images in found} == {5}


def test_several_attacks_and_one_that_is_not_among_all():
    names = [name for name, _, _ in plan("cw, autoattack", "short", NONE, [], None)]
    assert names == ["cw", "autoattack"]
    assert numbers("--k", "1, 3", int) == [1, 3]


def test_help_states_what_all_may_spend(splash):
    text = splash("attack", "--help").stdout
    for scale in ("smoke", "short", "paper"):
        for name, options, images in budgets.battery(scale):
            assert name in text
            assert str(images) in text
            for key, value in options.items():
                assert key in ("random_start", "eps", "k") or str(value) in text, (name, key)


# --- a network of one's own

MODULE = '''
import os, pathlib, signal, time
import torch
from torch import nn

class Net(nn.Module):
    """Linear, and slow to answer where the environment says so."""
    calls = 0
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
    def forward(self, x):
        Net.calls += 1
        if "CALLS" in os.environ:
            with open(os.environ["CALLS"], "a") as file:
                file.write(".")
            if Net.calls == int(os.environ.get("HANG", "0")):
                pathlib.Path(os.environ["CALLS"] + ".hanging").touch()
                time.sleep(600)
        return self.linear(x.flatten(1) - 0.5)

def make():
    return Net()

def three():
    return nn.Sequential(nn.Flatten(), nn.Linear(2, 3))

def nans():
    return lambda x: torch.full((len(x), 2), torch.nan)

def scores():
    return lambda x: x.flatten(1).sum(1)

def nothing():
    return None

def breaks():
    raise RuntimeError("no such disk")
'''
WEIGHTS = {"linear.weight": torch.tensor([[1.0, 0.0], [-1.0, 0.0]])}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module, its weights, and images of two pixels, of which the first decides."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_network", raising=False)
    (tmp_path / "my_network.py").write_text(MODULE)
    save_file(WEIGHTS, tmp_path / "weights.safetensors")
    first = np.linspace(0.4, 0.6, 40, dtype=np.float32)
    images = np.stack([first, np.full_like(first, 0.5)], 1).reshape(40, 1, 1, 2)
    np.savez(tmp_path / "images.npz", images=images, labels=(first < 0.5).astype(np.int64))
    yield tmp_path
    sys.modules.pop("my_network", None)


OWN = (
    *("attack", "--model", "my_network.py:make", "--weights", "weights.safetensors"),
    *("--images", "images.npz", "--attack", "fgsm", "--eps", "0.05"),
    *("--set", "random_start=false"),
)


def test_a_network_of_ones_own(splash, own):
    done = splash(*OWN, "--output", "out")
    assert done.exit_code == 0, done.output
    (folder,) = (own / "out").glob("fgsm-*")
    result = json.loads((folder / "result.json").read_text())
    # 0.4 to 0.6 in 40 steps: twenty lie within 0.05 of the threshold.
    assert (result["images"], result["attempts"], result["fooled"]) == (40, 40, 20)
    assert {"picture.png", "tensors.safetensors", "record.json"} <= {
        path.name for path in folder.iterdir()
    }
    assert Finding(folder).tensors()["clean"].shape == (40, 1, 1, 2)


def test_all_attacks_fit_a_network_of_two_classes(splash, own):
    arguments = ["all" if a == "fgsm" else a for a in OWN]
    done = splash(*arguments, "--k", "1", "--scale", "smoke", "--no-checks")
    assert done.exit_code == 0, done.output
    found = {path.name.rpartition("-")[0] for path in (own / "attacks").glob("*-*")}
    assert found == {name for name, _, _ in budgets.battery("smoke")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--model": "my_network"}, "module:factory"),
        ({"--model": "no_such:factory"}, "no_such:factory: .*No module named 'no_such'"),
        ({"--model": "my_network.py:mak"}, "has no attribute 'mak'"),
        ({"--model": "my_network.py:breaks"}, "RuntimeError: no such disk"),
        ({"--model": "my_network.py:nothing"}, "returned a NoneType"),
        ({"--model": "my_network.py:nans"}, "weights need a torch module"),
        ({"--model": "my_network.py:nans", "--weights": None}, "NaN logits"),
        ({"--model": "my_network.py:scores", "--weights": None}, "logits of shape"),
        ({"--model": "my_network.py:three"}, "Missing key"),
        ({"--weights": "images.npz"}, "no safetensors file.*save_file"),
        ({"--weights": "none.safetensors"}, "none.safetensors"),
        ({"--images": "none.npz"}, "none.npz"),
        ({"--layout": "chwn"}, "layout 'chwn': allowed are auto, nchw, nhwc"),
        ({"--images": "wide.npz"}, "can't take an image of shape"),
        ({"--images": "labels.npz"}, "below the network's 2 classes, got 5"),
    ],
)
def test_a_network_that_will_not_do_is_told_why(splash, own, change, message):
    np.savez(own / "wide.npz", images=np.zeros((2, 1, 5, 5), np.uint8), labels=np.zeros(2, int))
    np.savez(own / "labels.npz", images=np.zeros((2, 1, 1, 2), np.uint8), labels=np.array([0, 5]))
    given = {**dict(zip(OWN[1::2], OWN[2::2], strict=True)), **change}
    options = [word for pair in given.items() if pair[1] is not None for word in pair]
    done = splash("attack", *options, "--no-checks")
    assert done.exit_code == 2, done.output
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(done.stderr.replace("\n", " "))


COLOURS = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)


@pytest.mark.parametrize(
    ("array", "layout", "expected"),
    [
        (COLOURS, "auto", COLOURS.transpose(0, 3, 1, 2)),
        (COLOURS.transpose(0, 3, 1, 2), "auto", COLOURS.transpose(0, 3, 1, 2)),
        (COLOURS, "nchw", COLOURS),
        (COLOURS[:, :3], "nhwc", COLOURS[:, :3].transpose(0, 3, 1, 2)),
        (COLOURS[..., 0], "auto", COLOURS[:, None, :, :, 0]),
        ((COLOURS / 255).astype(np.float64), "auto", COLOURS.transpose(0, 3, 1, 2) / 255),
    ],
)
def test_images_are_read_in_either_layout(tmp_path, array, layout, expected):
    np.savez(tmp_path / "x.npz", images=array, labels=np.array([0, 1], np.uint8))
    images, labels = read_images(tmp_path / "x.npz", layout)
    assert images.dtype == (torch.uint8 if array.dtype == np.uint8 else torch.float32)
    np.testing.assert_allclose(images.numpy(), expected, rtol=1e-6)
    assert labels.tolist() == [0, 1]
    assert labels.dtype == torch.int64


FINE = np.zeros((2, 1, 4, 4), np.float32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": FINE + 1.5, "labels": [0, 1]}, r"\[0, 1\], got values from 1.5 to 1.5"),
        ({"images": FINE - 0.5, "labels": [0, 1]}, r"\[0, 1\]"),
        ({"images": FINE * np.nan, "labels": [0, 1]}, r"\[0, 1\]"),
        ({"images": FINE.astype(np.int32), "labels": [0, 1]}, "uint8 or floats.*int32"),
        ({"images": FINE, "labels": [0, -1]}, "not be negative"),
        ({"images": FINE, "labels": [0.0, 1.0]}, "labels must be whole numbers"),
        ({"images": FINE, "labels": [0]}, "2 images but 1 labels"),
        ({"images": FINE[:0], "labels": np.zeros(0, int)}, "no image"),
        ({"images": FINE[0, 0], "labels": [0, 1]}, "got \\(4, 4\\)"),
        ({"images": FINE}, "no array labels; there is \\['images'\\]"),
        ({"images": np.zeros((2, 3, 3, 3), np.uint8), "labels": [0, 1]}, "--layout nchw"),
        ({"images": np.array([{}, 1], object), "labels": [0, 1]}, "allow_pickle"),
    ],
)
def test_images_that_will_not_do_are_told_why(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        read_images(tmp_path / "x.npz")


def test_files_that_are_no_images(tmp_path):
    np.save(tmp_path / "one.npy", FINE)
    with pytest.raises(ValueError, match="one array, where"):
        read_images(tmp_path / "one.npy")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ValueError, match="text"):
        read_images(tmp_path / "text.npz")


def test_the_networks_state_is_part_of_what_it_is(own):
    plain = build("my_network.py:make")
    load_weights(plain, own / "weights.safetensors")
    assert torch.equal(plain.linear.weight, WEIGHTS["linear.weight"])
    first = load_own("my_network.py:make", own / "weights.safetensors", own / "images.npz")
    save_file({"linear.weight": -WEIGHTS["linear.weight"]}, own / "weights.safetensors")
    second = load_own("my_network.py:make", own / "weights.safetensors", own / "images.npz")
    assert first.network_sha256 != second.network_sha256
    assert first.images_sha256 == second.images_sha256
    assert isinstance(first.network, nn.Module)


def start(folder, *arguments, **environment):
    command = "from splash_units.lab.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", command, *OWN, "--no-checks", "--chunk-size", "10", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_kill_costs_the_chunk_it_was_in_and_no_bit(own, how, splash):
    calls = own / "calls"
    process = start(own, "--output", "killed", CALLS=str(calls), HANG="12")
    try:
        deadline = time.monotonic() + 120
        while not (own / "calls.hanging").exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, "it never got there"
            time.sleep(0.05)
        process.send_signal(how)
        told, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), told
    (part,) = (own / "killed").glob("*.part")
    kept = 10 * len(list(part.glob("part-0*")))
    assert 0 < kept < 40
    went_on = splash(*OWN, "--no-checks", "--chunk-size", "10", "--output", "killed")
    assert f"40 images, {kept} are there already" in went_on.stderr
    splash(*OWN, "--no-checks", "--output", "whole")
    (killed,), (whole,) = ((own / name).glob("fgsm-*") for name in ("killed", "whole"))
    left, right = Finding(killed).tensors(), Finding(whole).tensors()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


# --- pictures


def test_a_change_is_magnified_until_it_can_be_seen():
    image, factor = magnified(torch.tensor([[[0.0, 0.01, -0.02]]]))
    assert factor == pytest.approx(25)
    assert image.flatten().tolist() == pytest.approx([0.5, 0.75, 0.0])
    assert magnified(torch.zeros(1, 2, 2))[1] == 1


def test_a_picture_of_what_stood_when_nothing_fell(splash, own):
    arguments = [a if a != "0.05" else "0.001" for a in OWN]
    assert splash(*arguments, "--output", "out", "--no-checks").exit_code == 0
    (folder,) = (own / "out").glob("fgsm-*")
    assert Finding(folder).result()["fooled"] == 0
    drawn = draw_examples(Finding(folder), own / "again.svg", classes=("light", "dark"))
    assert "light" in drawn.read_text() or "dark" in drawn.read_text()
