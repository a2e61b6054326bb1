"""Give an existing network SPLASH units; fuse, sort its parameters; fold it for deployment.

network = convert(model)                     # computes what `model` computes, until it is trained
network = fuse(network)                      # batch norm and the unit behind it as one module
optimizer = torch.optim.SGD(parameter_groups(network, weight_decay=5e-4), lr=0.1)
...
deployed = fold(network.eval())
"""

import copy as copying
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from splash_units.conversion.activations import EXACT as EXACT
from splash_units.conversion.activations import FITTED as FITTED
from splash_units.conversion.activations import KNOWN
from splash_units.conversion.fitting import SPAN
from splash_units.conversion.installing import Probe, install
from splash_units.conversion.plan import Plan, Reused, plan
from splash_units.conversion.report import Change as Change
from splash_units.conversion.report import Left as Left
from splash_units.conversion.report import Report as Report
from splash_units.conversion.survey import Kinds, is_unit, survey
from splash_units.conversion.units import MadeUnit, Recipe, unit_for
from splash_units.fold import fold as fold
from splash_units.fuse import fuse as fuse
from splash_units.parameters import parameter_groups as parameter_groups
from splash_units.unit import Splash

ExampleInputs = Tensor | Sequence[Any] | Mapping[str, Any]
REUSED = ("separate", "tied")


@overload
def convert(
    model: nn.Module,
    to: Callable[..., nn.Module] = ...,
    from_: type[nn.Module] | Iterable[type[nn.Module]] = ...,
    *,
    return_report: Literal[False] = ...,
    reused: Reused = ...,
    example_inputs: ExampleInputs | None = ...,
    copy: bool = ...,
    **options: Any,
) -> nn.Module: ...


@overload
def convert(
    model: nn.Module,
    to: Callable[..., nn.Module] = ...,
    from_: type[nn.Module] | Iterable[type[nn.Module]] = ...,
    *,
    return_report: Literal[True],
    reused: Reused = ...,
    example_inputs: ExampleInputs | None = ...,
    copy: bool = ...,
    **options: Any,
) -> tuple[nn.Module, Report]: ...


