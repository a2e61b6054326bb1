"""The SPLASH function, and the only place that picks the kernel that computes it.

An ordinary call on a CPU tensor goes to the native kernel, on a CUDA tensor to the Triton kernel.
The plain equation serves wherever an opaque operator would be in the way: inside ``torch.export``,
and on other devices than the CPU inside ``torch.compile``, where it fuses; under ``torch.func`` and
forward-mode differentiation; for second derivatives; and where a kernel can't be had. Compiled for
the CPU, a network keeps the native operators: what the compiler makes of the equation and of its
eight sums takes longer. ``SPLASH_KERNEL=reference|native|triton`` forces one.
"""

import os
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch, _get_tracing_state
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_exporting
from torch.nn import Parameter

from splash_units.kernels import native, reference, triton
from splash_units.kernels.reference import scale_gradient as scale_gradient

KERNELS = ("reference", "native", "triton")
Operators = native.Operators | triton.Operators

# os.environ.get takes a microsecond, a third of a small activation; the dict behind it does not.
_environment = getattr(os.environ, "_data", os.environ)
_FORCED = getattr(os.environ, "encodekey", str)("SPLASH_KERNEL")

_TRANSFORMED = "torch.func and forward-mode derivatives need the plain equation"
_MOST_HINGES = native.MOST_HINGES
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_ORDINARY = (Tensor, Parameter)  # anything else (DTensor, FakeTensor, ...) gets the plain equation


def splash(x: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor) -> Tensor:
    """h(x) = Σₛ a₊ˢ max(0, x − bˢ) + Σₛ a₋ˢ max(0, −x − bˢ), with exact gradients.

    `hinges` are b¹ = 0 < b² < ...; `a_pos` and `a_neg` have one row a hinge. A row is a number, or
    broadcasts against `x` as any tensor does: slopes of shape (4, 16, 1, 1) give each of the 16
    channels of an (N, 16, H, W) tensor its own unit.
    """
    return scaled_splash(x, a_pos, a_neg, hinges)


def scaled_splash(
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    trailing: int = 0,
    grad_scale: float = 1.0,
) -> Tensor:
    """:func:`splash` whose slopes receive `grad_scale` times their gradient.

    `trailing` is the number of dimensions of x that stand to the right of the slopes' own; it saves
    the modules a reshape of their parameters in every call.
    """
    if is_compiling() and _forced_in_graph() != "triton":
        _check(x, a_pos, a_neg, hinges, trailing)
        if _serves_graph(x, a_pos, hinges, trailing):
            op: Callable[..., Tensor] = torch.ops.splash_units.splash.default
            return op(x, a_pos, a_neg, hinges, trailing, grad_scale)
        return reference.scaled_splash(x, a_pos, a_neg, hinges, trailing, grad_scale)
    y: Tensor | None = None
    try:
        if (calls := usual_calls()) is not None:
            y = calls.splash(x, a_pos, a_neg, hinges, trailing, grad_scale)
        if y is None and (operators := _operators_for(x)) is not None:
            y = operators.splash(x, a_pos, a_neg, hinges, trailing, grad_scale)
    except native.WrongSetting:
        raise
    except (ValueError, TypeError):
        # Either the caller's mistake, which the check below explains, or something that only the
        # plain equation serves. Checking first would cost every call what few need.
        _check(x, a_pos, a_neg, hinges, trailing)
        if _environment.get(_FORCED) is not None:
            raise
    if y is not None:
        return y
    _check(x, a_pos, a_neg, hinges, trailing)
    return reference.scaled_splash(x, a_pos, a_neg, hinges, trailing, grad_scale)


def batch_norm_splash(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    grad_scale: float = 1.0,
) -> Tensor:
    """``splash(F.batch_norm(x, ...), ...)``, in one pass where the kernel offers it.

    Slopes are shared by the layer, of shape (hinges,), or by channel, (hinges, C).
    """
    arguments = (
        x, weight, bias, running_mean, running_var, a_pos, a_neg, hinges,
        training, momentum, eps, grad_scale,
    )  # fmt: skip
    trailing = 0 if a_pos.dim() == 1 else x.dim() - 2
    found: tuple[Tensor, ...] | None = None
    if is_compiling() and _forced_in_graph() != "triton":
        if x.numel() > 0 and _serves_graph(x, a_pos, hinges, trailing):
            found = torch.ops.splash_units.batch_norm_splash.default(*arguments)
    else:
        try:
            if (calls := usual_calls()) is not None:
                found = calls.batch_norm_splash(*arguments)
            if found is None and (operators := _operators_for(x)) is not None:
                found = operators.batch_norm_splash(*arguments)
        except native.WrongSetting:
            raise
        except (ValueError, TypeError):
            # The two functions below say what is wrong, or serve where the kernel does not. One
            # that is forced must serve: running statistics would have moved before the second
            # says no.
            if _environment.get(_FORCED) is not None:
                raise
    if found is not None:
        return found[0]
    z = F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    return scaled_splash(z, a_pos, a_neg, hinges, trailing, grad_scale)


def _serves_graph(x: Tensor, a_pos: Tensor, hinges: Tensor, trailing: int) -> bool:
    """Whether the native operators are to stand in the graph that is being traced.

    What is looked at here, but for the functions that are marked as constant below, torch looks at
    again before each run of the graph: the less, the better.
    """
    forced = _forced_in_graph()
    if forced is None:
        if not x.is_cpu or is_exporting():
            return False
        own = a_pos.shape[1:]
        fits = a_pos.shape[0] <= _MOST_HINGES and (not own or _is_one_run(x.shape, own, trailing))
        fits = fits and not hinges.requires_grad  # which no kernel has a gradient for
        return fits and _kernel_in_graph()
    if forced not in KERNELS:
        raise _unknown(forced)
    if forced != "native":
        return False
    _refuse_unless_had(x, _why_not_in_graph())
    return _kernel_in_graph()


