"""Pictures: the curves in them are the units' own."""

import os

import numpy as np
import pytest
import tiny_lab  # noqa: F401 - registers the network and its data
import torch

from splash_units.kernels import native
from splash_units.lab.assembly import units_of
from splash_units.lab.pictures import (
    GRID,
    draw_comparison,
    draw_learned_shapes,
    draw_run,
    evolutions,
)
from splash_units.lab.runner import complete, load_network
from splash_units.lab.spec import TrainSpec
from splash_units.lab.store import Store

TINY = TrainSpec(model="tiny", data="blobs", scale="smoke", batch_size=32, epochs=2, lr=0.2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A short run of each kind of unit."""
    store = Store(tmp_path_factory.mktemp("store"))
    options = {
        "relu": {},
        "splash": {"grad_scale": 1.0},
        "prelu": {},
        "apl": {"grad_scale": 1.0},
    }
    return {
        unit: complete(TINY.model_copy(update={"unit": unit, "unit_options": chosen}), store)
        for unit, chosen in options.items()
    }


@pytest.mark.parametrize("unit", ["prelu", "apl"])
def test_the_last_curve_is_what_the_trained_unit_does(runs, unit):
    found = evolutions(runs[unit])
    assert [evolution.layer for evolution in found] == ["unit1", "unit2"]
    for evolution, module in zip(found, units_of(load_network(runs[unit])).values(), strict=True):
        channels = getattr(module, "num_parameters", 1)
        with torch.no_grad():
            y = module(GRID.view(-1, 1).expand(-1, channels)).mean(1)
        assert np.allclose(evolution.curves[-1], y, atol=1e-6)
        assert not np.array_equal(evolution.curves[-1], evolution.curves[0])


@pytest.mark.parametrize("chosen", [None, "native"])
def test_asking_a_unit_needs_no_compiled_kernel(runs, monkeypatch, chosen):
    def refuse():
        raise AssertionError("a kernel was asked for")

    monkeypatch.setattr(native, "calls", None)
    monkeypatch.setattr(native, "load", refuse)
    monkeypatch.delenv("SPLASH_KERNEL", raising=False)
    if chosen:
        monkeypatch.setenv("SPLASH_KERNEL", chosen)
    assert len(evolutions(runs["apl"])) == 2
    assert os.environ.get("SPLASH_KERNEL") == chosen


def test_splash_starts_as_relu_and_ends_where_its_slopes_say(runs):
    found = evolutions(runs["splash"], most_times=3)
    shapes = runs["splash"].shapes()
    names = sorted(name for name in shapes if name.endswith("a_pos"))
    assert len(found) == len(names) == 2
    for evolution, name in zip(found, names, strict=True):
        assert len(evolution.times) == 3
        assert (evolution.times[0], evolution.times[-1]) == (0, 2)
        assert np.array_equal(evolution.curves[0], torch.relu(GRID))
        left, right = (shapes[name.replace("a_pos", side)][-1] for side in ("a_neg", "a_pos"))
        hinges = shapes[name.replace("a_pos", "hinges")]
        by_hand = [
            sum(a * max(0, x - b) for a, b in zip(right, hinges, strict=True))
            + sum(a * max(0, -x - b) for a, b in zip(left, hinges, strict=True))
            for x in GRID.tolist()
        ]
        assert np.allclose(evolution.curves[-1], by_hand, atol=1e-5)


@pytest.mark.parametrize("share", ["channel", "unit"])
def test_shapes_that_are_not_shared_are_averaged(tmp_path, share):
    spec = TINY.model_copy(update={"unit_options": {"share": share}, "epochs": 1})
    run = complete(spec, Store(tmp_path))
    for evolution in evolutions(run):
        assert evolution.curves.shape == (len(evolution.times), len(GRID))
        assert np.allclose(evolution.curves[0], torch.relu(GRID))


def test_a_unit_that_learns_no_shape_has_none(runs):
    assert evolutions(runs["relu"]) == []


def test_every_picture_is_drawn(runs, tmp_path):
    groups = {unit: [run] for unit, run in runs.items()}
    paths = [
        draw_run(runs["splash"], tmp_path / "new" / "run.png"),
        draw_comparison(groups, tmp_path / "curves.png"),
        draw_learned_shapes(groups, tmp_path / "shapes.png"),
    ]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
    without_shapes = draw_run(runs["relu"], tmp_path / "relu.svg")
    assert without_shapes.read_text().startswith("<?xml")


def test_what_cannot_be_drawn_is_said(runs, tmp_path):
    with pytest.raises(ValueError, match="must end in"):
        draw_run(runs["relu"], tmp_path / "run.txt")
    with pytest.raises(ValueError, match="none of these runs"):
        draw_learned_shapes({"relu": [runs["relu"]]}, tmp_path / "shapes.png")
