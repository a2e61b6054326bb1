"""Pictures: what the lines, bars and labels of a figure stand for."""

import builtins
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from splash_units import BatchNormSplash, Splash
from splash_units.shape import History, occupancy, plot, segments, track

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import StepPatch

EXAMPLE = Path(__file__).parents[1] / "examples" / "plot_shapes.py"


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    pyplot.close("all")


def network(layers: int = 3, **options: object) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(4, 4), Splash(**options))  # type: ignore[arg-type]
        for _ in range(layers)
    ]
    for block in blocks:
        nn.init.normal_(block[1].a_neg)  # type: ignore[arg-type]
    return nn.Sequential(*blocks)


def panels(figure: pyplot.Figure) -> list[Axes]:
    return [axis for axis in figure.axes if axis.get_title()]


def line(axis: Axes, label: str) -> Line2D:
    (found,) = [line for line in axis.lines if line.get_label() == label]
    return found


def bars(axis: Axes) -> np.ndarray:
    (found,) = [patch for patch in axis.patches if isinstance(patch, StepPatch)]
    return np.asarray(found.get_data().values)


def assert_draws(curve: Line2D, y: Tensor, x: Tensor) -> None:
    drawn = np.interp(x.numpy(), *(np.asarray(t, dtype=float) for t in curve.get_data()))
    np.testing.assert_allclose(drawn, y.numpy(), atol=1e-6)


# --- shapes -----------------------------------------------------------------------------------


def test_every_unit_has_a_panel_with_its_shape() -> None:
    model = network()
    figure = plot(model)
    assert [axis.get_title() for axis in panels(figure)] == ["0.1", "1.1", "2.1"]
    x = torch.linspace(-3.5, 3.5, 200)
    for axis, block in zip(panels(figure), model, strict=True):
        assert axis.get_xlim() == (-3.5, 3.5)
        assert_draws(line(axis, "learned shape"), segments(block[1])(x), x)
        assert_draws(line(axis, "ReLU"), torch.relu(x), x)


def test_a_unit_alone() -> None:
    (axis,) = plot(Splash(1, init="abs")).axes
    x = torch.linspace(-3, 3, 50)
    assert_draws(line(axis, "learned shape"), x.abs(), x)


def test_units_with_many_shapes_show_them_and_their_mean() -> None:
    model = network(1, share="channel", features=4)
    (axis,) = panels(plot(model, limit=2.2))
    x = torch.linspace(-2.2, 2.2, 100)
    curves = segments(model[0][1])(x)
    assert_draws(line(axis, "learned shape"), curves.mean(0), x)
    thin = [line for line in axis.lines if line.get_alpha()]
    for curve, y in zip(thin, curves, strict=True):
        assert_draws(curve, y, x)

    (axis,) = panels(plot(network(1, share="channel", features=500)))
    assert len([line for line in axis.lines if line.get_alpha()]) == 64


@pytest.mark.parametrize(
    ("layers", "grid"),
    [(1, (1, 1)), (4, (1, 4)), (19, (4, 5)), (40, (5, 8))],
)
def test_panels_fill_a_grid(layers: int, grid: tuple[int, int]) -> None:
    figure = plot(network(layers))
    assert len(panels(figure)) == layers
    assert panels(figure)[0].get_gridspec().get_geometry() == grid


def test_long_names_keep_their_end() -> None:
    model = nn.ModuleDict({"encoder_with_a_long_name": nn.ModuleDict({"activation": Splash()})})
    (axis,) = panels(plot(model))
    assert axis.get_title() == "….activation"


def test_options(tmp_path: Path) -> None:
    figure = plot(network(4), columns=2, limit=5, title="Four", path=tmp_path / "four.svg")
    assert panels(figure)[0].get_gridspec().get_geometry() == (2, 2)
    assert panels(figure)[0].get_xlim() == (-5, 5)
    assert figure.get_suptitle() == "Four"
    assert "<svg" in (tmp_path / "four.svg").read_text()
    assert not pyplot.get_fignums()  # a saved figure is closed, one that isn't stays open
    plot(Splash())
    assert len(pyplot.get_fignums()) == 1


# --- inputs -----------------------------------------------------------------------------------


def test_the_histogram_of_inputs_is_behind_the_shape() -> None:
    x = torch.tensor([-9.0, -1.0, -1.0, -1.0, 0.5, 0.5, 2.0, torch.nan])
    figure = plot(Splash(), x)
    (axis,) = figure.axes
    heights = bars(axis)
    centres = np.linspace(-3.5, 3.5, 81)[:-1] + 3.5 / 80
    filled = {round(float(c), 2): float(h) for c, h in zip(centres, heights, strict=True) if h}
    assert sorted(filled.values()) == pytest.approx([0.8 / 3, 0.8 * 2 / 3, 0.8])
    for value, place in zip([3, 2, 1], [-1.0, 0.5, 2.0], strict=True):
        (near,) = [h for c, h in filled.items() if abs(c - place) <= 0.05]
        assert near == pytest.approx(0.8 * value / 3)
    assert [text.get_text() for text in axis.texts] == ["← 14 %"]  # one of seven is off the axis


