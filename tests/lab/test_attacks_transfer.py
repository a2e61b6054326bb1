"""Images made against one network, shown to another; and images after 8-bit rounding."""

import pytest
import torch
from attack_models import Linear, digits, linear_problem

from splash_units.lab.attacks import (
    FGSM,
    CarliniWagnerL2,
    fooled_when_rounded,
    transfer,
    transfer_matrix,
)


def test_a_network_is_fooled_by_its_own_images():
    network, images, labels = digits()
    outcome = FGSM(0.15)(network, images, labels, width=40)
    again = transfer(outcome, images, network)
    assert torch.equal(again.fooled, outcome.fooled)
    assert torch.equal(again.images[outcome.was_right], outcome.images[outcome.was_right])
    assert (again.queries[outcome.was_right] == 2).all()


def test_the_matrix_counts_what_both_could_lose():
    network, images, labels = linear_problem()
    outcome = FGSM(0.05)(network, images, labels, width=40)
    opposite = Linear(-network.weight.detach(), -network.bias.detach())
    blind = Linear(torch.zeros(2, 18), torch.tensor([1.0, 0.0]))
    models = {"itself": network, "opposite": opposite, "blind": blind}
    matrix = transfer_matrix({"linear": outcome}, models, images)
    fooled, class_zero = int(outcome.fooled.sum()), int((outcome.fooled & (labels == 0)).sum())
    assert fooled > class_zero > 0
    assert matrix.sources == ("linear",)
    assert matrix.targets == ("itself", "opposite", "blind")
    assert matrix.tried.tolist() == [[fooled, 0, class_zero]]
    assert matrix.fooled.tolist() == [[fooled, 0, 0]]
    assert matrix.rates[0].isnan().tolist() == [False, True, False]


def test_clean_images_of_another_shape_are_refused():
    network, images, labels = digits()
    outcome = FGSM(0.1)(network, images, labels, width=40)
    with pytest.raises(ValueError, match=r"\(200, 1, 8, 8\), got \(100, 1, 8, 8\)"):
        transfer(outcome, images[:100], network)
    with pytest.raises(ValueError, match="at least one outcome"):
        transfer_matrix({}, {"a": network}, images)


def test_rounding_to_8_bits_is_counted_apart():
    network, images, labels = linear_problem()
    images = (images * 255).round() / 255
    nearest = CarliniWagnerL2(steps=200)(network, images, labels, width=24)
    coarse = FGSM(0.15)(network, images, labels, width=40)
    assert nearest.fooled.all()
    survives = fooled_when_rounded(network, nearest)
    expected = network((nearest.images * 255).round() / 255).argmax(1) != labels
    assert torch.equal(survives, expected)
    assert 0 < survives.sum() < len(images)
    assert torch.equal(fooled_when_rounded(network, coarse), coarse.fooled)
