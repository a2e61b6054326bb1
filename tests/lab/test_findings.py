"""Findings on disk: whole or not there, kept in parts while they are made, found again."""

import shutil
import threading

import pytest
import torch

from splash_units.lab import findings
from splash_units.lab.durable import join_tensors, load_rows, load_tensors, save_tensors
from splash_units.lab.findings import Draft, Finding, attacks_on, claim, finding, hold
from splash_units.lab.spec import (
    AttackSpec,
    CostSpec,
    SeparationSpec,
    TrainSpec,
    TransferSpec,
    UnitChoice,
    digest,
)
from splash_units.lab.store import Store

TRAIN = TrainSpec(scale="smoke")
ATTACK = AttackSpec(train=TRAIN, attack="fgsm", options={"eps": 0.1})
TRANSFER = TransferSpec(trains=(TRAIN, TrainSpec(scale="smoke", seed=1)))
UNITS = (UnitChoice(label="ReLU", unit="relu"), UnitChoice(label="SPLASH", unit="splash"))


@pytest.fixture
def store(tmp_path):
    """A store with one run that is done, as far as a finding looks."""
    store = Store(tmp_path)
    with store.claim(TRAIN) as work:
        work.begin({}, resumed=False)
        work.finish({"status": "done"}, {})
    return store


def finished(store, spec, **result):
    with claim(store, spec) as draft:
        draft.begin({"device": "cpu"})
        draft.finish({"status": "done", **result}, {"x": torch.arange(3)})
    return finding(store, spec)


def test_a_finding_is_read_as_it_was_written(store):
    found = finished(store, ATTACK, fooled=3)
    assert found.folder == store.run(TRAIN).whole / "attacks" / digest(ATTACK)[:16]
    assert found.spec() == ATTACK
    assert found.record() == {"device": "cpu"}
    assert found.result() == {"spec": digest(ATTACK), "status": "done", "fooled": 3}
    assert found.tensors()["x"].tolist() == [0, 1, 2]
    assert found.failure() is None
    assert not found.part.exists()


def test_an_attack_lies_with_its_run_and_all_else_by_itself(store):
    specs = [
        TRANSFER,
        SeparationSpec(train=TRAIN),
        CostSpec(units=UNITS),
    ]
    others = [finished(store, spec) for spec in specs]
    attack = finished(store, ATTACK)
    assert {found.folder.parent for found in others} == {store.root / "analyses"}
    assert attacks_on(store.run(TRAIN)) == [attack]
    assert findings.findings(store) == [attack, *sorted(others, key=lambda found: found.id)]
    assert next(found.spec().kind for found in findings.findings(store)) == "attack"
    assert len(store.runs()) == 1  # the folder of the others is not taken for a run


def test_what_is_in_the_works_or_damaged_is_no_finding(store):
    with claim(store, ATTACK) as draft:
        draft.begin({})
        assert attacks_on(store.run(TRAIN)) == []
    finished(store, ATTACK)
    (finding(store, ATTACK).folder / "result.json").write_text("{")
    assert attacks_on(store.run(TRAIN)) == []


def test_no_network_no_attack(tmp_path):
    with (
        pytest.raises(ValueError, match="no trained network to attack"),
        claim(Store(tmp_path), ATTACK),
    ):
        pass
    with pytest.raises(TypeError, match="a run of the store"):
        finding(Store(tmp_path), TRAIN)


def test_parts_stay_until_the_finding_is_whole(store):
    with claim(store, ATTACK) as draft:
        draft.begin({})
        draft.keep("a", {"x": torch.ones(2), "y": torch.zeros(2, 3)}, {"seconds": 1.5})
        draft.keep("b", {"x": torch.zeros(1), "y": torch.ones(1, 3)})
    with claim(store, ATTACK) as draft:
        draft.begin({})  # another try keeps them
        assert draft.parts() == ["a", "b"]
        assert draft.kept("a")["x"].tolist() == [1, 1]
        assert draft.kept("c") is None
        assert draft.kept_state("a") == {"seconds": 1.5}
        assert draft.kept_state("c") is None
        assert draft.rows(["b", "a"], ["x"])["x"].tolist() == [0, 1, 1]
        draft.finish({"status": "done"}, ["a", "b"])
    found = finding(store, ATTACK)
    assert found.tensors()["y"].tolist() == [[0] * 3, [0] * 3, [1] * 3]
    assert found.tensors("x").keys() == {"x"}
    assert found.rows([2, 0], "x")["x"].tolist() == [0, 1]
    assert not list(found.folder.glob("part-*"))


