"""The study of the slopes' gradient scale: its rules, its results, and the page that shows them."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from splash_units import Splash

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def study() -> ModuleType:
    path = REPOSITORY / "benchmarks" / "slopes.py"
    specification = importlib.util.spec_from_file_location("slopes_study", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


def test_a_rule_is_a_factor_and_a_power_and_never_enlarges(study):
    rules = {rule.name: rule for rule in study.RULES}
    assert rules["literal"].scale(10_000) == 1
    assert rules["3/sqrt(n)"].scale(3600) == pytest.approx(0.05)
    assert rules["3/sqrt(n)"].scale(4) == 1
    assert rules["1/n"].scale(50) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("options", "sharing"),
    [({}, 128), ({"share": "channel", "features": 8}, 16), ({"share": "unit"}, 1)],
)
def test_the_study_counts_as_the_unit_does(study, options, sharing):
    x = torch.randn(3, 8, 4, 4)
    unit = Splash(**options, **({"features": (8, 4, 4)} if sharing == 1 else {}))
    assert study.elements_that_share(unit, x) == sharing


def test_a_run_that_is_in_the_file_is_not_done_again(study, tmp_path, monkeypatch, capsys):
    done = []

    def follow(job):
        done.append(job)
        return study.Course(losses=[2.0, 1.0], steps=2)

    monkeypatch.setattr(study, "follow", follow)
    jobs = [job for job in study.compare(seeds=(0,)) if job.spec.model == "mlp"][:2]
    path = tmp_path / "results.jsonl"
    study.work_off(jobs[:1], path)
    study.work_off(jobs, path)
    assert done == jobs
    assert [record["second_half"] for record in study.records(path)] == [1.0, 1.0]
    assert "1/1  compare" in capsys.readouterr().out


def test_a_divergence_is_told_by_its_step(study):
    ended = study.Course(losses=[2.0] * 7, steps=10, diverged=True).summary(1.0)
    assert ended["second_half"] is None
    assert study.cell([ended]) == "NaN at step 7"
    fine = [study.Course(losses=[loss] * 4, steps=4).summary(1.0) for loss in (1.0, 2.0)]
    assert study.cell(fine) == "1.500 ± 0.707 (2)"
    assert study.cell([]) == ""


def test_the_difference_to_relu_is_taken_seed_by_seed(study):
    def run(rule, seed, loss):
        return {"rule": rule, "spec": {"seed": seed} if seed else {}, "second_half": loss}

    relu = [run("relu", 0, 1.0), run("relu", 1, 2.0), run("relu", 2, 3.0)]
    runs = [run("literal", 0, 0.5), run("literal", 1, 1.7), run("literal", 2, None)]
    assert study.beside(runs, relu) == "; -0.400 ± 0.141"
    assert study.beside(runs[:1], relu) == ""
    assert study.beside(relu, relu) == ""


def test_the_page_shows_the_results_as_they_are(study):
    page = (REPOSITORY / "docs" / "slopes.md").read_text(encoding="utf-8")
    rows = [row for row in study.tables(study.records(study.RESULTS)).splitlines() if row]
    assert len(rows) > 20
    assert [row for row in rows if row not in page] == []


def test_every_session_says_where_it_ran(study):
    lines = [json.loads(line) for line in study.RESULTS.read_text().splitlines()]
    sessions = [line for line in lines if "session" in line]
    assert sessions
    assert all({"command", "processor", "versions", "commit"} <= line.keys() for line in sessions)
    assert not any("host" in line for line in sessions)
