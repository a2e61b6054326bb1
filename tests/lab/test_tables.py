"""Tables from stores filled by hand: numbers worked out beforehand, and what is missing shown."""

import csv
import io
import re
from contextlib import suppress
from pathlib import Path

import pytest
from made_store import add_attack, add_divergence, add_failure, add_finding, add_run
from typer.testing import CliRunner

from splash_units.lab import studies, tables
from splash_units.lab.cli.app import app
from splash_units.lab.findings import finding
from splash_units.lab.spec import AttackSpec, CostSpec, SeparationSpec, TrainSpec, TransferSpec
from splash_units.lab.store import Store
from splash_units.lab.tables.attacked import common_gaps
from splash_units.lab.tables.cells import measured, winners
from splash_units.lab.tables.results import Group, seedless
from splash_units.lab.tables.table import Cell, Table

ERRORS = {0: 0.30, 1: 0.31, 2: 0.32}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store, which need not survive a power cut."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    return Store(tmp_path / "runs")


def specs_of(study: str, scale: str = "short", only: str | None = None, **options):
    return studies.load(study).specs(scale, only=only, **options)


def cell(table: Table, column: str, *words: str) -> Cell:
    """The one cell of a column in the row that begins with, or has, these words."""
    rows = [row for row in table.rows if set(words) <= {c.text for c in row}]
    assert len(rows) == 1, (words, len(rows))
    return rows[0][table.columns.index(column)]


def group(*values: float, **lacking: int) -> Group:
    return Group(dict(enumerate(values)), (), lacking, 3)


# Cells


@pytest.mark.parametrize(
    ("values", "lacking", "text", "missing"),
    [
        ([30.0, 31.0, 32.0], {}, "31.00 ± 1.00 (3)", False),
        ([30.0, 32.0], {"missing": 1}, "31.00 ± 1.41 (2 of 3)", True),
        ([30.0, 32.0], {"diverged": 1}, "31.00 ± 1.41 (2, 1 diverged)", True),
        ([30.0], {"missing": 1, "failed": 1}, "30.00 (1 of 2, 1 failed)", True),
        ([30.0], {}, "30.00 (1)", False),
        ([], {"missing": 3}, "missing", True),
        ([], {"diverged": 2, "missing": 1}, "2 diverged", True),
        ([], {"failed": 1, "running": 2}, "1 failed, 2 running", True),
    ],
)
def test_a_cell_says_how_many_and_what_is_lacking(values, lacking, text, missing):
    found = measured(group(*values, **lacking))
    assert (found.text, found.missing) == (text, missing)
    assert found.value == (sum(values) / len(values) if values else None)


def test_the_best_must_beat_every_other():
    apart, near, far = group(1.0, 1.1, 0.9), group(1.1, 1.2, 1.0), group(9.0, 9.1, 8.9)
    assert winners([[apart, far]]) == [0]
    assert winners([[far, apart]]) == [1]
    assert winners([[apart, far]], lower=False) == [1]
    assert winners([[apart, near, far]]) == [None]
    assert winners([[apart, group(5.0)]]) == [None]  # one seed can't be tested
    assert winners([[apart, group()]]) == [None]  # nothing to compare with
    assert winners([[], [apart, far]]) == [None, 0]


def test_the_best_is_corrected_for_the_number_of_columns():
    """A p-value of about 0.03 alone is below 0.05, and one of three such is not."""
    column = [group(1.0, 1.1, 1.2), group(1.3, 1.45, 1.5)]
    assert winners([column]) == [0]
    assert winners([column] * 3) == [None] * 3


def test_a_table_has_as_many_cells_as_columns():
    with pytest.raises(ValueError, match="2 cells, 1 columns"):
        Table("x", "X", None, ("a",), ((Cell("1"), Cell("2")),))


# From a store


