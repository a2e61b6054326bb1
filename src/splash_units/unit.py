"""SPLASH units as modules: what is learned, who shares it, and what it may become.

Departures from the paper: the gradient of a shared slope is scaled by default (`grad_scale`), since
the literal unit diverges under SGD at ordinary learning rates; SPLASH-negative and -positive are
defined by what h does left of zero, where the paper's text has the sign the other way round.
"""

import weakref
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook

from splash_units.functional import batch_norm_splash, scaled_splash, usual_calls
from splash_units.sharing import (
    SHARES,
    Share,
    automatic_scale,
    checked_dim,
    checked_features,
    checked_grad_scale,
    trailing_dimensions,
)
from splash_units.starts import Function, checked_hinges, default_hinges, starting_slopes

_Maybe = Tensor | None
Constraint = Literal["negative", "positive"]

CONSTRAINTS = ("negative", "positive")

# Leaves for anyone who traces a network that has SPLASH units.
torch.fx.wrap("shared_splash")
torch.fx.wrap("normalised_splash")


def shared_splash(
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    share: str = "layer",
    dim: int = 1,
    grad_scale: float | str = "auto",
) -> Tensor:
    """What a module computes: the function, told who shares the slopes and how they learn."""
    # All in one call where it can be: to ask a tensor for its shape takes as long as to add up a
    # small layer.
    if not is_compiling() and (calls := usual_calls()) is not None:
        try:
            y = calls.unit(x, a_pos, a_neg, hinges, share, dim, grad_scale)
        except (ValueError, TypeError):
            y = None  # what is wrong, if anything is, shows below
        if y is not None:
            return y
    automatic = grad_scale == "auto"
    shape = x.shape if automatic or share != "layer" else ()
    features: Sequence[int] = ()
    if share != "layer":
        features = a_pos.shape[1:] if share == "unit" else (a_pos.shape[1],)
    trailing = 0 if share == "layer" else trailing_dimensions(shape, share, features, dim)
    scale = automatic_scale(shape, share, features, dim) if automatic else float(grad_scale)
    return scaled_splash(x, a_pos, a_neg, hinges, trailing, scale)


