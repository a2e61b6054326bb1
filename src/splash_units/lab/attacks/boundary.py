"""The boundary attack (Brendel et al., 2018): a random walk along the decision boundary, labels
only.

It starts from noise that is misclassified, blended with the clean image as far as the class allows,
and then repeats: a random step on the sphere around the clean image, a step towards it, and both
are kept if the image is still misclassified. Step sizes follow the share of steps that succeed.

Departures: the SPLASH paper describes the steps' sizes as results and starts from Gaussian noise;
foolbox 3, which it used, is followed, settings included. From foolbox: every image has its own
noise and its own step sizes, an image without a start is that image's failure only, an image that
has converged leaves, and the noise of a step is a window, at a random place, of one long table of
Gaussian numbers, which costs a tenth of drawing them and is as good: two windows are uncorrelated
unless they begin at the same place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splash_units.lab.attacks import slots
from splash_units.lab.attacks.attack import Attack, Task
from splash_units.lab.attacks.gradient import column
from splash_units.lab.attacks.streams import integers
from splash_units.lab.attacks.threat import positive, whole
from splash_units.lab.attacks.victim import Victim

Array = np.ndarray[Any, Any]

WINDOWS = 2**20
STARTING, BLENDING, ON_SPHERE, STEPPING = range(4)
AFTER = np.array([BLENDING, STEPPING, STEPPING, STEPPING])
LOOK_EVERY = 10
ROUNDING = 1e-6


@dataclass(frozen=True)
class Watch:
    """A row's share of successes over its last looks; what is too rare and too frequent."""

    looks: int
    rare: float
    frequent: float

    def look(self, history: Array, looks: Array, success: Array, looked: Array) -> Array:
        """Record the rows that were looked at; +1, -1 or 0 a row: longer steps, shorter or as they
        are.

        A row is judged on a full history only, and starts a new one when its steps change.
        """
        (rows,) = looked.nonzero()
        history[rows, looks[rows] % self.looks] = success[rows]
        looks[rows] += 1
        trend = np.zeros(len(looks), dtype=np.int64)
        judged = rows[looks[rows] >= self.looks]
        if len(judged):
            share = history[judged].mean(1)
            trend[judged] = (share > self.frequent).astype(np.int64) - (share < self.rare)
            looks[trend != 0] = 0
        return trend


SPHERE = Watch(looks=100, rare=0.2, frequent=0.5)
SOURCE = Watch(looks=30, rare=0.1, frequent=0.25)


@cache
def gaussian_windows(length: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Array]:
    """All windows of one long table of Gaussian numbers, shape (WINDOWS, length), and their L2
    norms.

    The windows are views of the table and take no memory of their own.
    """
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(WINDOWS + length - 1, generator=generator, dtype=torch.float64)
    until = torch.cat([table.new_zeros(1), table.square().cumsum(0)])
    norms = (until[length:] - until[:-length]).sqrt()
    windows = table.to(device, dtype).as_strided((WINDOWS, length), (1, 1))
    return windows, norms.to(dtype).numpy()


@dataclass
class BoundaryRows(slots.Rows):
    """`best` is the misclassified image the walk has reached, or the noise it is to start from.

    All but images and labels are small and stay on the CPU, to be worked on as numpy's arrays: its
    operations on a few numbers take a fifth of the time of torch's, and there are many a step.
    """

    distance: Tensor  #: from `best` to the clean image, in L2
    places: Tensor  #: where in the table each step's noise begins
    phase: Tensor
    attempt: Tensor  #: noise images tried
    blend: Tensor  #: how many parts of noise are in the start
    step: Tensor
    sphere_step: Tensor
    source_step: Tensor
    sphere_history: Tensor
    sphere_looks: Tensor
    source_history: Tensor
    source_looks: Tensor