def test_accuracy_from_a_store_that_lacks_some(store: Store) -> None:
    for spec in specs_of("accuracy", only="model=lenet5,data=cifar-10"):
        if spec.unit == "splash" and spec.augment == "none":
            add_run(store, spec, ERRORS[spec.seed])
        elif spec.unit == "relu" and spec.augment == "none":
            add_run(store, spec, ERRORS[spec.seed] + 0.2)
        elif spec.unit == "tanh" and spec.augment == "none":
            add_divergence(store, spec)
        elif spec.unit == "elu" and spec.seed == 0:
            add_failure(store, spec)
        elif spec.unit == "swish" and spec.seed == 1:
            add_run(store, spec, 0.4)
    table = tables.build("accuracy", store)
    assert table.scale == "short"
    best = cell(table, "CIFAR-10", "LeNet5", "SPLASH")
    assert (best.text, best.best, best.missing) == ("31.00 ± 1.00 (3)", False, False)
    assert len(best.runs) == 3
    assert best.value == pytest.approx(31)
    assert cell(table, "CIFAR-10, paper", "LeNet5", "SPLASH").text == "30.14 ± 0.99"
    assert cell(table, "CIFAR-10", "LeNet5", "tanh").text == "3 diverged"
    assert cell(table, "CIFAR-10", "LeNet5", "ELU").text == "1 failed"
    assert cell(table, "CIFAR-10", "LeNet5", "Swish").text == "40.00 (1 of 3)"
    assert cell(table, "CIFAR-10", "LeNet5", "APL").missing
    assert cell(table, "CIFAR-100", "LeNet5", "SPLASH").text == ""  # not in the paper, not asked
    assert cell(table, "CIFAR-10", "LeNet5", "best other, by mean").text == "Swish: 40.00 (1 of 3)"
    assert any(note.startswith("Missing runs: splash run accuracy") for note in table.notes)
    for format in tables.FORMATS:
        assert "31.00" in tables.render(table, format)


def test_bold_where_every_test_says_so(store: Store) -> None:
    for spec in specs_of("accuracy", only="model=lenet5,data=mnist,unit=relu+splash"):
        add_run(store, spec, ERRORS[spec.seed] + (0.2 if spec.unit == "relu" else 0))
    table = tables.build("accuracy", store)
    assert cell(table, "MNIST", "LeNet5", "SPLASH").best
    assert not cell(table, "MNIST", "LeNet5", "ReLU").best
    assert "31.00 ± 1.00 (3)*" in tables.render(table, "text")
    assert "**31.00 ± 1.00 (3)**" in tables.render(table, "markdown")
    assert r"\textbf{31.00 $\pm$ 1.00 (3)}" in tables.render(table, "latex")
    assert "Holm" in tables.render(table, "text")


def test_significance_by_hand(store: Store) -> None:
    """SPLASH 30, 31, 32 against 32, 33, 34: t = -2/sqrt(2/3), four degrees of freedom: 0.0705.

    All differences are equal, so there is no paired test.
    """
    for spec in specs_of("accuracy", only="model=lenet5,data=mnist,unit=relu+splash+elu"):
        worse = {"splash": 0.0, "relu": 0.02, "elu": 0.1}[spec.unit]
        add_run(store, spec, ERRORS[spec.seed] + worse)
    table = tables.build("significance", store)
    row = ("LeNet5", "MNIST")
    assert cell(table, "best other", *row).text == "ReLU: 33.00 ± 1.00 (3)"
    assert cell(table, "difference", *row).text == "-2.00"
    assert cell(table, "Welch p", *row).text == cell(table, "Student p", *row).text == "0.070"
    assert cell(table, "Holm", *row).text == "0.070"  # the other columns have no test
    assert cell(table, "paired p", *row).text == "no pairs"
    assert cell(table, "Hedges g", *row).text == "-1.60"
    assert cell(table, "seeds needed", *row).text == "6"
    assert cell(table, "paper's p against", *row).text == "PReLU: 0.057"
    assert cell(table, "difference", "ResNet-20", "CIFAR-10").text == "no test: missing runs"


