"""The boundary attack (Brendel et al., 2018): a random walk along the decision boundary, labels
only.

It starts from noise that is misclassified, blended with the clean image as far as the class allows,
and then repeats: a random step on the sphere around the clean image, a step towards it, and both
are kept if the image is still misclassified. Step sizes follow the share of steps that succeed.

Departures: the SPLASH paper describes the steps' sizes as results and starts from Gaussian noise;
foolbox 3, which it used, is followed, settings included. From foolbox: every image has its own
noise and its own step sizes, an image without a start is that image's failure only, an image that
has converged leaves, a step that was looked at on the sphere and failed is not tried inwards, and
step sizes follow the last 30 answers of each kind, where foolbox notes one step in ten and waits
for 100 looks at the sphere: the same questions lead a third nearer. The noise of a step is a
window, at a random place, of one long table of Gaussian numbers, which costs a tenth of drawing
them and is as good: two windows are uncorrelated unless they begin at the same place.
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
LOOK_EVERY = 10
ROUNDING = 1e-6


@dataclass(frozen=True)
class Watch:
    """A row's share of successes over its last looks; what is too rare and too frequent."""

    looks: int
    rare: float
    frequent: float

    def look(
        self, history: Array, looks: Array, success: Array, rows: Array
    ) -> tuple[Array, Array]:
        """Record some rows' success; say which of them should take longer steps, by 1, or shorter
        ones, by -1.

        A row is judged on a full history only, and starts a new one when its steps change.
        """
        history[rows, looks[rows] % self.looks] = success[rows]
        looks[rows] += 1
        judged = rows[looks[rows] >= self.looks]
        if not len(judged):
            return judged, judged
        share = history[judged].sum(1) / self.looks
        trend = (share > self.frequent).astype(np.float64) - (share < self.rare)
        changed = judged[trend != 0]
        looks[changed] = 0
        return changed, trend[trend != 0]


SPHERE = Watch(looks=30, rare=0.2, frequent=0.5)
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
    """`best` is the misclassified image the walk has reached, or the noise it is to start from."""

    distance: Array  #: from `best` to the clean image, in L2
    places: Array  #: where in the table each step's noise begins
    phase: Array
    attempt: Array  #: noise images tried
    blend: Array  #: how many parts of noise are in the start
    step: Array
    sphere_step: Array
    source_step: Array
    sphere_history: Array
    sphere_looks: Array
    source_history: Array
    source_looks: Array


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
                rows.distance[accepted] = distance[accepted]
            return torch.from_numpy(self._move_on(rows, fooled)).to(images.device)

        return slots.run(victim, task, begin=self._begin, advance=advance)

    def _begin(self, task: Task) -> BoundaryRows:
        clean = task.images.contiguous()
        places = integers(task.fresh_streams(), WINDOWS, self.start_attempts + self.steps + 1)
        one = torch.ones(len(task), dtype=clean.dtype).numpy()
        zero = np.zeros(len(task), dtype=np.int64)
        return BoundaryRows(
            clean=clean,
            label=task.labels,
            best=clean.clone(),
            distance=one * 0,
            places=places.numpy(),
            phase=zero + STARTING,
            attempt=zero.copy(),
            blend=zero + 1,
            step=zero + 1,
            sphere_step=one * self.spherical_step,
            source_step=one * self.source_step,
            sphere_history=np.zeros((len(task), SPHERE.looks), dtype=np.bool_),
            sphere_looks=zero.copy(),
            source_history=np.zeros((len(task), SOURCE.looks), dtype=np.bool_),
            source_looks=zero.copy(),
        )

    def _propose(self, rows: BoundaryRows) -> tuple[Tensor, Array, Array]:
        """The image each row wants to ask about, how far it is, and whether it is worth having."""
        on_sphere, before_the_walk = rows.phase == ON_SPHERE, rows.phase < ON_SPHERE
        some_start = before_the_walk.any()
        number = self.start_attempts + rows.step
        if some_start:
            number = np.where(rows.phase == STARTING, rows.attempt, number)
        count, length = rows.places.shape
        place = rows.places[np.arange(count), np.minimum(number, length - 1)]
        images, distance = step(rows, place, on_sphere)
        worth_having = (distance < rows.distance) & ~on_sphere
        if some_start:
            self._start(images, rows, place)
            away = torch.linalg.vector_norm((images - rows.clean).flatten(1), dim=1)
            distance = np.where(before_the_walk, away.numpy(force=True), distance)
            worth_having |= before_the_walk
        return images, distance, worth_having

    def _start(self, images: Tensor, rows: BoundaryRows, place: Array) -> None:
        """Put noise, or its blend with the clean image, in the rows that have no walk yet."""
        phase = torch.from_numpy(rows.phase).to(images.device)
        share = column(torch.from_numpy(rows.blend / self.blend_steps).to(images))
        images[phase == BLENDING] = torch.lerp(rows.clean, rows.best, share)[phase == BLENDING]
        first = phase == STARTING
        images[first] = uniform_noise(
            images[first], torch.from_numpy(place).to(first.device)[first]
        )

    def _move_on(self, rows: BoundaryRows, fooled: Array) -> Array:
        """Each row's next phase by the answer it got; say which rows are done."""
        asked = rows.phase.copy()
        looked = asked == ON_SPHERE
        # A step inwards from a place on the sphere that fails hardly ever succeeds: not asked.
        stepped = (asked == STEPPING) | (looked & ~fooled)
        self._adapt(rows, fooled, looked, stepped)
        rows.step += stepped
        rows.phase[:] = np.where(stepped & (rows.step % LOOK_EVERY == 0), ON_SPHERE, STEPPING)
        done: Array = (rows.step > self.steps) | (rows.source_step < self.converged_at)
        if (asked < ON_SPHERE).any():
            starting, blending = asked == STARTING, asked == BLENDING
            rows.attempt += starting
            rows.blend += blending
            rows.phase[starting] = np.where(fooled, BLENDING, STARTING)[starting]
            rows.phase[blending & ~fooled] = BLENDING
            done |= (rows.phase == STARTING) & (rows.attempt == self.start_attempts)
        return done

    def _adapt(self, rows: BoundaryRows, fooled: Array, looked: Array, stepped: Array) -> None:
        """Lengthen the steps of rows that succeed often, shorten those of rows that rarely do."""
        (on_sphere,) = looked.nonzero()
        if len(on_sphere):
            changed, trend = SPHERE.look(rows.sphere_history, rows.sphere_looks, fooled, on_sphere)
            rows.sphere_step[changed] *= self.step_adaptation**trend
            rows.source_step[changed] *= self.step_adaptation**trend
        (walked,) = stepped.nonzero()
        if len(walked):
            changed, trend = SOURCE.look(rows.source_history, rows.source_looks, fooled, walked)
            rows.source_step[changed] *= self.step_adaptation**trend


