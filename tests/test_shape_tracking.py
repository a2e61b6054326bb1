"""Tracks: what is recorded, when, and that a file gives it back."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from splash_units import Splash
from splash_units.shape import History, Track, segments, track

AXIS = torch.linspace(-4, 4, 81)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 4), Splash(), nn.Linear(4, 2), Splash(3, share="channel", features=2)
    )


def step(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 3)).square().mean().backward()
    optimizer.step()


def nudge(model: nn.Sequential, by: float) -> None:
    with torch.no_grad():
        model[1].a_neg += by  # type: ignore[operator]


# --- recording --------------------------------------------------------------------------------


def test_records_are_the_shapes_at_their_steps() -> None:
    model = network()
    shapes = track(model)
    expected = []
    for now in (0, 10, 25):
        shapes.record(now)
        expected.append(segments(model[1])(AXIS))  # type: ignore[arg-type]
        nudge(model, 0.5)
    history = shapes.history
    assert history.steps == (0, 10, 25)
    assert list(history.slopes) == ["1", "3"]
    assert torch.equal(history.shapes("1")(AXIS), torch.stack(expected))
    assert history.shapes("3").groups == (3, 2)
    assert history.shapes("3")[0].slopes.tolist() == [[0, 0, 1, 1]] * 2
    with pytest.raises(KeyError, match="'1', '3'"):
        history.shapes("2")


def test_the_same_step_replaces_and_steps_do_not_fall() -> None:
    model = network()
    shapes = track(model)
    shapes.record(3)
    nudge(model, 1.0)
    shapes.record(3)
    assert shapes.history.steps == (3,)
    assert shapes.history.slopes["1"][0, 1].tolist() == [1.0] * 4
    with pytest.raises(ValueError, match="step 2 comes after step 3"):
        shapes.record(2)


def test_records_are_small_and_on_the_cpu() -> None:
    model = nn.Sequential(Splash()).to(torch.bfloat16)
    shapes = track(model)
    shapes.record(0)
    slopes = shapes.history.slopes["0"]
    assert (slopes.shape, slopes.dtype, slopes.device.type) == ((1, 2, 4), torch.float32, "cpu")
    assert not slopes.requires_grad


def test_training_inside_records_every_step() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with track(model) as shapes:
        for _ in range(5):
            step(model, optimizer)
    history = shapes.history
    assert history.steps == (0, 1, 2, 3, 4, 5)
    assert history.shapes("1")[0].slopes.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert torch.equal(history.shapes("1")[-1].slopes, segments(model[1]).slopes)  # type: ignore
    moved = history.slopes["1"].flatten(1).diff(dim=0).abs().amax(1)
    assert (moved > 0).all()


def test_only_optimizers_that_move_a_slope_count() -> None:
    model = network()
    slopes = [p for n, p in model.named_parameters() if n.endswith(("a_pos", "a_neg"))]
    kernels = [p for n, p in model.named_parameters() if not n.endswith(("a_pos", "a_neg"))]
    for_slopes, for_kernels = Adam(slopes, lr=0.01), SGD(kernels, lr=0.1)
    with track(model) as shapes:
        for _ in range(3):
            step(model, for_kernels)
        step(model, for_slopes)
    assert shapes.history.steps == (0, 1)


def test_nothing_is_recorded_after_the_end_and_entering_again_goes_on() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with track(model) as shapes:
        step(model, optimizer)
    step(model, optimizer)
    assert shapes.history.steps == (0, 1)
    with shapes:
        step(model, optimizer)
    assert shapes.history.steps == (0, 1, 2)


def test_an_error_ends_the_track_with_a_last_record() -> None:
    model = network()
    shapes = track(model)

    def train() -> None:
        with shapes:
            nudge(model, 2.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert shapes.history.slopes["1"][-1, 1].tolist() == [2.0] * 4
    step(model, SGD(model.parameters(), lr=0.1))
    assert shapes.history.steps == (0,)


@pytest.mark.parametrize("steps", [7, 8, 9, 100, 257])
def test_memory_is_bounded_and_records_stay_evenly_spaced(steps: int) -> None:
    model = nn.Sequential(Splash())
    optimizer = SGD(model.parameters(), lr=1.0)
    with track(model, most=8) as shapes:
        for _ in range(steps):
            optimizer.zero_grad()
            model[0].a_pos.grad = -torch.ones(4)  # each step adds 1
            model[0].a_neg.grad = torch.zeros(4)
            optimizer.step()
    history = shapes.history
    assert 4 <= len(history.steps) <= 9
    assert history.steps[0] == 0
    assert history.steps[-1] == steps
    inner = np.diff(history.steps[:-1])
    assert (inner == inner[0]).all()
    assert history.slopes["0"][:, 0, 1].tolist() == list(history.steps)


def test_the_first_record_is_kept_whatever_its_number() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    shapes = track(model, most=4)
    shapes.record(7)
    with shapes:
        for _ in range(20):
            step(model, optimizer)
    assert shapes.history.steps[0] == 7
    assert shapes.history.steps[-1] == 27
    assert shapes.history.shapes("1")[0].slopes.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


# --- files ------------------------------------------------------------------------------------


def recorded() -> Track:
    model = network()
    shapes = track(model)
    for now in range(3):
        nudge(model, 0.1)
        shapes.record(now)
    return shapes


@pytest.mark.parametrize("name", ["shapes.npz", "no ending"])
def test_a_file_gives_the_history_back(tmp_path: Path, name: str) -> None:
    shapes = recorded()
    shapes.save(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    back, history = History.load(tmp_path / name), shapes.history
    assert back.steps == history.steps
    for unit in history.slopes:
        assert torch.equal(back.slopes[unit], history.slopes[unit])
        assert torch.equal(back.shapes(unit)(AXIS), history.shapes(unit)(AXIS))


def test_a_single_unit_has_the_empty_name(tmp_path: Path) -> None:
    shapes = track(Splash())
    shapes.record(0)
    shapes.save(tmp_path / "one.npz")
    assert list(History.load(tmp_path / "one.npz").slopes) == [""]


def test_a_save_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = recorded()
    shapes.save(tmp_path / "shapes.npz")
    before = (tmp_path / "shapes.npz").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="no space"):
        shapes.save(tmp_path / "shapes.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["shapes.npz"]
    assert (tmp_path / "shapes.npz").read_bytes() == before


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    with pytest.raises(FileNotFoundError):
        History.load(path)
    path.write_bytes(b"not an archive")
    with pytest.raises(ValueError, match=r"other\.npz is not an archive of shapes"):
        History.load(path)
    np.savez(path, steps=np.array([0]))
    with pytest.raises(ValueError, match="are missing"):
        History.load(path)
    np.savez(path, steps=np.array([None]), allow_pickle=True)  # an object array: a pickle inside
    with pytest.raises(ValueError, match="not an archive of shapes"):
        History.load(path)
    recorded().save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match="not an archive of shapes"):
        History.load(path)
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(ValueError, match="not an archive of shapes"):
        History.load(tmp_path / "array.npy")
    good = {"hinges/a": np.array([0.0, 1.0]), "slopes/a": np.zeros((2, 2, 2))}
    np.savez(path, steps=np.array([5, 4]), **good)
    with pytest.raises(ValueError, match=r"don't increase: \(5, 4\)"):
        History.load(path)
    np.savez(path, steps=np.array([5]), **good)
    with pytest.raises(ValueError, match=r"slopes of 'a' have shape \(2, 2, 2\)"):
        History.load(path)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="no SPLASH units"):
        track(nn.ReLU())
    with pytest.raises(TypeError, match="float"):
        track(Splash()).record(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 2"):
        track(Splash(), most=1)
    with pytest.raises(ValueError, match="nothing was recorded"):
        _ = track(Splash()).history
