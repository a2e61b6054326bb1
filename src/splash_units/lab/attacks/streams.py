"""A random stream for every image: the same image and seed give the same numbers in any company.

The stream is keyed by the seed and the image's own bytes, so that reordering the images, adding
some or cutting them into other chunks changes no image's numbers. Numbers are drawn on the CPU
whatever the device of the images, so that devices agree too.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def streams(images: Tensor, seed: int) -> list[torch.Generator]:
    """One generator an image, started from the image's content and the seed."""
    key = seed.to_bytes(16, "little", signed=True)
    generators = []
    for image in images.detach().cpu().contiguous().numpy():
        digest = hashlib.blake2b(image.tobytes(), digest_size=8, key=key).digest()
        # manual_seed takes what fits in 64 signed bits
        start = int.from_bytes(digest, "little") >> 1
        generators.append(torch.Generator().manual_seed(start))
    return generators


def uniform(generators: list[torch.Generator], *shape: int, like: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), shape (images, *shape), a row from each image's own stream."""
    rows = [torch.rand(shape, generator=generator, dtype=like.dtype) for generator in generators]
    return torch.stack(rows).to(like.device)


def integers(generators: list[torch.Generator], high: int, *shape: int) -> Tensor:
    """Whole numbers in [0, high), shape (images, *shape), a row from each image's own stream."""
    return torch.stack([torch.randint(high, shape, generator=each) for each in generators])
