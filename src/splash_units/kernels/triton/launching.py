"""From tensors to launches of the GPU kernel: what it serves, and what each launch gives."""

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from splash_units.kernels.triton import batch_norm, device
from splash_units.kernels.triton.geometry import WARPS, View, like, own_dimensions, view_of

MOST_HINGES: Final = 64
SERVED: Final = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
CHANNELS: Final = range(1, 2)  # the dimension that batch norm goes by
# Triton decides when a function is decorated; its own are, when it is first imported.
INTERPRETED: Final = not any(
    isinstance(function, triton.JITFunction) for function in (tl.sum, device.splash_forward)
)

Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]
Quintuple = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


# --- what the kernel serves -----------------------------------------------------------------------


def check(x: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor) -> None:
    if not (x.is_cuda or (INTERPRETED and x.is_cpu)):
        raise ValueError(
            f"the Triton kernel needs tensors on a CUDA device, got one on {x.device}; on the CPU "
            "it runs in Triton's interpreter only, with TRITON_INTERPRET=1"
        )
    for t in (x, a_pos, a_neg, hinges):
        if t.dtype not in SERVED:
            raise TypeError(f"the Triton kernel serves {SERVED}, got {t.dtype}")
        if t.device != x.device:
            raise ValueError(f"the Triton kernel needs one device, got {t.device} and {x.device}")
    fits = a_pos.shape[:1] == a_neg.shape[:1] == hinges.shape and a_pos.shape == a_neg.shape
    if not fits or not 1 <= len(hinges) <= MOST_HINGES:
        raise ValueError(
            f"the Triton kernel needs a row of slopes for each of 1 to {MOST_HINGES} hinges, got "
            f"shapes {tuple(a_pos.shape)}, {tuple(a_neg.shape)} and {tuple(hinges.shape)}"
        )


def check_channels(x: Tensor, a_pos: Tensor, *per_channel: Tensor | None) -> None:
    """Before anything is changed: the kernel reads and writes as far as there are channels."""
    if x.dim() < 2 or a_pos.shape[1:] not in ((), (1,), x.shape[1:2]):
        raise ValueError(f"no slopes of {tuple(a_pos.shape)} behind batch norm of {tuple(x.shape)}")
    for t in per_channel:
        if t is None:
            continue
        if t.shape != x.shape[1:2] or t.device != x.device or not t.is_contiguous():
            raise ValueError(
                f"batch norm of x of shape {tuple(x.shape)} on {x.device} needs vectors of its "
                f"{x.shape[1]} channels, got shape {tuple(t.shape)} on {t.device}"
            )
        if t.dtype not in SERVED:
            raise TypeError(f"the Triton kernel serves {SERVED}, got {t.dtype}")


# --- launches -------------------------------------------------------------------------------------


def compute_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def ready(x: Tensor, *tensors: Tensor | None) -> list[Tensor | None]:
    """Parameters as the kernel reads them: in the type of the computation, contiguous."""
    wide = compute_dtype(x)
    return [None if t is None else t.to(wide).contiguous() for t in tensors]


def _launch(kernel: Any, view: View, *arguments: Tensor | None, **constants: int | bool) -> None:
    """Run `kernel` over all of `view`."""
    tiles = view.tiles
    # Triton launches on the current device, which need not be the tensor's.
    with torch.cuda.device_of(view.memory):  # type: ignore[no-untyped-call]
        kernel[(tiles.programs,)](
            *arguments,
            view.outer,
            view.groups,
            tiles.width,
            tiles.column_blocks,
            ROWS=tiles.rows,
            COLUMNS=tiles.columns,
            BY_COLUMN=tiles.by_column,
            num_warps=WARPS,
            **constants,
        )


def _room_for_sums(view: View, values: int) -> Tensor:
    """A place for every tile's share of `values` sums a group."""
    shape = (view.tiles.per_group, values, view.groups)
    return torch.empty(shape, dtype=compute_dtype(view.memory), device=view.memory.device)


def _slope_gradients(sums: Tensor, a_pos: Tensor, a_neg: Tensor, grad_scale: float) -> Pair:
    """The rows that :func:`device.store_slope_sums` stores, as gradients of both slopes."""
    hinges = len(a_pos)
    rows = (sums.sum(1) if _is_shared(a_pos) else sums)[: 2 * hinges] * grad_scale
    return _as_gradient(rows[:hinges], a_pos), _as_gradient(rows[hinges:], a_neg)


