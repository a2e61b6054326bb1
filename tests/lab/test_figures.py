"""Figures: what they say is what the store holds, and what is missing is said."""

import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import vl_convert

from splash_units import Splash
from splash_units.lab import figures
from splash_units.lab.evolution import evolutions, nearest, short_name, splash_curves
from splash_units.lab.figures.choosing import Missing, means
from splash_units.lab.figures.images import magnified
from splash_units.lab.figures.style import colours
from splash_units.lab.findings import claim
from splash_units.lab.inputs import EDGES
from splash_units.lab.spec import (
    AttackSpec,
    CostSpec,
    SeparationSpec,
    TrainSpec,
    TransferSpec,
    UnitChoice,
)
from splash_units.lab.store import Store

SEEDS = (0, 1, 2)
LOSSES = {"relu": 0.5, "splash": 0.25}


def spec(unit: str, seed: int = 0, **changes: object) -> TrainSpec:
    return TrainSpec(**{"model": "lenet5", "unit": unit, "seed": seed, "scale": "smoke", **changes})


def finished(store: Store, of: TrainSpec, loss: float = 1.0, error: float = 0.1) -> None:
    """A run as training leaves it, with two layers' slopes at three times."""
    layers = ("body.unit1.1", "body.unit2.1")
    hinges = [0.0, 1.0, 2.0, 2.5]
    layout = {f"{layer}.{side}": [4] for layer in layers for side in ("a_pos", "a_neg")}
    record = {
        "plan": {"epochs": 2},
        "parameters": 100,
        "layout": layout,
        "constants": {f"{layer}.hinges": hinges for layer in layers},
    }
    with store.claim(of) as work:
        work.begin(record, resumed=False)
        for epoch in range(3):
            slopes = {name: torch.tensor([1.0, 0, 0, epoch]) for name in layout}
            work.append_slopes(float(epoch), slopes)
            if epoch:
                numbers = {"train_loss": loss / epoch, "test_error": error, "seconds": 1.0}
                work.append_epoch({"epoch": epoch, **numbers})
        histograms = {layer: torch.ones(len(EDGES) - 1) for layer in layers}
        result = {"status": "done", "test_error": error, "train_loss": loss}
        work.finish(result, {"w": torch.ones(1)}, histograms)


def attacked(store: Store, of: AttackSpec, fooled: int, **more: object) -> None:
    images = torch.zeros(4, 1, 4, 4)
    tensors = {
        "fooled": torch.arange(4) < fooled,
        "was_right": torch.ones(4, dtype=torch.bool),
        "l2": torch.tensor([0.1, 0.3, 0.6, 0.9], dtype=torch.float64),
        "clean": images,
        "images": images + 0.25,
    }
    with claim(store, of) as draft:
        draft.begin({})
        result = {"images": 4, "attempts": 4, "fooled": fooled, "robust_accuracy": 1 - fooled / 4}
        draft.finish({**result, **more}, tensors)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def data_of(chart: object) -> list[dict]:
    """All rows that a chart carries."""
    rows: list[dict] = []

    def walk(node: object) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("values"), list) and isinstance(node["values"][:1], list):
                rows.extend(row for row in node["values"] if isinstance(row, dict))
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(json.loads(chart.to_json()))
    return rows


def test_an_empty_store_gives_only_what_needs_no_runs(store):
    theory = ("families", "approximation")
    for name in theory:
        figures.draw(name, store)
    for name in set(figures.NAMES) - set(theory):
        with pytest.raises(Missing) as missing:
            figures.draw(name, store)
        assert missing.value.command == f"splash run {figures.figure(name).study}"


def test_an_unknown_figure_is_answered_with_the_nearest(store):
    with pytest.raises(ValueError, match=r"unknown figure 'hinge'; did you mean hinges"):
        figures.draw("hinge", store)


def test_the_units_errors_lie_below_the_theorems_bound(store):
    rows = [row for row in data_of(figures.draw("approximation", store)) if "bound" in row]
    assert {row["S"] for row in rows} >= {3, 7, 31}
    assert all(0 < row["error"] < row["bound"] for row in rows)
    by_name = {name: [r["error"] for r in rows if r["label"] == name] for name in ("tanh", "ELU")}
    for errors in by_name.values():
        assert errors == sorted(errors, reverse=True)


def test_grounded_families_go_through_the_origin():
    from splash_units.lab.figures.theory import _family_lines

    for name, _, lines in _family_lines():
        crosses = [np.interp(0.0, x, y) for x, y in lines if x[0] <= 0 <= x[-1]]
        assert (abs(crosses[0]) < 1e-12) == (name not in ("general", "continuous")), name


def test_curves_are_means_over_seeds_with_their_interval(store):
    for seed in SEEDS:
        for unit, loss in LOSSES.items():
            finished(store, spec(unit, seed), loss + 0.01 * seed)
        finished(store, spec("splash_positive", seed), 1.0)
    rows = [row for row in data_of(figures.draw("ablation", store)) if "mean" in row]
    first = next(row for row in rows if row["label"] == "splash" and row["epoch"] == 1)
    assert first["n"] == 3
    assert first["mean"] == pytest.approx(0.26)
    half = 4.302652729911275 * 0.01 / math.sqrt(3)  # t at 97.5 % with two degrees of freedom
    assert first["high"] - first["mean"] == pytest.approx(half)
    assert {row["label"] for row in rows} == {"relu", "splash", "splash_positive"}


