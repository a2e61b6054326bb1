"""Attacks stronger than the paper's: Auto-PGD, Square, and the worst case over several."""

import math

import pytest
import torch
from attack_models import digits, linear_problem
from test_attacks_gradient import distance_in_linf

from splash_units.lab.attacks import (
    APGD,
    FGSM,
    PGD,
    CarliniWagnerL2,
    Pixels,
    Square,
    UniformNoise,
    WorstCase,
)
from splash_units.lab.attacks.apgd import dlr

EPS = 0.1


@pytest.mark.parametrize("attack", [APGD(0.04, steps=20), Square(0.04, queries=300)], ids=str)
def test_a_linear_network_is_fooled_exactly_when_it_can_be(attack):
    network, images, labels = linear_problem(images=60)
    needed = distance_in_linf(network, images)
    possible, decided = needed < 0.04, (needed - 0.04).abs() > 1e-3
    assert 0 < possible.sum() < len(images)
    fooled = attack(network, images, labels, width=40).fooled
    assert torch.equal(fooled[decided], possible[decided])


def test_auto_pgd_is_at_least_as_strong_as_pgd():
    network, images, labels = digits()
    weaker = PGD(EPS, steps=20)(network, images, labels, width=40).fooled.sum()
    for loss in ("cross-entropy", "dlr"):
        assert (
            APGD(EPS, steps=20, loss=loss)(network, images, labels, width=40).fooled.sum() >= weaker
        )


def test_restarts_only_help():
    network, images, labels = digits()
    once, thrice = (
        APGD(EPS, steps=5, restarts=n)(network, images, labels, width=40).fooled for n in (1, 3)
    )
    assert (once <= thrice).all()


def test_square_needs_no_gradient_and_beats_noise():
    network, images, labels = digits()
    outcome = Square(EPS, queries=150)(network, images, labels, width=40)
    assert (outcome.gradient_queries == 0).all()
    noise = UniformNoise(EPS, draws=20)(network, images, labels, width=40)
    assert outcome.fooled.sum() > noise.fooled.sum()
    assert outcome.fooled.sum() <= APGD(EPS)(network, images, labels, width=40).fooled.sum()


def test_dlr_ignores_the_scale_and_shift_of_logits():
    logits = torch.tensor([[3.0, 1.0, 0.5, -1.0], [0.0, 2.0, 1.0, 0.5]])
    labels = torch.tensor([0, 2])
    expected = torch.tensor([-(3.0 - 1.0) / (3.0 - 0.5), -(1.0 - 2.0) / (2.0 - 0.5)])
    torch.testing.assert_close(dlr(logits, labels), expected)
    torch.testing.assert_close(dlr(7 * logits + 3, labels), expected)


def test_dlr_needs_three_classes():
    network, images, labels = linear_problem()
    with pytest.raises(ValueError, match="at least 3 classes, got 2"):
        APGD(EPS, loss="dlr")(network, images, labels, width=40)


def test_the_worst_case_is_the_worst_of_all():
    network, images, labels = digits()
    attacks = [FGSM(EPS), APGD(EPS, steps=20), Square(EPS, queries=50)]
    alone = torch.stack([attack(network, images, labels, width=40).fooled for attack in attacks])
    outcome = WorstCase(attacks)(network, images, labels, width=40)
    assert torch.equal(outcome.fooled, alone.any(0))
    first = torch.where(alone.any(0), alone.int().argmax(0), -1)
    assert torch.equal(outcome.winner, first)
    right = float(outcome.was_right.double().mean())
    expected = right - float(alone.any(0).double().mean())
    assert math.isclose(outcome.robust_accuracy, expected)


def test_an_image_that_has_fallen_costs_nothing_more():
    network, images, labels = digits()
    cheap = FGSM(EPS)(network, images, labels, width=40)
    both = WorstCase([FGSM(EPS), APGD(EPS, steps=20)])(network, images, labels, width=40)
    assert torch.equal(both.queries[cheap.fooled], cheap.queries[cheap.fooled])
    standing = cheap.was_right & ~cheap.fooled
    assert (both.queries[standing] > cheap.queries[standing]).all()


def test_a_minimising_attack_counts_within_the_given_distance():
    network, images, labels = digits()
    images, labels = images[:24], labels[:24]
    nearest = CarliniWagnerL2(binary_search_steps=4, steps=60)
    alone = nearest(network, images, labels, width=24)
    limit = float(alone.l2[alone.fooled].median())
    outcome = WorstCase([nearest], l2=limit)(network, images, labels, width=24)
    assert torch.equal(outcome.fooled, alone.fooled & (alone.l2 <= limit))
    assert outcome.l2.max() <= limit + 1e-6


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: WorstCase([]), ValueError, "at least one attack"),
        (lambda: WorstCase([CarliniWagnerL2()]), ValueError, "needs an l2"),
        (lambda: WorstCase([FGSM(0.1)], l2=0), ValueError, "l2 must be above 0"),
        (lambda: WorstCase(["fgsm"]), TypeError, "takes attacks, got 'fgsm'"),
        (lambda: APGD(0.1, loss="hinge"), ValueError, "loss must be one of .*'hinge'"),
        (lambda: APGD(0.1, steps=0), ValueError, "steps must be at least 1"),
        (lambda: Square(0.1, area=0), ValueError, "area must be above 0"),
    ],
)
def test_bad_settings_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_union_of_budgets_has_no_common_one():
    assert WorstCase([FGSM(0.1), PGD(0.1)]).budget == FGSM(0.1).budget
    assert WorstCase([FGSM(0.1), Pixels(1)]).budget is None