def step(rows: BoundaryRows, place: Array, on_sphere: Array) -> tuple[Tensor, Array]:
    """The next image of each row's walk, and its distance to the clean one.

    With the noise's part across the way to the clean image scaled to `sphere_step` times the
    distance, the step on the sphere is `clean + (across - away) / sqrt(1 + sphere_step^2)`; it and
    the step inwards are sums of `clean`, `best` and `noise` with one factor a row, so that each is
    made in a pass or two. These passes are most of what the walk costs, so that there are as few as
    possible, over as few blocks of memory.
    """
    clean, best = rows.clean.flatten(1), rows.best.flatten(1)
    windows, norms = gaussian_windows(clean.shape[1], clean.dtype, clean.device)
    noise, norm = windows.index_select(0, torch.from_numpy(place).to(clean.device)), norms[place]
    distance, sphere_step = rows.distance, rows.sphere_step
    with np.errstate(divide="ignore", invalid="ignore"):  # rows that have no walk yet
        along = (products(noise, clean) - products(noise, best)) / distance
        # In a few dimensions noise can lie along the way, and rounding leaves less than nothing.
        across = np.sqrt(np.maximum(norm**2 - along**2, ROUNDING * norm**2))
        slope, shrink = sphere_step / across, 1 / np.sqrt(1 + sphere_step**2)
        sphere = torch.lerp(clean, best, factors((slope * along + 1) * shrink, clean))
        sphere.addcmul_(noise, factors(slope * distance * shrink, clean)).clamp_(0, 1)

        gap = torch.sub(clean, sphere, out=noise)
        reach = torch.linalg.vector_norm(gap, dim=1).numpy(force=True)
        # Clipping to [0, 1] has moved the image off the sphere; the step inwards is measured from
        # where it is.
        inwards = (rows.source_step * distance + reach - distance) / reach
    inwards = np.minimum(np.maximum(inwards, 0), 1)  # takes half as long as clip
    inwards[on_sphere] = 0
    images = sphere.lerp_(clean, factors(inwards, clean))
    return images.view_as(rows.clean), (1 - inwards) * reach


def products(x: Tensor, y: Tensor) -> Array:
    """Each row's inner product; torch would write down the terms first."""
    if x.device.type == "cpu":
        product: Array = np.matmul(x.numpy()[:, None], y.numpy()[..., None])
        return product[:, 0, 0]
    return (x * y).sum(1).numpy(force=True)


def factors(rows: Array, like: Tensor) -> Tensor:
    """One number a row, to multiply with."""
    return torch.from_numpy(rows[:, None]).to(like)


def uniform_noise(images: Tensor, place: Tensor) -> Tensor:
    """Uniform noise in [0, 1], shaped like some images, from the windows that begin at `place`."""
    windows, _ = gaussian_windows(images.shape[1:].numel(), images.dtype, images.device)
    uniform: Tensor = torch.special.ndtr(windows.index_select(0, place))
    return uniform.view_as(images)