def test_fewer_than_two_seeds_are_not_tested_and_the_cell_says_so(store: Store) -> None:
    for spec in specs_of("accuracy", only="model=lenet5,data=mnist,unit=relu+splash,seed=0"):
        add_run(store, spec, 0.3)
    table = tables.build("significance", store)
    assert cell(table, "Welch p", "LeNet5", "MNIST").text == "fewer than two seeds: no test"


def test_more_seeds_than_planned_count(store: Store) -> None:
    for spec in specs_of("accuracy", only="model=lenet5,data=mnist,unit=relu", seeds=6):
        add_run(store, spec, 0.3)
    table = tables.build("accuracy", store)
    assert cell(table, "MNIST", "LeNet5", "ReLU").text == "30.00 ± 0.00 (6)"


def test_the_scale_with_most_results_unless_asked(store: Store) -> None:
    for scale, seeds in (("smoke", 1), ("paper", 2)):
        only = "model=lenet5,data=mnist,unit=relu"
        for spec in specs_of("accuracy", scale, only=only, seeds=seeds):
            add_run(store, spec, 0.3)
    results = tables.read(store)
    assert tables.build("accuracy", results).scale == "paper"
    assert any("--scale smoke" in note for note in tables.build("accuracy", results).notes)
    smoke = tables.build("accuracy", results, scale="smoke")
    assert smoke.scale == "smoke"
    assert cell(smoke, "MNIST", "LeNet5", "ReLU").text == "30.00 (1)"
    with pytest.raises(ValueError, match="did you mean smoke"):
        tables.build("accuracy", results, scale="smok")


def test_digits_stand_in_and_the_table_says_so(store: Store) -> None:
    for spec in specs_of("ablation", "smoke", data="digits"):
        add_run(store, spec, 0.3)
    table = tables.build("ablation", store)
    assert table.scale == "smoke"
    assert "ResNet-20 on digits" in table.title
    assert table.notes[0] == "All on digits, which stands in for the study's data sets."
    assert not any(c.missing for row in table.rows for c in row)
    assert tables.build("ablation", store, data="mnist").notes[-1] == (
        "Missing runs: splash run ablation --scale short --data mnist"
    )


def test_a_table_of_a_part_of_a_study(store: Store) -> None:
    only = "model=lenet5,data=mnist,unit=relu+splash"
    for spec in specs_of("accuracy", only=only, seeds=2):
        add_run(store, spec, ERRORS[spec.seed])
    table = tables.build("accuracy", store, only=only)
    assert table.columns == ("network", "unit", "MNIST", "MNIST, paper")
    assert [row[1].text for row in table.rows] == ["ReLU", "SPLASH", "best other, by mean"]
    assert table.notes[-1] == f"Missing runs: splash run accuracy --scale short --only {only}"
    assert run("accuracy", "--store", str(store.root), "--only", only).stdout == tables.render(
        table
    )
    with pytest.raises(ValueError, match="did you mean relu"):
        tables.build("accuracy", store, only="unit=rellu")


@pytest.mark.parametrize(
    "only", ["unit=relu", "unit=splash", "seed=0", "kind=train", "kind=attack", "attack=noise",
             "attack=worst_case", "kind=transfer", "kind=cost", "model=lenet5"],
)  # fmt: skip
def test_every_table_of_every_part_renders(tmp_path: Path, only: str) -> None:
    nothing = tables.read(Store(tmp_path / "nothing"))
    rendered = 0
    for name in (name for name in tables.NAMES if name not in tables.NEED_NO_RUNS):
        with suppress(ValueError):  # the study has no such thing
            table = tables.build(name, nothing, scale="smoke", only=only)
            rendered += len(tables.render(table)) > 0
    assert rendered


