"""The store as frames: a row for everything that is there, whatever became of it."""

import json
import math
import shutil

import polars as pl
import pytest
from made_store import add_attack, add_divergence, add_failure, add_run

from splash_units.lab.frames import Snapshot, label, read, run_id
from splash_units.lab.spec import AttackSpec, TrainSpec
from splash_units.lab.store import Store

GOOD = TrainSpec(model="mlp", data="digits", unit="splash", unit_options={"num_hinges": 9}, seed=3)
BAD = TrainSpec(model="mlp", data="digits", unit="relu")
BROKEN = TrainSpec(model="mlp", data="digits", unit="tanh")
UNFINISHED = TrainSpec(model="mlp", data="digits", unit="elu", augment="moderate")


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    monkeypatch.setattr("os.fsync", lambda _: None)
    return Store(tmp_path)


def row(frame: pl.DataFrame, **where) -> dict:
    return frame.filter(**where).row(0, named=True)


def test_an_empty_store_has_frames_with_columns(store: Store) -> None:
    frames = read(store)
    assert frames.runs.is_empty()
    assert frames.epochs.is_empty()
    assert frames.attacks.is_empty()
    assert {"id", "label", "seed", "state", "test_error"} <= set(frames.runs.columns)
    assert (frames.specs, frames.unreadable) == ({}, {})


def test_a_row_for_every_run(store: Store) -> None:
    add_run(store, GOOD, 0.125)
    add_divergence(store, BAD)
    add_failure(store, BROKEN)
    with store.claim(UNFINISHED) as work:
        work.begin({"plan": {"epochs": 5}}, resumed=False)
    runs = read(store).runs
    assert dict(zip(runs["unit"], runs["state"], strict=True)) == {
        "splash": "done",
        "relu": "diverged",
        "tanh": "failed",
        "elu": "interrupted",
    }
    good = row(runs, unit="splash")
    assert good["id"] == run_id(GOOD) == store.run(GOOD).id
    assert (good["model"], good["data"], good["augment"]) == ("mlp", "digits", "none")
    assert (good["seed"], good["scale"], good["label"]) == (3, "short", "splash S=9")
    assert (good["test_error"], good["train_loss"], good["parameters"]) == (0.125, 0.5, 1234)
    assert (good["epochs"], good["epochs_done"], good["seconds"]) == (2, 2.0, 6.0)
    assert good["slopes"] == 8  # two arrays of four, as the record lays them out
    assert json.loads(good["options"])["unit_options"] == {"num_hinges": 9}
    assert row(runs, unit="relu")["test_error"] is None
    assert "not finite" in row(runs, unit="relu")["why"]
    assert row(runs, unit="tanh")["why"] == "MemoryError: none left"
    assert row(runs, unit="elu")["augment"] == "moderate"


def test_a_row_for_every_epoch(store: Store) -> None:
    add_run(store, GOOD, 0.125)
    epochs = read(store).epochs
    assert epochs["id"].unique().to_list() == [run_id(GOOD)]
    assert epochs["epoch"].to_list() == [1, 2]
    assert epochs["test_error"].to_list() == [0.4, 0.3]


def test_a_row_for_every_attack(store: Store) -> None:
    add_run(store, GOOD, 0.125)
    spec = AttackSpec(train=GOOD, attack="fgsm", options={"eps": 0.5, "random_start": True}, seed=7)
    found = add_attack(store, spec, 3, 10, warnings=["one", "two"])
    whole = AttackSpec(train=GOOD, attack="noise", options={"eps": 1.0}, choose="all")
    add_attack(store, whole, 0, 10, median_l2=None, success_at_l2={"none": 0.5})
    attacks = read(store).attacks
    one = row(attacks, attack="fgsm")
    assert (one["id"], one["run"]) == (found.id, run_id(GOOD))
    assert (one["eps"], one["k"], one["attack_seed"], one["seed"]) == (0.5, None, 7, 3)
    assert (one["fooled"], one["attempts"], one["images"]) == (3, 10, 10)
    assert (one["fooled_low"], one["fooled_high"]) == (0.1, 0.9)
    assert one["warnings"] == "one\ntwo"
    assert json.loads(one["options"]) == {"eps": 0.5, "random_start": True}
    two = row(attacks, attack="noise")
    assert (two["eps"], two["choose"], two["median_l2"]) == (1.0, "all", None)
    assert json.loads(two["success_at_l2"]) == {"none": 0.5}
    assert math.isclose(two["robust_accuracy"], 1.0)


def test_a_run_that_cannot_be_read_is_named(store: Store) -> None:
    add_run(store, GOOD, 0.125)
    add_run(store, BAD, 0.5)
    (store.run(BAD).whole / "spec.json").write_text('{"model": 3}')
    attacks = [AttackSpec(train=GOOD, attack=name) for name in ("cw", "fgsm")]
    good, bad = (add_attack(store, attack, 3, 10) for attack in attacks)
    (bad.folder / "spec.json").write_text("cut sho")
    frames = read(store)
    assert frames.runs["unit"].to_list() == ["splash"]
    assert frames.attacks["id"].to_list() == [good.id]
    assert set(frames.unreadable) == {run_id(BAD), bad.id}
    assert frames.specs == {run_id(GOOD): GOOD}


def test_results_of_an_earlier_version_are_not_taken_for_new_ones(
    store: Store, monkeypatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("splash_units.lab.spec.HASH_VERSION", 0)
        add_run(store, GOOD, 0.5)
        old = store.run(GOOD).id
        add_attack(store, AttackSpec(train=GOOD, attack="cw"), 3, 10)
    assert store.run(GOOD).result() is None
    add_run(store, GOOD, 0.125)
    frames = read(store)
    assert frames.runs["test_error"].to_list() == [0.125]
    assert frames.attacks.is_empty()
    assert frames.outdated == (old,)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (TrainSpec(unit="relu"), "relu"),
        (GOOD, "splash S=9"),
        (TrainSpec(unit="maxout", unit_options={"k": 6}), "maxout k=6"),
        (
            TrainSpec(unit_options={"share": "unit", "num_hinges": 3, "hinges": [0, 1]}),
            "splash S=3 hinges=[0, 1] share=unit",
        ),
        (TrainSpec(slope_lr=0.1), "splash slope_lr=0.1"),
        (
            TrainSpec(unit="splash_fixed", source=TrainSpec()),
            "splash_fixed shapes of splash",
        ),
        (
            TrainSpec(source=TrainSpec(unit="relu"), take="weights"),
            "splash weights of relu",
        ),
    ],
)
def test_labels_say_what_departs_from_the_defaults(spec: TrainSpec, expected: str) -> None:
    assert label(spec) == expected


def test_a_snapshot_stays_as_it_was_read(store: Store) -> None:
    add_run(store, GOOD, 0.125)
    add_divergence(store, BAD)
    seen = Snapshot(store.root)
    shutil.rmtree(store.run(GOOD).whole)
    add_failure(store, BROKEN)
    assert seen.run(GOOD).status().state == "done"
    assert seen.run(GOOD).result()["test_error"] == 0.125
    assert seen.run(BAD).status().state == "diverged"
    assert [run.id for run in seen.runs()] == sorted([run_id(GOOD), run_id(BAD)])
    assert len(read(seen).runs) == 2
    assert store.run(GOOD).status().state == "missing"
