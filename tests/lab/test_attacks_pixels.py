"""The few-pixel attack against exhaustive search, and its two ways of asking the network."""

import pytest
import torch
from attack_models import digits, linear_problem

from splash_units.lab.attacks import Pixels
from splash_units.lab.attacks.pixels import distinct_triples


def exhaustive(network, image, label):
    """The lowest probability of the true class over all single pixels at all corners of the
    colours.

    For a linear network the best colour is a corner, so nothing better exists.
    """
    channels, height, width = image.shape
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * channels)
    candidates = image.repeat(height * width * len(corners), 1, 1, 1)
    for number, candidate in enumerate(candidates):
        place, corner = divmod(number, len(corners))
        candidate[:, place // width, place % width] = corners[corner]
    return network(candidates).softmax(1)[:, label].min()


def test_one_pixel_finds_what_exhaustive_search_finds():
    network, images, labels = linear_problem(images=12, shape=(2, 4, 4), farthest=0.6)
    best = torch.stack(
        [exhaustive(network, *pair) for pair in zip(images, labels, strict=True)]
    ).double()
    outcome = Pixels(1, generations=40)(network, images, labels, width=40)
    possible = best < 0.5
    assert 0 < possible.sum() < len(possible)
    assert torch.equal(outcome.fooled, possible)
    torch.testing.assert_close(
        outcome.probability_true[~possible], best[~possible].detach(), rtol=0.02, atol=0
    )


@pytest.mark.parametrize("k", [1, 3])
def test_what_a_pixel_does_not_reach_need_not_be_computed(k):
    network, images, labels = digits()
    images, labels = images[:20], labels[:20]
    settings = {"population": 60, "generations": 6, "block": 60}
    fast = Pixels(k, **settings)(network, images, labels, width=40)
    whole = Pixels(k, **settings, incremental=False)(network, images, labels, width=40)
    assert fast.fooled.any()
    assert torch.equal(fast.images, whole.images)
    assert torch.equal(fast.queries, whole.queries)


def test_the_result_is_an_ordinary_image_with_at_most_k_other_pixels():
    network, images, labels = digits()
    images, labels = (images[:20] * 255).round() / 255, labels[:20]
    outcome = Pixels(3, population=50, generations=5)(network, images, labels, width=40)
    assert outcome.l0.max() <= 3
    torch.testing.assert_close(outcome.images * 255, (outcome.images * 255).round())


def test_an_image_leaves_with_the_candidate_that_fools():
    network, images, labels = digits()
    attack = Pixels(5, population=40, generations=10, block=40)
    outcome = attack(network, images[:30], labels[:30])
    fooled = outcome.queries[outcome.fooled]
    assert (fooled == 1 + 40).any()  # in the first, random generation
    resisted = outcome.was_right & ~outcome.fooled
    assert (outcome.queries[resisted] == 1 + 40 * 11).all()


def test_the_papers_printed_sum_is_at_hand_and_searches_worse():
    network, images, labels = digits()
    fooled = {}
    for mutation in ("difference", "sum"):
        attack = Pixels(1, population=30, generations=10, mutation=mutation)
        fooled[mutation] = int(attack(network, images[:60], labels[:60]).fooled.sum())
    assert fooled["sum"] < fooled["difference"]


@pytest.mark.parametrize("base", ["both", "best"])
def test_from_the_best_candidate_the_search_is_shorter(base):
    network, images, labels = digits()
    found, random = (
        Pixels(3, population=30, generations=15, base=base)(network, images[:60], labels[:60])
        for base in (base, "random")
    )
    assert found.fooled.sum() >= random.fooled.sum() > 0
    assert found.queries.sum() < random.queries.sum()


def test_three_different_parents():
    draws = [distinct_triples(4, torch.Generator().manual_seed(i)) for i in range(300)]
    for first, second, third in draws:
        assert (first != second).all()
        assert (first != third).all()
        assert (second != third).all()
    for parent in range(3):
        counts = torch.cat([draw[parent] for draw in draws]).bincount()
        assert counts.min() > 0.8 * counts.max()  # 300 draws of 4: each number about 300 times


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k must be at least 1"),
        ({"population": 2}, "population must be at least 3"),
        ({"generations": 0}, "generations must be at least 1"),
        ({"mutation": "product"}, "mutation must be one of .*'product'"),
        ({"base": "worst"}, "base must be one of .*'worst'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Pixels(**settings)


def test_more_pixels_than_the_image_has_are_refused():
    network, images, labels = linear_problem(shape=(2, 3, 3))
    with pytest.raises(ValueError, match="k=10 pixels are more than an image of 3 x 3 has"):
        Pixels(10)(network, images, labels, width=40)
