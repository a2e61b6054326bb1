"""Jobs: what is missing, in which order, what can't be, and what it will cost."""

import pytest
import tiny_lab  # noqa: F401 - registers the network "tiny" and the data set "blobs"

from splash_units.lab import data, estimates
from splash_units.lab.estimates import OVERHEAD, Estimate, Estimates, passes_of, total
from splash_units.lab.jobs import hopeless, is_done, missing, perform
from splash_units.lab.spec import (
    AttackSpec,
    CostSpec,
    SeparationSpec,
    TrainSpec,
    TransferSpec,
    UnitChoice,
    describe,
)
from splash_units.lab.store import Store

SPLASH = TrainSpec(model="tiny", data="blobs", scale="smoke", batch_size=32, epochs=2)
RELU = SPLASH.model_copy(update={"unit": "relu"})
FIXED = SPLASH.model_copy(update={"seed": 1, "source": SPLASH})
ATTACK = AttackSpec(train=FIXED, attack="fgsm", options={"eps": 0.1}, images=8)
TRANSFER = TransferSpec(trains=(SPLASH, RELU), images=8)
COST = CostSpec(
    model="tiny",
    data="blobs",
    units=(UnitChoice(label="ReLU", unit="relu"), UnitChoice(label="SPLASH", unit="splash")),
    rounds=2,
    batch_size=16,
)


def finish(store, spec, status="done", seconds=2.0, images=256):
    with store.claim(spec) as work:
        work.begin({"plan": {"epochs": 1, "train_images": images}}, resumed=False)
        work.append_epoch({"epoch": 1, "seconds": seconds})
        work.append_slopes(0.0, {})
        work.finish({"status": status, "why": "it blew up"}, {})


def test_what_is_missing_comes_once_and_after_what_it_needs(tmp_path):
    store = Store(tmp_path)
    assert missing([ATTACK, TRANSFER, RELU, COST], store) == [
        SPLASH,
        FIXED,
        ATTACK,
        RELU,
        TRANSFER,
        COST,
    ]
    finish(store, SPLASH)
    assert missing([ATTACK, TRANSFER, ATTACK], store) == [FIXED, ATTACK, RELU, TRANSFER]
    finish(store, FIXED)
    assert missing([ATTACK, FIXED], store) == [ATTACK]


def test_what_needs_a_divergence_is_hopeless_at_any_distance(tmp_path):
    store = Store(tmp_path)
    assert hopeless(ATTACK, store) is None
    finish(store, SPLASH, status="diverged")
    assert is_done(SPLASH, store)
    for spec in (FIXED, ATTACK, TRANSFER):
        assert hopeless(spec, store) == f"needs {describe(SPLASH)}, which diverged"
    assert hopeless(RELU, store) is None
    with pytest.raises(ValueError, match="which diverged"):
        perform(FIXED, store)


def test_a_training_says_how_far_it_is(tmp_path):
    store, parts = Store(tmp_path), []
    perform(SPLASH, store, threads=1, report=parts.append)
    assert parts[0] == 0
    assert parts[-1] == 1
    assert parts == sorted(parts)
    assert is_done(SPLASH, store)
    perform(SPLASH, store, report=parts.append)  # it is there
    assert parts.count(0) == 1


@pytest.mark.parametrize(
    "spec", [SPLASH, AttackSpec(train=SPLASH, attack="noise", options={"eps": 0.1}, images=8)]
)
def test_whoever_is_told_can_stop_it(tmp_path, spec):
    class Stop(BaseException):
        pass

    def stop(part):
        if part > 0:
            raise Stop

    store = Store(tmp_path)
    if spec is not SPLASH:
        perform(SPLASH, store, threads=1)
    with pytest.raises(Stop):
        perform(spec, store, threads=1, report=stop)
    assert not is_done(spec, store)
    assert "failure.json" not in {path.name for path in tmp_path.rglob("*")}
    perform(spec, store, threads=1)
    assert is_done(spec, store)


def test_what_is_needed_must_be_there(tmp_path):
    with pytest.raises(ValueError, match=r"needs tiny .*, which is not there"):
        perform(ATTACK, Store(tmp_path))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ATTACK, "fgsm eps=0.1 on tiny · blobs · splash · seed 1"),
        (TRANSFER, "pgd from each to each of splash, relu · tiny"),
        (SeparationSpec(train=RELU), "separation of classes 6 and 8 by tiny · blobs · relu"),
        (COST, "cost of 2 units · tiny · blobs"),
    ],
)
def test_every_kind_is_described(spec, words):
    assert describe(spec).startswith(words)


def test_sizes_are_known_without_the_files():
    assert data.count("digits") == (1438, 359)
    assert data.count("mnist") == data.count("fashion-mnist") == (60_000, 10_000)
    assert data.count("cifar-10") == data.count("cifar-100") == (50_000, 10_000)
    with pytest.raises(ValueError, match="unknown data set"):
        data.count("cifar-11")


def test_without_runs_the_rough_figures_serve(tmp_path):
    guess = Estimates(Store(tmp_path))
    lenet5 = TrainSpec(model="lenet5", data="cifar-10", scale="paper")
    whole = guess.of(lenet5)
    assert whole.basis == "rough"
    images = 100 * (50_000 + 10_000 / 3)
    assert whole.seconds == pytest.approx(OVERHEAD + images * estimates.ROUGH["lenet5"] / 1000)
    resnet = lenet5.model_copy(update={"model": "resnet20"})
    smoke = lenet5.model_copy(update={"scale": "smoke"})
    assert guess.of(smoke).seconds < whole.seconds < guess.of(resnet).seconds
    for spec in (ATTACK, TRANSFER, COST, SeparationSpec(train=RELU)):
        assert guess.of(spec).basis == "rough"
        assert guess.of(spec).seconds > 0


def test_runs_of_the_same_network_are_the_better_guess(tmp_path):
    store = Store(tmp_path)
    finish(store, SPLASH, seconds=512.0)
    finish(store, RELU, seconds=256.0)
    guess = Estimates(store)
    other = SPLASH.model_copy(update={"seed": 7})
    images = 2 * (256 + 160 / 3)
    assert guess.of(other) == Estimate(pytest.approx(OVERHEAD + images * 2.0), "measured")
    relu = other.model_copy(update={"unit": "relu"})
    assert guess.of(relu) == Estimate(pytest.approx(OVERHEAD + images * 1.0), "measured")
    third = other.model_copy(update={"unit": "prelu"})
    assert guess.of(third) == Estimate(pytest.approx(OVERHEAD + images * 1.5), "measured")
    assert guess.of(ATTACK) == Estimate(pytest.approx(OVERHEAD + 8 * 4 * 2.0 / 3), "measured")


def test_a_sum_is_measured_only_if_all_of_it_is():
    measured, rough = Estimate(1.0, "measured"), Estimate(2.0, "rough")
    assert total([measured, measured]) == Estimate(2.0, "measured")
    assert total([measured, rough]) == Estimate(3.0, "rough")


def test_more_steps_are_more_passes():
    for attack, option in (("pgd", "steps"), ("cw", "steps"), ("boundary", "steps")):
        assert passes_of(attack, {option: 10}) * 10 == passes_of(attack, {option: 100})
    assert passes_of("pixels", {"population": 10, "generations": 4}) == 20