def test_a_damaged_part_counts_as_missing(store):
    with claim(store, ATTACK) as draft:
        draft.begin({})
        draft.keep("a", {"x": torch.ones(2)})
        file = next(draft.folder.glob("part-a*"))
        file.write_bytes(file.read_bytes()[:20])
        assert draft.kept("a") is None
        assert draft.kept_state("a") is None
        draft.drop("a")
        assert draft.parts() == []


def test_killed_before_the_rename_it_is_whole_all_the_same(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Draft, "_publish", lambda self: None)
        finished(store, ATTACK, fooled=7)
    assert finding(store, ATTACK).result() is None
    with claim(store, ATTACK):
        pass
    assert finding(store, ATTACK).result()["fooled"] == 7


def test_a_failure_tells_why_until_a_try_succeeds(store):
    with claim(store, ATTACK) as draft:
        draft.fail("ValueError: no", "the traceback")
    assert finding(store, ATTACK).failure() == "ValueError: no"
    with claim(store, ATTACK) as draft:
        draft.begin({})
        assert draft.finding.failure() is None
        draft.finish({"status": "done"}, {})
    assert finding(store, ATTACK).failure() is None


def test_numbers_can_be_amended_and_all_be_discarded(store):
    found = finished(store, ATTACK, fooled=1)
    with claim(store, ATTACK) as draft:
        draft.amend({**found.result(), "fooled": 2})
        assert found.result()["fooled"] == 2
        assert found.tensors()["x"].tolist() == [0, 1, 2]
        draft.discard()
    assert found.result() is None
    assert not found.folder.exists()


def test_a_finding_of_anything_can_be_held_in_any_folder(tmp_path):
    found = Finding(tmp_path / "mine" / "fgsm-1")
    with hold(found, ATTACK) as draft:
        draft.begin({})
        draft.finish({"status": "done"}, {"x": torch.ones(1)})
    assert found.result()["status"] == "done"


def test_a_claim_waits_for_whoever_holds_it(store):
    order = []

    def second():
        with claim(store, ATTACK):
            order.append("second")

    with claim(store, ATTACK):
        other = threading.Thread(target=second)
        other.start()
        other.join(0.3)
        order.append("first")
    other.join(30)
    assert order == ["first", "second"]


def test_a_run_trained_anew_takes_its_attacks_along(store):
    finished(store, ATTACK)
    with store.claim(TRAIN) as work:
        work.begin({}, resumed=False)
        work.finish({"status": "done"}, {})
    assert attacks_on(store.run(TRAIN)) == []


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8]
)
def test_joined_files_are_what_concatenation_gives(tmp_path, dtype):
    parts = [torch.arange(6).reshape(2, 3).to(dtype), torch.zeros(0, 3, dtype=dtype)]
    parts.append(torch.ones(4, 3, dtype=dtype))
    for number, part in enumerate(parts):
        tensors = {"one": part, "another": torch.arange(len(part))}
        save_tensors(tmp_path / str(number), tensors, {})
    join_tensors(tmp_path / "all", [tmp_path / str(n) for n in range(3)], {"of": 3})
    state, tensors = load_tensors(tmp_path / "all")
    assert state == {"of": 3}
    assert torch.equal(tensors["one"], torch.cat(parts))
    assert tensors["one"].dtype == dtype
    assert tensors["another"].tolist() == [0, 1, 0, 1, 2, 3]
    assert torch.equal(load_rows(tmp_path / "all", ["one"], [5, 1])["one"], tensors["one"][[5, 1]])


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "bad").write_bytes(b"12345678nothing")
    with pytest.raises(ValueError, match="bad is damaged"):
        load_rows(tmp_path / "bad", ["x"], [0])
    save_tensors(tmp_path / "good", {"x": torch.ones(1)}, {})
    shutil.copy(tmp_path / "good", tmp_path / "copy")
    with pytest.raises(ValueError, match="copy is damaged"):
        load_tensors(tmp_path / "copy", ["y"])
