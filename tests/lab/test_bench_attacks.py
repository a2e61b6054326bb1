"""The comparison of attacks: who takes part, and what counts as success."""

import importlib.util
import runpy
from pathlib import Path

import pytest
import torch
from attack_models import digits
from typer.testing import CliRunner

from splash_units.lab.attacks import FGSM
from splash_units.lab.benchmarks import attackers, attacks, record
from splash_units.lab.benchmarks.attacks import Comparison, Problem, Turns
from splash_units.lab.cli.app import app
from splash_units.lab.timing import Effort, Stopwatch

ONE_ROUND = Effort(0.01, 1, 1, warm_up_seconds=0.0, fewest_warm_ups=0)


@pytest.fixture
def problem():
    network, images, labels = digits()
    right = network(images).argmax(1) == labels
    return Problem(network, images[right], labels[right], {"network": "a small one"})


def test_parts_are_cut_from_the_front_and_must_be_there(problem):
    (first, _), (second, labels) = problem.parts(2, 5)
    assert torch.equal(first, problem.images[:5])
    assert torch.equal(second, problem.images[5:10])
    assert torch.equal(labels, problem.labels[5:10])
    with pytest.raises(ValueError, match=r"3 x 100 images are more than the \d+"):
        problem.parts(3, 100)


def test_success_is_decided_here(problem):
    """Black images, images beyond the budget and images still right are none."""
    ((images, labels),) = problem.parts(1, 20)
    fooling = FGSM(0.3)(problem.network, images, labels)
    assert fooling.fooled[:12].sum() >= 3
    mixed = torch.cat([fooling.images[:12], torch.zeros_like(images[:4]), images[16:]])
    turn = Turns(lambda network, x, y: mixed, problem.network, [(images, labels)])
    turn()
    found = attacks.findings(turn, attacks.within(0.3))
    assert found["images"] == found["images_a_turn"] == 20
    assert found["fooled"] == int(fooling.fooled[:12].sum())
    distances = fooling.l2[:12][fooling.fooled[:12]]
    assert found["median_l2"] == pytest.approx(float(distances.median()), rel=1e-5)
    too_far = attacks.findings(turn, attacks.within(0.2))
    assert (too_far["fooled"], too_far["median_l2"]) == (0, None)


def test_pixels_are_counted_once_whatever_their_channels():
    clean = torch.zeros(2, 3, 4, 4)
    found = clean.clone()
    found[:, :, 1, 1] = 1
    found[1, 0, 2, 2] = 1
    assert attacks.at_most_pixels(1)(found, clean).tolist() == [True, False]


def test_a_long_attack_gets_new_images_every_round(problem):
    seen = []

    def attacker(network, images, labels):
        seen.append(images)
        return images

    comparison = Comparison("x", {"ours": attacker}, speedup=2, images=3, rounds=2)
    case = attacks.case(comparison, problem)
    record.measure(case, Effort(0.01, 2, 2, warm_up_seconds=0.0, fewest_warm_ups=0), Stopwatch())
    assert torch.equal(torch.cat(seen), problem.images[:6])


def test_only_those_installed_take_part(problem, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("art",) else there(name)
    )
    assert "ART" in attackers.missing_peers()
    assert "ours" not in attackers.missing_peers()
    for case in attacks.cases(problem, images=2):
        assert "ART" not in case.contenders
        assert set(case.findings) == set(case.contenders)
        assert {target.contender for target in case.targets} <= {"ours"}
        assert {target.against for target in case.targets} <= set(case.contenders)


def test_foolbox_takes_its_turn(problem):
    pytest.importorskip("foolbox")
    fgsm = next(attacks.comparisons())
    pair = {name: fgsm.attackers[name] for name in ("ours", "foolbox")}
    case = attacks.case(Comparison("FGSM", pair, 1.5, 40, fgsm.holds, long=False), problem)
    found = record.measure(case, ONE_ROUND, Stopwatch())
    ours, foolbox = found["contenders"]["ours"], found["contenders"]["foolbox"]
    assert ours["fooled"] == foolbox["fooled"]
    assert ours["median_l2"] == foolbox["median_l2"]
    (target,) = found["targets"]
    assert target["measured"]["median"] == ours["median"] / foolbox["median"]


def test_the_command_measures_and_says_what_was_attacked(problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(attacks, "problem", lambda store: problem)
    arguments = ["bench", "attacks", "--only", "FGSM", "--quick", "--images", "8"]
    done = CliRunner().invoke(app, [*arguments, "--output", "r.json"])
    assert done.exit_code == 0, done.output
    assert "fooled" in done.output
    (run,) = record.load(tmp_path / "r.json")["runs"]
    assert run["attacked"] == {"network": "a small one"}
    assert run["cases"][0]["contenders"]["ours"]["images"] == 8


def test_the_page_shows_the_results_that_are_kept(monkeypatch):
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(root / "benchmarks")
    script = runpy.run_path(str(root / "benchmarks" / "render_attacks.py"))
    page = (root / "docs" / "attacks_speed.md").read_text(encoding="utf-8")
    results = record.load(root / "benchmarks" / "results" / "attacks.json")
    assert script["filled"](page, results) == page
    assert {"FGSM", "pixels, k = 5"} <= {case["name"] for _, case in record.all_cases(results)}


BOTH = "<!-- speed --><!-- /speed --><!-- cost --><!-- /cost -->"
PAGES = {
    "a place that is missing": "<!-- speed -->\n<!-- /speed -->",
    "a place too many": f"{BOTH}<!-- x --><!-- /x -->",
    "a place twice": BOTH * 2,
    "a place without an end": "<!-- speed --><!-- /speed --> <!-- cost -->",
}


@pytest.mark.parametrize("case", PAGES)
def test_a_page_that_does_not_fit_its_texts_is_refused(case):
    pages = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "pages.py"))
    with pytest.raises(ValueError, match="the page must have"):
        pages["filled"](PAGES[case], {"speed": "fast", "cost": "little"})


def test_a_page_is_filled_where_it_says_so():
    pages = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "pages.py"))
    page = "a <!-- cost -->\nold\n<!-- /cost --> b <!-- speed --><!-- /speed -->"
    filled = pages["filled"](page, {"speed": r"\1 fast", "cost": "little"})
    assert filled == (
        "a <!-- cost -->\nlittle\n<!-- /cost --> b <!-- speed -->\n\\1 fast\n<!-- /speed -->"
    )