def _forced_in_graph() -> str | None:
    return os.environ.get("SPLASH_KERNEL")


def _kernel_in_graph() -> bool:
    """May the native operators stand in the graph that is being traced?"""
    if _is_transformed() or native.load() is None:
        return False
    from splash_units.kernels.native import graph_pass  # which imports torch's compiler

    graph_pass.install()
    return True


def _why_not_in_graph() -> str | None:
    return _TRANSFORMED if _is_transformed() else native.why_not()


def _is_one_run(x: Sequence[int], own: Sequence[int], trailing: int) -> bool:
    """Whether the slopes' own dimensions stand together in x, which is what the kernel walks.

    Those where x has one element do not part them; what is not known to be one while a graph of
    any size is traced, does.
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # which imports sympy

    wide = [d for d, n in enumerate(own) if n != 1]
    between = range(wide[0], wide[-1]) if wide else ()
    offset = len(x) - trailing - len(own)
    return all(own[d] != 1 or statically_known_true(x[offset + d] == 1) for d in between)


def _is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation, unknown to kernels, is at work."""
    return _functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


# Asked once, while a graph is traced. This is all that torch.compiler.assume_constant_result does,
# but for importing the whole of torch._dynamo.
for _function in (_forced_in_graph, _kernel_in_graph, _why_not_in_graph, _is_transformed):
    _function._dynamo_marked_constant = True  # type: ignore[union-attr]


def usual_calls() -> native.Calls | None:
    """The native kernel's quick functions, unless a kernel is forced or tangents are about."""
    if _FORCED in _environment or forward_ad._current_level >= 0:
        return None
    return native.calls


def _operators_for(x: Tensor) -> Operators | None:
    """The kernel's operators for this call, or None for the plain equation."""
    forced = _environment.get(_FORCED)
    if forced is not None:
        return _forced_operators(x, os.environ["SPLASH_KERNEL"])
    if (
        type(x) not in _ORDINARY
        or is_compiling()
        or _is_transformed()
        or _get_tracing_state() is not None
    ):
        return None
    if x.is_cpu:
        return native.load()
    return triton.load() if x.is_cuda else None


def _forced_operators(x: Tensor, name: str) -> Operators | None:
    if name not in KERNELS:
        raise _unknown(name)
    if name == "reference":
        return None
    if _is_transformed():
        raise ValueError(f"SPLASH_KERNEL={name}, but it can't be had: {_TRANSFORMED}")
    if name == "native":
        _refuse_unless_had(x, native.why_not())
        return native.load()
    if (reason := triton.why_not()) is not None:
        raise RuntimeError(f"SPLASH_KERNEL=triton, but it can't be had: {reason}")
    return triton.load()  # which says itself what tensors it serves


def _refuse_unless_had(x: Tensor, why_not: str | None) -> None:
    if not x.is_cpu:
        raise ValueError(f"SPLASH_KERNEL=native needs tensors on the CPU, x is on {x.device}")
    if why_not is not None:
        raise RuntimeError(f"SPLASH_KERNEL=native, but it can't be had: {why_not}")


def _unknown(name: str) -> ValueError:
    return ValueError(f"unknown SPLASH_KERNEL {name!r}: choose one of {', '.join(KERNELS)}")


def _check(x: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor, trailing: int) -> None:
    if x.dtype not in _DTYPES:
        raise TypeError(
            f"splash needs a float64, float32, bfloat16 or float16 tensor, got {x.dtype}"
        )
    for name, t in (("a_pos", a_pos), ("a_neg", a_neg), ("hinges", hinges)):
        if not t.is_floating_point():
            raise TypeError(f"{name} must be a floating-point tensor, got {t.dtype}")
        if t.device != x.device:
            raise ValueError(
                f"{name} is on {t.device}, x is on {x.device}: "
                "move the unit with .to(x.device) or x to the unit's device"
            )
    if hinges.dim() != 1 or len(hinges) == 0:
        raise ValueError(f"hinges must be a non-empty vector, got shape {tuple(hinges.shape)}")
    for name, a in (("a_pos", a_pos), ("a_neg", a_neg)):
        if a.dim() == 0 or a.shape[0] != len(hinges):
            raise ValueError(
                f"{name} must have one row for each of the {len(hinges)} hinges, "
                f"got shape {tuple(a.shape)}"
            )
    if a_pos.shape != a_neg.shape:
        raise ValueError(
            "a_pos and a_neg must have the same shape, "
            f"got {tuple(a_pos.shape)} and {tuple(a_neg.shape)}"
        )
    if a_pos.dim() > 1 or trailing > 0:  # asked for first: in a graph all of it would be guarded
        _check_broadcast(x, a_pos, trailing)


def _check_broadcast(x: Tensor, a_pos: Tensor, trailing: int) -> None:
    own = tuple(a_pos.shape[1:]) + (1,) * trailing
    fits = len(own) <= x.dim() and all(
        p == 1 or p == n  # not `in`, which is False for a size that a graph has left open
        for p, n in zip(reversed(own), reversed(x.shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"slopes of shape {tuple(a_pos.shape)} don't broadcast against x of shape "
            f"{tuple(x.shape)}"
        )
