"""Logits of many images that differ from one image in a few pixels, computing only what a pixel
reaches.

The network is traced once into a graph. Where it consists of convolutions, max-pools and functions
of single positions, a node's values differ from the clean image's only in a box around each changed
pixel; only the boxes are computed, each from a window of the node's input or, by the first
convolution, from what the changed pixels add (`differences`); everything else is read from the
clean image's values. Where the boxes would cover most of the image, and from the first operation
that mixes positions in another way, the values are put together and the network goes on as usual.

A network that cannot be traced, or whose logits come out differently, is refused. The logits agree
with a whole forward up to the rounding of sums made in another order; where sums are exact, they
are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from splash_units.lab.attacks.differences import Differences
from splash_units.lab.attacks.frozen import Model
from splash_units.lab.attacks.operations import (
    LeafTracer,
    Modules,
    Values,
    Windowed,
    evaluate,
    modules_of,
    packed,
    pools_first,
    takes_parts,
    takes_shuffled,
    tiles,
)
from splash_units.lab.attacks.reach import Changes, Reach, Site, Variants

WORTHWHILE = 0.75
"""Boxes are computed alone as long as they amount to no more of the image than this."""

AGREEMENT = 1e-4
"""By how much of the largest logit a traced network may differ from the network itself."""


@dataclass(frozen=True)
class Boxes:
    """How a node's boxes are made: the changed pixels themselves, what they add, from windows, or
    by position.
    """

    site: Site
    way: Differences | Windowed | Literal["pixels", "positions", "packed"]
    #: for windows, the rows and columns of the input; None if they are the boxes before
    reads: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class Step:
    """One node of the network and how its value is found: in boxes, or whole."""

    node: fx.Node
    boxes: Boxes | None
    dead: tuple[fx.Node, ...]  #: values nobody reads after this step


@dataclass(frozen=True)
class Clean:
    """The values of one image at every site."""

    rows: dict[fx.Node, Tensor]  #: every position's channels
    tables: dict[fx.Node, Tensor]  #: what boxes are summed from, where they are made so


class IncrementalNetwork:
    """A traced network whose answers for variants of an image share what no change reaches."""

    def __init__(self, modules: Modules, steps: list[Step]):
        self._modules, self._steps = modules, steps

    @property
    def sites(self) -> list[str]:
        """The nodes of which only boxes are computed."""
        return [step.node.name for step in self._steps if step.boxes is not None]

    @property
    def saves_work(self) -> bool:
        """Whether any convolution or pool is computed in boxes."""
        return any(
            step.boxes and isinstance(step.boxes.way, Windowed | Differences)
            for step in self._steps
        )

    def clean(self, image: Tensor) -> Clean:
        """What is to be known of one image, (1, C, H, W)."""
        values: Values = {self._steps[0].node: image}
        rows, tables = {}, {}
        for step in self._steps:
            value = values[step.node] = evaluate(self._modules, step.node, values)
            if step.boxes is not None:
                rows[step.node] = value[0].permute(1, 2, 0).flatten(0, 1).contiguous()
                if isinstance(step.boxes.way, Differences):
                    tables[step.node] = step.boxes.way.table(value)
        return Clean(rows, tables)

    def logits(self, clean: Clean, changes: Changes) -> Tensor:
        """The logits of variants of the image that `clean` is of."""
        values: Values = {}
        value: Any = None
        for step in self._steps:
            inputs = {node: values[node] for node in step.node.all_input_nodes}
            if step.boxes is None:
                value = self._whole(step.node, inputs)
            else:
                if step.boxes.way == "pixels":
                    boxes = changes.values.flatten(0, 1)[:, :, None, None]
                else:
                    boxes = self._box_values(step.node, step.boxes, inputs, clean)
                value = Variants(step.boxes.site, clean.rows[step.node], boxes, changes)
            values[step.node] = value
            for node in step.dead:
                del values[node]
        logits: Tensor = value
        return logits

    def _whole(self, node: fx.Node, inputs: Values) -> Any:
        whole = {n: v.whole if isinstance(v, Variants) else v for n, v in inputs.items()}
        return evaluate(self._modules, node, whole)

    def _box_values(self, node: fx.Node, boxes: Boxes, inputs: Values, clean: Clean) -> Tensor:
        sources = {n: v for n, v in inputs.items() if isinstance(v, Variants)}
        first, source = next(iter(sources.items()))
        if isinstance(boxes.way, Differences):
            return boxes.way.boxes(clean.tables[node], source)
        if isinstance(boxes.way, Windowed):
            if boxes.reads is None:
                return boxes.way.apply(source.boxes)
            return boxes.way.apply(source.around_pixels(*boxes.reads, boxes.way.fill))
        if boxes.way == "packed":
            size = boxes.site.height.length, boxes.site.width.length
            apply = partial(self._apply, node, inputs, first)
            return packed(apply, source.boxes, *size)
        if len(sources) == 1:
            return self._apply(node, inputs, first, source.boxes)
        rows, columns = boxes.site.height.box, boxes.site.width.box
        aligned = {n: v.around_pixels(rows, columns) for n, v in sources.items()}
        value: Tensor = evaluate(self._modules, node, inputs | aligned)
        return value

    def _apply(self, node: fx.Node, inputs: Values, source: fx.Node, boxes: Tensor) -> Tensor:
        value: Tensor = evaluate(self._modules, node, inputs | {source: boxes})
        return value


def trace(model: Model, image: Tensor, pixels: int) -> IncrementalNetwork | None:
    """The network made incremental for images of this shape, (1, C, H, W); None if that fails."""
    if not isinstance(model, nn.Module):
        return None
    # Noise, since on a plain image a function of all positions may pass for one of single ones.
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(image.shape, generator=generator, dtype=image.dtype).to(image.device)
    try:
        modules = modules_of(model)
        graph = pools_first(modules, LeafTracer().trace(model))
        network = IncrementalNetwork(modules, list(plan(modules, graph, noise, pixels)))
        return network if network.saves_work and agrees(network, model, noise, pixels) else None
    except Exception:
        # A forward may do anything; what cannot be followed is left to the network itself.
        return None


def plan(modules: Modules, graph: fx.Graph, image: Tensor, pixels: int) -> Iterator[Step]:
    """Choose for every node, in the graph's order, whether boxes will do and how they are made."""
    nodes = list(graph.nodes)
    values: Values = {nodes[0]: image}
    sites: dict[fx.Node, Site] = {}
    last_use = {source: node for node in nodes for source in node.all_input_nodes}
    for node in nodes:
        values[node] = evaluate(modules, node, values)
        boxes = box_way(modules, node, values, sites)
        if boxes is not None and boxes.site.covered(pixels) <= WORTHWHILE:
            sites[node] = boxes.site
        else:
            boxes = None
        yield Step(node, boxes, tuple(n for n in node.all_input_nodes if last_use[n] is node))