def test_hinges_count_the_slopes_of_the_networks(store: Store) -> None:
    for spec in specs_of("hinges", only="model=mlp"):
        add_run(store, spec, 0.0113)
    table = tables.build("hinges", store)
    assert cell(table, "error in %", "MLP", "shared", "7").text == "1.13 ± 0.00 (3)"
    assert cell(table, "error, paper", "MLP", "independent", "11").text == "1.08"
    assert cell(table, "additional parameters", "MLP", "shared", "3").text == "8"  # as recorded
    assert cell(table, "additional parameters, paper", "MLP", "independent", "7").text == "2816"
    assert cell(table, "additional parameters, paper", "LeNet5", "independent", "3").text == (
        "more than 75000"
    )
    assert cell(table, "additional parameters", "LeNet5", "shared", "3").missing


def test_costs_beside_the_papers(store: Store) -> None:
    specs = specs_of("cost", only="kind=cost,model=mlp")
    (spec,) = [spec for spec in specs if isinstance(spec, CostSpec)]
    labels = [choice.label for choice in spec.units]
    ratios = [1.0, *(1.1 for _ in labels[2:]), None]
    quantiles = [None if r is None else [r - 0.05, r + 0.05] for r in ratios]
    add_finding(store, spec, {"labels": labels, "ratio": ratios, "quantiles": quantiles})
    table = tables.build("cost", store)
    assert cell(table, "time / ReLU's", "MLP", "SPLASH S=11").text == "1.10 (1.05 to 1.15)"
    assert cell(table, "time / ReLU's, paper", "MLP", "SPLASH S=11").text == "3.17"
    assert cell(table, "time / ReLU's, paper", "LeNet5", "SPLASH S=3").text == "1.24"
    assert cell(table, "time / ReLU's", "MLP", "APL").text == "failed"
    assert cell(table, "error, paper", "LeNet5", "maxout k=6").text == "31.01"
    assert cell(table, "error in %", "LeNet5", "maxout k=6").text == "missing"


def attacked(store: Store, study: str, units: str, fooled: dict[str, int], **numbers) -> None:
    """Attacks on LeNet5 with augmentation: so many of ten successes, one more with each seed."""
    only = f"model=lenet5,augment=moderate,unit={units}"
    for spec in specs_of(study, only=only):
        if not isinstance(spec, AttackSpec):
            continue
        if not store.run(spec.train).whole.is_dir():
            add_run(store, spec.train, 0.3)
        add_attack(store, spec, fooled[spec.train.unit] + spec.seed, 10, **numbers)


def test_counts_of_an_attack_per_thousand(store: Store) -> None:
    attacked(store, "fgsm", "relu+splash", {"relu": 7, "splash": 1}, warnings=["flat gradients"])
    table = tables.build("fgsm", store)
    row = ("LeNet5", "CIFAR-10 D-A")
    assert cell(table, "eps 0.02: per 1000", *row, "ReLU").text == "800.0 ± 100.0 (3)"
    best = cell(table, "eps 0.02: per 1000", *row, "SPLASH")
    assert (best.text, best.best) == ("200.0 ± 100.0 (3)", True)
    assert cell(table, "eps 0.02, paper", *row, "SPLASH").text == "493.0 ± 15.1"
    assert cell(table, "gap at eps 0.04", *row, "SPLASH").text == "missing"  # two units lack
    assert cell(table, "gap, paper", *row, "APL").text == "0.419"
    assert cell(table, "eps 0.02: per 1000", "LeNet5", "CIFAR-10", "ReLU").missing
    assert "Attempts each: 10." in table.notes
    assert "Warning: LeNet5, SPLASH, fgsm: flat gradients (9 times)" in table.notes