class Splash(nn.Module):
    """h(x) = Σₛ a₊ˢ max(0, x − bˢ) + Σₛ a₋ˢ max(0, −x − bˢ), with a₊ and a₋ learned.

    Args:
        num_hinges: S, odd; h has S + 1 segments and S + 1 slopes.
        hinges: b¹ = 0 < b² < ..., (S + 1)/2 of them, instead of the default for S.
        init: the starting shape: "relu", "leaky_relu" (0.1 on the left), "identity", "abs", "tanh",
            "elu", "random" (every slope from N(0, 0.1²)), or a function f with f(0) = 0, which is
            interpolated at the hinges. Another unit is such a function.
        share: who shares one shape: the whole "layer", each "channel" its own (`features` channels
            along `dim`), or each "unit" its own (`features` is the shape of one sample).
        constraint: "negative" keeps h ≤ 0 just left of zero (a₋¹ ≤ 0), "positive" h ≥ 0 (a₋¹ ≥ 0).
            Enforced by projection after every step of a torch optimizer; see :meth:`project`.
        grad_scale: a factor on the slopes' gradients. 1.0 is the paper's literal unit; "auto" is
            3/√n, at most 1, where n elements of one sample share a slope through their layer, 1/√n
            through their channel; the batch size plays no part.
        trainable: False gives a fixed SPLASH: the same shape, slopes that ask for no gradient.
        inplace: accepted and ignored, for code that passes it to any activation.

    Slopes are the parameters `a_pos` and `a_neg` of shape ((S + 1)/2, *features).
    Each aˢ is the *change* of slope at its hinge: segment slopes are cumulative sums.
    """

    hinges: Tensor

    def __init__(
        self,
        num_hinges: int = 7,
        *,
        hinges: Sequence[float] | Tensor | None = None,
        init: str | Function = "relu",
        share: Share = "layer",
        features: int | Sequence[int] | None = None,
        dim: int = 1,
        constraint: Constraint | None = None,
        grad_scale: float | Literal["auto"] = "auto",
        trainable: bool = True,
        inplace: bool = False,
    ) -> None:
        super().__init__()
        positions = default_hinges(num_hinges) if hinges is None else checked_hinges(hinges)
        self.share = one_of("share", share, SHARES)
        self.features = checked_features(share, features)
        self.dim = checked_dim(dim)
        self.constraint = (
            None if constraint is None else one_of("constraint", constraint, CONSTRAINTS)
        )
        self.grad_scale = checked_grad_scale(grad_scale)
        self.init = (
            init if isinstance(init, str) else getattr(init, "__name__", type(init).__name__)
        )

        slopes = starting_slopes(init, positions, self.features)
        self.register_buffer("hinges", torch.tensor(positions, dtype=torch.float32))
        self.a_pos, self.a_neg = (
            nn.Parameter(a.to(torch.float32), requires_grad=trainable) for a in slopes
        )
        self._watch_constraint()

    @property
    def num_hinges(self) -> int:
        """S: the hinges on the whole axis."""
        return 2 * len(self.hinges) - 1

    def forward(self, x: Tensor) -> Tensor:
        return shared_splash(x, *self._shape(), self.share, self.dim, self.grad_scale)

    def _shape(self) -> tuple[Tensor, Tensor, Tensor]:
        """a_pos, a_neg and hinges, from where a module keeps them.

        ``self.a_pos`` looks there last, which takes a microsecond each. They are elsewhere if
        someone has put something in their place, as ``torch.nn.utils.parametrize`` does.
        """
        learned, fixed = self._parameters, self._buffers
        try:
            return learned["a_pos"], learned["a_neg"], fixed["hinges"]  # type: ignore[return-value]
        except KeyError:
            return self.a_pos, self.a_neg, self.hinges

    @torch.no_grad()
    def project(self) -> None:
        """Bring a₋¹ back to where `constraint` allows it.

        Called for you after every step of a ``torch.optim`` optimizer that holds the slopes, and
        after a state is loaded; only an optimizer that isn't one needs to call it. A projection,
        not a parametrization: the set is a half-line that the ReLU start lies on the edge of, so
        clamping *is* the projection, while a clamp inside the forward would leave a slope that has
        crossed the edge without a gradient to bring it back, and a softplus could not represent the
        start.
        """
        if self.constraint == "negative":
            self.a_neg[0].clamp_(max=0.0)
        elif self.constraint == "positive":
            self.a_neg[0].clamp_(min=0.0)

    def _watch_constraint(self) -> None:
        if self.constraint is None:
            return
        self.project()
        _constrained.add(self)
        self.register_load_state_dict_post_hook(_project_after_load)  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self.constraint is not None:  # a copy must be projected too
            _constrained.add(self)

    def freeze(self) -> "Splash":
        """Keep the shape as it is now: the slopes ask for no gradient any more."""
        for a in (self.a_pos, self.a_neg):
            a.requires_grad_(False)
            a.grad = None  # or momentum and weight decay would go on moving it
        return self

    def extra_repr(self) -> str:
        said = [f"num_hinges={self.num_hinges}"]
        default = torch.tensor(default_hinges(self.num_hinges))
        if not self.hinges.is_meta and self.hinges.tolist() != default.tolist():
            said.append(f"hinges={tuple(round(b, 4) for b in self.hinges.tolist())}")
        if self.init != "relu":
            said.append(f"init={self.init!r}")
        if self.share != "layer":
            said += [f"share={self.share!r}", f"features={self.features}"]
            said += [f"dim={self.dim}"] if self.share == "channel" and self.dim != 1 else []
        if self.constraint is not None:
            said.append(f"constraint={self.constraint!r}")
        if self.grad_scale != "auto":
            said.append(f"grad_scale={self.grad_scale}")
        if not self.a_pos.requires_grad:
            said.append("trainable=False")
        return ", ".join(said)


