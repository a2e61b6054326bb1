"""Narrow convolutions before a pool, computed at four places at once, against torch's own."""

import copy

import pytest
import torch
from torch import nn

from splash_units import Splash
from splash_units.lab.attacks.frozen import frozen
from splash_units.lab.attacks.narrow import PooledConvolution, cheaper_chains, combined, links


def randomised(network: nn.Module) -> nn.Module:
    """A network in eval mode whose batch norms are not the identity."""
    generator = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean):
                tensor.data.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
    return network.eval().requires_grad_(False)


class Wave(nn.Module):
    """A unit that falls in places, so that the pool must come last."""

    def forward(self, x):
        return torch.sin(3 * x)


def rising(network: nn.Sequential) -> nn.Sequential:
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.abs_()
    return network


CHAINS = {
    "batch norm and ReLU, which may follow the pool": (
        rising(
            randomised(
                nn.Sequential(nn.Conv2d(3, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2))
            )
        ),
        (4, 3, 32, 32),
    ),
    "batch norm that turns some maps over": (
        randomised(
            nn.Sequential(nn.Conv2d(3, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2))
        ),
        (4, 3, 32, 32),
    ),
    "a unit that falls": (
        randomised(nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), Wave(), nn.MaxPool2d(2))),
        (3, 3, 18, 14),
    ),
    "a unit with a shape a channel": (
        randomised(
            nn.Sequential(nn.Conv2d(2, 4, 3), Splash(features=4, share="channel"), nn.MaxPool2d(2))
        ),
        (3, 2, 16, 16),
    ),
    "padding and no bias": (
        randomised(nn.Sequential(nn.Conv2d(1, 8, 5, padding=2, bias=False), nn.MaxPool2d(2))),
        (2, 1, 28, 28),
    ),
    "more padding above than beside": (
        randomised(nn.Sequential(nn.Conv2d(2, 3, 3, padding=(2, 1)), nn.ReLU(), nn.MaxPool2d(2))),
        (2, 2, 12, 16),
    ),
    "a chain in a chain": (
        randomised(
            nn.Sequential(
                nn.Sequential(nn.Conv2d(3, 6, 3)),
                nn.Sequential(nn.BatchNorm2d(6), nn.Sequential(nn.ReLU())),
                nn.MaxPool2d(2),
                nn.Conv2d(6, 4, 3, padding=1),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(4 * 7 * 7, 3),
            )
        ),
        (5, 3, 30, 30),
    ),
}
every_chain = pytest.mark.parametrize("name", CHAINS)


def images_for(name):
    chain, shape = CHAINS[name]
    return chain, torch.rand(shape, generator=torch.Generator().manual_seed(1))


@every_chain
def test_values_are_torchs_bit_for_bit(name):
    chain, images = images_for(name)
    with torch.no_grad():
        expected = chain(images)
        with frozen(chain):
            assert "forward" in vars(chain)
            assert torch.equal(chain(images), expected)
    with frozen(chain):
        assert torch.equal(chain(images.requires_grad_()), expected)
    assert "forward" not in vars(chain)


@every_chain
def test_the_shorter_way_is_taken(name):
    """Otherwise the other tests would compare torch with torch."""
    chain, images = images_for(name)
    first, *_ = combined(list(links(chain)))
    assert isinstance(first, PooledConvolution)
    if not first.fits(images):
        pytest.skip("convolutions of this processor add in another order at four places")


@every_chain
def test_gradients_are_those_of_double_precision(name):
    chain, images = images_for(name)
    upstream = torch.randn(chain(images).shape, generator=torch.Generator().manual_seed(2))
    exact = copy.deepcopy(chain).double()
    wanted = images.double().requires_grad_()
    (expected,) = torch.autograd.grad(exact(wanted), wanted, upstream.double())
    images.requires_grad_()
    with frozen(chain):
        (found,) = torch.autograd.grad(chain(images), images, upstream)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@every_chain
def test_images_of_another_kind_are_left_to_torch(name):
    chain, images = images_for(name)
    double = copy.deepcopy(chain).double()
    with frozen(double), torch.no_grad():
        assert torch.equal(double(images.double()), copy.deepcopy(chain).double()(images.double()))
    last = images.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = chain(last)
        with frozen(chain):
            assert torch.equal(chain(last), expected)


def test_maps_of_odd_size_are_left_to_torch():
    chain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, ceil_mode=True)).eval()
    images = torch.rand(2, 1, 9, 8)
    with torch.no_grad():
        expected = chain(images)
        with frozen(chain):
            assert "forward" in vars(chain)
            assert torch.equal(chain(images), expected)


def hooked() -> nn.Sequential:
    chain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2))
    chain[1].register_forward_hook(lambda module, inputs, output: output + 1)
    return chain


OTHER_CHAINS = {
    "wide": nn.Sequential(nn.Conv2d(3, 17, 3), nn.MaxPool2d(2)),
    "with stride": nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.MaxPool2d(2)),
    "an even kernel": nn.Sequential(nn.Conv2d(3, 4, 4), nn.MaxPool2d(2)),
    "padded by mirrors": nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.MaxPool2d(2)
    ),
    "in groups": nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.MaxPool2d(2)),
    "a larger pool": nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(3)),
    "no pool": nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()),
    "positions mixed before the pool": nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(2)
    ),
    "a parameter for every position": nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.LayerNorm([4, 10, 10]), nn.MaxPool2d(2)
    ),
    "statistics of the batch": nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.MaxPool2d(2)
    ),
    "hooks": hooked(),
}


@pytest.mark.parametrize("name", OTHER_CHAINS)
def test_other_chains_are_left_alone(name):
    assert not list(cheaper_chains(OTHER_CHAINS[name].eval()))


def test_a_class_of_ones_own_is_left_alone():
    class Doubled(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    chain = Doubled(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2)).eval()
    assert not list(cheaper_chains(chain))
    images = torch.rand(1, 1, 6, 6)
    inside = nn.Sequential(chain, nn.Flatten())
    with torch.no_grad():
        expected = inside(images)
        with frozen(inside):
            assert torch.equal(inside(images), expected)
