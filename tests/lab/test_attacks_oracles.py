"""The attacks against other implementations of them, same network, images and settings."""

import warnings

import pytest
import torch
from attack_models import digits

from splash_units.lab.attacks import (
    APGD,
    FGSM,
    PGD,
    AutoAttack,
    Boundary,
    CarliniWagnerL2,
    Square,
    WorstCase,
)


@pytest.fixture(scope="module")
def foolbox():
    with warnings.catch_warnings():
        # It imports names that scipy has moved.
        warnings.simplefilter("ignore", DeprecationWarning)
        return pytest.importorskip("foolbox")


@pytest.fixture
def problem():
    """Only images the network gets right: foolbox counts the others as successes."""
    network, images, labels = digits()
    right = network(images).argmax(1) == labels
    return network, images[right][:100], labels[right][:100]


@pytest.fixture
def wrapped(foolbox, problem):
    network = problem[0].requires_grad_(False)
    yield foolbox.PyTorchModel(network, bounds=(0, 1), device="cpu")
    network.requires_grad_(True)


@pytest.mark.parametrize("eps", [0.05, 0.15])
def test_fgsm_is_foolbox_fgsm(foolbox, wrapped, problem, eps):
    network, images, labels = problem
    theirs, _, success = foolbox.attacks.LinfFastGradientAttack()(
        wrapped, images, labels, epsilons=eps
    )
    ours = FGSM(eps)(network, images, labels)
    torch.testing.assert_close(ours.images, theirs)
    assert torch.equal(ours.fooled, success)


@pytest.mark.parametrize("eps", [0.05, 0.15])
def test_pgd_fools_as_many_as_foolbox(foolbox, wrapped, problem, eps):
    settings = {"steps": 20, "abs_stepsize": eps / 8, "random_start": False}
    *_, success = foolbox.attacks.LinfPGD(**settings)(wrapped, *problem[1:], epsilons=eps)
    every_step = PGD(eps, steps=20, step_size=eps / 8, random_start=False, stop_when_fooled=False)
    literal = every_step(*problem).fooled.sum()
    assert abs(int(literal) - int(success.sum())) <= 1
    leaving = PGD(eps, steps=20, step_size=eps / 8, random_start=False)(*problem).fooled.sum()
    assert leaving >= success.sum() - 1


def test_cw_is_as_near_as_foolbox(foolbox, wrapped, problem):
    network, images, labels = problem
    images, labels = images[:40], labels[:40]
    theirs = foolbox.attacks.L2CarliniWagnerAttack(binary_search_steps=6, steps=100)
    found, _, success = theirs(wrapped, images, labels, epsilons=None)
    # A black image is foolbox's way to say that it found nothing, yet most count as successes.
    success &= found.flatten(1).any(1)
    distance = (found - images).flatten(1).norm(dim=1)
    ours = CarliniWagnerL2(6, 100)(network, images, labels, width=40)
    assert ours.fooled.sum() >= success.sum()
    assert ours.l2.median() <= 1.01 * distance[success].median()


def test_boundary_is_as_near_as_foolbox(foolbox, wrapped, problem):
    network, images, labels = problem
    ours = Boundary(steps=500, start_attempts=20)(network, images[:40], labels[:40], width=40)
    # foolbox gives up altogether if one image has no start.
    started = ours.fooled
    torch.manual_seed(0)
    theirs = foolbox.attacks.BoundaryAttack(steps=500)
    found, _, success = theirs(wrapped, images[:40][started], labels[:40][started], epsilons=None)
    assert success.all()
    distance = (found - images[:40][started]).flatten(1).norm(dim=1)
    assert ours.l2[started].median() <= distance.median()


def test_the_worst_case_is_as_bad_as_autoattack():
    pytest.importorskip("pyautoattack")
    network, images, labels = digits()
    eps = 0.08
    images, labels = images[:100], labels[:100]
    theirs = AutoAttack(eps, attacks=("apgd-ce", "apgd-t"))(network, images, labels)
    ours = WorstCase([FGSM(eps), APGD(eps), APGD(eps, loss="dlr"), Square(eps, queries=200)])(
        network, images, labels
    )
    assert 0.2 < theirs.robust_accuracy < 0.9
    assert ours.robust_accuracy <= theirs.robust_accuracy + 0.01
    assert theirs.queries[theirs.was_right].min() > 1


def test_autoattack_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match=r"attacks must be among .*'pgd'"):
        AutoAttack(0.1, attacks=("pgd",))