def test_gaps_are_over_images_that_fool_all_units(store: Store) -> None:
    attacked(
        store, "pixels", "relu+swish+apl+splash", {"relu": 5, "swish": 4, "apl": 3, "splash": 0}
    )
    table = tables.build("pixels", store)
    row = ("LeNet5", "CIFAR-10 D-A", "ReLU")
    # With seed 0 nothing fools SPLASH, so there is no common image; seeds 1 and 2 have some.
    assert cell(table, "gap at 1 pixel", *row).text == "0.500 ± 0.000 (2 of 3)"


def test_the_gap_is_that_of_the_accounting(store: Store) -> None:
    import torch

    from splash_units.lab.robustness import common_gap
    from splash_units.lab.tables.results import Found

    generator = torch.Generator().manual_seed(0)
    found = []
    for seed in range(3):
        train = TrainSpec(seed=seed)
        add_run(store, train, 0.3)
        spec = AttackSpec(train=train, attack="cw")
        rows = {
            "index": torch.randperm(40, generator=generator)[:30],
            "fooled": torch.rand(30, generator=generator) < 0.8,
            "probability_true": torch.rand(30, generator=generator),
            "probability_predicted": torch.rand(30, generator=generator),
        }
        found.append(Found(spec, {}, add_finding(store, spec, {}, **rows)))
    assert common_gaps(found) == pytest.approx(common_gap([one.finding for one in found]))


def test_distances_of_a_minimising_attack(store: Store) -> None:
    success = {"0.25": 0.1, "0.5": 0.4, "1.0": 0.9, "none": 1.0}
    attacked(store, "cw", "relu", {"relu": 8}, success_at_l2=success, median_l2=0.61)
    table = tables.build("cw", store)
    row = ("LeNet5", "CIFAR-10 D-A", "ReLU")
    assert cell(table, "L2 ≤ 0.5: per 1000", *row).text == "400.0 ± 0.0 (3)"
    assert cell(table, "L2 ≤ 0.25", *row).text == "100.0 ± 0.0 (3)"
    assert cell(table, "no limit", *row).text == "1000.0 ± 0.0 (3)"
    assert cell(table, "median L2", *row).text == "0.610 ± 0.000 (3)"
    assert cell(table, "paper (limit unknown)", *row).text == "932.0 ± 5.5"


def test_results_of_an_earlier_version_are_left_out_and_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("splash_units.lab.spec.HASH_VERSION", 0)
        attacked(store, "fgsm", "relu", {"relu": 5})
    for spec in specs_of("ablation"):
        add_run(store, spec, ERRORS[spec.seed])
    table = tables.build("fgsm", store)
    assert cell(table, "eps 0.02: per 1000", "LeNet5", "CIFAR-10 D-A", "ReLU").text == "missing"
    assert any(note.startswith("3 results of an earlier version") for note in table.notes)


def test_what_cannot_be_read_is_left_out(store: Store) -> None:
    attacked(store, "fgsm", "relu", {"relu": 5})
    (spec, *_) = specs_of("fgsm", only="model=lenet5,augment=moderate,unit=relu")
    (finding(store, spec).folder / "spec.json").write_text("cut sho")
    table = tables.build("fgsm", store)
    row = ("LeNet5", "CIFAR-10 D-A", "ReLU")
    assert cell(table, "eps 0.02: per 1000", *row).text.endswith("(2 of 3)")


def test_attacks_on_runs_that_diverged_say_so(store: Store) -> None:
    for spec in specs_of("boundary", only="model=nin,unit=splash"):
        add_divergence(store, spec.train)
    table = tables.build("boundary", store, scale="short")
    assert cell(table, "L2 ≤ 0.5: per 1000", "NiN", "SPLASH").text == "3 diverged"