def convert(
    model: nn.Module,
    to: Callable[..., nn.Module] = Splash,
    from_: type[nn.Module] | Iterable[type[nn.Module]] = EXACT,
    *,
    return_report: bool = False,
    reused: Reused = "separate",
    example_inputs: ExampleInputs | None = None,
    copy: bool = True,
    **options: Any,
) -> nn.Module | tuple[nn.Module, Report]:
    """A network with units in the place of its activations, each place with its own.

    Modules are replaced, and calls such as ``F.relu(x)``, ``torch.relu(x)`` and ``x.relu_()`` too,
    with torch.fx. A SPLASH unit starts as what it replaces: to the last bit from ReLU, up to
    rounding from the other piecewise linear activations (`EXACT`), and as near as its hinges allow
    from smooth ones (`FITTED`), which must be asked for in `from_`.

    Args:
        model: any module. It keeps its class, children and other parameters; a module whose
            `forward` calls activations as functions gets a subclass of its class.
        to: what makes a unit: a class, a function, or a unit of the catalogue. Only SPLASH units
            can be started as what they replace, and do unless `to` or `options` say how they start.
        from_: which activations, as the classes of torch.nn.
        return_report: return the network and a :class:`Report` of what was changed, what was not,
            and why. Without it there is a warning if something was left.
        reused: an activation module that is used at several places becomes a unit for each
            ("separate"), or one unit for all ("tied").
        example_inputs: an input of the network: a tensor, a tuple of arguments or a dictionary of
            them by name. Needed for units that must know their features (share="channel"); the
            report then also has the largest difference of the network's outputs.
        copy: convert a copy (True), or the model itself (False): then an optimizer that holds its
            parameters stays valid, and lacks only the units'.
        **options: for `to`: num_hinges, share, constraint, ...
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert needs a torch.nn.Module, got {model!r}")
    kinds = _checked_kinds(from_)
    recipe = Recipe.of(to, options)
    if reused not in REUSED:
        raise ValueError(f"unknown reused {reused!r}: choose one of 'separate', 'tied'")
    leaves = (to,) if isinstance(to, type) and issubclass(to, nn.Module) else ()
    made = plan(survey(model, kinds, leaves), reused)
    if not made.sites and not made.left and not return_report:
        _refuse_unless_converted(model, made, kinds, leaves)

    before = None if example_inputs is None else _outputs(model, example_inputs)
    units = _units(model, made, recipe, example_inputs)
    network = copying.deepcopy(model) if copy else model
    network = install(network, made, [unit.module for unit in units])
    difference = None
    if example_inputs is not None:
        difference = _largest_difference(before, _outputs(network, example_inputs))

    report = _report(made, units, difference)
    if return_report:
        return network, report
    if report.left:
        left = "".join(f"\n  {item}" for item in report.left)
        warnings.warn(f"some activations stay as they are:{left}", stacklevel=2)
    return network


def _checked_kinds(from_: Any) -> Kinds:
    kinds = (from_,) if isinstance(from_, type) else tuple(from_)
    for kind in kinds:
        if kind not in KNOWN:
            name = kind.__name__ if isinstance(kind, type) else repr(kind)
            allowed = ", ".join(known.__name__ for known in KNOWN)
            raise ValueError(
                f"unknown from_ {name}: choose among the classes {allowed} of torch.nn"
            )
    if not kinds:
        raise ValueError("from_ is empty: name at least one activation, such as nn.ReLU")
    return kinds


def _refuse_unless_converted(model: nn.Module, made: Plan, kinds: Kinds, leaves: Kinds) -> None:
    if any(is_unit(module) or isinstance(module, leaves) for module in model.modules()):
        return
    looked_for = ", ".join(kind.__name__ for kind in kinds)
    others = sorted({item.what.partition("(")[0] for item in made.ignored})
    hint = "nor any other that could be replaced"
    if others:
        hint = f"it has {', '.join(others)}: name them in from_"
    raise ValueError(f"{type(model).__name__} has no activation among {looked_for}; {hint}")


def _units(
    model: nn.Module, made: Plan, recipe: Recipe, example_inputs: ExampleInputs | None
) -> list[MadeUnit]:
    shapes: list[torch.Size | None] = [None] * len(made.sites)
    if recipe.wants_shape and example_inputs is not None:
        probes = [Probe(site.activation) for site in made.sites]
        _outputs(install(copying.deepcopy(model), made, probes), example_inputs)
        shapes = [probe.shape for probe in probes]
    units: list[MadeUnit] = []
    for site, shape in zip(made.sites, shapes, strict=True):
        if recipe.wants_shape and example_inputs is not None and shape is None:
            raise ValueError(f"{site.slots[0].path}: the example inputs don't get there")
        try:
            units.append(unit_for(site.activation, recipe, shape))
        except ValueError as error:
            raise ValueError(f"{site.slots[0].path}: {error}") from error
    if len({id(unit.module) for unit in units}) < len(units):
        raise ValueError(f"to must make a new unit for each place; {recipe.to!r} gave one twice")
    return units


def _report(made: Plan, units: list[MadeUnit], difference: float | None) -> Report:
    changed = tuple(
        Change(
            path=site.slots[0].path,
            was=str(site.activation),
            where=site.where,
            unit=str(unit.module),
            exactness=unit.exactness,
            largest_error=unit.largest_error,
            span=(-SPAN, SPAN),
            notes=site.notes,
        )
        for site, unit in zip(made.sites, units, strict=True)
    )
    return Report(changed, tuple(made.left), tuple(made.ignored), difference)


def _outputs(model: nn.Module, example_inputs: ExampleInputs) -> Any:
    """What a network computes for the example, in eval mode."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            if isinstance(example_inputs, Mapping):
                return model(**example_inputs)
            if isinstance(example_inputs, Tensor):
                return model(example_inputs)
            return model(*example_inputs)
    finally:
        for module, mode in modes.items():
            module.training = mode


def _largest_difference(before: Any, after: Any) -> float:
    largest = 0.0
    for a, b in zip(pytree.tree_leaves(before), pytree.tree_leaves(after), strict=True):
        if isinstance(a, Tensor) and a.numel():
            same = (a == b) | (a.isnan() & b.isnan())
            largest = max(largest, (a - b).abs().masked_fill(same, 0).max().item())
    return largest