def test_one_seed_has_no_interval(store):
    for unit in ("relu", "splash", "splash_negative"):
        finished(store, spec(unit))
    rows = [row for row in data_of(figures.draw("ablation", store)) if "mean" in row]
    assert all(row["low"] is None for row in rows)


def test_the_larger_scale_is_shown_and_unfinished_runs_are_not(store):
    for unit in ("relu", "splash", "splash_negative"):
        finished(store, spec(unit), 9.0)
        finished(store, spec(unit, scale="short"), 1.0)
    with store.claim(spec("splash_positive", scale="short")) as work:
        work.begin({}, resumed=False)
    chart = figures.draw("ablation", store)
    rows = [row for row in data_of(chart) if "mean" in row]
    assert {row["mean"] for row in rows} == {1.0, 0.5}
    assert "splash_positive" not in {row["label"] for row in rows}
    assert "scale short" in json.dumps(chart.to_dict())


def test_shapes_are_those_of_the_unit():
    unit = Splash(7, init="random", share="channel", features=3)
    a_pos, a_neg = (p.detach().numpy() for p in (unit.a_pos, unit.a_neg))
    x = np.linspace(-4, 4, 33)
    expected = unit(torch.tensor(x, dtype=torch.float32).view(-1, 1).expand(-1, 3)).mean(1)
    curves = splash_curves(a_pos[None], a_neg[None], unit.hinges.numpy(), x)
    np.testing.assert_allclose(curves[0], expected.detach().numpy(), atol=1e-6)


def test_evolution_shows_the_times_nearest_to_those_asked_for(store):
    finished(store, spec("splash"))
    shapes = store.run(spec("splash")).shapes()
    first, second = evolutions(shapes, [0.0, 1.9, 2.0])
    assert (first.layer, second.layer) == ("unit1", "unit2")
    assert first.times.tolist() == [0, 2]
    assert nearest(np.array([0.0, 1.0, 4.0]), [0.4, 0.6, 9.0]) == [0, 1, 2]
    assert short_name("body.block1.unit2.0") == "block1.unit2"
    rows = data_of(figures.draw("evolution-lenet5", store))
    assert {row["time"] for row in rows if "time" in row} == {"0", "1", "2"}
    assert sum("x2" in row for row in rows) == 2 * (len(EDGES) - 1)  # a histogram a layer


def test_error_against_hinges_knows_sharing(store):
    for count in (3, 7, 11):
        finished(store, spec("splash", unit_options={"num_hinges": count}), error=0.01 * count)
    finished(store, spec("splash", unit_options={"share": "unit"}), error=0.5)
    rows = [row for row in data_of(figures.draw("hinges", store)) if "sharing" in row]
    found = {(row["S"], row["sharing"]): row["mean"] for row in rows}
    assert found == pytest.approx(
        {(3, "shared"): 3, (7, "shared"): 7, (11, "shared"): 11, (7, "independent"): 50}
    )


def test_cost_stands_beside_the_papers(store):
    units = (
        UnitChoice(label="relu", unit="relu"),
        UnitChoice(label="S=3", unit="splash", options={"num_hinges": 3}),
    )
    with claim(store, CostSpec(model="mlp", units=units)) as draft:
        draft.begin({})
        result = {"labels": ["relu", "S=3"], "ratio": [1.0, 1.1], "quantiles": [[1, 1], [1, 1.2]]}
        draft.finish(result, {})
    rows = [row for row in data_of(figures.draw("cost", store)) if "ratio" in row]
    found = {(row["label"], row["S"]): row["ratio"] for row in rows}
    assert found[("here", 3)] == 1.1
    assert found[("in the paper", 3)] == pytest.approx(10 / 6)
    assert ("here", 7) not in found


def test_success_and_what_is_left(store):
    for unit, fooled in (("relu", 4), ("splash", 1)):
        finished(store, spec(unit))
        for eps in (0.02, 0.04):
            attack = AttackSpec(train=spec(unit), attack="fgsm", options={"eps": eps})
            attacked(store, attack, fooled)
        worst = AttackSpec(train=spec(unit), attack="worst_case", options={"eps": 0.02})
        attacked(store, worst, fooled)
    rows = [row for row in data_of(figures.draw("success-eps", store)) if "mean" in row]
    assert {(r["label"], r["eps"]): r["mean"] for r in rows} == {
        ("relu", 0.02): 100, ("relu", 0.04): 100, ("splash", 0.02): 25, ("splash", 0.04): 25,
    }  # fmt: skip
    rows = [row for row in data_of(figures.draw("worst-case", store)) if "mean" in row]
    assert {row["label"]: row["mean"] for row in rows} == {"relu": 0, "splash": 75}


