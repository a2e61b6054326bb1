"""What can be known of a network's images before any attack: which are right, which give no
gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from splash_units.lab.attacks.frozen import Model, frozen
from splash_units.lab.attacks.threat import check_images
from splash_units.lab.attacks.victim import WIDTH, Victim


def classified_right(model: Model, images: Tensor, labels: Tensor, *, width: int = WIDTH) -> Tensor:
    """Which images the network gets right, asked as an attack asks it."""
    check_images(images, labels)
    with frozen(model), torch.no_grad():
        victim = Victim(model, images, labels, width=width)
    return victim.clean_logits.argmax(1) == labels


def without_gradient(model: Model, images: Tensor, labels: Tensor, *, width: int = WIDTH) -> Tensor:
    """Which images have a loss gradient of exactly zero, so that no gradient attack can begin.

    A network so sure of an image that its softmax rounds to one has such a gradient: it looks
    robust and is not.
    """
    check_images(images, labels)
    with frozen(model), torch.no_grad():
        victim = Victim(model, images, labels, width=width, with_gradient=True)
    assert victim.clean_gradient is not None
    return ~victim.clean_gradient.flatten(1).any(1)