@dataclass(frozen=True)
class Boundary(Attack):
    """The nearest misclassified image in L2 that a walk of `steps` steps finds from labels alone.

    `start_attempts` noise images are tried for a start, blended with the clean image in
    `blend_steps` parts.
    """

    steps: int = 6000
    spherical_step: float = 0.01
    source_step: float = 0.01
    step_adaptation: float = 1.5
    converged_at: float = 1e-7
    start_attempts: int = 1000
    blend_steps: int = 50

    def __post_init__(self) -> None:
        for name in ("steps", "start_attempts", "blend_steps"):
            whole(name, getattr(self, name))
        for name in ("spherical_step", "source_step", "converged_at"):
            positive(name, getattr(self, name))
        if not (1 < self.step_adaptation < math.inf):
            raise ValueError(f"step_adaptation must be above 1, got {self.step_adaptation!r}")

    @property
    def budget(self) -> None:
        return None

    def perturb(self, victim: Victim, task: Task) -> Tensor:
        def advance(rows: BoundaryRows) -> Tensor:
            images, distance, worth_having = self._propose(rows)
            fooled = (victim.logits(images).argmax(1) != rows.label).numpy(force=True)
            (accepted,) = (fooled & worth_having).nonzero()
            if len(accepted):
                chosen = torch.from_numpy(accepted).to(images.device)
                rows.best.index_copy_(0, chosen, images.index_select(0, chosen))
                rows.distance.numpy()[accepted] = distance[accepted]
            return torch.from_numpy(self._move_on(rows, fooled)).to(images.device)

        return slots.run(victim, task, begin=self._begin, advance=advance)

    def _begin(self, task: Task) -> BoundaryRows:
        clean = task.images.contiguous()
        one = torch.ones(len(task), dtype=clean.dtype)
        zero = torch.zeros(len(task), dtype=torch.int64)
        return BoundaryRows(
            clean=clean,
            label=task.labels,
            best=clean.clone(),
            distance=one * 0,
            places=integers(
                task.fresh_streams(), WINDOWS, self.start_attempts + self.steps + 1, like=one
            ),
            phase=zero + STARTING,
            attempt=zero.clone(),
            blend=zero + 1,
            step=zero + 1,
            sphere_step=one * self.spherical_step,
            source_step=one * self.source_step,
            sphere_history=torch.zeros(len(task), SPHERE.looks, dtype=torch.bool),
            sphere_looks=zero.clone(),
            source_history=torch.zeros(len(task), SOURCE.looks, dtype=torch.bool),
            source_looks=zero.clone(),
        )

    def _propose(self, rows: BoundaryRows) -> tuple[Tensor, Array, Array]:
        """The image each row wants to ask about, how far it is, and whether it is worth having."""
        phase, places = rows.phase.numpy(), rows.places.numpy()
        on_sphere, before_the_walk = phase == ON_SPHERE, phase < ON_SPHERE
        some_start = before_the_walk.any()
        number = self.start_attempts + rows.step.numpy()
        if some_start:
            number = np.where(phase == STARTING, rows.attempt.numpy(), number)
        place = places[np.arange(len(places)), np.minimum(number, places.shape[1] - 1)]
        images, distance = step(rows, place, on_sphere)
        worth_having = (distance < rows.distance.numpy()) & ~on_sphere
        if some_start:
            self._start(images, rows, place)
            away = torch.linalg.vector_norm((images - rows.clean).flatten(1), dim=1)
            distance = np.where(before_the_walk, away.numpy(force=True), distance)
            worth_having |= before_the_walk
        return images, distance, worth_having

    def _start(self, images: Tensor, rows: BoundaryRows, place: Array) -> None:
        """Put noise, or its blend with the clean image, in the rows that have no walk yet."""
        phase = torch.from_numpy(rows.phase.numpy()).to(images.device)
        share = column((rows.blend / self.blend_steps).to(images))
        images[phase == BLENDING] = torch.lerp(rows.clean, rows.best, share)[phase == BLENDING]
        first = phase == STARTING
        images[first] = uniform_noise(
            images[first], torch.from_numpy(place).to(first.device)[first]
        )

    def _move_on(self, rows: BoundaryRows, fooled: Array) -> Array:
        """Each row's next phase by the answer it got; say which rows are done."""
        self._adapt(rows, fooled)
        phase, step, attempt = rows.phase.numpy(), rows.step.numpy(), rows.attempt.numpy()
        asked = phase.copy()
        attempt += asked == STARTING
        rows.blend.numpy()[asked == BLENDING] += 1
        step += asked == STEPPING
        look = np.where(step % LOOK_EVERY == 0, ON_SPHERE, STEPPING)
        stay = np.where(asked == STEPPING, look, asked)
        # A start becomes a blend, a blend a walk; after a look at the sphere comes the step.
        ready = (asked == ON_SPHERE) | ((asked < ON_SPHERE) & fooled)
        phase[:] = np.where(ready, AFTER[asked], stay)
        no_start = (phase == STARTING) & (attempt == self.start_attempts)
        converged = rows.source_step.numpy() < self.converged_at
        done: Array = no_start | (step > self.steps) | converged
        return done

    def _adapt(self, rows: BoundaryRows, fooled: Array) -> None:
        """Lengthen the steps of rows that succeed often, shorten those of rows that rarely do."""
        phase = rows.phase.numpy()
        sphere_step, source_step = rows.sphere_step.numpy(), rows.source_step.numpy()
        on_sphere = phase == ON_SPHERE
        if on_sphere.any():
            history, looks = rows.sphere_history.numpy(), rows.sphere_looks.numpy()
            trend = SPHERE.look(history, looks, fooled, on_sphere)
            sphere_step *= self.step_adaptation**trend
            source_step *= self.step_adaptation**trend
        stepped = (phase == STEPPING) & (rows.step.numpy() % LOOK_EVERY == 0)
        if stepped.any():
            history, looks = rows.source_history.numpy(), rows.source_looks.numpy()
            source_step *= self.step_adaptation ** SOURCE.look(history, looks, fooled, stepped)