class BatchNormSplash(Splash):
    """Batch norm and a SPLASH unit in one pass, for (N, C) and (N, C, H, W); 3-D and 5-D too.

    Computes what ``nn.Sequential(nn.BatchNorm2d(C), Splash())`` computes, reads and writes memory
    less often, and saves x and a few numbers a channel for backward. Parameters and buffers are
    batch norm's own plus the unit's, so a state saved from a batch norm loads here and leaves the
    shape as it is.

    Args:
        num_features, eps, momentum, affine, track_running_stats: as in ``nn.BatchNorm2d``.
        **options: those of :class:`Splash`; with share="channel", `features` is `num_features`.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        **options: Any,
    ) -> None:
        if options.get("share") == "channel":
            options.setdefault("features", num_features)
        super().__init__(**options)
        if not isinstance(num_features, int) or num_features < 1:
            raise ValueError(f"num_features must be a positive whole number, got {num_features!r}")
        if self.share == "channel" and self.features != (num_features,):
            raise ValueError(f"features={self.features} and num_features={num_features} differ")
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        ones, zeros = torch.ones(num_features), torch.zeros(num_features)
        self.register_parameter("weight", nn.Parameter(ones) if affine else None)
        self.register_parameter("bias", nn.Parameter(zeros) if affine else None)
        tracked = track_running_stats
        self.register_buffer("running_mean", torch.zeros(num_features) if tracked else None)
        self.register_buffer("running_var", torch.ones(num_features) if tracked else None)
        self.register_buffer("num_batches_tracked", torch.tensor(0) if tracked else None)

    @classmethod
    def from_batch_norm(
        cls, norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d, **options: Any
    ) -> "BatchNormSplash":
        """One that normalises as `norm` does, on its device and in its mode."""
        made = cls(
            norm.num_features,
            norm.eps,
            norm.momentum,
            norm.affine,
            norm.track_running_stats,
            **options,
        )
        made.load_state_dict(norm.state_dict())
        anywhere = next(iter(norm.state_dict().values()), None)
        return made.to(None if anywhere is None else anywhere.device).train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        return normalised_splash(
            x,
            *self._norm(),
            self.training,
            self.momentum,
            self.eps,
            *self._shape(),
            self.share,
            self.dim,
            self.grad_scale,
            self.num_features,
        )

    def _norm(self) -> "tuple[_Maybe, _Maybe, _Maybe, _Maybe, _Maybe]":
        """Running mean and variance, batches so far, weight and bias; found as `_shape` finds."""
        of, kept = self._parameters, self._buffers
        try:
            statistics = (kept["running_mean"], kept["running_var"], kept["num_batches_tracked"])
            return (*statistics, of["weight"], of["bias"])
        except KeyError:
            counted = (self.running_mean, self.running_var, self.num_batches_tracked)
            return (*counted, self.weight, self.bias)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        *rest: Any,
        **named: Any,
    ) -> None:
        own = {f"{prefix}{name}": getattr(self, name) for name in ("a_pos", "a_neg", "hinges")}
        if not own.keys() & state_dict.keys():  # a batch norm's state
            if local_metadata.get("version", 1) < 2 and self.track_running_stats:
                own[f"{prefix}num_batches_tracked"] = self.num_batches_tracked  # old ones have none
            state_dict = {**own, **state_dict}
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest, **named)

    def extra_repr(self) -> str:
        said = [str(self.num_features)]
        said += [f"eps={self.eps}"] if self.eps != 1e-5 else []
        said += [f"momentum={self.momentum}"] if self.momentum != 0.1 else []
        said += [] if self.affine else ["affine=False"]
        said += [] if self.track_running_stats else ["track_running_stats=False"]
        return ", ".join([*said, super().extra_repr()])


def normalised_splash(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    num_batches_tracked: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float | None,
    eps: float,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    share: str,
    dim: int,
    grad_scale: float | str,
    num_features: int,
) -> Tensor:
    """What a :class:`BatchNormSplash` computes, counting the batch as ``nn.BatchNorm2d`` does."""
    shape = x.shape
    if not 2 <= len(shape) <= 5 or shape[1] != num_features:
        raise ValueError(
            f"expected (N, {num_features}), or that with one to three more dimensions, "
            f"got an input of shape {tuple(shape)}"
        )
    by_batch = training or running_mean is None
    if by_batch and x.numel() == num_features:
        raise ValueError(f"one value a channel has no variance, got shape {tuple(shape)}")
    if training and num_batches_tracked is not None:
        num_batches_tracked.add_(1)
        if momentum is None:  # all batches count the same
            momentum = 1.0 / float(num_batches_tracked)
    how = (by_batch, momentum or 0.0, eps)

    if share == "unit" or (share == "channel" and dim not in (1, 1 - x.dim())):
        z = F.batch_norm(x, running_mean, running_var, weight, bias, *how)
        return shared_splash(z, a_pos, a_neg, hinges, share, dim, grad_scale)
    automatic = grad_scale == "auto"
    scale = automatic_scale(shape, share, a_pos.shape[1:], dim) if automatic else float(grad_scale)
    return batch_norm_splash(
        x, running_mean, running_var, weight, bias, a_pos, a_neg, hinges, *how, scale
    )


def freeze_shapes(model: nn.Module) -> nn.Module:
    """Fix every SPLASH unit of a network as learned, and return the network."""
    for module in model.modules():
        if isinstance(module, Splash):
            module.freeze()
    return model


_constrained: "weakref.WeakSet[Splash]" = weakref.WeakSet()


def _project_stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Project the units that this optimizer moved.

    Not the others: a write to a slope that another network's pending backward has saved, as between
    the two steps of a GAN, would make that backward fail.
    """
    if not _constrained:
        return
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for unit in tuple(_constrained):
        if id(unit.a_neg) in stepped:
            unit.project()


def _project_after_load(unit: nn.Module, _: object) -> None:
    assert isinstance(unit, Splash)
    unit.project()


register_optimizer_step_post_hook(_project_stepped)


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"unknown {name} {value!r}: choose one of {', '.join(map(repr, allowed))}")
    return value