def test_verdict_and_transfer(store: Store) -> None:
    attacked(store, "verdict", "relu+splash", {"relu": 7, "splash": 1})
    (first, *_) = specs_of("verdict", only="model=lenet5,kind=transfer,augment=moderate")
    assert isinstance(first, TransferSpec)
    counts = [[10, 5, 2, 1], [4, 10, 3, 0], [1, 1, 10, 1], [0, 0, 0, 8]]
    labels = [train.unit for train in first.trains]
    for train in first.trains:
        if not store.run(train).whole.is_dir():
            add_run(store, train, 0.3)
    add_finding(store, first, {"labels": labels, "fooled": counts, "images": 10})
    results = tables.read(store)
    table = tables.build("verdict", results)
    row = ("LeNet5", "CIFAR-10 D-A", "SPLASH")
    assert cell(table, "eps 0.01", *row).text == "80.0 ± 10.0 (3)"
    assert cell(table, "eps 0.01", *row).best
    assert cell(table, "noise of 0.04 alone", *row).value == pytest.approx(80)
    table = tables.build("transfer", results)
    assert cell(table, "shown to Swish", "LeNet5", "CIFAR-10 D-A", "ReLU").text == ("50.0 (1 of 3)")


def test_comparisons_of_a_part_of_a_study_show(store: Store) -> None:
    (transfer,) = specs_of(
        "verdict", "smoke", only="model=nin,kind=transfer,unit=relu+splash", data="digits"
    )
    for train in transfer.trains:
        add_run(store, train, 0.3)
    warning = {"warnings": ["splash hides its gradients"]}
    add_finding(store, transfer, {"fooled": [[10, 5], [2, 8]], "images": 10, **warning})
    table = tables.build("transfer", store, scale="smoke", data="digits")
    assert cell(table, "shown to SPLASH", "NiN", "ReLU").text == "50.0 (1)"
    assert not [row for row in table.rows if row[0].text == "NiN" and row[2].text == "APL"]
    assert cell(table, "shown to SPLASH", "All-CNN", "APL").text == "missing"
    assert "Warning: NiN, transfer, pgd: splash hides its gradients" in table.notes
    (cost,) = specs_of("cost", "smoke", only="kind=cost,model=mlp,unit=apl")
    labels = [choice.label for choice in cost.units]
    numbers = {"labels": labels, "ratio": [1.0, 1.3], "quantiles": [[1.0, 1.0], [1.2, 1.4]]}
    add_finding(store, cost, numbers)
    table = tables.build("cost", store, scale="smoke")
    assert cell(table, "time / ReLU's", "MLP", "APL").text == "1.30 (1.20 to 1.40)"
    assert cell(table, "time / ReLU's", "MLP", "tanh").text == "missing"


def test_separation_by_numbers(store: Store) -> None:
    for spec in specs_of("separation"):
        assert isinstance(spec, SeparationSpec)
        add_run(store, spec.train, 0.3)
        better = 0.3 if spec.train.unit == "splash" else 0.0
        numbers = {"silhouette_logits": 0.1 + better + 0.01 * spec.seed, "purity_logits": 0.9}
        numbers |= {"silhouette_map": 0.2, "purity_map": 0.8}
        add_finding(store, spec, numbers)
    table = tables.build("separation", store)
    assert cell(table, "silhouette", "SPLASH").text == "0.410 ± 0.010 (3)"
    assert cell(table, "silhouette", "SPLASH").best
    assert cell(table, "silhouette", "Holm p of the difference").text == "< 0.001"
    assert "no spread" in cell(table, "purity of the map", "Holm p of the difference").text


def test_finetune_compares_with_the_same_budget(store: Store) -> None:
    for spec in specs_of("finetune", only="model=lenet5"):
        worse = 0.1 if spec.source is None else 0.05 if spec.unit == "relu" else 0.0
        add_run(store, spec, ERRORS[spec.seed] + worse)
    table = tables.build("finetune", store)
    assert cell(table, "before", "LeNet5").text == "41.00 ± 1.00 (3)"
    assert cell(table, "on with SPLASH", "LeNet5").text == "31.00 ± 1.00 (3)"
    assert cell(table, "difference", "LeNet5").text == "-5.00"
    assert cell(table, "Holm", "LeNet5").best