def test_images_of_every_attack_where_the_least_change_fools_enough(store):
    for unit, fooled in (("relu", {0.02: 0, 0.04: 1, 0.08: 1}), ("splash", {0.02: 1, 0.04: 4})):
        finished(store, spec(unit))
        for eps, count in fooled.items():
            attack = AttackSpec(train=spec(unit), attack="fgsm", options={"eps": eps})
            attacked(store, attack, count)
    attacked(store, AttackSpec(train=spec("relu"), attack="pixels", options={"k": 3}), 2)
    attacked(store, AttackSpec(train=spec("relu"), attack="noise", options={"eps": 0.02}), 0)
    rows = [row for row in data_of(figures.draw("adversarial", store)) if "url" in row]
    shown = Counter(row["attack"] for row in rows)
    assert shown == {
        "FGSM ε = 0.04: LeNet5 with SPLASH": 3 * 4,
        "pixels k = 3: LeNet5 with ReLU": 6,
    }
    before, after = (
        {row["url"] for row in rows if row["kind"] == kind} for kind in ("before", "after")
    )
    assert all(url.startswith("data:image/png;base64,") for url in before | after)
    assert not before & after


def test_names_are_as_the_paper_prints_them(store):
    for unit in ("relu", "splash"):
        finished(store, spec(unit))
        attack = AttackSpec(train=spec(unit), attack="fgsm", options={"eps": 0.02})
        attacked(store, attack, 1)
    drawn = vl_convert.vegalite_to_svg(figures.draw("success-eps", store).to_dict())
    texts = set(re.findall(r"<text[^>]*>([^<]*)</text>", drawn))
    assert {"ReLU", "SPLASH", "FGSM"} <= texts
    assert not {"relu", "splash", "fgsm"} & texts


def test_a_change_is_seen_however_small():
    change = np.array([[[0.0, 0.01], [-0.005, 0.0]]])
    picture, factor = magnified(change)
    assert factor == 50
    assert picture.tolist() == [[[0.5, 1.0], [0.25, 0.5]]]
    assert magnified(0 * change)[0].tolist() == [[[0.5, 0.5], [0.5, 0.5]]]


def test_of_settings_with_as_many_attacks_always_the_same_is_shown(store):
    for model in ("resnet20", "nin", "lenet5", "allcnn", "mlp"):
        train = spec("relu", model=model)
        finished(store, train)
        attacked(store, AttackSpec(train=train, attack="fgsm", options={"eps": 0.02}), 1)
    assert "All-CNN on digits" in json.dumps(figures.draw("success-eps", store).to_dict())


def test_distance_to_the_nearest_mistake(store):
    finished(store, spec("relu"))
    attack = AttackSpec(train=spec("relu"), attack="cw")
    attacked(store, attack, 3, success_at_l2={"0.5": 0.5})
    rows = [row for row in data_of(figures.draw("success-l2", store)) if "l2" in row]
    shares = {round(row["l2"], 3): row["mean"] for row in rows}
    assert shares[0.0] == 0
    assert shares[0.5] == 50  # 0.1 and 0.3
    assert shares[2.0] == 75  # the fourth image was not fooled, whatever its row says


def test_transfer_and_separation(store):
    trains = (spec("relu"), spec("splash"))
    with claim(store, TransferSpec(trains=trains)) as draft:
        draft.begin({})
        result = {"labels": ["relu", "splash"], "fooled": [[8, 2], [4, 8]], "images": 8}
        draft.finish(result, {})
    rows = [row for row in data_of(figures.draw("transfer", store)) if "share" in row]
    assert {(row["made"], row["shown"]): row["share"] for row in rows}[("relu", "splash")] == 0.25
    for train in trains:
        with claim(store, SeparationSpec(train=train)) as draft:
            draft.begin({})
            tensors = {"coordinates": torch.rand(6, 2), "labels": torch.tensor([6, 8] * 3)}
            draft.finish({"silhouette": 0.5, "purity": 0.75}, tensors)
    chart = figures.draw("separation", store)
    assert len([row for row in data_of(chart) if "class" in row]) == 12
    assert "silhouette 0.500 · neighbour purity 0.750" in json.dumps(
        chart.to_dict(), ensure_ascii=False
    )


@pytest.mark.parametrize(
    ("format", "begins"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_a_figure_is_written_in_every_format(tmp_path, store, format, begins):
    path = figures.save(figures.draw("families", store), tmp_path / f"families.{format}")
    assert path.read_bytes().startswith(begins)


def test_a_format_nobody_knows_is_refused(tmp_path, store):
    with pytest.raises(ValueError, match=r"svg, png, pdf, not 'gif'"):
        figures.save(figures.draw("families", store), tmp_path / "families.gif")


def test_means_leave_out_what_is_not_there():
    rows = [{"a": 1, "v": 1.0}, {"a": 1, "v": None}, {"a": 1, "v": 3.0}]
    (found,) = means(rows, ("a",), "v")
    assert (found["mean"], found["n"]) == (2.0, 2)


def test_units_keep_their_colours_and_no_two_share_one():
    shades = colours(["relu", "x", "splash", "y"])
    assert shades[0] == "#444444"
    assert shades[2] == "#D55E00"
    assert len(set(shades)) == 4
