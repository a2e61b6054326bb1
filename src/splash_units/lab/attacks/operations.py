"""What the nodes of a traced network do to the positions of an image, found out from outside.

Convolutions and max-pools are recognised by their type. A function of single positions is
recognised by what it does, since a unit may be any module: it is shown parts of its input, or its
input with the positions shuffled and with one of them changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from splash_units.lab.attacks.narrow import is_hooked, never_falls
from splash_units.lab.attacks.pools import halves, max_pool
from splash_units.lab.attacks.reach import Site, Window

Values = dict[fx.Node, Any]
Modules = Mapping[str, nn.Module]
"""A network's modules by name; the network itself is the one without."""


class LeafTracer(fx.Tracer):
    """A tracer that looks into containers only: a module without children is one operation."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or not any(m.children())


def modules_of(model: nn.Module) -> Modules:
    """The modules of a network; one that has several names has all of them."""
    return dict(model.named_modules(remove_duplicate=False))


def evaluate(modules: Modules, node: fx.Node, values: Values) -> Any:
    """A node's value, given those of its inputs; a placeholder's must be among them."""
    if node.op == "placeholder":
        return values[node]
    if node.op == "get_attr":
        return attrgetter(str(node.target))(modules[""])
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    if node.op == "output":
        return args[0]
    if node.op == "call_module":
        return modules[str(node.target)](*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


@dataclass(frozen=True)
class Windowed:
    """A convolution or pool, given windows that bring their own padding, worth `fill`."""

    vertical: Window
    horizontal: Window
    apply: Callable[[Tensor], Tensor]
    fill: float

    def after(self, site: Site, value: Tensor) -> Site:
        """What a changed pixel reaches behind it, `value` being what comes out."""
        height, width = value.shape[2:]
        return Site(
            self.vertical.reach(site.height, height), self.horizontal.reach(site.width, width)
        )

    def reads(self, before: Site, after: Site) -> tuple[Tensor, Tensor]:
        """For each coordinate of a changed pixel, the rows and the columns its box is made from."""
        return (
            self.vertical.source(after.height, before.height.length),
            self.horizontal.source(after.width, before.width.length),
        )

    @staticmethod
    def of(module: nn.Module) -> Windowed | None:
        """The module as windows, if it is a convolution padded by zeros or a max-pool."""
        if isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
            spans = [
                dilation * (kernel - 1) + 1
                for dilation, kernel in zip(module.dilation, module.kernel_size, strict=True)
            ]
            if isinstance(module.padding, str):
                padding = [(span - 1) // 2 if module.padding == "same" else 0 for span in spans]
            else:
                padding = list(module.padding)
            vertical, horizontal = map(Window, spans, module.stride, padding)
            return Windowed(vertical, horizontal, partial(convolve, module), 0.0)
        if isinstance(module, nn.MaxPool2d) and pair(module.dilation) == (1, 1):
            kernel, stride = pair(module.kernel_size), pair(module.stride)
            vertical, horizontal = map(Window, kernel, stride, pair(module.padding))
            pool: Callable[[Tensor], Tensor] = partial(
                F.max_pool2d, kernel_size=kernel, stride=stride
            )
            if halves(module):
                pool = max_pool(module)
            return Windowed(vertical, horizontal, pool, -torch.inf)
        return None


def convolve(module: nn.Conv2d, windows: Tensor, with_bias: bool = True) -> Tensor:
    """The convolution without padding."""
    weight, bias = module.weight, module.bias if with_bias else None
    return F.conv2d(windows, weight, bias, module.stride, 0, module.dilation, module.groups)


def pools_first(modules: Modules, graph: fx.Graph) -> fx.Graph:
    """The graph with its max-pools before what never falls: less is left to do, and all bits are
    the same.
    """
    calls = {node: modules[str(node.target)] for node in graph.nodes if node.op == "call_module"}
    calls = {node: module for node, module in calls.items() if not is_hooked(module)}
    for pool in [node for node, module in calls.items() if type(module) is nn.MaxPool2d]:
        before = pool.all_input_nodes[0]
        while before in calls and len(before.users) == 1 and never_falls(calls[before]):
            pool.replace_all_uses_with(before)
            pool.replace_input_with(before, before.all_input_nodes[0])
            before.replace_input_with(before.all_input_nodes[0], pool)
            pool.append(before)
            before = pool.all_input_nodes[0]
    return graph


def tiles(modules: Modules, node: fx.Node) -> tuple[int, int]:
    """The size of the tiles in which a node's values are read: a pool's behind it, or 1 x 1."""
    reader = next(iter(node.users))
    if len(node.users) == 1 and reader.op == "call_module":
        module = modules[str(reader.target)]
        pool = Windowed.of(module) if isinstance(module, nn.MaxPool2d) else None
        if pool is not None and pool.vertical.tiles and pool.horizontal.tiles:
            return pool.vertical.stride, pool.horizontal.stride
    return 1, 1


def pair(setting: int | tuple[int, int]) -> tuple[int, int]:
    """A pool's setting for both axes."""
    return (setting, setting) if isinstance(setting, int) else setting


def takes_parts(modules: Modules, node: fx.Node, values: Values, sources: list[fx.Node]) -> bool:
    """Whether parts of a node's inputs give parts of its value: a function of single positions."""
    value = values[node]
    height, width = value.shape[2:]
    for part in (slice(height // 2, None), slice(None)), (slice(None), slice(0, width // 3 + 1)):
        crop = (..., *part)
        try:
            found = evaluate(modules, node, values | {n: values[n][crop] for n in sources})
        except (RuntimeError, ValueError):  # a parameter for every position, say
            return False
        if not same(found, value[crop]):
            return False
    return True


def takes_shuffled(modules: Modules, node: fx.Node, values: Values, source: fx.Node) -> bool:
    """Whether a node that insists on whole images still treats all positions alike and alone."""
    before, value = values[source], values[node]
    order = torch.randperm(
        before.shape[2] * before.shape[3], generator=torch.Generator().manual_seed(0)
    )

    def shuffled(images: Tensor) -> Tensor:
        return images.flatten(2)[..., order.to(images.device)].view_as(images)

    alike = evaluate(modules, node, values | {source: shuffled(before)})
    changed = before.clone()
    changed[..., 0, 0] = before[..., -1, -1]
    alone = evaluate(modules, node, values | {source: changed})
    elsewhere = (..., slice(1, None))
    return same(alike, shuffled(value)) and same(
        alone.flatten(2)[elsewhere], value.flatten(2)[elsewhere]
    )


def same(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


def packed(function: Callable[[Tensor], Tensor], boxes: Tensor, height: int, width: int) -> Tensor:
    """A function of single positions that insists on whole images, on boxes laid out as such."""
    count, channels, *box = boxes.shape
    rows = boxes.permute(0, 2, 3, 1).reshape(-1, channels)
    images = -(-len(rows) // (height * width))
    whole = rows.new_zeros(images * height * width, channels)
    whole[: len(rows)] = rows
    values = function(whole.view(images, height, width, channels).permute(0, 3, 1, 2))
    back = values.permute(0, 2, 3, 1).reshape(-1, values.shape[1])[: len(rows)]
    return back.view(count, *box, values.shape[1]).permute(0, 3, 1, 2)
