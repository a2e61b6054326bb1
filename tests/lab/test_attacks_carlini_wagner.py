"""The CW-L2 attack: distances known in closed form, failures that stay failures."""

import pytest
import torch
from attack_models import digits, linear_problem

from splash_units.lab.attacks import CarliniWagnerL2


def distance_in_l2(network, images):
    """What a linear two-class network allows: margin / L2 norm of the weights' difference."""
    direction = (network.weight[0] - network.weight[1]).detach()
    logits = network(images).detach()
    return ((logits[:, 0] - logits[:, 1]).abs() / direction.norm()).double()


def test_the_distance_to_a_hyperplane_is_found_within_one_percent():
    network, images, labels = linear_problem()
    outcome = CarliniWagnerL2(steps=500)(network, images, labels, width=24)
    assert outcome.fooled.all()
    ratio = outcome.l2 / distance_in_l2(network, images)
    assert ratio.min() > 0.9999
    assert ratio.max() < 1.01


def test_what_cannot_be_fooled_is_returned_unchanged_and_counted_as_failure():
    network, images, labels = linear_problem()

    def stubborn(x):
        """Class 0 leads by 1 whatever the image."""
        return network(x) * 0 + torch.tensor([1.0, 0.0])

    attack = CarliniWagnerL2(binary_search_steps=3, steps=20)
    outcome = attack(stubborn, images, torch.zeros_like(labels))
    assert outcome.was_right.all()
    assert not outcome.fooled.any()
    assert torch.equal(outcome.images, images)
    assert (outcome.l2 == 0).all()


def test_confidence_is_the_lead_of_the_wrong_class():
    network, images, labels = linear_problem()
    outcome = CarliniWagnerL2(steps=200, confidence=0.5)(network, images, labels, width=24)
    logits = network(outcome.images)
    lead = logits.gather(1, 1 - labels[:, None]) - logits.gather(1, labels[:, None])
    assert outcome.fooled.all()
    assert lead.min() > 0.5


def test_an_image_stops_when_its_own_loss_stalls():
    network, images, labels = digits()
    images, labels = images[:16], labels[:16]
    patient = CarliniWagnerL2(binary_search_steps=4, steps=200, abort_early=False)
    hasty = CarliniWagnerL2(binary_search_steps=4, steps=200)
    all_steps = patient(network, images, labels, width=16)
    right = all_steps.was_right
    assert (all_steps.gradient_queries[right] == 4 * 200).all()
    fewer = hasty(network, images, labels, width=16)
    assert (fewer.gradient_queries[right] < 4 * 200).all()
    assert len(fewer.gradient_queries[right].unique()) > 1
    assert fewer.l2[right].median() < 1.01 * all_steps.l2[right].median()


def test_more_searches_only_help():
    network, images, labels = digits()
    few, many = (
        CarliniWagnerL2(binary_search_steps=n, steps=100)(
            network, images[:32], labels[:32], width=32
        )
        for n in (3, 6)
    )
    assert (few.fooled <= many.fooled).all()
    assert (many.l2[few.fooled] <= few.l2[few.fooled]).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"binary_search_steps": 0}, "binary_search_steps must be at least 1"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"step_size": 0}, "step_size must be above 0"),
        ({"initial_constant": -1}, "initial_constant must be above 0"),
        ({"confidence": -1}, "confidence must be at least 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CarliniWagnerL2(**settings)