def test_initialisation_and_ablation_show_losses(store: Store) -> None:
    for spec in specs_of("initialisation"):
        add_run(store, spec, 0.3, train_loss=0.5 + 0.01 * spec.seed)
    table = tables.build("initialisation", store)
    assert [row[0].text for row in table.rows] == [
        "SPLASH from relu",
        "SPLASH from leaky_relu",
        "SPLASH from identity",
        "SPLASH from abs",
        "SPLASH from random",
        "fixed ReLU",
        "fixed leaky ReLU negative_slope=0.1",
    ]
    assert table.rows[0][1].text == "0.5100 ± 0.0100 (3)"
    ablation = tables.build("ablation", store)
    assert [row[0].text for row in ablation.rows] == [
        "ReLU",
        "SPLASH",
        "fixed SPLASH",
        "SPLASH-positive",
        "SPLASH-negative",
    ]


def test_tables_without_runs(tmp_path: Path) -> None:
    nothing = tables.read(Store(tmp_path / "nothing"))
    family = tables.build("family", nothing)
    assert [row[1].text for row in family.rows] == [
        "3S + 2",
        "2S + 2",
        "2S + 1",
        "S + 1 + floor(S/2)",
        "S + 1",
    ]
    assert [row[4].value for row in family.rows] == [23, 16, 15, 11, 8]
    p_values = tables.build("p_values", nothing)
    assert cell(p_values, "Welch p", "All-CNN", "CIFAR-100").text == "0.069"
    assert p_values.notes[0].startswith("Finding: 0 of 15 are reproduced to the printed digits; 1 ")
    approximation = tables.build("approximation", nothing)
    for row in approximation.rows:
        errors = [c.value for c in row[1:-1]]
        assert errors == sorted(errors, reverse=True)
        assert errors[-1] < errors[0] / 3


@pytest.mark.parametrize("name", [n for n in tables.NAMES if n != "approximation"])
def test_every_table_renders_from_an_empty_store(tmp_path: Path, name: str) -> None:
    table = tables.build(name, tables.read(Store(tmp_path / "nothing")))
    has_runs = name not in ("family", "p_values")
    for format in tables.FORMATS:
        text = tables.render(table, format)
        assert text.endswith("\n")
        assert ("missing" in text) == has_runs
        assert ("short" in text) == has_runs


def test_every_table_of_a_study_is_there() -> None:
    named = {table for name in studies.NAMES for table in studies.load(name).tables}
    assert named == {*tables.NAMES, "results", "comparison", "attacks"}
    with pytest.raises(ValueError, match="did you mean accuracy"):
        tables.build("acuracy", Store("nowhere"))
    with pytest.raises(ValueError, match="needs a study"):
        tables.build("results", Store("nowhere"))


# A study of one's own

FILE = """\
models = ["mlp"]
data = ["digits"]
units = ["relu", "splash"]
attacks = [{ name = "fgsm", eps = 0.1 }]
"""


