"""Who shares a shape: to which dimensions of an input slopes belong, and how fast they learn."""

import math
from collections.abc import Sequence
from typing import Literal

Share = Literal["layer", "channel", "unit"]
SHARES = ("layer", "channel", "unit")


def automatic_scale(
    shape: Sequence[int], share: str, features: Sequence[int], dim: int = 1
) -> float:
    """3/√n, at most 1, for slopes that a layer shares; 1/√n for those of a channel; 1 for a unit's.

    n elements of one sample share a slope; samples lie along the first dimension of an input's
    `shape`. Chosen by experiment (docs/slopes.md): with these a layer's and a channel's slopes
    stand the same learning rate, and three times as much diverges in ResNet-20 at three times its
    recipe's.
    """
    if share == "unit" or len(shape) < 2 or shape[0] == 0:
        return 1.0
    sharing = shape[1] if len(shape) == 2 else math.prod(shape[1:])
    if share == "layer":
        return 3.0 / math.sqrt(sharing) if sharing > 9 else 1.0
    if dim not in (0, -len(shape)):  # with channels first x is one sample
        sharing //= features[0]
    return 1.0 / math.sqrt(sharing) if sharing > 1 else 1.0


def trailing_dimensions(shape: Sequence[int], share: str, features: Sequence[int], dim: int) -> int:
    """How many dimensions of an input stand right of the one(s) the slopes belong to."""
    if share == "unit":
        if shape[1:] != features:
            raise ValueError(
                f"this unit was made for samples of shape {tuple(features)}, "
                f"got an input of shape {tuple(shape)}"
            )
        return 0
    rank = len(shape)
    if not -rank <= dim < rank or shape[dim] != features[0]:
        raise ValueError(
            f"this unit was made for {features[0]} channels along dimension {dim}, "
            f"got an input of shape {tuple(shape)}"
        )
    return (rank if dim >= 0 else 0) - dim - 1


def checked_features(share: str, features: int | Sequence[int] | None) -> tuple[int, ...]:
    """The shape that slopes have beside their rows: () for a layer, (C,), or that of a sample."""
    if share == "layer":
        return ()
    if features is None:
        needed = "the number of channels" if share == "channel" else "the shape of one sample"
        raise ValueError(f"share={share!r} needs features: {needed}")
    shape = tuple(features) if isinstance(features, Sequence) else (features,)
    if not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(f"features must be positive whole numbers, got {features!r}")
    if share == "channel" and len(shape) != 1:
        raise ValueError(f"share='channel' needs one number of channels, got features={features!r}")
    return shape


def checked_dim(dim: int) -> int:
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise TypeError(f"dim must be a whole number, the channels' dimension, got {dim!r}")
    return dim


def checked_grad_scale(grad_scale: float | str) -> float | str:
    if grad_scale == "auto":
        return grad_scale
    if not isinstance(grad_scale, int | float) or not 0 < grad_scale < math.inf:
        raise ValueError(f"grad_scale must be 'auto' or a positive number, got {grad_scale!r}")
    return float(grad_scale)
