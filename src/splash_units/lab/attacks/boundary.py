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

import torch
from torch import Tensor

from splash_units.lab.attacks import slots
from splash_units.lab.attacks.attack import Attack, Task
from splash_units.lab.attacks.gradient import column
from splash_units.lab.attacks.streams import integers
from splash_units.lab.attacks.threat import positive, whole
from splash_units.lab.attacks.victim import Victim

WINDOWS = 2**20
STARTING, BLENDING, ON_SPHERE, STEPPING = range(4)
AFTER = (BLENDING, STEPPING, STEPPING, STEPPING)
LOOK_EVERY = 10


@dataclass(frozen=True)
class Watch:
    """A row's share of successes over its last looks; what is too rare and too frequent."""

    looks: int
    rare: float
    frequent: float

    def look(self, history: Tensor, looks: Tensor, success: Tensor, looked: Tensor) -> Tensor:
        """Record the rows that were looked at; +1, -1 or 0 a row: longer steps, shorter or as they
        are.

        A row is judged on a full history only, and starts a new one when its steps change.
        """
        (rows,) = looked.nonzero(as_tuple=True)
        history[rows, looks[rows] % self.looks] = success[rows].to(history.dtype)
        looks += looked
        judged = looked & (looks >= self.looks)
        share = history.mean(1)
        trend = (judged & (share > self.frequent)).int() - (judged & (share < self.rare)).int()
        looks[trend != 0] = 0
        return trend


SPHERE = Watch(looks=100, rare=0.2, frequent=0.5)
SOURCE = Watch(looks=30, rare=0.1, frequent=0.25)