def _is_shared(a: Tensor) -> bool:
    return a.numel() == len(a)


def _as_gradient(sums: Tensor, of: Tensor) -> Tensor:
    return sums.reshape(of.shape).to(of.dtype, copy=True)  # an operator's results share no memory


# --- the unit -------------------------------------------------------------------------------------


def splash(
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    trailing: int = 0,
    grad_scale: float = 1.0,
) -> Tensor:
    """h(x); slopes of shape (hinges, own...) with `trailing` dimensions of x to their right."""
    check(x, a_pos, a_neg, hinges)
    view = view_of(x, own_dimensions(x, a_pos, trailing))
    y = torch.empty_like(view.memory)
    if x.numel():
        _launch(
            device.splash_forward,
            view,
            view.memory,
            y,
            *ready(x, a_pos, a_neg, hinges),
            HINGES=len(hinges),
            SHARED=view.groups == 1,
        )
    return y


def splash_backward(
    grad: Tensor,
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    trailing: int,
    grad_scale: float,
) -> Triple:
    """The gradients of x and both slopes."""
    view = view_of(x, own_dimensions(x, a_pos, trailing))
    dx = torch.empty_like(view.memory)
    if not x.numel():
        return dx, torch.zeros_like(a_pos), torch.zeros_like(a_neg)
    parts = _room_for_sums(view, 2 * len(hinges))
    _launch(
        device.splash_backward,
        view,
        view.memory,
        like(grad, view.memory),
        dx,
        parts,
        *ready(x, a_pos, a_neg, hinges),
        HINGES=len(hinges),
        SHARED=view.groups == 1,
    )
    return dx, *_slope_gradients(parts.sum(0, dtype=torch.float64), a_pos, a_neg, grad_scale)


# --- batch norm and the unit in one ---------------------------------------------------------------


def statistics(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float, eps: float
) -> Pair:
    """Mean and 1/std of each channel, and the running statistics moved towards them."""
    view = view_of(x, CHANNELS)
    parts = _room_for_sums(view, 3)
    _launch(batch_norm.moments, view, view.memory, parts)
    mean, inverse_std = (parts.new_empty((view.groups,)) for _ in range(2))
    channels = 16  # a program
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        batch_norm.join_moments[(triton.cdiv(view.groups, channels),)](
            parts,
            mean,
            inverse_std,
            running_mean,
            running_var,
            len(parts),
            view.groups,
            momentum,
            eps,
            TILES=64,
            CHANNELS=channels,
        )
    return mean, inverse_std


def normalised_splash(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inverse_std: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    training: bool,
    eps: float,
    grad_scale: float,
) -> Tensor:
    """The unit behind batch norm by given statistics, which in training are those of x."""
    view = view_of(x, CHANNELS)
    y = torch.empty_like(view.memory)
    _launch(
        batch_norm.normalised_forward,
        view,
        view.memory,
        y,
        *ready(x, mean, inverse_std, weight, bias, a_pos, a_neg, hinges),
        HINGES=len(hinges),
        SHARED=_is_shared(a_pos),
    )
    return y


def normalised_splash_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inverse_std: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    training: bool,
    eps: float,
    grad_scale: float,
) -> Quintuple:
    """The gradients of x, weight, bias and both slopes."""
    view = view_of(x, CHANNELS)
    g = like(grad, view.memory)
    given = ready(x, mean, inverse_std, weight, bias, a_pos, a_neg, hinges)
    constants = {"HINGES": len(hinges), "SHARED": _is_shared(a_pos)}
    parts = _room_for_sums(view, 2 * len(hinges) + 2)
    _launch(batch_norm.normalised_sums, view, view.memory, g, parts, *given, **constants)
    sums = parts.sum(0, dtype=torch.float64)
    d_bias, d_weight = sums[-2:]

    # In training the statistics moved with x, and the gradient takes both their moves back.
    means = sums[-2:] / (view.outer * view.inner) if training else (None, None)
    dx = torch.empty_like(view.memory)
    _launch(batch_norm.normalised_backward, view, view.memory, g, dx, *means, *given, **constants)
    return (
        dx,
        _as_gradient(d_weight, mean if weight is None else weight),
        _as_gradient(d_bias, mean if bias is None else bias),
        *_slope_gradients(sums, a_pos, a_neg, grad_scale),
    )
