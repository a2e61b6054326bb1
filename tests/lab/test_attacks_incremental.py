"""Computing only what changed pixels reach gives the logits of the whole network: exactly, where
sums are.
"""

from itertools import pairwise

import pytest
import torch
from attack_models import digits
from torch import Tensor, nn
from torch.nn import functional as F

from splash_units.lab.attacks import differences
from splash_units.lab.attacks.differences import Differences
from splash_units.lab.attacks.incremental import IncrementalNetwork, trace
from splash_units.lab.attacks.operations import Windowed
from splash_units.lab.attacks.reach import Changes, Reach, Window


class Halve(nn.Module):
    """A normalisation whose arithmetic is exact."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5) / 0.25


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1)
        self.norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1)
        self.shortcut = nn.Conv2d(channels, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(F.relu(self.norm(self.first(x))))
        return torch.relu(y + self.shortcut(x))


class PerPosition(nn.Module):
    """A unit with a slope of its own at every position, which no window may share."""

    def __init__(self, *shape: int):
        super().__init__()
        self.slope = nn.Parameter(torch.rand(shape))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x < 0, self.slope * x, x)


def head(channels: int, positions: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(channels * positions, 5)]


NETWORKS = {
    "valid convolutions and pools, as in LeNet": lambda: nn.Sequential(
        Halve(),
        nn.Conv2d(2, 3, 5),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        *head(4, 4),
    ),
    "1 x 1 convolutions and overlapping pools, as in NiN": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(4, 3, 1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Dropout(),
        nn.Conv2d(3, 4, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ),
    "strided convolutions, as in All-CNN": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 3, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(3, 3, 3, 2, 1),
        nn.ReLU(),
        *head(3, 25),
    ),
    "residual blocks": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, 1, 1),
        nn.Sequential(Residual(3, 3, 1), Residual(3, 4, 2)),
        *head(4, 100),
    ),
    "uneven kernels, groups and dilation": lambda: nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), (1, 2), (0, 1)),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2),
        nn.Conv2d(4, 2, (3, 5), padding="same"),
        nn.MaxPool2d((2, 3), padding=(1, 1)),
        *head(2, 40),
    ),
}


def exact(network: nn.Module) -> nn.Module:
    """Weights that are small whole numbers: in double precision every sum is then exact."""
    generator = torch.Generator().manual_seed(0)
    for parameter in network.double().parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape, generator=generator).double()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps, module.running_var[:] = 0.0, 4.0
            module.running_mean[:] = 1.0
    return network.eval().requires_grad_(False)


def variants(image: Tensor, pixels: int) -> Changes:
    """Every pixel of the image, each with neighbours that overlap what it reaches."""
    height, width = image.shape[2:]
    rows, columns = torch.cartesian_prod(torch.arange(height), torch.arange(width)).unbind(1)
    rows = torch.stack([(rows + i) % height for i in range(pixels)], 1)
    columns = torch.stack([(columns + 3 * i) % width for i in range(pixels)], 1)
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(0, 257, (*rows.shape, image.shape[1]), generator=generator) / 256
    return Changes(rows, columns, values.to(image.dtype))


@pytest.mark.parametrize("pixels", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_logits_are_exactly_those_of_the_whole_network(name, pixels):
    network = exact(NETWORKS[name]())
    image = torch.randint(0, 257, (1, 2, 20, 20)).double() / 256
    fast = trace(network, image, pixels)
    changes = variants(image, pixels)
    assert fast is not None
    assert torch.equal(fast.logits(fast.clean(image), changes), network(changes.applied_to(image)))


def clumps(image: Tensor) -> Changes:
    """Every pixel of the image with one beside it, one it does not reach, and itself once more."""
    changes = variants(image, 4)
    rows, columns, values = changes.rows, changes.columns, changes.values
    rows[:, 1], columns[:, 1] = rows[:, 0], (columns[:, 0] + 1) % image.shape[3]
    rows[:, 2] = (rows[:, 0] + 10) % image.shape[2]
    rows[:, 3], columns[:, 3], values[:, 3] = rows[:, 0], columns[:, 0], values[:, 0]
    return changes


@pytest.mark.parametrize("name", NETWORKS)
def test_pixels_close_together_or_named_twice_are_counted_once(name):
    network = exact(NETWORKS[name]())
    image = torch.randint(0, 257, (1, 2, 20, 20)).double() / 256
    fast, changes = trace(network, image, 4), clumps(image)
    assert torch.equal(fast.logits(fast.clean(image), changes), network(changes.applied_to(image)))


def way_of(network: IncrementalNetwork, name: str) -> object:
    return next(step.boxes.way for step in network._steps if step.node.name == name)


def test_the_first_convolution_adds_what_pixels_change_unless_its_table_is_too_large(monkeypatch):
    network = exact(nn.Sequential(nn.Conv2d(2, 3, 3, 2, 1), *head(3, 100)))
    image = torch.randint(0, 257, (1, 2, 20, 20)).double() / 256
    small, changes = trace(network, image, 2), variants(image, 2)
    monkeypatch.setattr(differences, "LARGEST_TABLE", 100)
    large = trace(network, image, 2)
    assert isinstance(way_of(small, "_0"), Differences)
    assert isinstance(way_of(large, "_0"), Windowed)
    expected = network(changes.applied_to(image))
    assert torch.equal(small.logits(small.clean(image), changes), expected)
    assert torch.equal(large.logits(large.clean(image), changes), expected)


@pytest.mark.parametrize(("scale", "first"), [(0.5, "_3"), (-0.5, "_1")])
def test_a_pool_comes_before_a_norm_and_a_unit_that_never_fall(scale, first):
    network = exact(
        nn.Sequential(
            nn.Conv2d(2, 3, 5), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), *head(3, 64)
        )
    )
    network[1].weight.fill_(scale)
    image = torch.randint(0, 257, (1, 2, 20, 20)).double() / 256
    fast, changes = trace(network, image, 2), variants(image, 2)
    assert fast.sites[2] == first
    assert torch.equal(fast.logits(fast.clean(image), changes), network(changes.applied_to(image)))


@pytest.mark.parametrize("pixels", [1, 3])
def test_with_real_weights_only_the_rounding_differs(pixels):
    network, images, _ = digits()
    fast = trace(network, images[:1], pixels)
    for image in images[:3]:
        changes = variants(image[None], pixels)
        found = fast.logits(fast.clean(image[None]), changes)
        expected = network(changes.applied_to(image[None]))
        assert (found - expected).abs().max() <= 4e-6 * expected.abs().max()


def test_boxes_are_used_as_long_as_they_save_work():
    network = exact(NETWORKS["strided convolutions, as in All-CNN"]())
    image = torch.zeros(1, 2, 20, 20).double()
    reached = {pixels: len(trace(network, image, pixels).sites) for pixels in (1, 4, 12)}
    assert reached[1] > reached[4] > reached[12] > 1


def test_a_module_that_insists_on_whole_images_is_given_whole_images():
    class Picky(nn.Module):
        """Standardises, but pads images that are too small, as a network's input may."""

        def forward(self, x: Tensor) -> Tensor:
            return (F.pad(x, (0, 20 - x.shape[3], 0, 20 - x.shape[2])) - 0.5) / 0.25

    network = exact(
        nn.Sequential(Picky(), nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), *head(3, 81))
    )
    image = torch.randint(0, 257, (1, 2, 20, 20)).double() / 256
    fast = trace(network, image, 2)
    changes = variants(image, 2)
    assert len(fast.sites) == 5
    assert torch.equal(fast.logits(fast.clean(image), changes), network(changes.applied_to(image)))


