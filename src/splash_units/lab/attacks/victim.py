"""The network under attack: frozen, in eval mode, and always asked about the same number of images.

Why always the same number: the libraries under torch choose their algorithm by the shape of the
batch, so that the last bits of an image's logits depend on how many other images are asked about,
and an iterative attack makes a different image of a different last bit. At one shape, an image's
logits depend neither on its place in the batch nor on its neighbours; short batches are therefore
filled up.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from splash_units.lab.attacks.frozen import Model, layout_of
from splash_units.lab.attacks.threat import check_labels

WIDTH = 128
"""How many images a network is asked about at once; with half as many, each takes a tenth more."""


class Victim:
    """A frozen network that answers in blocks of `width` images and counts what each image cost."""

    def __init__(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor,
        *,
        width: int,
        with_gradient: bool = False,
    ):
        self.width, self.model, self._layout = width, model, layout_of(model)
        self._queries = torch.zeros_like(labels)
        self._gradient_queries = torch.zeros_like(labels)
        self._unbooked, self._gradients_unbooked = 0, 0
        self.winner = torch.zeros_like(labels)  #: which of several attacks fooled an image
        self._asking_for = torch.arange(len(labels), device=labels.device)
        self.clean_gradient: Tensor | None = None
        if with_gradient:
            self.clean_logits, self.clean_gradient = self._differentiate(images, labels)
        else:
            self.clean_logits = self.logits(images)
            check_labels(labels, self.clean_logits.shape[1])

    def ask_for(self, owners: Tensor) -> None:
        """Say which images (indices into those given at the start) the next questions are about."""
        self._book()
        self._asking_for = owners

    def _book(self) -> None:
        """Charge the images asked about: at once for many questions, since each is quick."""
        self._queries[self._asking_for] += self._unbooked
        self._gradient_queries[self._asking_for] += self._gradients_unbooked
        self._unbooked, self._gradients_unbooked = 0, 0

    @property
    def queries(self) -> Tensor:
        """Forward passes spent on each image."""
        self._book()
        return self._queries

    @property
    def gradient_queries(self) -> Tensor:
        """Backward passes spent on each image."""
        self._book()
        return self._gradient_queries

    def count(self, owner: int, queries: int) -> None:
        """Count questions put to a part of the network, and so not through this object."""
        self._queries[owner] += queries

    def logits(self, images: Tensor) -> Tensor:
        """The logits of any number of images, without gradients."""
        self._unbooked += 1
        return self.recheck(images)

    def recheck(self, images: Tensor) -> Tensor:
        """The logits of any number of images, not counted as questions of the attack."""
        with torch.no_grad():
            if len(images) <= self.width:
                return self._answer(images)
            blocks = torch.split(images, self.width)
            return torch.cat([self._answer(block) for block in blocks])

    def gradient(
        self, images: Tensor, objective: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The logits of up to one block, and the gradient of their summed objective."""
        self._unbooked += 1
        self._gradients_unbooked += 1
        with torch.enable_grad():
            images = images.detach().requires_grad_(True)
            logits = self._answer(images)
            if not logits.requires_grad:
                raise ValueError(
                    "the network's logits carry no gradient, which this attack needs; "
                    "Boundary, Square and Pixels work without"
                )
            (gradient,) = torch.autograd.grad(objective(logits).sum(), images)
        return logits.detach(), gradient.contiguous()

    def _differentiate(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of any number of images, and the gradient of their cross-entropy."""

        def loss(logits: Tensor) -> Tensor:
            check_labels(labels, logits.shape[1])
            return F.cross_entropy(logits, labels[self._asking_for], reduction="sum")

        answers = []
        everything = torch.arange(len(images), device=images.device)
        for block, owners in zip(
            torch.split(images, self.width), torch.split(everything, self.width), strict=True
        ):
            self.ask_for(owners)
            answers.append(self.gradient(block, loss))
        logits, gradients = zip(*answers, strict=True)
        return torch.cat(logits), torch.cat(gradients)

    def _answer(self, images: Tensor) -> Tensor:
        missing = self.width - len(images)
        block = torch.cat([images, images[:1].expand(missing, -1, -1, -1)]) if missing else images
        logits = self.model(block.contiguous(memory_format=self._layout))
        return check_logits(logits, self.width)[: len(images)]


def check_logits(logits: Tensor, images: int) -> Tensor:
    """The logits, if they are logits."""
    if not isinstance(logits, Tensor):
        raise TypeError(f"the network must return a tensor of logits, got {type(logits).__name__}")
    if logits.ndim != 2 or logits.shape[0] != images or logits.shape[1] < 2:
        raise ValueError(
            f"the network must return logits of shape ({images}, classes), at least two classes, "
            f"for {images} images, got {tuple(logits.shape)}"
        )
    if bool(logits.isnan().any()):
        raise ValueError("the network returned NaN logits")
    return logits


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """How far the true class leads the best other one; negative when the image is misclassified."""
    others = logits.scatter(1, labels[:, None], -torch.inf)
    true: Tensor = logits.gather(1, labels[:, None])[:, 0]
    return true - others.amax(1)
