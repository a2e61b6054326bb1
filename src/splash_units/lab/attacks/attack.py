"""What all attacks share: choose the images worth attacking, perturb them, and check every claim
afresh.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from splash_units.lab.attacks.frozen import Model, at_rest, hurried
from splash_units.lab.attacks.streams import streams
from splash_units.lab.attacks.threat import Budget, Outcome, check_images, distances, whole
from splash_units.lab.attacks.victim import WIDTH, Victim

if TYPE_CHECKING:
    from rich.progress import Progress


class Ticker(Protocol):
    """Something that is told how many images have been decided."""

    def advance(self, images: int) -> None: ...


@dataclass(frozen=True)
class Task:
    """The images of a chunk that are worth attacking: those the network gets right."""

    images: Tensor
    labels: Tensor
    owners: Tensor  #: where each image stands in the chunk
    seed: int
    ticker: Ticker

    def __len__(self) -> int:
        return len(self.labels)

    def fresh_streams(self) -> list[torch.Generator]:
        """Each image's own random stream, at its start."""
        return streams(self.images, self.seed)

    def part(self, index: Tensor) -> Task:
        """The task of some of these images."""
        return replace(
            self, images=self.images[index], labels=self.labels[index], owners=self.owners[index]
        )


@dataclass(frozen=True)
class Attack(ABC):
    """An attack: settings in the constructor, network and images in the call.

    A subclass says what it may do (`budget`) and how it does it (`perturb`).
    """

    @property
    def starts_from_clean_gradient(self) -> bool:
        """Whether the pass that finds what is right should bring the loss gradient along."""
        return False

    @property
    def is_one_step(self) -> bool:
        """Whether the attack is so short that looking at its result is a good part of it.

        The images of such an attack are looked at by the network while it is hurried; those of all
        others by the network as it was handed in. Its logits have the same bits, as far as tried.
        """
        return False

    @property
    @abstractmethod
    def budget(self) -> Budget | None:
        """How far the attack may go; None for one that looks for the nearest wrong answer."""

    @abstractmethod
    def perturb(self, victim: Victim, task: Task) -> Tensor:
        """Adversarial images for the task, or the best attempt at them."""

    def __call__(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor,
        *,
        seed: int = 0,
        chunk_size: int = 512,
        width: int = WIDTH,
        progress: bool | Progress | Ticker = False,
    ) -> Outcome:
        """Attack all images and return the outcome, one row an image.

        `chunk_size` images are worked on together, which bounds the memory and changes no result.
        `width` images are shown to the network at once; it is the one setting besides `seed` that
        results depend on, in their last bits, because the network's arithmetic does. `progress`
        draws a bar on a terminal, or a task in a `rich.progress.Progress` of yours, or tells a
        `Ticker` of yours.
        """
        chunks = self.chunks(
            model,
            images,
            labels,
            seed=seed,
            chunk_size=chunk_size,
            width=width,
            progress=progress,
        )
        return Outcome.concatenate(chunks)

    def chunks(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor,
        *,
        seed: int = 0,
        chunk_size: int = 512,
        width: int = WIDTH,
        progress: bool | Progress | Ticker = False,
    ) -> Iterator[Outcome]:
        """The same, chunk by chunk, so that an interrupted caller keeps what was finished.

        Between chunks the network is as the caller left it.
        """
        check_images(images, labels)
        whole("chunk_size", chunk_size)
        whole("width", width)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed must be a whole number, got {seed!r}")
        self.check(images)
        labels = labels.to(images.device, torch.int64)
        with ticking(str(self), len(images), progress) as ticker:
            for start in range(0, len(images), chunk_size):
                chunk = slice(start, start + chunk_size)
                with at_rest(model), torch.no_grad():
                    outcome = self._chunk(model, images[chunk], labels[chunk], seed, width, ticker)
                yield outcome

    def check(self, images: Tensor) -> None:  # noqa: B027 (most attacks fit all images)
        """Refuse images this attack's settings do not fit."""

    def _chunk(
        self, model: Model, clean: Tensor, labels: Tensor, seed: int, width: int, ticker: Ticker
    ) -> Outcome:
        clean = clean.detach()
        everyone = torch.arange(len(clean), device=clean.device)
        with ExitStack() as hurry:
            hurry.enter_context(hurried(model))
            victim = Victim(
                model, clean, labels, width=width, with_gradient=self.starts_from_clean_gradient
            )
            clean_prediction = victim.clean_logits.argmax(1)
            was_right = clean_prediction == labels
            (right,) = was_right.nonzero(as_tuple=True)
            ticker.advance(len(clean) - len(right))
            images = self._perturbed(victim, Task(clean, labels, everyone, seed, ticker), right)
            if not self.is_one_step:
                hurry.close()
            logits = seen_again(victim, images, right)
        prediction, probabilities = logits.argmax(1), logits.double().softmax(1)
        fooled = was_right & (prediction != labels)
        outcome = Outcome(
            images=images,
            labels=labels,
            clean_prediction=clean_prediction,
            prediction=prediction,
            was_right=was_right,
            fooled=fooled,
            **distances(images, clean),
            probability_true=probabilities.gather(1, labels[:, None])[:, 0],
            probability_predicted=probabilities.amax(1),
            queries=victim.queries,
            gradient_queries=victim.gradient_queries,
            winner=torch.where(fooled, victim.winner, -1),
        )
        self._check_promise(outcome)
        return outcome

    def _perturbed(self, victim: Victim, chunk: Task, right: Tensor) -> Tensor:
        """A chunk's images, perturbed where the network is right."""
        if len(right) == len(chunk):  # spares small networks what costs a tenth of a step
            return self.perturb(victim, chunk)
        images = chunk.images.clone()
        if len(right):
            images[right] = self.perturb(victim, chunk.part(right))
        return images

    def _check_promise(self, outcome: Outcome) -> None:
        """An image out of range or budget is a defect of the attack, never a result."""
        low, high = float(outcome.images.min()), float(outcome.images.max())
        if not (low >= 0.0 and high <= 1.0):
            raise RuntimeError(f"{self} made images with values from {low:g} to {high:g}")
        if self.budget is not None and not bool(self.budget.holds(outcome).all()):
            worst = float(getattr(outcome, self.budget.norm).max())
            raise RuntimeError(f"{self} went {worst:.9g} far, its budget is {self.budget}")