def test_a_unit_with_a_slope_for_every_position_ends_the_boxes():
    def network(unit):
        return nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), unit, nn.Conv2d(3, 3, 3, padding=1), *head(3, 400)
        ).requires_grad_(False)

    image = torch.rand(1, 2, 20, 20)
    shared = trace(network(nn.PReLU(3)), image, 1)
    apart = trace(network(PerPosition(3, 20, 20)), image, 1)
    assert len(shared.sites) == 4
    assert len(apart.sites) == 2


class Undecided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :3] if x.sum() > 0 else x.flatten(1)[:, 3:6]


class Sharpen(nn.Module):
    """Differs from position to position, though it looks like a function of single positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean((2, 3), keepdim=True)


UNSUITABLE = {
    "a plain function": lambda x: x.flatten(1),
    "an answer that depends on the values": Undecided(),
    "dense from the start": nn.Sequential(*head(2, 400)),
    "positions mixed before the first convolution": nn.Sequential(
        Sharpen(), nn.Conv2d(2, 3, 3), *head(3, 324)
    ),
    "instance norm before the first convolution": nn.Sequential(
        nn.InstanceNorm2d(2), nn.Conv2d(2, 3, 3), *head(3, 324)
    ),
    "padding that is not zero": nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), *head(3, 400)
    ),
}


@pytest.mark.parametrize("name", UNSUITABLE)
def test_an_unsuitable_network_is_left_to_itself(name):
    assert trace(UNSUITABLE[name], torch.zeros(1, 2, 20, 20), 1) is None


def test_a_network_whose_trace_lies_is_refused():
    class Counting(nn.Module):
        """Answers differently once it has been traced."""

        def __init__(self):
            super().__init__()
            self.convolution, self.head, self.calls = nn.Conv2d(2, 3, 3), nn.Linear(972, 5), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.calls * self.head(self.convolution(x).flatten(1))

    assert trace(Counting(), torch.zeros(1, 2, 20, 20), 1) is None


@pytest.mark.parametrize(
    "window", [Window(3, 1, 1), Window(5, 2, 0), Window(2, 2, 1), Window(3, 2, 2)]
)
def test_the_reach_of_a_pixel_is_what_a_convolution_spreads(window):
    length = 17
    after = (length + 2 * window.padding - window.kernel) // window.stride + 1
    reach = window.reach(Reach.of_pixels(length, torch.device("cpu")), after)
    pixels = torch.eye(length)[:, None]
    spread = F.conv1d(pixels, torch.ones(1, 1, window.kernel), None, window.stride, window.padding)
    for pixel, box in enumerate(reach.box):
        touched = spread[pixel, 0].nonzero().flatten().tolist()
        assert set(touched) <= set(box.tolist())
        assert all(b - a == 1 for a, b in pairwise(box.tolist()))
        assert box.min() >= 0
        assert box.max() < after
    assert reach.size <= -(-window.kernel // window.stride)
