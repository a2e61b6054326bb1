"""The quick start: every unit a row, pictures that are pictures, and nothing run twice."""

import statistics

import pytest
from typer.testing import CliRunner

from splash_units.lab import cluster, figures, tables
from splash_units.lab.campaign import Failed, Planned
from splash_units.lab.cli.app import app
from splash_units.lab.quickstart import EPOCHS, SEEDS, UNITS, attacks, by_unit, rows, specs
from splash_units.lab.spec import TrainSpec
from splash_units.lab.store import Store
from splash_units.lab.studies import quickstart as declared


def store_result(store, unit, seed, **result):
    spec = TrainSpec(model="lenet5", data="digits", unit=unit, seed=seed, epochs=EPOCHS)
    with store.claim(spec) as work:
        work.begin({"layout": {}, "constants": {}}, resumed=False)
        work.finish({"status": "done", **result}, {})
    return store.run(spec)


def test_five_units_three_seeds_on_the_embedded_data():
    wanted = specs()
    assert len(wanted) == len(set(wanted)) == len(UNITS) * len(SEEDS) == 15
    assert {(spec.model, spec.data) for spec in wanted} == {("lenet5", "digits")}
    assert {spec.unit for spec in wanted[:5]} == {"relu", "prelu", "apl", "swish", "splash"}


def test_rows_are_mean_and_sample_deviation(tmp_path):
    store = Store(tmp_path)
    errors = (0.01, 0.02, 0.04)
    runs = [
        store_result(store, "relu", seed, test_error=error, train_loss=0.5)
        for seed, error in enumerate(errors)
    ]
    runs.append(store_result(store, "splash", 0, test_error=0.03, train_loss=0.25))
    runs.append(store_result(store, "swish", 0, why="it blew up"))
    table = {row.unit: row for row in rows(by_unit(runs))}
    relu = table["relu"]
    assert relu.error.mean == pytest.approx(sum(errors) / 3)
    assert relu.error.std == pytest.approx(statistics.stdev(errors))
    assert (relu.error.n, relu.diverged, relu.against_relu) == (3, 0, None)
    splash = table["splash"]
    assert (splash.error.mean, splash.error.std, splash.train_loss) == (0.03, None, 0.25)
    assert splash.against_relu.difference == pytest.approx(0.03 - sum(errors) / 3)
    assert splash.p is None  # one seed has no spread to test against
    assert (table["swish"].error, table["swish"].diverged) == (None, 1)
    assert (table["apl"].error, table["apl"].diverged) == (None, 0)


def test_units_are_tested_with_a_correction_for_their_number(tmp_path):
    store = Store(tmp_path)
    runs = [
        store_result(store, unit, seed, test_error=error, train_loss=0.5)
        for unit, errors in {"relu": (1, 2, 4), "splash": (6, 7, 9), "apl": (2, 3, 4)}.items()
        for seed, error in enumerate(errors)
    ]
    table = {row.unit: row for row in rows(by_unit(runs))}
    assert table["splash"].p == pytest.approx(2 * table["splash"].against_relu.welch_p)


def test_a_network_that_diverged_is_not_attacked(tmp_path):
    store = Store(tmp_path)
    runs = [
        store_result(store, "relu", 0, test_error=0.1, train_loss=0.5),
        store_result(store, "swish", 0, status="diverged", why="it blew up"),
    ]
    wanted = attacks(runs)
    assert {spec.train.unit for spec in wanted} == {"relu"}
    assert {spec.attack for spec in wanted} == {"fgsm", "pgd", "pixels"}


def test_the_command_ends_with_a_table_pictures_and_a_report(tmp_path, monkeypatch):
    monkeypatch.setattr(declared, "IMAGES", {"fgsm": 8, "pgd": 4, "pixels": 2})
    monkeypatch.setattr(declared, "EPS", {"fgsm": (0.05,), "pgd": (0.05,)})
    monkeypatch.setattr(figures, "NAMES", ())  # the report has tests of its own
    monkeypatch.setattr(tables, "TABLES", {})
    monkeypatch.chdir(tmp_path)
    arguments = ["quickstart", "--seeds", "1", "--epochs", "1", "--processes", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    for unit in UNITS:
        assert f"\n{unit} " in done.output
    assert "% (1)" in done.output
    assert "scale short" in done.output
    for name in ("curves.png", "shapes.png"):
        assert (tmp_path / "quickstart" / name).read_bytes().startswith(b"\x89PNG")
    assert done.output.rstrip().endswith("report: quickstart/report.html")
    page = (tmp_path / "quickstart" / "report.html").read_text(encoding="utf-8")
    for words in ("5 runs: 5 done", "FGSM", "PGD", "pixels"):
        assert words in page
    assert {run.record()["sessions"][0]["threads"] for run in Store("runs").runs()} == {1}

    def never(*_):
        raise AssertionError("workers were started though all results are there")

    monkeypatch.setattr(cluster, "_local_client", never)
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.output


def test_a_failing_run_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def one_fails(specs, store, **_):
        yield Planned(tuple(specs), (1.0,) * len(specs))
        yield Failed(specs[0], "OSError: no space left")

    monkeypatch.setattr(cluster, "run_all", one_fails)
    done = CliRunner().invoke(app, ["quickstart", "--seeds", "1", "--epochs", "1"])
    assert done.exit_code == 1
    assert "relu · seed 0 · short · epochs=1: OSError: no space left" in done.stderr