def seen_again(victim: Victim, images: Tensor, changed: Tensor) -> Tensor:
    """The logits of a chunk's images, by a fresh forward of those that were changed."""
    if len(changed) == len(images):
        return victim.recheck(images)
    logits = victim.clean_logits.clone()
    if len(changed):
        logits[changed] = victim.recheck(images[changed])
    return logits


class Silence:
    """Nobody is watching."""

    def advance(self, images: int) -> None:
        pass


class _Bar:
    def __init__(self, bars: Progress, description: str, total: int):
        self._bars, self._task = bars, bars.add_task(description, total=total)

    def advance(self, images: int) -> None:
        self._bars.advance(self._task, images)


@contextmanager
def ticking(description: str, total: int, progress: bool | Progress | Ticker) -> Iterator[Ticker]:
    """Show how many images are decided: to the caller's ticker or bars, on a terminal of our own,
    or not at all.
    """
    if progress is False or (progress is True and not sys.stderr.isatty()):
        yield Silence()
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    if progress is True:
        with Bars(console=Console(stderr=True), transient=True) as bars:
            yield _Bar(bars, description, total)
    elif isinstance(progress, Bars):
        yield _Bar(progress, description, total)
    else:
        yield progress


def fooled_when_rounded(model: Model, outcome: Outcome, *, width: int = WIDTH) -> Tensor:
    """Which fooled images still fool the network once their values are rounded to 8 bits.

    A count of its own: an image of 256 levels is what a file or a camera would hand the network,
    and a perturbation of less than half a level does not survive it.
    """
    (fooled,) = outcome.fooled.nonzero(as_tuple=True)
    still = torch.zeros_like(outcome.fooled)
    if len(fooled):
        rounded, labels = (outcome.images[fooled] * 255).round() / 255, outcome.labels[fooled]
        with at_rest(model):
            victim = Victim(model, rounded, labels, width=width)
        still[fooled] = victim.clean_logits.argmax(1) != labels
    return still
