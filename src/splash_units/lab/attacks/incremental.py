"""Logits of many images that differ from one image in a few pixels, computing only what a pixel
reaches.

The network is traced once into a graph. Where it consists of convolutions, pools and functions of
single positions, a node's values differ from the clean image's only in a box around each changed
pixel; only the boxes are computed, each from a window of the node's input, and everything else is
read from the clean image's values. Where the boxes would cover most of the image, and from the
first operation that mixes positions in another way, the values are put together and the network
goes on as usual.

Nothing is known of the network but its graph: convolutions and pools are recognised by their type,
functions of single positions by what they do to an image and to parts of it. A network that cannot
be traced, or whose logits come out differently, is refused. The logits agree with a whole forward
up to the rounding of sums made in another order; where sums are exact, they are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from splash_units.lab.attacks.reach import Changes, Reach, Site, Variants, Window
from splash_units.lab.attacks.victim import Model

WORTHWHILE = 0.75
"""Boxes are computed alone as long as they amount to no more of the image than this."""

AGREEMENT = 1e-4
"""By how much of the largest logit a traced network may differ from the network itself."""


@dataclass(frozen=True)
class Local:
    """A convolution or pool of boxes: the rows and columns of the input to read, and what to do
    then.
    """

    apply: Callable[[Tensor], Tensor]
    rows: Tensor
    columns: Tensor
    fill: float  #: what padding is worth


@dataclass(frozen=True)
class Step:
    """One node of the network and how its value is found."""

    node: fx.Node
    dead: tuple[fx.Node, ...]  #: values nobody reads after this step
    site: Site | None = None  #: where boxes are enough
    local: Local | None = None  #: how they are made, unless position by position


class IncrementalNetwork:
    """A traced network whose answers for variants of an image share what no change reaches."""

    def __init__(self, model: nn.Module, steps: list[Step]):
        self._model, self._steps = model, steps

    @property
    def sites(self) -> list[str]:
        """The nodes of which only boxes are computed."""
        return [step.node.name for step in self._steps if step.site is not None]

    @property
    def saves_work(self) -> bool:
        """Whether any convolution or pool is computed in boxes."""
        return any(step.local is not None for step in self._steps)

    def clean(self, image: Tensor) -> dict[fx.Node, Tensor]:
        """The values of one image, (1, C, H, W), at every site, as rows of channels."""
        values: dict[fx.Node, Any] = {}
        for step in self._steps:
            values[step.node] = evaluate(self._model, step.node, values, image)
        return {
            step.node: values[step.node][0].permute(1, 2, 0).flatten(0, 1).contiguous()
            for step in self._steps
            if step.site is not None
        }

    def logits(self, clean: dict[fx.Node, Tensor], changes: Changes) -> Tensor:
        """The logits of variants of the image with these `clean` values."""
        values: dict[fx.Node, Any] = {}
        for step in self._steps:
            if step.site is None:
                value = self._whole(step.node, values)
            else:
                value = Variants(
                    step.site, clean[step.node], self._boxes(step, values, changes), changes
                )
            values[step.node] = value
            for node in step.dead:
                del values[node]
        logits: Tensor = value
        return logits

    def _whole(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        inputs = {source: values[source] for source in node.all_input_nodes}
        for source, value in inputs.items():
            if isinstance(value, Variants):
                inputs[source] = value.whole
        return evaluate(self._model, node, inputs, None)

    def _boxes(self, step: Step, values: dict[fx.Node, Any], changes: Changes) -> Tensor:
        if step.node.op == "placeholder":
            return changes.values.flatten(0, 1)[:, :, None, None]
        inputs = {source: values[source] for source in step.node.all_input_nodes}
        sources = [value for value in inputs.values() if isinstance(value, Variants)]
        if step.local is not None:
            (source,) = sources
            return step.local.apply(
                source.window(step.local.rows, step.local.columns, step.local.fill)
            )
        assert step.site is not None
        for node, value in inputs.items():
            if len(sources) == 1 and isinstance(value, Variants):
                inputs[node] = value.boxes
            elif isinstance(value, Variants):
                inputs[node] = value.window(step.site.height.box, step.site.width.box)
        boxes: Tensor = evaluate(self._model, step.node, inputs, None)
        return boxes


def trace(model: Model, image: Tensor, pixels: int) -> IncrementalNetwork | None:
    """The network made incremental for images of this shape, (1, C, H, W); None if that fails."""
    if not isinstance(model, nn.Module):
        return None
    # Noise, since on a plain image a function of all positions may pass for one of single ones.
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(image.shape, generator=generator, dtype=image.dtype).to(image.device)
    try:
        graph = LeafTracer().trace(model)
        network = IncrementalNetwork(model, list(plan(model, graph, noise, pixels)))
        return network if network.saves_work and agrees(network, model, noise, pixels) else None
    except Exception:
        # A forward may do anything; what cannot be followed is left to the network itself.
        return None


class LeafTracer(fx.Tracer):
    """A tracer that looks into containers only: a module without children is one operation."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or not any(m.children())


def plan(model: nn.Module, graph: fx.Graph, image: Tensor, pixels: int) -> Iterator[Step]:
    """Choose for every node, in the graph's order, whether boxes will do and how they are made."""
    values: dict[fx.Node, Any] = {}
    sites: dict[fx.Node, Site] = {}
    last_use = {source: node for node in graph.nodes for source in node.all_input_nodes}
    for node in graph.nodes:
        values[node] = evaluate(model, node, values, image)
        site, local = locate(model, node, values, sites)
        if site is not None and site.covered(pixels) <= WORTHWHILE:
            sites[node] = site
        else:
            site, local = None, None
        dead = tuple(source for source in node.all_input_nodes if last_use[source] is node)
        yield Step(node, dead, site, local)


