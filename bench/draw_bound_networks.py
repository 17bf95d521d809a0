#!/usr/bin/env python3
"""Draw networks that no plan was looked at for, and compare their plans with their bounds (docs/bounds.md), as Markdown.

    `python bench/draw_bound_networks.py [--count 20] [--seed 0] [--hw edge16] [--sram 512KiB --sram 64KiB]`.

Kinds take turns: inverted residuals (some with squeeze-and-excitation), residual blocks, plain convolutions, transformer blocks.
Depths, widths, resolutions and strides are drawn, and whether a classifier follows.
A table has a row for each network: cycles with `--optimize cycles`, and as a multiple of the bound of these units.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from make_bound_tables import figures_of, ratio, sram_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from onnx_builder import GraphBuilder

from toolchain.api import BuildOptions
from toolchain.cli.application import report_errors
from toolchain.isa import Machine, load_machine
from toolchain.schedule.goals import CYCLES


class NetworkBuilder:
    """Append nodes with seeded weights to one network. `x`: the latest tensor, of `channels` by `size` by `size`."""

    def __init__(self, seed: int, channels: int, size: int):
        self._rng, self._graph = np.random.default_rng(seed), GraphBuilder("drawn")
        self._shape: list[int | str] = [1, channels, size, size]
        self.x, self.channels, self.size = "x", channels, size

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node; its output."""
        return self._graph.node(op, f"{op.lower()}{len(self._graph.nodes)}", [*inputs], **attributes)

    def add_weights(self, *shape: int, fan_in: int) -> str:
        """Append normal weights; their name."""
        values = self._rng.standard_normal(shape) * math.sqrt(2 / fan_in)
        return self._graph.constant(f"w{len(self._graph.constants)}", values.astype(np.float32))

    def convolve(self, channels: int, kernel: int, stride: int = 1, groups: int = 1, act: str = "Relu") -> None:
        """Append a convolution and the activation, "" for none."""
        weights = self.add_weights(channels, self.channels // groups, kernel, kernel, fan_in=self.channels // groups * kernel**2)
        pads, strides = [kernel // 2] * 4, [stride, stride]
        self.x = self.add("Conv", self.x, weights, pads=pads, strides=strides, group=groups, kernel_shape=[kernel, kernel])
        self.channels, self.size = channels, -(-self.size // stride)
        self.x = self.add(act, self.x) if act else self.x

    def squeeze(self) -> None:
        """Append squeeze-and-excitation by a quarter of the channels."""
        x, channels, size = self.x, self.channels, self.size
        self.x = self.add("GlobalAveragePool", x)
        self.convolve(max(8, channels // 4), 1)
        self.convolve(channels, 1, act="HardSigmoid")
        self.x, self.size = self.add("Mul", self.x, x), size

    def classify(self, classes: int) -> None:
        """Append a global pool and a classifier."""
        flat = self.add("Flatten", self.add("GlobalAveragePool", self.x))
        self.x = self.add("MatMul", flat, self.add_weights(self.channels, classes, fan_in=self.channels))

    def model(self, shape: list[int | str] | None = None) -> onnx.ModelProto:
        """Return the network. `shape`: of its input, where that is no map."""
        return self._graph.build({"x": shape or self._shape}, {self.x: None}, opset=17)


def draw_inverted_residuals(rng: random.Random) -> onnx.ModelProto:
    """Draw a stem and bodies of a widening 1x1, a depthwise and a narrowing 1x1 convolution."""
    net = NetworkBuilder(rng.randrange(1 << 30), 3, rng.choice((64, 96, 128, 160)))
    act = rng.choice(("Relu", "HardSwish"))
    net.convolve(rng.choice((8, 16, 24)), 3, 2, act=act)
    for _ in range(rng.randint(3, 8)):
        x, before, stride = net.x, net.channels, rng.choice((1, 1, 2) if net.size > 7 else (1,))
        wide = before * rng.choice((2, 3, 4, 6))
        net.convolve(wide, 1, act=act)
        net.convolve(wide, rng.choice((3, 3, 5)), stride, wide, act)
        if rng.random() < 0.3:
            net.squeeze()
        net.convolve(before if stride == 1 and rng.random() < 0.6 else before + 8 * rng.randint(0, 3), 1, act="")
        if stride == 1 and net.channels == before:
            net.x = net.add("Add", net.x, x)
    return _finish(net, rng)


def draw_residual_blocks(rng: random.Random) -> onnx.ModelProto:
    """Draw a stem and blocks of two 3x3 convolutions, or of a bottleneck, with sums."""
    net = NetworkBuilder(rng.randrange(1 << 30), 3, rng.choice((32, 48, 64, 96)))
    net.convolve(rng.choice((16, 32, 64)), rng.choice((3, 7)), rng.choice((1, 2)))
    for _ in range(rng.randint(2, 6)):
        stride = rng.choice((1, 1, 2) if net.size > 7 else (1,))
        x, before, size, narrow = net.x, net.channels, net.size, rng.random() < 0.4
        channels = before * stride
        inner = max(8, channels // 4) if narrow else channels
        net.convolve(inner, 1 if narrow else 3, 1 if narrow else stride)
        net.convolve(inner if narrow else channels, 3, stride if narrow else 1, act="Relu" if narrow else "")
        if narrow:
            net.convolve(channels, 1, act="")
        out, at = net.x, net.size
        if stride > 1:
            net.x, net.channels, net.size = x, before, size
            net.convolve(channels, 1, stride, act="")
            x = net.x
        net.x, net.channels, net.size = net.add("Relu", net.add("Add", out, x)), channels, at
    return _finish(net, rng)


def draw_plain_convolutions(rng: random.Random) -> onnx.ModelProto:
    """Draw convolutions of growing widths with pools between them."""
    net = NetworkBuilder(rng.randrange(1 << 30), rng.choice((1, 3)), rng.choice((48, 64, 112)))
    channels = rng.choice((8, 16, 32))
    for _ in range(rng.randint(3, 9)):
        net.convolve(channels, rng.choice((1, 3, 3, 5)))
        if net.size > 8 and rng.random() < 0.4:
            net.x, net.size = net.add("MaxPool", net.x, kernel_shape=[2, 2], strides=[2, 2]), net.size // 2
            channels = min(256, 2 * channels)
    return _finish(net, rng)


def draw_transformer_blocks(rng: random.Random) -> onnx.ModelProto:
    """Draw blocks of self-attention in heads and of two products, with sums and without norms."""
    wide, length = rng.choice((64, 128, 192)), rng.choice((16, 32, 64, 96))
    net = NetworkBuilder(rng.randrange(1 << 30), wide, length)

    def product(x: str, inputs: int, outputs: int) -> str:
        return net.add("MatMul", x, net.add_weights(inputs, outputs, fan_in=2 * inputs))

    for _ in range(rng.randint(1, 3)):
        query, key, value = (product(net.x, wide, wide) for _ in range(3))
        weights = net.add("Softmax", net.add("MatMul", query, net.add("Transpose", key, perm=[0, 2, 1])), axis=-1)
        x = net.add("Add", net.x, product(net.add("MatMul", weights, value), wide, wide))
        hidden = wide * rng.choice((2, 4))
        net.x = net.add("Add", x, product(net.add("Relu", product(x, wide, hidden)), hidden, wide))
    return net.model([1, length, wide])


def _finish(net: NetworkBuilder, rng: random.Random) -> onnx.ModelProto:
    if rng.random() < 0.6:
        net.classify(rng.choice((10, 100, 1000)))
    return net.model()


KINDS: tuple[tuple[str, Callable[[random.Random], onnx.ModelProto]], ...] = (
    ("inverted", draw_inverted_residuals),
    ("residual", draw_residual_blocks),
    ("plain", draw_plain_convolutions),
    ("transformer", draw_transformer_blocks),
)


def draw_network(seed: int, number: int) -> tuple[str, onnx.ModelProto]:
    """Return the name and the model of a drawn network; both follow from the arguments."""
    kind, draw = KINDS[number % len(KINDS)]
    return f"{kind}{number}", draw(random.Random(f"{seed} {number}"))


def make_table(machine: Machine, sizes: list[int], seed: int, count: int) -> list[str]:
    """Build all networks; lines in Markdown, with the geometric means below."""
    heads = ["network", "products", *(head for size in sizes for head in (f"{size / 1024:g} KiB: cycles", "x units"))]
    lines, ratios = ["| " + " | ".join(heads) + " |", "|---|" + "--:|" * (len(heads) - 1)], [list[float]() for _ in sizes]
    with TemporaryDirectory() as folder:
        for number in range(count):
            name, model = draw_network(seed, number)
            path, cells = Path(folder) / f"{name}.onnx", [name, "-"]
            onnx.save(model, path)
            for size, of_size in zip(sizes, ratios):
                figures = figures_of(path, BuildOptions(Machine(machine.chip.with_sram(size), machine.isa), goal=CYCLES))
                if figures is None:
                    cells += ["-", "-"]
                    continue
                of_size.append(figures["cycles"] / figures["bounds"]["cycles"])
                cells[1] = f"{figures['macs']:,}"
                cells += [f"{figures['cycles']:,}", ratio(figures["cycles"], figures["bounds"]["cycles"])]
            lines.append("| " + " | ".join(cells) + " |")
    means = (f"{math.exp(sum(map(math.log, of_size)) / len(of_size)):.3f}" if of_size else "-" for of_size in ratios)
    return [*lines, "| geometric mean | |" + "".join(f" | {mean} |" for mean in means)]


def main() -> None:
    """Print the tables. A bad option ends the command with one sentence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hw", default="edge16")
    parser.add_argument("--sram", action="append", help="its bytes, such as 64KiB; without it 512KiB and 64KiB")
    args = parser.parse_args()
    with report_errors():
        sizes = [sram_bytes(size) for size in args.sram or ("512KiB", "64KiB")]
        print("\n".join(make_table(load_machine(args.hw), sizes, args.seed, args.count)))


if __name__ == "__main__":
    main()
