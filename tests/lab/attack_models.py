"""Networks for the tests of the attacks: trained in a second, or known in closed form."""

from functools import cache

import torch
from torch import Tensor, nn


class Linear(nn.Module):
    """Logits linear in the pixels, so that every optimal attack is known."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(len(weight)) if bias is None else bias)

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight.T + self.bias


def linear_problem(
    images: int = 24, shape: tuple[int, ...] = (2, 3, 3), farthest: float = 0.3
) -> tuple[Linear, Tensor, Tensor]:
    """A linear network of two classes and images on both sides of its hyperplane, labelled.

    Their distances to it are spread from a fifth of `farthest` to `farthest`, and no way to the
    hyperplane along its normal leaves [0, 1].
    """
    generator = torch.Generator().manual_seed(0)
    size = torch.Size(shape).numel()
    network = Linear(torch.randn(2, size, generator=generator))
    normal = (network.weight[1] - network.weight[0]).detach()
    normal /= normal.norm()
    along = 0.2 * (torch.rand(images, size, generator=generator) - 0.5)
    along -= (along @ normal)[:, None] * normal
    labels = torch.arange(images) % 2
    distance = farthest * torch.linspace(0.2, 1, images) * (2 * labels - 1)
    data = 0.5 + along + distance[:, None] * normal
    with torch.no_grad():
        network.bias -= network.weight @ torch.full((size,), 0.5)
    return network, data.view(images, *shape), labels


class Standardise(nn.Module):
    def __init__(self, mean: float, deviation: float):
        super().__init__()
        self.mean, self.deviation = mean, deviation

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.deviation


@cache
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    """A small convolutional network trained on scikit-learn's digits, and 200 unseen images."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(data.target)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            Standardise(0.3, 0.35),
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 10),
        )
        optimizer = torch.optim.Adam(network.parameters(), 5e-3)
        for _ in range(4):
            for batch in torch.randperm(1500).split(64):
                loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return network.eval(), images[-200:], labels[-200:]