def test_a_study_from_a_file_has_the_same_kind_of_tables(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    study = studies.load(path)
    for spec in study.specs("short"):
        if isinstance(spec, TrainSpec):
            add_run(store, spec, ERRORS[spec.seed] + (0.2 if spec.unit == "relu" else 0))
        else:
            add_attack(store, spec, 5, 10)
    results, comparison, attacks = tables.build_all(study, store)
    found = cell(results, "test error in %", "MLP", "SPLASH")
    assert (found.text, found.best) == ("31.00 ± 1.00 (3)", True)
    assert cell(results, "parameters", "MLP", "SPLASH").text == "1,234"
    assert cell(results, "seconds an epoch", "MLP", "SPLASH").text == "3.00 ± 0.00 (3)"
    assert cell(comparison, "difference", "SPLASH: 31.00 ± 1.00 (3)").text == "-20.00"
    assert cell(comparison, "Holm", "SPLASH: 31.00 ± 1.00 (3)").best
    assert cell(attacks, "successes per 1000 attempts", "ReLU").text == "500.0 ± 0.0 (3)"
    assert cell(attacks, "95 % interval, all seeds", "ReLU").text == "332 to 668"
    lacking = tables.build("results", store, study=study, scale="paper")
    assert lacking.notes[-1] == f"Missing runs: splash run {path} --scale paper"


# Formats


AWKWARD = Table(
    name="awkward_one",
    title="50 % of a_b & c",
    scale="smoke",
    columns=("a|b", "x_1"),
    rows=(
        (Cell("1 ± 2", best=True), Cell("{#$}~^\\<*[`")),
        (Cell('say "no", or\nnothing'), Cell("–")),
    ),
    notes=("p < 0.05",),
    groups=(0, 1),
)


def test_markdown_is_escaped() -> None:
    lines = tables.render(AWKWARD, "markdown").splitlines()
    assert lines[2] == r"| a\|b | x\_1 |"
    assert lines[4] == r"| **1 ± 2** | {\#\$}\~^\\\<\*\[\` |"
    assert lines[5] == '| say "no", or nothing | – |'
    assert r"- p \< 0.05" in lines


def test_latex_is_escaped() -> None:
    text = tables.render(AWKWARD, "latex")
    assert r"50 \% of a\_b \& c (scale smoke)" in text
    assert (
        r"\textbf{1 $\pm$ 2} & \{\#\$\}\textasciitilde{}\textasciicircum{}\textbackslash{}$<$*[` \\"
        in text
    )
    assert r"a$|$b & x\_1 \\" in text
    assert text.count(r"\midrule") == 2
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_csv_reads_back() -> None:
    rows = list(csv.reader(io.StringIO(tables.render(AWKWARD, "csv"))))
    assert rows[0] == ["table", "scale", "a|b", "x_1"]
    assert rows[1] == ["awkward_one", "smoke", "1 ± 2", "{#$}~^\\<*[`"]
    assert rows[2][2] == 'say "no", or\nnothing'
    with pytest.raises(ValueError, match="did you mean csv"):
        tables.render(AWKWARD, "cvs")


# The command


def run(*arguments: str):
    return CliRunner().invoke(app, ["table", *arguments])


def test_the_command_lists_and_prints(store: Store) -> None:
    for spec in specs_of("ablation"):
        add_run(store, spec, ERRORS[spec.seed])
    listed = run()
    assert listed.exit_code == 0
    assert all(re.search(rf"^{name}\s", listed.stdout, re.MULTILINE) for name in tables.NAMES)
    printed = run("ablation", "--store", str(store.root))
    assert printed.exit_code == 0
    assert "fixed SPLASH" in printed.stdout
    assert "31.00 ± 1.00 (3)" in printed.stdout
    shown = run("finetune", "--store", str(store.root), "--format", "csv", "--scale", "paper")
    assert shown.stdout.startswith("table,scale,network")
    both = run("family", "--format", "markdown")
    assert both.exit_code == 0
    assert both.stdout.count("**Parameters of a") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["acuracy"], "did you mean accuracy"),
        (["accuracy", "--format", "html"], "text, markdown, latex, csv"),
        (["accuracy", "--scale", "big"], "unknown scale"),
        (["evolution"], "only figures"),
        (["nothing.toml"], "nothing.toml"),
    ],
)
def test_the_command_refuses_what_it_does_not_know(arguments, complaint) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_specs_of_other_seeds_are_the_same_cell() -> None:
    a, b = TrainSpec(seed=1, source=TrainSpec(seed=1)), TrainSpec(seed=2, source=TrainSpec(seed=2))
    assert seedless(a) == seedless(b) != seedless(TrainSpec(seed=1))
    attacks = [AttackSpec(train=train, attack="cw", seed=train.seed) for train in (a, b)]
    assert seedless(attacks[0]) == seedless(attacks[1])
