"""Hyper-parameters as the study states them, and schedules at their edges."""

import dataclasses
import json

import pytest

from splash_units.lab import models
from splash_units.lab.recipes import RECIPES, Recipe, recipe, variants

STATED = {
    # batch, epochs, lr, drops at, factors, decay, nesterov, weight decay, dropout
    "mlp": (128, 100, 0.01, (), (), 0.0, True, 0.0, ()),
    "lenet5": (128, 100, 0.01, (), (), 0.0, True, 2e-4, ()),
    "nin": (128, 200, 0.05, (61, 121, 161), (0.2,) * 3, 0.0, True, 2e-4, (0.5, 0.5)),
    "allcnn": (64, 300, 0.1, (200, 250), (0.1,) * 2, 1e-6, False, 1e-3, (0.2, 0.5, 0.5)),
    "resnet20": (128, 200, 0.1, (81, 122), (0.1,) * 2, 0.0, True, 2e-4, ()),
}


@pytest.mark.parametrize("model", list(STATED))
@pytest.mark.parametrize("data", ["mnist", "cifar-10", "cifar-100", "digits"])
def test_primary_recipes_are_as_stated(model, data):
    got = recipe(model, data)
    assert STATED[model] == (
        got.batch_size, got.epochs, got.lr, got.milestones, got.gammas, got.decay, got.nesterov,
        got.weight_decay, got.dropout,
    )  # fmt: skip
    assert got.momentum == 0.9
    assert got.augment == "none"


def test_every_network_of_the_study_has_a_recipe():
    assert set(STATED) == set(RECIPES)
    assert set(STATED) <= set(models.names())


def rates_around(schedule: Recipe, steps: int, epoch: int) -> tuple[float, float]:
    """The learning rates of the last step before an epoch and of its first."""
    return (
        schedule.learning_rate(steps - 1, epoch - 1, steps),
        schedule.learning_rate(0, epoch, steps),
    )


@pytest.mark.parametrize(
    ("model", "variant", "rates"),
    [
        ("nin", "primary", {61: (0.05, 0.01), 121: (0.01, 0.002), 161: (0.002, 0.0004)}),
        ("resnet20", "primary", {81: (0.1, 0.01), 122: (0.01, 0.001)}),
        ("lenet5", "rescaled", {50: (0.01, 0.005), 75: (0.005, 0.001)}),
        ("mlp", "stepped", {50: (0.01, 0.001), 75: (0.001, 0.0001)}),
    ],
)
def test_the_learning_rate_drops_between_two_steps(model, variant, rates):
    schedule = recipe(model, "cifar-10", variant=variant)
    for epoch, expected in rates.items():
        assert rates_around(schedule, 391, epoch) == pytest.approx(expected, rel=1e-12)
    first, *_, last = rates.values()
    assert schedule.learning_rate(0, 0, 391) == first[0]
    assert schedule.learning_rate(390, schedule.epochs - 1, 391) == pytest.approx(
        last[1], rel=1e-12
    )


def test_constant_recipes_stay_constant():
    schedule = recipe("lenet5", "mnist")
    assert {schedule.learning_rate(0, epoch, 469) for epoch in range(100)} == {0.01}


def test_the_literal_all_cnn_decays_by_steps_alone():
    literal = recipe("allcnn", "cifar-10", variant="literal")
    steps = 782
    assert literal.learning_rate(0, 0, steps) == 0.1
    assert literal.learning_rate(1, 0, steps) == 0.1 / (1 + 1e-6)
    last = literal.learning_rate(steps - 1, 299, steps)
    assert last == 0.1 / (1 + 1e-6 * (782 * 300 - 1))
    assert last == pytest.approx(0.0810, abs=5e-6)
    before, after = rates_around(recipe("allcnn", "cifar-10"), steps, 200)
    assert after / before == pytest.approx(0.1, rel=1e-5)


@pytest.mark.parametrize("epochs", [1, 2, 7, 20, 250])
def test_a_scaled_schedule_keeps_the_share_of_every_phase(epochs):
    steps = 1000
    schedule = recipe("resnet20", "cifar-10").scaled(epochs)
    rates = [
        schedule.learning_rate(step, epoch, steps)
        for epoch in range(epochs)
        for step in range(steps)
    ]
    assert schedule.epochs == epochs
    phases = [rates.count(rate) / len(rates) for rate in sorted(set(rates), reverse=True)]
    assert phases == pytest.approx([81 / 200, 41 / 200, 78 / 200], abs=1 / len(rates))
    assert rates == sorted(rates, reverse=True)


def test_a_scaled_decay_ends_where_the_whole_one_does():
    literal = recipe("allcnn", "cifar-10", variant="literal")
    steps = 782
    ends = [
        schedule.learning_rate(steps - 1, schedule.epochs - 1, steps)
        for schedule in (literal, literal.scaled(3))
    ]
    assert ends[0] == pytest.approx(ends[1], rel=1e-3)
    assert literal.scaled(300) is literal


def test_recipes_can_be_written_down():
    written = json.dumps(dataclasses.asdict(recipe("allcnn", "cifar-10").scaled(7)))
    assert json.loads(written)["weight_decay"] == 1e-3


def test_a_network_of_one_s_own_is_trained_like_lenet5():
    assert recipe("mine", "mnist") == recipe("lenet5", "mnist")
    assert variants("mine") == ("primary",)
    assert variants("allcnn") == ("primary", "literal")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recipe("lenet5", "mnist", variant="rescale"), "did you mean 'rescaled'"),
        (lambda: recipe("nin", "cifar-10", variant="literal"), "nin on cifar-10.*only primary"),
        (lambda: recipe("nin", "mnist").scaled(0), "epochs must be at least 1, got 0"),
        (lambda: recipe("nin", "mnist").learning_rate(391, 0, 391), "0 to 390.*got step 391"),
        (lambda: recipe("nin", "mnist").learning_rate(0, -1, 391), "epoch -1"),
        (lambda: Recipe(batch_size=0, epochs=1, lr=0.1), "batch_size"),
        (lambda: Recipe(batch_size=1, epochs=1, lr=float("nan")), "lr must be positive"),
        (lambda: Recipe(1, 1, 0.1, milestones=(3, 2), gammas=(0.1, 0.1)), "milestones must rise"),
        (lambda: Recipe(1, 1, 0.1, milestones=(3,)), "one of gammas each"),
    ],
)
def test_nonsense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
