"""Build operator graphs of searched networks from the genotypes that their papers publish; sizes are float32 activations.

The networks are written as those in the evaluation of HMCOS (Wang et al., DAC 2022) after export to ONNX with batch norms folded.
A separable convolution is relu, depthwise, pointwise, twice; a dilated one the same, once, never strided. A pool and a 1x7-7x1
pair have no relu; an identity is the tensor itself. Both inputs of a cell pass relu and a 1x1 convolution; the first cell takes
its input twice. Where resolutions differ the earlier input is halved by a factorized reduction. It is relu, then two halves of a
strided 1x1 pool and a 1x1 convolution, concat, and a batch norm that no convolution can absorb. One of the halves is padded and
cropped by a pixel first. ImageNet nets have two reduction cells after the stem, and the filters double at these too: 11 filters
are 44 in the first normal cells.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolchain.memory import Operator

# (operation, cell input or earlier block) twice a block; input 0 is the cell before the last, 1 the last, 2.. the blocks
Block = tuple[tuple[str, int], tuple[str, int]]


@dataclass(frozen=True)
class Genotype:
    """A genotype of a searched network.

    `normal`, `reduce`: blocks of the two kinds of cell.
    `normal_concat`, `reduce_concat`: what the concat of each kind joins.
    """

    normal: tuple[Block, ...]
    normal_concat: tuple[int, ...]
    reduce: tuple[Block, ...]
    reduce_concat: tuple[int, ...]


# Zoph et al. 2018, figure 4
NASNET_A = Genotype(
    normal=(
        (("sep5", 1), ("sep3", 0)),
        (("sep5", 0), ("sep3", 0)),
        (("pool", 1), ("none", 0)),
        (("pool", 0), ("pool", 0)),
        (("sep3", 1), ("none", 1)),
    ),
    normal_concat=(0, 2, 3, 4, 5, 6),
    reduce=(
        (("sep5", 1), ("sep7", 0)),
        (("pool", 1), ("sep5", 0)),
        (("pool", 1), ("sep5", 0)),
        (("none", 3), ("pool", 2)),
        (("sep3", 2), ("pool", 1)),
    ),
    reduce_concat=(3, 4, 5, 6),
)
# Real et al. 2019, figure 2
AMOEBANET_A = Genotype(
    normal=(
        (("pool", 0), ("pool", 0)),
        (("none", 0), ("pool", 1)),
        (("sep5", 2), ("sep3", 1)),
        (("sep3", 2), ("none", 1)),
        (("pool", 4), ("sep3", 0)),
    ),
    normal_concat=(3, 5, 6),
    reduce=(
        (("pool", 0), ("sep3", 1)),
        (("pool", 1), ("pool", 0)),
        (("pool", 0), ("sep7", 2)),
        (("sep7", 0), ("pool", 1)),
        (("sep3", 3), ("conv1771", 0)),
    ),
    reduce_concat=(4, 5, 6),
)
# Liu et al. 2019 (DARTS, second order)
DARTS = Genotype(
    normal=(
        (("sep3", 0), ("sep3", 1)),
        (("sep3", 0), ("sep3", 1)),
        (("sep3", 1), ("none", 0)),
        (("none", 0), ("dil3", 2)),
    ),
    normal_concat=(2, 3, 4, 5),
    reduce=(
        (("pool", 0), ("pool", 1)),
        (("none", 2), ("pool", 1)),
        (("pool", 0), ("none", 2)),
        (("none", 2), ("pool", 1)),
    ),
    reduce_concat=(2, 3, 4, 5),
)
# Liu et al. 2018 (PNASNet-5), figure 1: one kind of cell; its last identity is a 1x1 pool, so that it can be strided
_PNAS = (
    (("sep5", 0), ("pool", 0)),
    (("sep7", 1), ("pool", 1)),
    (("sep5", 1), ("sep3", 1)),
    (("sep3", 4), ("pool", 1)),
    (("sep3", 0), ("pool", 1)),
)
PNAS = Genotype(_PNAS, (2, 3, 4, 5, 6), _PNAS, (2, 3, 4, 5, 6))


@dataclass
class Network:
    """Grows operator by operator; a tensor is (name, channels, side)."""

    in_place: bool
    operators: list[Operator] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, inputs: Sequence[Tensor], channels: int, side: int, reuse: bool = False) -> Tensor:
        name = f"{kind}_{len(self.operators)}"
        output = (f"{name}.out", channels, side)
        ends = tuple(dict.fromkeys(t[0] for t in inputs))
        shapes = {t[0]: t[1:] for t in inputs}
        pairs = tuple((output[0], end) for end in ends if shapes[end] == output[1:]) if reuse and self.in_place else ()
        self.operators.append(Operator(name, ends, (output[0],), pairs))
        self.sizes[output[0]] = 4 * channels * side * side
        return output

    def relu(self, x: Tensor) -> Tensor:
        return self.add("relu", [x], x[1], x[2], reuse=True)

    def conv(self, x: Tensor, channels: int, stride: int = 1) -> Tensor:
        return self.add("conv", [x], channels, -(-x[2] // stride))

    def pool(self, x: Tensor, stride: int) -> Tensor:
        return self.add("pool", [x], x[1], -(-x[2] // stride))

    def squeeze(self, x: Tensor, channels: int) -> Tensor:
        return self.conv(self.relu(x), channels)

    def halve(self, x: Tensor, channels: int) -> Tensor:
        x = self.relu(x)
        even = self.conv(self.pool(x, 2), channels // 2)
        padded = self.add("pad", [x], x[1], x[2] + 1)
        cropped = self.add("crop", [padded], x[1], x[2])
        odd = self.conv(self.pool(cropped, 2), channels // 2)
        joined = self.add("concat", [even, odd], 2 * (channels // 2), even[2])
        return self.add("norm", [joined], joined[1], joined[2], reuse=True)

    def branch(self, kind: str, x: Tensor, channels: int, stride: int) -> Tensor:
        if kind == "none":
            return x
        if kind == "pool":
            return self.pool(x, stride)
        if kind == "conv1771":
            return self.conv(self.conv(x, channels, stride), channels)
        strides = (1,) if kind.startswith("dil") else (stride, 1)
        for step in strides:
            x = self.add("depthwise", [self.relu(x)], x[1], -(-x[2] // step))
            x = self.conv(x, channels)
        return x

    def cell(self, before: Tensor | None, last: Tensor, blocks: Genotype, channels: int, reduce: bool) -> Tensor:
        last = self.squeeze(last, channels)
        if before is None:
            before = last
        else:
            before = self.squeeze(before, channels) if before[2] == last[2] else self.halve(before, channels)
        states = [before, last]
        for pair in blocks.reduce if reduce else blocks.normal:
            ends = [self.branch(kind, states[k], channels, 2 if reduce and k < 2 else 1) for kind, k in pair]
            states.append(self.add("add", ends, channels, ends[0][2], reuse=True))
        parts = [states[k] for k in (blocks.reduce_concat if reduce else blocks.normal_concat)]
        return self.add("concat", parts, sum(p[1] for p in parts), parts[0][2])


Tensor = tuple[str, int, int]
STEM = 32


def imagenet(blocks: Genotype, filters: float, cells: int, in_place: bool = False):
    """(operators, tensor bytes, inputs, outputs): stem, two reductions, then `cells` normal cells three times."""
    net = Network(in_place)
    net.sizes["image"] = 4 * 3 * 224 * 224
    stem = net.conv(("image", 3, 224), STEM, 2)
    return _body(net, stem, blocks, filters, [True, True, *_stages(cells)], 1000)


def cifar(blocks: Genotype, filters: float, cells: int, in_place: bool = False):
    """The same without the first two reductions, on 32 x 32 pixels."""
    net = Network(in_place)
    net.sizes["image"] = 4 * 3 * 32 * 32
    stem = net.conv(("image", 3, 32), STEM)
    return _body(net, stem, blocks, filters, _stages(cells), 100)


def _stages(cells: int) -> list[bool]:
    """Return whether each cell reduces: three runs of normal cells with a reduction between them."""
    normal = [False] * cells
    return [*normal, True, *normal, True, *normal]


def _body(net: Network, stem: Tensor, blocks: Genotype, filters: float, reduces: Sequence[bool], classes: int):
    before, last = None, stem
    for reduce in reduces:
        filters *= 2 if reduce else 1
        before, last = last, net.cell(before, last, blocks, int(filters), reduce)
    pooled = net.add("pool", [net.relu(last)], last[1], 1)
    product = net.add("dense", [pooled], classes, 1)
    out = net.add("bias", [product], classes, 1, reuse=True)
    return net.operators, net.sizes, ["image"], [out[0]]


def randwire(seed: int, channels: int = 78, nodes: int = 32):
    """RandWire (Xie et al. 2019), small regime: three stages of a random graph WS(32, 4, 0.75), 28, 14 and 7 wide.

    A node adds its inputs, then relu, depthwise, pointwise; sources halve the stage's input; sinks are averaged.
    """
    net, rng = Network(in_place=False), random.Random(seed)
    net.sizes["image"] = 4 * 3 * 224 * 224
    x = net.conv(net.relu(net.conv(("image", 3, 224), channels // 2, 2)), channels, 2)
    for width in (channels, 2 * channels, 4 * channels):
        edges = _watts_strogatz(rng, nodes, 4, 0.75)
        outputs: list[Tensor] = []
        for n in range(nodes):
            ends = [outputs[a] for a, b in edges if b == n]
            y = net.add("add", ends, width, ends[0][2]) if len(ends) > 1 else ends[0] if ends else x
            y = net.relu(y)
            y = net.add("depthwise", [y], y[1], y[2] if ends else -(-y[2] // 2))
            outputs.append(net.conv(y, width))
        sinks = [outputs[n] for n in range(nodes) if all(a != n for a, _ in edges)]
        x = net.add("mean", sinks, width, sinks[0][2]) if len(sinks) > 1 else sinks[0]
    pooled = net.add("pool", [net.conv(net.relu(x), 1280)], 1280, 1)
    out = net.add("dense", [pooled], 1000, 1)
    return net.operators, net.sizes, ["image"], [out[0]]


def _watts_strogatz(rng: random.Random, nodes: int, degree: int, rewired: float) -> list[tuple[int, int]]:
    """Edges from lower to higher of a ring in which each edge gets a new end with this probability; sorted."""
    edges = {tuple(sorted((n, (n + k) % nodes))) for n in range(nodes) for k in range(1, degree // 2 + 1)}
    for k in range(1, degree // 2 + 1):
        for n in range(nodes):
            old = tuple(sorted((n, (n + k) % nodes)))
            free = [m for m in range(nodes) if m != n and tuple(sorted((n, m))) not in edges]
            if old in edges and free and rng.random() < rewired:
                edges.remove(old)
                edges.add(tuple(sorted((n, rng.choice(free)))))
    return sorted((a, b) for a, b in edges)