@cache
def gaussian_windows(
    length: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """All windows of one long table of Gaussian numbers, shape (WINDOWS, length), and their L2
    norms.

    The windows are views of the table and take no memory of their own.
    """
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(WINDOWS + length - 1, generator=generator, dtype=torch.float64)
    until = torch.cat([table.new_zeros(1), table.square().cumsum(0)])
    norms = (until[length:] - until[:-length]).sqrt()
    windows = table.to(device, dtype).as_strided((WINDOWS, length), (1, 1))
    return windows, norms.to(device, dtype)


@dataclass
class BoundaryRows(slots.Rows):
    """`best` is the misclassified image the walk has reached, or the noise it is to start from."""

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
            images, nearer = self._propose(rows)
            fooled = victim.logits(images).argmax(1) != rows.label
            accepted = fooled & nearer & (rows.phase != ON_SPHERE)
            if bool(accepted.any()):
                rows.best[accepted] = images[accepted]
            return self._move_on(rows, fooled)

        return slots.run(victim, task, begin=self._begin, advance=advance)

    def _begin(self, task: Task) -> BoundaryRows:
        clean = task.images.contiguous(memory_format=self.layout)
        one, zero = clean.new_ones(len(task)), torch.zeros_like(task.labels)
        return BoundaryRows(
            clean=clean,
            label=task.labels,
            best=clean.clone(),
            places=integers(
                task.fresh_streams(), WINDOWS, self.start_attempts + self.steps + 1, like=clean
            ),
            phase=zero + STARTING,
            attempt=zero.clone(),
            blend=zero + 1,
            step=zero + 1,
            sphere_step=one * self.spherical_step,
            source_step=one * self.source_step,
            sphere_history=clean.new_zeros(len(task), SPHERE.looks),
            sphere_looks=zero.clone(),
            source_history=clean.new_zeros(len(task), SOURCE.looks),
            source_looks=zero.clone(),
        )

    def _propose(self, rows: BoundaryRows) -> tuple[Tensor, Tensor]:
        """The image each row wants to ask about, and whether it would be worth having."""
        starting = rows.phase == STARTING
        number = torch.where(starting, rows.attempt, self.start_attempts + rows.step)
        place = rows.places.gather(1, number[:, None].clamp(max=rows.places.shape[1] - 1))[:, 0]
        images, nearer = step(rows, place)
        begun = rows.phase >= ON_SPHERE
        if not bool(begun.all()):
            blending = rows.phase == BLENDING
            share = column(rows.blend.to(images.dtype) / self.blend_steps)
            images[blending] = torch.lerp(rows.clean, rows.best, share)[blending]
            images[starting] = uniform_noise(images[starting], place[starting])
        return images, nearer | ~begun

    def _move_on(self, rows: BoundaryRows, fooled: Tensor) -> Tensor:
        """Each row's next phase by the answer it got; say which rows are done."""
        asked = rows.phase
        self._adapt(rows, fooled)
        rows.attempt += asked == STARTING
        rows.blend += asked == BLENDING
        rows.step += asked == STEPPING
        look = torch.where(rows.step % LOOK_EVERY == 0, ON_SPHERE, STEPPING)
        stay = torch.where(asked == STEPPING, look, asked)
        # A start becomes a blend, a blend a walk; after a look at the sphere comes the step.
        ready = (asked == ON_SPHERE) | ((asked < ON_SPHERE) & fooled)
        rows.phase = torch.where(ready, asked.new_tensor(AFTER)[asked], stay)
        no_start = (rows.phase == STARTING) & (rows.attempt == self.start_attempts)
        return no_start | (rows.step > self.steps) | (rows.source_step < self.converged_at)

    def _adapt(self, rows: BoundaryRows, fooled: Tensor) -> None:
        """Lengthen the steps of rows that succeed often, shorten those of rows that rarely do."""
        on_sphere = rows.phase == ON_SPHERE
        if bool(on_sphere.any()):
            trend = SPHERE.look(rows.sphere_history, rows.sphere_looks, fooled, on_sphere)
            rows.sphere_step *= self.step_adaptation**trend
            rows.source_step *= self.step_adaptation**trend
        stepped = (rows.phase == STEPPING) & (rows.step % LOOK_EVERY == 0)
        if bool(stepped.any()):
            trend = SOURCE.look(rows.source_history, rows.source_looks, fooled, stepped)
            rows.source_step *= self.step_adaptation**trend


def step(rows: BoundaryRows, place: Tensor) -> tuple[Tensor, Tensor]:
    """The next image of each row's walk, and whether it is nearer to the clean one.

    With the noise's part across the way to the clean image scaled to `sphere_step` times the
    distance, the step on the sphere is `clean + (across - away) / sqrt(1 + sphere_step^2)`; it and
    the step inwards are sums of `clean`, `away` and `noise` with one factor a row, so that each is
    made in a pass or two.
    """
    clean, away = flat(rows.clean), flat(rows.clean - rows.best)
    windows, norms = gaussian_windows(clean.shape[1], clean.dtype, clean.device)
    noise, norm = windows.index_select(0, place), norms[place]
    distance = torch.linalg.vector_norm(away, dim=1)
    along = torch.linalg.vecdot(noise, away) / distance
    slope = rows.sphere_step / (norm.square() - along.square()).sqrt()
    shrink = (1 + rows.sphere_step.square()).rsqrt()
    sphere = torch.addcmul(clean, away, (-(slope * along + 1) * shrink)[:, None])
    sphere.addcmul_(noise, (slope * distance * shrink)[:, None]).clamp_(0, 1)

    reach = torch.linalg.vector_norm(clean - sphere, dim=1)
    # Clipping to [0, 1] has moved the image off the sphere; the step inwards is measured from it.
    inwards = ((rows.source_step * distance + reach - distance) / reach).clamp(0, 1)
    inwards = torch.where(rows.phase == ON_SPHERE, 0, inwards)
    images = sphere.lerp_(clean, inwards[:, None])
    return like(images, rows.clean), (1 - inwards) * reach < distance


def uniform_noise(images: Tensor, place: Tensor) -> Tensor:
    """Uniform noise in [0, 1], shaped like some images, from the windows that begin at `place`."""
    windows, _ = gaussian_windows(images.shape[1:].numel(), images.dtype, images.device)
    return like(torch.special.ndtr(windows.index_select(0, place)), images)


def flat(images: Tensor) -> Tensor:
    """Images in channels_last as rows of numbers, without a copy."""
    return images.permute(0, 2, 3, 1).flatten(1)


def like(rows: Tensor, images: Tensor) -> Tensor:
    """The way back from `flat`."""
    count, channels, height, width = images.shape
    return rows.view(count, height, width, channels).permute(0, 3, 1, 2)