def test_each_panel_has_its_own_inputs() -> None:
    model, x = network(), torch.randn(400, 4)
    for axis, visits in zip(
        panels(plot(model, [(x, 0)])), occupancy(model, x).values(), strict=True
    ):
        heights, edges = bars(axis), np.linspace(-3.5, 3.5, 81)
        share_right = heights[edges[:-1] >= 0].sum() / heights.sum()
        inside = visits.counts.double()
        assert share_right == pytest.approx((inside[4:].sum() / inside.sum()).item(), abs=0.02)


def test_a_unit_behind_batch_norm_shows_what_was_normalised() -> None:
    norm, x = nn.BatchNorm1d(4), 5 + 3 * torch.randn(300, 4)
    norm(x)
    (fused,) = plot(BatchNormSplash.from_batch_norm(norm), x).axes
    (apart,) = panels(plot(nn.Sequential(norm, Splash()), x))
    assert np.array_equal(bars(fused), bars(apart))


# --- evolution --------------------------------------------------------------------------------


def evolving(records: int) -> tuple[nn.Sequential, object]:
    model = network(2)
    shapes = track(model)
    for step in range(records):
        shapes.record(10 * step)
        with torch.no_grad():
            model[0][1].a_pos += 0.1  # type: ignore[operator]
    return model, shapes


@pytest.mark.parametrize("saved", [False, True])
def test_evolution_goes_from_the_first_shape_to_the_last(tmp_path: Path, saved: bool) -> None:
    _, shapes = evolving(5)
    history = shapes.history  # type: ignore[attr-defined]
    if saved:
        history.save(tmp_path / "shapes.npz")
        shapes = History.load(tmp_path / "shapes.npz")
    figure = plot(shapes)  # type: ignore[arg-type]
    first_panel = panels(figure)[0]
    x = torch.linspace(-3.5, 3.5, 100)
    curves = history.shapes("0.1")(x)
    assert line(first_panel, "start").get_linestyle() == "--"
    assert_draws(line(first_panel, "start"), curves[0], x)
    drawn = [line for line in first_panel.lines if len(line.get_xdata()) == 9][:-1]
    for curve, y in zip(drawn, curves, strict=True):
        assert_draws(curve, y, x)
    lightness = [np.mean(matplotlib.colors.to_rgb(curve.get_color())) for curve in drawn]
    assert lightness == sorted(lightness, reverse=True)  # early is light, late is dark
    assert figure.axes[-1].get_ylabel() == "step"


def test_long_histories_are_thinned_but_keep_both_ends() -> None:
    _, shapes = evolving(100)
    first_panel = panels(plot(shapes))[0]  # type: ignore[arg-type]
    drawn = [line for line in first_panel.lines if len(line.get_xdata()) == 9][:-1]
    assert len(drawn) == 12
    x = torch.linspace(-3.5, 3.5, 100)
    curves = shapes.history.shapes("0.1")(x)  # type: ignore[attr-defined]
    assert_draws(drawn[0], curves[0], x)
    assert_draws(drawn[-1], curves[-1], x)


def test_a_track_can_have_inputs_behind_it_a_history_cannot() -> None:
    model, shapes = evolving(2)
    x = torch.randn(50, 4)
    tracked, plain = plot(shapes, x), plot(model, x)  # type: ignore[arg-type]
    assert np.array_equal(bars(panels(tracked)[1]), bars(panels(plain)[1]))
    with pytest.raises(ValueError, match="no network"):
        plot(shapes.history, x)  # type: ignore[attr-defined]


# --- bad input, and the example ---------------------------------------------------------------


def test_bad_input() -> None:
    with pytest.raises(TypeError, match="got list"):
        plot([Splash()])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no SPLASH units"):
        plot(nn.ReLU())
    for limit in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="limit must be a positive number"):
            plot(Splash(), limit=limit)
    with pytest.raises(ValueError, match="columns must be at least 1"):
        plot(Splash(), columns=0)


def test_where_a_figure_can_not_be_saved_is_said_before_any_batch_runs(tmp_path: Path) -> None:
    def batches() -> Iterator[Tensor]:
        pytest.fail("a batch ran")
        yield

    with pytest.raises(ValueError, match=r"no picture format 'npz'.*png"):
        plot(Splash(), batches(), tmp_path / "shapes.npz")
    with pytest.raises(FileNotFoundError, match=r"nowhere to save shapes\.png"):
        plot(Splash(), batches(), tmp_path / "nowhere" / "shapes.png")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_matplotlib(name: str, *args: object, **kwargs: object) -> object:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real_import(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(ImportError, match=r"splash-units\[plot\]"):
        plot(Splash())


def test_the_example_draws_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["plot_shapes.py", str(tmp_path), "--epochs", "1"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    pictures = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(pictures) == {"shapes.png", "evolution.png", "errors.png"}
    assert all(png.startswith(b"\x89PNG") and len(png) < 150_000 for png in pictures.values())
    said = capsys.readouterr().out
    error = float(said.split("test error ")[1].split(" %")[0])
    assert error < 30  # of 90 by chance
    assert said.count("Lipschitz") == 3
