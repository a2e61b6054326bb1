"""The units the paper compares SPLASH with, where torch's own module does not already serve.

Where they depart from their originals:

- `PReLU` (He et al. 2015) is `torch.nn.PReLU`, which also takes inputs of another float type than
  its slopes, and channels that are not dimension 1.
- `Maxout` (Goodfellow et al. 2013) is the maximum only: the k linear pieces are the layer before
  it, made k times as wide, with batch norm in between. Pieces that tie share the gradient equally;
  the original gives it to one of them.
- `Swish` (Ramachandran et al. 2017) has a fixed beta of 0.2, the value in the SPLASH paper; the
  original recommends 1, or a learned beta.
- `APL` (Agostinelli et al. 2014) has fixed hinges at 0, ±1, ±2 and starts as a ReLU with slopes
  shared by a layer, as SPLASH does, so that a comparison is one of parameterisations. With
  `learned=True, share="unit", grad_scale=1.0` it is the original: slopes and hinges learned for
  each neuron, from the random start of its authors' code. Their L2 penalty of 0.001 on both is left
  to the optimizer.
- `SReLU` (Jin et al. 2016) starts as a leaky ReLU, as the original does, but learns from the first
  step: the original freezes the shape for some epochs, then moves the right hinge to a quantile of
  the layer's inputs. Ours starts one standard deviation of a batch-normalised input from 0. That
  and the leaky slope of 0.2 are our choices. Where the hinges have crossed, the printed formula
  jumps; ours stays continuous.

At ±inf each gives the limit of its formula, and NaN passes through.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from splash_units.functional import scale_gradient, splash
from splash_units.sharing import (
    SHARES,
    Share,
    automatic_scale,
    checked_features,
    checked_grad_scale,
    trailing_dimensions,
)
from splash_units.unit import one_of

GradScale = float | Literal["auto"]


class PReLU(nn.PReLU):
    """max(0, x) + a·min(0, x) with a learned slope a for each channel."""

    def __init__(self, features: int, *, init: float = 0.25, dim: int = 1) -> None:
        super().__init__(whole_number("features", features), finite_number("init", init))
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        _check_floating(x)
        _check_channels(x, self.dim, self.num_parameters)
        weight = self.weight.to(x.dtype)
        if self.dim % x.dim() == 1:
            return F.prelu(x, weight)
        return F.prelu(x.movedim(self.dim, 1), weight).movedim(1, self.dim)

    def extra_repr(self) -> str:
        return f"features={self.num_parameters}, dim={self.dim}"


class Maxout(nn.Module):
    """max over j of x[j·features + c] for each output channel c, with k pieces j."""

    def __init__(self, k: int = 9, *, features: int | None = None, dim: int = 1) -> None:
        super().__init__()
        self.k = whole_number("k", k)
        self.features = None if features is None else whole_number("features", features)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        _check_floating(x)
        if self.features is not None:
            _check_channels(x, self.dim, self.k * self.features)
        elif x.shape[self.dim] % self.k:
            raise ValueError(
                f"maxout of {self.k} pieces needs a multiple of {self.k} channels in dimension "
                f"{self.dim}, got an input of shape {tuple(x.shape)}"
            )
        dim = self.dim % x.dim()
        # Pieces outside channels: the maximum then runs over planes, not over neighbours in memory.
        y = torch.unflatten(x, dim, (self.k, x.shape[dim] // self.k)).amax(dim)
        if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
            return y.contiguous(memory_format=torch.channels_last)
        return y

    def extra_repr(self) -> str:
        return f"k={self.k}, features={self.features}, dim={self.dim}"


class Swish(nn.Module):
    """x·sigmoid(beta·x) with beta fixed, or learned."""

    beta: Tensor | float

    def __init__(
        self,
        beta: float = 0.2,
        *,
        learned: bool = False,
        share: Share = "layer",
        features: int | Sequence[int] | None = None,
        dim: int = 1,
        grad_scale: GradScale = "auto",
    ) -> None:
        super().__init__()
        if finite_number("beta", beta) <= 0:
            raise ValueError(f"beta must be positive, got {beta}")
        self._sharing = _Sharing.of(share, features, dim, grad_scale)
        if flag("learned", learned):
            self.beta = nn.Parameter(torch.full(self._sharing.features, float(beta)))
        else:
            self.beta = float(beta)

    def forward(self, x: Tensor) -> Tensor:
        _check_floating(x)
        if isinstance(self.beta, Tensor):
            return swish(x, self._sharing.spread(self.beta, x))
        # torch's silu(-inf) is NaN; at the lowest finite number it already is the limit, 0.
        return F.silu((self.beta * x).clamp(min=torch.finfo(x.dtype).min)) / self.beta

    def extra_repr(self) -> str:
        return f"learned, {self._sharing}" if isinstance(self.beta, Tensor) else f"{self.beta:g}"


def swish(x: Tensor, beta: Tensor) -> Tensor:
    """x·sigmoid(beta·x), where beta broadcasts against x."""
    z = _widened(x)
    infinite = z.isinf()
    finite = z.masked_fill(infinite, 0.0)
    limit = torch.where(beta.detach() * z < 0, 0.0, z)
    return torch.where(infinite, limit, finite * torch.sigmoid(beta * finite)).to(x.dtype)


class APL(nn.Module):
    """max(0, x) + Σₛ aₛ max(0, bₛ − x): an adaptive piecewise linear unit.

    The slopes a are parameters and start at 0. The hinges b are constants, one apart and symmetric
    about 0 unless given. With `learned` they are parameters too, and both start at random (hinges
    that were given, there).
    """

    hinges: Tensor | tuple[float, ...]
    _grid: Tensor
    _terms: Tensor

    def __init__(
        self,
        num_hinges: int = 5,
        *,
        hinges: Sequence[float] | None = None,
        learned: bool = False,
        share: Share = "layer",
        features: int | Sequence[int] | None = None,
        dim: int = 1,
        grad_scale: GradScale = "auto",
    ) -> None:
        super().__init__()
        positions = _apl_hinges(num_hinges, hinges)
        self._sharing = _Sharing.of(share, features, dim, grad_scale)
        shape = (num_hinges, *self._sharing.features)
        self.slopes = nn.Parameter(torch.zeros(shape))
        if not flag("learned", learned):
            self.hinges = positions
            grid, terms = _apl_as_splash(positions)
            self.register_buffer("_grid", grid, persistent=False)
            self.register_buffer("_terms", terms, persistent=False)
            return
        nn.init.uniform_(self.slopes, -0.5 / num_hinges, 0.5 / num_hinges)
        rows = torch.tensor(positions).reshape(-1, *(1 for _ in shape[1:]))
        self.hinges = nn.Parameter(rows.expand(shape).clone())
        if hinges is None:
            nn.init.normal_(self.hinges, std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        _check_floating(x)
        slopes = self._sharing.spread(self.slopes, x)
        if isinstance(self.hinges, Tensor):
            return apl(x, slopes, self._sharing.spread(self.hinges, x))
        # An elementwise product and a sum: a matrix product would lose its bits under autocast.
        terms = self._terms.reshape(*self._terms.shape, *(1 for _ in slopes.shape[1:]))
        rows = terms[:, 0] + (terms[:, 1:] * slopes).sum(1)
        a_pos, a_neg, height = torch.split(rows, [len(self._grid), len(self._grid), 1])
        return splash(x, a_pos, a_neg, self._grid) + height[0].to(x.dtype)

    def extra_repr(self) -> str:
        hinges = "learned" if isinstance(self.hinges, Tensor) else self.hinges
        return f"num_hinges={len(self.slopes)}, hinges={hinges}, {self._sharing}"


def apl(x: Tensor, slopes: Tensor, hinges: Tensor) -> Tensor:
    """max(0, x) + Σₛ aₛ max(0, bₛ − x), where each row a_s and b_s broadcasts against x."""
    z = _widened(x)
    leftmost = z == -math.inf
    finite = z.masked_fill(leftmost, 0.0)
    y = F.relu(finite)
    for a, b in zip(slopes, hinges, strict=True):
        y = y + a * F.relu(b - finite)
    limit = _limit(z, -slopes.sum(0), (slopes * hinges).sum(0))
    return torch.where(leftmost, limit, y).to(x.dtype)


def _apl_hinges(num_hinges: int, hinges: Sequence[float] | None) -> tuple[float, ...]:
    whole_number("num_hinges", num_hinges)
    if hinges is None:
        return tuple(s - (num_hinges - 1) / 2 for s in range(num_hinges))
    if len(hinges) != num_hinges:
        raise ValueError(f"hinges must be num_hinges = {num_hinges} numbers, got {tuple(hinges)}")
    return tuple(finite_number("hinges", b) for b in hinges)


def _apl_as_splash(hinges: Sequence[float]) -> tuple[Tensor, Tensor]:
    """APL with fixed hinges b as a SPLASH function plus a height, so that it has the same kernels.

    max(0, b − x) is max(0, −x − |b|) for b ≤ 0, and b − max(0, x) + max(0, x − b) + max(0, −x) for
    b > 0. Gives the SPLASH hinges, and a matrix whose rows are a₊, a₋ and the height, column 0
    for max(0, x) and column s for aₛ.
    """
    grid = sorted({0.0, *(abs(b) for b in hinges)})
    pos = torch.zeros(len(grid), len(hinges) + 1)
    neg = torch.zeros_like(pos)
    height = torch.zeros_like(pos[:1])
    pos[0, 0] = 1.0
    for s, b in enumerate(hinges, start=1):
        if b <= 0:
            neg[grid.index(-b), s] = 1.0
        else:
            pos[0, s], pos[grid.index(b), s] = -1.0, 1.0
            neg[0, s] = 1.0
            height[0, s] = b
    return torch.tensor(grid), torch.cat([pos, neg, height])


class SReLU(nn.Module):
    """x between two hinges, with slope `a_left` left of `t_left`, and `a_right` right of `t_right`.

    All four are learned for each channel. `a_left` and `t_right` are also where those two start;
    the others start at 0 and 1, which makes a leaky ReLU.
    """

    def __init__(
        self, features: int, *, a_left: float = 0.2, t_right: float = 1.0, dim: int = 1
    ) -> None:
        super().__init__()
        if finite_number("t_right", t_right) < 0:
            raise ValueError(f"t_right must not lie left of the other hinge, 0; got {t_right}")
        self._sharing = _Sharing.of("channel", features, dim, 1.0)
        shape = self._sharing.features
        self.t_left = nn.Parameter(torch.zeros(shape))
        self.a_left = nn.Parameter(torch.full(shape, finite_number("a_left", a_left)))
        self.t_right = nn.Parameter(torch.full(shape, float(t_right)))
        self.a_right = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        _check_floating(x)
        parameters = (self.t_left, self.a_left, self.t_right, self.a_right)
        return srelu(x, *(self._sharing.spread(p, x) for p in parameters))

    def extra_repr(self) -> str:
        return str(self._sharing)


def srelu(x: Tensor, t_left: Tensor, a_left: Tensor, t_right: Tensor, a_right: Tensor) -> Tensor:
    """The S-shaped ReLU, whose parameters broadcast against x; a hinge has the middle's slope."""
    z = _widened(x)
    infinite = z.isinf()
    finite = z.masked_fill(infinite, 0.0)
    y = finite.clamp(t_left, t_right)
    y = y - a_left * F.relu(t_left - finite) + a_right * F.relu(finite - t_right)
    right = z > 0
    limit = _limit(z, torch.where(right, a_right, a_left), torch.where(right, t_right, t_left))
    return torch.where(infinite, limit, y).to(x.dtype)