def box_way(
    modules: Modules, node: fx.Node, values: Values, sites: dict[fx.Node, Site]
) -> Boxes | None:
    """How the boxes at a node could be made; None if a changed pixel may reach everything there."""
    value = values[node]
    if node.op == "placeholder":
        height, width = (Reach.of_pixels(length, value.device) for length in value.shape[2:])
        return Boxes(Site(height, width), "pixels")
    sources = [source for source in node.all_input_nodes if source in sites]
    varying = [source for source in node.all_input_nodes if source.op != "get_attr"]
    if not sources or sources != varying or not (isinstance(value, Tensor) and value.ndim == 4):
        return None
    if all(values[source].shape[2:] == value.shape[2:] for source in sources):
        site = reduce(Site.joined, [sites[source] for source in sources])
        if takes_parts(modules, node, values, sources):
            return Boxes(site, "positions")
        if len(sources) == 1 and takes_shuffled(modules, node, values, sources[0]):
            return Boxes(site, "packed")
    if node.op == "call_module":
        return window_way(modules, node, sites[sources[0]], values)
    return None


def window_way(modules: Modules, node: fx.Node, before: Site, values: Values) -> Boxes | None:
    """How the boxes of a convolution or pool are made; None if the node is something else."""
    module = modules[str(node.target)]
    windowed = Windowed.of(module)
    if windowed is None:
        return None
    after = windowed.after(before, values[node]).tiled(*tiles(modules, node))
    if isinstance(module, nn.Conv2d):
        image = values[node.all_input_nodes[0]]
        differences = Differences.of(module, windowed, before, after, image)
        if differences is not None:
            return Boxes(after, differences)
    reads = windowed.reads(before, after)
    in_place = all(map(torch.equal, reads, (before.height.box, before.width.box)))
    return Boxes(after, windowed, None if in_place else reads)


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
