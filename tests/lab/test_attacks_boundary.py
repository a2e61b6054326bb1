"""The boundary attack: it approaches the known distance, and fails alone where it has no start."""

import pytest
import torch
from attack_models import digits, linear_problem
from test_attacks_carlini_wagner import distance_in_l2

from splash_units.lab.attacks import Boundary


def test_the_distance_to_a_hyperplane_is_approached():
    network, images, labels = linear_problem()
    attack = Boundary(steps=3000, spherical_step=0.1, source_step=0.1)
    outcome = attack(network, images, labels, width=24)
    assert outcome.fooled.all()
    ratio = outcome.l2 / distance_in_l2(network, images)
    assert ratio.min() > 0.9999
    assert ratio.median() < 1.04


def test_an_image_without_a_start_fails_alone():
    def bright_or_dark(x):
        """Noise is never dark, so a bright image has no noise to start from."""
        mean = x.flatten(1).mean(1)
        return torch.stack([0.3 - mean, mean - 0.3], 1)

    images = torch.cat([torch.full((3, 1, 8, 8), 0.1), torch.full((2, 1, 8, 8), 0.9)])
    labels = torch.tensor([0, 0, 0, 1, 1])
    attack = Boundary(steps=100, start_attempts=20)
    outcome = attack(bright_or_dark, images, labels)
    assert outcome.fooled.tolist() == [True, True, True, False, False]
    assert torch.equal(outcome.images[3:], images[3:])
    assert (outcome.queries[3:] == 1 + attack.start_attempts).all()


def test_steps_only_help_and_no_gradient_is_asked_for():
    network, images, labels = digits()
    few, many = (
        Boundary(steps=n, start_attempts=20)(network, images[:24], labels[:24], width=24)
        for n in (100, 400)
    )
    assert torch.equal(few.fooled, many.fooled)
    assert few.fooled.any()
    assert (many.l2 <= few.l2).all()
    assert many.l2[many.fooled].median() < 0.8 * few.l2[few.fooled].median()
    assert (many.gradient_queries == 0).all()


def test_a_walk_that_has_converged_ends():
    network, images, labels = linear_problem()
    outcome = Boundary(steps=5000, converged_at=0.009)(network, images, labels, width=24)
    assert outcome.fooled.all()
    assert (outcome.queries < 5000).all()


def queries_of_a_walk_that_never_succeeds(attack):
    calls = []

    def fooled_by_the_start_only(x):
        calls.append(len(x))
        start_or_first_blend = len(calls) in (2, 3)
        return torch.tensor([0.0, 1.0] if start_or_first_blend else [1.0, 0.0]).repeat(len(x), 1)

    images, labels = torch.rand(2, 1, 8, 8), torch.tensor([0, 0])
    return attack(fooled_by_the_start_only, images, labels, width=2).queries


def test_a_step_that_fails_on_the_sphere_is_not_tried_inwards():
    clean, start, blend, steps = 1, 1, 1, 200
    queries = queries_of_a_walk_that_never_succeeds(Boundary(steps=200))
    assert (queries == clean + start + blend + steps).all()


def test_the_answer_to_every_step_tells_how_long_steps_should_be():
    halved_ten_times = Boundary(source_step=0.01, step_adaptation=2, converged_at=0.01 / 2**9.5)
    clean, start, blend, answers = 1, 1, 1, 30
    queries = queries_of_a_walk_that_never_succeeds(halved_ten_times)
    assert (queries == clean + start + blend + 10 * answers).all()


def test_images_do_not_share_their_noise():
    network, images, labels = linear_problem()
    outcome = Boundary(steps=1)(network, images, labels, width=40)
    noise = (outcome.images - images).flatten(1)
    directions = noise / noise.norm(dim=1, keepdim=True)
    similarity = (directions @ directions.T).fill_diagonal_(0)
    assert similarity.abs().max() < 0.99


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"start_attempts": 0}, "start_attempts must be at least 1"),
        ({"spherical_step": 0}, "spherical_step must be above 0"),
        ({"step_adaptation": 1}, "step_adaptation must be above 1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Boundary(**settings)
