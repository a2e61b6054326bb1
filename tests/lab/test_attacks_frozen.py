"""A frozen network against torch's own."""

import pytest
import torch
from attack_models import digits
from torch import nn

from splash_units.lab.attacks import PGD, Boundary, Pixels
from splash_units.lab.attacks import frozen as freezing
from splash_units.lab.attacks.frozen import cheaper_layers, frozen

LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def values(shape, layout="contiguous"):
    """Values with many ties, on which a pool must agree with torch whom to send the gradient."""
    numbers = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(0)).float()
    return numbers.contiguous(memory_format=LAYOUTS[layout]) if len(shape) == 4 else numbers


def both_passes(layer, x):
    x = x.clone(memory_format=torch.preserve_format).requires_grad_(True)
    y = layer(x)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    return y.detach(), torch.autograd.grad(y, x, upstream)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(3, 5, 8, 8), (2, 1, 2, 6), (2, 3, 7, 8)])
def test_a_pool_is_torchs_bit_for_bit(shape, layout):
    pool, x = nn.MaxPool2d(2, 2, ceil_mode=True), values(shape, layout)
    expected, expected_gradient = both_passes(pool, x)
    with frozen(pool):
        assert "forward" in vars(pool)
        found, gradient = both_passes(pool, x)
        with torch.no_grad():
            assert torch.equal(pool(x), expected)
    assert torch.equal(found, expected)
    assert torch.equal(gradient, expected_gradient)


def test_a_pool_passes_nan_on():
    x = values((2, 3, 4, 4))
    x[0, 0, 1, 1] = torch.nan
    pool = nn.MaxPool2d(2)
    with frozen(pool), torch.no_grad():
        assert pool(x).isnan().sum() == 1


@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_is_torchs_bit_for_bit(affine):
    norm, x = nn.BatchNorm2d(5, affine=affine), values((3, 5, 7, 7))
    norm(3 * x + 1)  # statistics that are not the start's
    norm.eval()
    expected, expected_gradient = both_passes(norm, x)
    with frozen(norm):
        assert "forward" in vars(norm)
        found, gradient = both_passes(norm, x)
    assert torch.equal(found, expected)
    assert torch.equal(gradient, expected_gradient)


OTHER_POOLS = {
    "three by three": nn.MaxPool2d(3, 2),
    "overlapping": nn.MaxPool2d(2, 1),
    "padded": nn.MaxPool2d(2, padding=1),
    "dilated": nn.MaxPool2d(2, dilation=2),
    "with indices": nn.MaxPool2d(2, return_indices=True),
}


@pytest.mark.parametrize("name", OTHER_POOLS)
def test_other_pools_are_left_alone(name):
    assert not list(cheaper_layers(OTHER_POOLS[name]))


def test_a_network_gives_the_same_logits_and_is_left_as_it_was():
    network, images, _ = digits()
    network.train()
    plain = {name: dict(vars(module)) for name, module in network.named_modules()}
    try:
        with frozen(network), torch.no_grad():
            found = network(images)
            with frozen(network):  # an attack within an attack must not undo the outer one
                pass
            assert [i for i, module in enumerate(network) if "forward" in vars(module)] == [2, 4, 6]
        assert {name: dict(vars(module)) for name, module in network.named_modules()} == plain
        with torch.no_grad():
            assert torch.equal(network.eval()(images), found)
    finally:
        network.eval()


def test_a_batch_norm_by_the_batch_is_left_alone():
    assert not cheaper_layers(nn.BatchNorm2d(3, track_running_stats=False))


def test_what_somebody_replaced_stays_replaced():
    pool = nn.MaxPool2d(2)
    pool.forward = mine = lambda x: x
    with frozen(pool):
        assert pool.forward is mine
    assert pool.forward is mine


def test_a_compiled_network_keeps_what_was_compiled():
    compiled = nn.Module()  # torch.compile wraps a network like this
    compiled._orig_mod = nn.Sequential(nn.MaxPool2d(2))
    assert not list(cheaper_layers(compiled))


@pytest.mark.parametrize(
    "attack", [PGD(0.1, steps=3), Boundary(steps=20), Pixels(1, population=20, generations=2)]
)
def test_what_an_attack_claims_is_checked_by_the_networks_own_layers(attack, monkeypatch):
    network, images, labels = digits()
    images, labels = images[:20], labels[:20]
    head = network[-1]

    def another_class(x):
        return nn.functional.linear(x, head.weight, head.bias).roll(1, dims=1)

    monkeypatch.setattr(freezing, "cheaper_layers", lambda model: [(head, another_class)])
    outcome = attack(network, images, (labels + 1) % 10, width=20)
    assert outcome.was_right.any()  # by the layer that lies
    attacked = outcome.images[outcome.was_right]
    assert torch.equal(outcome.prediction[outcome.was_right], network(attacked).argmax(1))
