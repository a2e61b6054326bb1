"""FGSM, PGD and noise where the best answer is known."""

import pytest
import torch
from attack_models import digits, linear_problem

from splash_units.lab.attacks import FGSM, PGD, UniformNoise


def distance_in_linf(network, images):
    """What a linear two-class network allows: margin / L1 norm of the weights' difference."""
    direction = (network.weight[0] - network.weight[1]).detach()
    logits = network(images).detach()
    return (logits[:, 0] - logits[:, 1]).abs() / direction.abs().sum()


@pytest.mark.parametrize(
    "attack", [FGSM, lambda eps: PGD(eps, steps=10, random_start=False), lambda eps: PGD(eps)]
)
@pytest.mark.parametrize("eps", [0.025, 0.04, 0.06])
def test_a_linear_network_is_fooled_exactly_when_it_can_be(attack, eps):
    network, images, labels = linear_problem(images=200)
    needed = distance_in_linf(network, images)
    possible = needed < eps
    assert 0 < possible.sum() < len(images)
    decided = (needed - eps).abs() > 1e-5
    assert torch.equal(
        attack(eps)(network, images, labels, width=40).fooled[decided], possible[decided]
    )


def test_fgsm_is_the_full_step_along_the_sign():
    network, images, labels = linear_problem()
    toward = (network.weight[1 - labels] - network.weight[labels]).detach().view_as(images)
    expected = (images + 0.05 * toward.sign()).clamp(0, 1)
    torch.testing.assert_close(FGSM(0.05)(network, images, labels, width=40).images, expected)


def test_fgsm_is_pgd_with_one_full_step():
    network, images, labels = digits()
    for random_start in (False, True):
        one_step = PGD(
            0.1, steps=1, step_size=0.1, random_start=random_start, stop_when_fooled=False
        )
        single = FGSM(0.1, random_start=random_start)
        assert torch.equal(
            single(network, images, labels, width=40).images,
            one_step(network, images, labels, width=40).images,
        )


def test_random_start_uses_the_seed_and_moves_some_values_less():
    network, images, labels = digits()
    first, again, other = (
        FGSM(0.1, random_start=True)(network, images, labels, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.images, other.images)
    moved = (first.images - images)[first.was_right].abs()
    assert ((moved > 0) & (moved < 0.099)).any()


def test_restarts_and_steps_only_help():
    network, images, labels = digits()

    def fooled(**settings):
        return PGD(0.12, **settings)(network, images, labels, width=40).fooled

    few, many, restarted = fooled(steps=2), fooled(steps=20), fooled(steps=2, restarts=5)
    assert few.sum() < many.sum()
    assert (few <= restarted).all()
    assert few.sum() < restarted.sum()
    assert UniformNoise(0.12)(network, images, labels, width=40).fooled.sum() < few.sum()


def test_an_image_leaves_once_it_is_fooled():
    network, images, labels = digits()
    outcome = PGD(0.3, steps=40)(network, images, labels, width=40)
    queries = outcome.gradient_queries[outcome.was_right]
    assert queries.float().mean() < 20
    literal = PGD(0.3, steps=40, stop_when_fooled=False)(network, images, labels, width=40)
    assert (literal.gradient_queries[literal.was_right] == 40).all()