def step(rows: BoundaryRows, place: Array, on_sphere: Array) -> tuple[Tensor, Array]:
    """The next image of each row's walk, and its distance to the clean one.

    With the noise's part across the way to the clean image scaled to `sphere_step` times the
    distance, the step on the sphere is `clean + (across - away) / sqrt(1 + sphere_step^2)`; it and
    the step inwards are sums of `clean`, `away` and `noise` with one factor a row, so that each is
    made in a pass or two.
    """
    clean = rows.clean.flatten(1)
    away = clean - rows.best.flatten(1)
    windows, norms = gaussian_windows(clean.shape[1], clean.dtype, clean.device)
    noise, norm = windows.index_select(0, torch.from_numpy(place).to(clean.device)), norms[place]
    distance, sphere_step = rows.distance.numpy(), rows.sphere_step.numpy()
    with np.errstate(divide="ignore", invalid="ignore"):  # rows that have no walk yet
        product = noise * away
        along = product.sum(1).numpy(force=True) / distance
        # In a few dimensions noise can lie along the way, and rounding leaves less than nothing.
        across = np.sqrt(np.maximum(norm**2 - along**2, ROUNDING * norm**2))
        slope, shrink = sphere_step / across, 1 / np.sqrt(1 + sphere_step**2)
        back = factors(-(slope * along + 1) * shrink, clean)
        # What was needed before is overwritten: the processor's cache holds few such blocks.
        sphere = torch.addcmul(clean, away, back, out=away)
        sphere.addcmul_(noise, factors(slope * distance * shrink, clean)).clamp_(0, 1)

        gap = torch.sub(clean, sphere, out=product)
        reach = torch.linalg.vector_norm(gap, dim=1).numpy(force=True)
        # Clipping to [0, 1] has moved the image off the sphere; the step inwards is measured from
        # where it is.
        inwards = (rows.source_step.numpy() * distance + reach - distance) / reach
    inwards = np.where(on_sphere, 0, inwards.clip(0, 1))
    images = sphere.lerp_(clean, factors(inwards, clean))
    return images.view_as(rows.clean), (1 - inwards) * reach


def factors(rows: Array, like: Tensor) -> Tensor:
    """One number a row, to multiply with."""
    return torch.from_numpy(rows).to(like)[:, None]


def uniform_noise(images: Tensor, place: Tensor) -> Tensor:
    """Uniform noise in [0, 1], shaped like some images, from the windows that begin at `place`."""
    windows, _ = gaussian_windows(images.shape[1:].numel(), images.dtype, images.device)
    uniform: Tensor = torch.special.ndtr(windows.index_select(0, place))
    return uniform.view_as(images)