def _limit(x: Tensor, slope: Tensor, height: Tensor) -> Tensor:
    """What a line tends to as x goes to ±inf; `height` is where it stays if it is flat.

    Parameters get no gradient here: it would be infinite, and 0·inf where the limit isn't taken.
    """
    slope, height = slope.detach(), height.detach()
    return torch.where(slope == 0, height, slope * x)


@dataclass(frozen=True)
class _Sharing:
    """Who shares a learned parameter, and the factor on its gradient: as in `Splash`."""

    share: str
    features: tuple[int, ...]
    dim: int
    grad_scale: float | str

    @classmethod
    def of(
        cls, share: str, features: int | Sequence[int] | None, dim: int, grad_scale: float | str
    ) -> "_Sharing":
        one_of("share", share, SHARES)
        return cls(share, checked_features(share, features), dim, checked_grad_scale(grad_scale))

    def spread(self, parameter: Tensor, x: Tensor) -> Tensor:
        """`parameter` in a shape that broadcasts against x, its gradient scaled."""
        layer = self.share == "layer"
        trailing = 0 if layer else trailing_dimensions(x.shape, self.share, self.features, self.dim)
        if self.grad_scale == "auto":
            scale = automatic_scale(x.shape, self.share, self.features, self.dim)
        else:
            scale = float(self.grad_scale)
        return scale_gradient(parameter, scale).reshape(parameter.shape + (1,) * trailing)

    def __str__(self) -> str:
        features = "" if self.share == "layer" else f", features={self.features}, dim={self.dim}"
        return f"share={self.share!r}{features}, grad_scale={self.grad_scale}"


def finite_number(name: str, value: float) -> float:
    """`value` as a float, or an error that names it."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


def whole_number(name: str, value: int) -> int:
    """`value` if it is 1, 2, 3, ..., or an error that names it."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def flag(name: str, value: bool) -> bool:
    """`value` if it is True or False, or an error that names it."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def _check_floating(x: Tensor) -> None:
    if not x.is_floating_point():
        raise TypeError(
            f"a unit needs a float64, float32, bfloat16 or float16 tensor, got {x.dtype}"
        )


def _check_channels(x: Tensor, dim: int, channels: int) -> None:
    trailing_dimensions(x.shape, "channel", (channels,), dim)


def _widened(x: Tensor) -> Tensor:
    """x in float32 at least: bfloat16 and float16 are rounded once, at the end."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
