"""Operator graphs of searched networks, built from the genotypes their papers publish. Sizes are float32 activations.

Construction: each branch is a separable convolution (relu, depthwise, pointwise, twice), a dilated one (once), a pool
or an identity; a strided identity and a mismatch of resolutions are a factorized reduction (relu, two strided 1x1
convolutions, concat); both inputs of a cell pass relu and a 1x1 convolution. Batch norms are folded. ImageNet nets begin
with a 3x3 convolution of stride 2 and two reduction cells.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolchain.memory import Operator

# (operation, cell input or earlier block) twice a block; inputs 0 and 1 are the cells before, 2.. the blocks
Block = tuple[tuple[str, int], tuple[str, int]]


@dataclass(frozen=True)
class Genotype:
    """normal, reduce: blocks of the two kinds of cell; concat: the blocks joined, None: those used by no other."""

    normal: tuple[Block, ...]
    reduce: tuple[Block, ...]
    concat: tuple[int, ...] | None = None


# Zoph et al. 2018, figure 4; numbering as in the authors' TensorFlow code (input 0: the last cell, 1: the one before)
NASNET_A = Genotype(
    normal=(
        (("sep5", 0), ("sep3", 1)),
        (("sep5", 1), ("sep3", 1)),
        (("pool", 0), ("none", 1)),
        (("pool", 1), ("pool", 1)),
        (("sep3", 0), ("none", 0)),
    ),
    reduce=(
        (("sep5", 0), ("sep7", 1)),
        (("pool", 0), ("sep7", 1)),
        (("pool", 0), ("sep5", 1)),
        (("none", 3), ("pool", 2)),
        (("sep3", 2), ("pool", 0)),
    ),
)
# Real et al. 2019, figure 2; as in the authors' TensorFlow code
AMOEBANET_A = Genotype(
    normal=(
        (("pool", 0), ("pool", 1)),
        (("none", 0), ("sep5", 1)),
        (("sep3", 2), ("none", 0)),
        (("sep3", 1), ("sep3", 4)),
        (("pool", 3), ("pool", 3)),
    ),
    reduce=(
        (("pool", 0), ("sep3", 1)),
        (("pool", 0), ("sep7", 1)),
        (("sep7", 0), ("pool", 1)),
        (("pool", 4), ("pool", 0)),
        (("conv1771", 0), ("sep3", 2)),
    ),
)
# Liu et al. 2019 (DARTS, second order); input 0: the cell before the last, 1: the last
DARTS = Genotype(
    normal=(
        (("sep3", 0), ("sep3", 1)),
        (("sep3", 0), ("sep3", 1)),
        (("sep3", 1), ("none", 0)),
        (("none", 0), ("dil3", 2)),
    ),
    reduce=(
        (("pool", 0), ("pool", 1)),
        (("none", 2), ("pool", 1)),
        (("pool", 0), ("none", 2)),
        (("none", 2), ("pool", 1)),
    ),
    concat=(2, 3, 4, 5),
)
# Liu et al. 2018 (PNASNet-5), figure 1: one kind of cell
PNAS = Genotype(
    normal=(
        (("sep5", 1), ("pool", 1)),
        (("sep7", 0), ("pool", 0)),
        (("sep5", 0), ("sep3", 0)),
        (("sep3", 4), ("pool", 0)),
        (("sep3", 1), ("none", 0)),
    ),
    reduce=(
        (("sep5", 1), ("pool", 1)),
        (("sep7", 0), ("pool", 0)),
        (("sep5", 0), ("sep3", 0)),
        (("sep3", 4), ("pool", 0)),
        (("sep3", 1), ("none", 0)),
    ),
)


@dataclass
class Network:
    """Grows operator by operator; a tensor is (name, channels, side)."""

    in_place: bool
    operators: list[Operator] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, inputs: Sequence[Tensor], channels: int, side: int, reuse: bool = False) -> Tensor:
        name = f"{kind}_{len(self.operators)}"
        made = (f"{name}.out", channels, side)
        pairs = tuple((made[0], t[0]) for t in inputs if t[1:] == made[1:]) if reuse and self.in_place else ()
        self.operators.append(Operator(name, tuple(dict.fromkeys(t[0] for t in inputs)), (made[0],), pairs))
        self.sizes[made[0]] = 4 * channels * side * side
        return made

    def relu(self, x: Tensor) -> Tensor:
        return self.add("relu", [x], x[1], x[2], reuse=True)

    def conv(self, x: Tensor, channels: int, stride: int = 1) -> Tensor:
        return self.add("conv", [x], channels, -(-x[2] // stride))

    def reduced(self, x: Tensor, channels: int) -> Tensor:
        x = self.relu(x)
        halves = [self.conv(x, channels - channels // 2, 2), self.conv(x, channels // 2, 2)]
        return self.add("concat", halves, channels, halves[0][2])

    def branch(self, kind: str, x: Tensor, channels: int, stride: int) -> Tensor:
        if kind == "none":
            return x if stride == 1 else self.reduced(x, channels)
        if kind == "pool":
            return self.add("pool", [x], channels, -(-x[2] // stride))
        if kind == "conv1771":
            x = self.add("conv", [self.relu(x)], channels // 4, x[2])
            x = self.add("conv", [self.relu(x)], channels // 4, -(-x[2] // stride))
            x = self.add("conv", [self.relu(x)], channels // 4, x[2])
            return self.conv(self.relu(x), channels)
        for turn in range(1 if kind.startswith("dil") else 2):
            step = stride if turn == 0 else 1
            x = self.add("depthwise", [self.relu(x)], x[1], -(-x[2] // step))
            x = self.conv(x, channels)
        return x

    def cell(self, before: Tensor, last: Tensor, blocks: Genotype, channels: int, reduce: bool, recent: bool) -> Tensor:
        if before[2] != last[2]:
            before = self.reduced(before, channels)
        else:
            before = self.conv(self.relu(before), channels)
        last = self.conv(self.relu(last), channels)
        states = [last, before] if recent else [before, last]
        used: set[int] = set()
        for pair in blocks.reduce if reduce else blocks.normal:
            ends = [self.branch(kind, states[k], channels, 2 if reduce and k < 2 else 1) for kind, k in pair]
            used |= {k for _, k in pair}
            states.append(self.add("add", ends, channels, ends[0][2], reuse=True))
        joined = blocks.concat or tuple(k for k in range(2, len(states)) if k not in used)
        parts = [states[k] for k in joined]
        return self.add("concat", parts, channels * len(parts), parts[0][2])


Tensor = tuple[str, int, int]


def imagenet(blocks: Genotype, filters: int, stem: int, cells: int, recent: bool = True, in_place: bool = False):
    """(operators, tensor bytes, inputs, outputs): stem, two stem reductions, then `cells` normal cells three times."""
    net = Network(in_place)
    net.sizes["image"] = 4 * 3 * 224 * 224
    before = last = net.add("conv", [("image", 3, 224)], stem, 111)
    for width in (filters // 4, filters // 2):
        before, last = last, net.cell(before, last, blocks, max(width, 1), True, recent)
    return _body(net, before, last, blocks, filters, cells, recent)


def cifar(blocks: Genotype, filters: int, cells: int, recent: bool = False, in_place: bool = False):
    """The same without stem reductions, on 32 x 32 pixels."""
    net = Network(in_place)
    net.sizes["image"] = 4 * 3 * 32 * 32
    stem = net.add("conv", [("image", 3, 32)], 3 * filters, 32)
    return _body(net, stem, stem, blocks, filters, cells, recent)


def _body(net: Network, before: Tensor, last: Tensor, blocks: Genotype, filters: int, cells: int, recent: bool):
    for stage in range(3):
        if stage:
            filters *= 2
            before, last = last, net.cell(before, last, blocks, filters, True, recent)
        for _ in range(cells):
            before, last = last, net.cell(before, last, blocks, filters, False, recent)
    pooled = net.add("pool", [net.relu(last)], last[1], 1)
    out = net.add("dense", [pooled], 1000, 1)
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
        made: list[Tensor] = []
        for n in range(nodes):
            ends = [made[a] for a, b in edges if b == n]
            y = net.add("add", ends, width, ends[0][2]) if len(ends) > 1 else ends[0] if ends else x
            y = net.relu(y)
            y = net.add("depthwise", [y], y[1], y[2] if ends else -(-y[2] // 2))
            made.append(net.conv(y, width))
        sinks = [made[n] for n in range(nodes) if all(a != n for a, _ in edges)]
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