def locate(
    model: nn.Module, node: fx.Node, values: dict[fx.Node, Any], sites: dict[fx.Node, Site]
) -> tuple[Site | None, Local | None]:
    """What a changed pixel reaches at a node, and how to make the boxes; None if everything."""
    value = values[node]
    if node.op == "placeholder":
        height, width = (Reach.of_pixels(length, value.device) for length in value.shape[2:])
        return Site(height, width), None
    sources = [source for source in node.all_input_nodes if source in sites]
    varying = [source for source in node.all_input_nodes if source.op != "get_attr"]
    if not sources or sources != varying or not (isinstance(value, Tensor) and value.ndim == 4):
        return None, None
    if acts_on_single_positions(model, node, values, sources):
        site = sites[sources[0]]
        for source in sources[1:]:
            other = sites[source]
            site = Site(site.height.joined(other.height), site.width.joined(other.width))
        return site, None
    if node.op == "call_module":
        return through_windows(model.get_submodule(str(node.target)), sites[sources[0]], value)
    return None, None


def through_windows(
    module: nn.Module, before: Site, value: Tensor
) -> tuple[Site | None, Local | None]:
    """Where a changed pixel reaches behind a convolution or pool, and how the boxes are made."""
    apply: Callable[[Tensor], Tensor]
    if isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
        vertical, horizontal = map(
            Window, spans(module), module.stride, convolution_padding(module)
        )
        apply, fill = partial(convolve, module), 0.0
    elif isinstance(module, nn.MaxPool2d) and pair(module.dilation) == (1, 1):
        kernel, stride = pair(module.kernel_size), pair(module.stride)
        vertical, horizontal = map(Window, kernel, stride, pair(module.padding))
        apply, fill = partial(F.max_pool2d, kernel_size=kernel, stride=stride), -torch.inf
    else:
        return None, None
    site = Site(
        vertical.reach(before.height, value.shape[2]),
        horizontal.reach(before.width, value.shape[3]),
    )
    rows = vertical.source(site.height, before.height.length)
    columns = horizontal.source(site.width, before.width.length)
    return site, Local(apply, rows, columns, fill)


def spans(module: nn.Conv2d) -> list[int]:
    """How many positions a convolution's kernel spans along each axis."""
    return [d * (k - 1) + 1 for d, k in zip(module.dilation, module.kernel_size, strict=True)]


def convolution_padding(module: nn.Conv2d) -> list[int]:
    """How many zeros a convolution puts before each axis."""
    if isinstance(module.padding, str):
        return [(span - 1) // 2 if module.padding == "same" else 0 for span in spans(module)]
    return list(module.padding)


def convolve(module: nn.Conv2d, windows: Tensor) -> Tensor:
    """The convolution of windows that bring their own padding."""
    weight, bias = module.weight, module.bias
    return F.conv2d(windows, weight, bias, module.stride, 0, module.dilation, module.groups)


def pair(setting: int | tuple[int, int]) -> tuple[int, int]:
    """A pool's setting for both axes."""
    return (setting, setting) if isinstance(setting, int) else setting


def acts_on_single_positions(
    model: nn.Module, node: fx.Node, values: dict[fx.Node, Any], sources: list[fx.Node]
) -> bool:
    """Whether a node treats every position alike and alone: parts of its inputs give parts of its
    value.
    """
    value, inputs = values[node], {n: values[n] for n in node.all_input_nodes}
    height, width = value.shape[2:]
    if any(values[source].shape[2:] != (height, width) for source in sources):
        return False
    for part in (slice(height // 2, None), slice(None)), (slice(None), slice(0, width // 3 + 1)):
        crop = (..., *part)
        try:
            cropped = evaluate(
                model, node, inputs | {source: values[source][crop] for source in sources}, None
            )
        except (RuntimeError, ValueError):  # a parameter for every position, say
            return False
        if cropped.shape != value[crop].shape:
            return False
        if not torch.allclose(cropped, value[crop], rtol=1e-5, atol=1e-6):
            return False
    return True


def evaluate(
    model: nn.Module, node: fx.Node, values: dict[fx.Node, Any], image: Tensor | None
) -> Any:
    """A node's value, given those of its inputs."""
    if node.op == "placeholder":
        return image
    if node.op == "get_attr":
        return attrgetter(str(node.target))(model)
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    if node.op == "output":
        return args[0]
    if node.op == "call_module":
        return model.get_submodule(str(node.target))(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def agrees(network: IncrementalNetwork, model: nn.Module, image: Tensor, pixels: int) -> bool:
    """Whether variants changed at the corners and elsewhere get the logits the network itself
    gives.
    """
    height, width = image.shape[2:]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(height, (8, pixels), generator=generator)
    columns = torch.randint(width, (8, pixels), generator=generator)
    rows[:4, 0] = torch.tensor([0, 0, height - 1, height - 1])
    columns[:4, 0] = torch.tensor([0, width - 1, 0, width - 1])
    values = torch.rand(8, 1, image.shape[1], generator=generator).expand(-1, pixels, -1)
    changes = Changes(*(tensor.to(image.device) for tensor in (rows, columns, values.to(image))))
    expected = model(changes.applied_to(image))
    found = network.logits(network.clean(image), changes)
    return found.shape == expected.shape and bool(
        ((found - expected).abs() <= AGREEMENT * expected.abs().amax()).all()
    )
