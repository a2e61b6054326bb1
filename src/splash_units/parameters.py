"""Which parameters of a network decay and which don't, whatever their rank.

A rule by rank ("one dimension: no decay") would let channel-wise slopes decay towards a flat unit.
Here it goes by what owns a parameter, and only then by rank.
"""

import math
from collections.abc import Iterator
from typing import Any

from torch import nn

from splash_units import rivals
from splash_units.unit import Splash

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)
SLOPES = ("a_pos", "a_neg")  # of a SPLASH unit, by name
_LEARNED = (nn.PReLU, rivals.Swish, rivals.APL, rivals.SReLU)


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    *,
    lr: float | None = None,
    slope_lr: float | None = None,
    activations: tuple[type[nn.Module], ...] = (),
) -> list[dict[str, Any]]:
    """Groups for any optimizer: kernels decay; slopes, biases and norms don't.

    Args:
        model: any network, converted or not. Parameters that ask for no gradient are left out, and
            each tied one is there once.
        weight_decay: for the kernels: parameters of two dimensions and more that belong to no norm
            and no activation, and are no bias. A model that has timm's ``no_weight_decay()`` is
            asked, too.
        lr: the learning rate, put into each group if given.
        slope_lr: a factor on `lr` for the slopes: of SPLASH units, PReLU, and every learned
            activation of `splash_units.rivals`.
        activations: classes of your own whose parameters count as slopes.

    Each group has a "name": "kernels", "slopes" or "others". An empty one is left out.
    """
    _check("weight_decay", weight_decay, least=0.0)
    if slope_lr is not None:
        _check("slope_lr", slope_lr)
        if lr is None:
            raise ValueError("slope_lr is a factor on the learning rate: give lr too")
    if lr is not None:
        _check("lr", lr, least=0.0)

    slopes, kept = _slopes(model, activations), _without_decay(model)
    groups: dict[str, list[nn.Parameter]] = {"kernels": [], "slopes": [], "others": []}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        is_kernel = parameter.dim() >= 2 and id(parameter) not in kept
        name = "slopes" if id(parameter) in slopes else "kernels" if is_kernel else "others"
        groups[name].append(parameter)
    return [
        {
            "name": name,
            "params": parameters,
            "weight_decay": weight_decay if name == "kernels" else 0.0,
            **(
                {} if lr is None else {"lr": lr * slope_lr if name == "slopes" and slope_lr else lr}
            ),
        }
        for name, parameters in groups.items()
        if parameters
    ]


def _slopes(model: nn.Module, activations: tuple[type[nn.Module], ...]) -> set[int]:
    learned = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, (*_LEARNED, *activations))
        for parameter in module.parameters()
    }
    # Not all that a SPLASH unit owns is a slope: `BatchNormSplash` has batch norm's parameters too.
    units = (module for module in model.modules() if isinstance(module, Splash))
    return learned | {id(getattr(unit, name)) for unit in units for name in SLOPES}


def _without_decay(model: nn.Module) -> set[int]:
    """Norms, biases, and what the model itself says."""
    norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, _NORMS) or "norm" in type(module).__name__.lower()
        for parameter in module._parameters.values()
    }
    ask = getattr(model, "no_weight_decay", None)
    said: set[str] = set(ask()) if callable(ask) else set()
    named = {id(p) for name, p in _named(model) if name in said or _is_bias(name)}
    return norms | named


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return model.named_parameters(remove_duplicate=False)


def _is_bias(name: str) -> bool:
    """ "bias", "bias_ih_l0", "in_proj_bias", "parametrizations.bias.original"."""
    return any("bias" in part for part in name.split(".")[-2:])


def _check(name: str, value: float, least: float | None = None) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    allowed = value > 0 if least is None else value >= least
    if not math.isfinite(value) or not allowed:
        bound = "positive" if least is None else f"at least {least:g}"
        raise ValueError(f"{name} must be finite and {bound}, got {value}")
