"""The units of a network, and what flows into them while batches run through it."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from splash_units.unit import BatchNormSplash, Splash

Observer = Callable[[str, Splash, Tensor], None]
Forward = Callable[[nn.Module, Any], object]


def units_of(model: nn.Module) -> dict[str, Splash]:
    """Every SPLASH unit of a network by its qualified name ("" if the network is the unit)."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch module with SPLASH units, got {type(model).__name__}")
    units = {
        name.replace("_orig_mod.", "").removesuffix("_orig_mod"): module  # torch.compile adds those
        for name, module in model.named_modules()
        if isinstance(module, Splash)
    }
    if not units:
        raise ValueError(
            f"{type(model).__name__} has no SPLASH units; splash_units.convert gives a network some"
        )
    return units


def observe_inputs(
    model: nn.Module, batches: Iterable[Any] | Tensor, observer: Observer, forward: Forward | None
) -> None:
    """Run every batch through the network in eval mode, and show each unit's input to `observer`.

    A tensor is one batch. Of a batch that is a tuple or list the first is the input (the others are
    targets), one that is a mapping is given as keywords; `forward(model, batch)` runs any other.
    Modes are restored and hooks removed, whatever happens; running statistics don't change.
    """
    units = units_of(model)
    device = next(iter(units.values())).hinges.device
    with torch.no_grad(), _in_eval_mode(model), _hooks(units, observer), _uncompiled():
        for batch in [batches] if isinstance(batches, Tensor) else batches:
            if forward is not None:
                forward(model, batch)
            else:
                _run(model, batch, device)


def activation_input(unit: Splash, x: Tensor) -> Tensor:
    """What the shape is applied to in eval mode: x, normalised first where the unit does that."""
    if not isinstance(unit, BatchNormSplash):
        return x
    by_batch = unit.running_mean is None  # as torch's batch norms do without running statistics
    return batch_norm(
        x, unit.running_mean, unit.running_var, unit.weight, unit.bias, by_batch, eps=unit.eps
    )


def _run(model: nn.Module, batch: Any, device: torch.device) -> None:
    if isinstance(batch, Mapping):
        model(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()})
        return
    x = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(x, Tensor):
        raise TypeError(
            "a batch must be a tensor, a tuple or list that begins with one, or a mapping of "
            f"keywords, got {type(batch).__name__}; forward=lambda model, batch: ... takes others"
        )
    model(x.to(device))


def _uncompiled() -> AbstractContextManager[object]:
    """Code that was compiled before there were hooks would skip them, silently."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled, and asking costs an import
        return nullcontext()
    eager: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return eager


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():  # not .train(): children may have their own mode
            module.training = training


@contextmanager
def _hooks(units: Mapping[str, Splash], observer: Observer) -> Iterator[None]:
    def tap(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(unit: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            assert isinstance(unit, Splash)
            observer(name, unit, activation_input(unit, args[0] if args else kwargs["x"]))

        return hook

    with ExitStack() as hooks:
        for name, unit in units.items():
            hooks.enter_context(unit.register_forward_pre_hook(tap(name), with_kwargs=True))
        yield
