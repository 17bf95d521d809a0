"""A small network in ONNX text with data on which a wrong scale, zero point, count or fold shows."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
import onnx

from tests.frontend.onnx_text import model

SAMPLES = 6
RANGES = ((-0.7, 1.9), (-2.6, 0.4), (0.05, 0.8), (-0.3, 0.2))  # of the inputs in turn: no two scales, no two zero points alike


@dataclass(frozen=True)
class Case:
    """A test case of the semantics.

    `inputs`: such as "x 2,3,8,8; w 4,3,3,3", names as `constant` reads them.
    `body`: nodes in ONNX text, one quote for two.
    `ranges`: ranges of inputs, where the default leaves the operator's domain.
    `least_db`: SQNR of each output on int16 against the file.
    `below_db`: how far an int8 output may lie below the file rounded where the chip rounds.
    `cause`: reason where either is not the default.
    """

    name: str
    inputs: str
    body: str
    outputs: str = "y"
    opset: int = 21
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    least_db: float = 60.0
    below_db: float = 3.0
    cause: str = ""

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        pairs = (part.split() for part in self.inputs.split(";"))
        return {name: tuple(int(d) for d in "".join(dims).split(",") if d) for name, *dims in pairs}

    @cached_property
    def proto(self) -> onnx.ModelProto:
        declared = ", ".join(f"float{list(shape) or ''} {name}" for name, shape in self.shapes.items())
        outputs = ", ".join(f"float[] {name}" for name in self.outputs.split())  # of any shape
        weights = {n: constant(n, s) for n, s in self.shapes.items() if n[0] in "wvuks"}
        network_proto = model(f"({declared}) => ({outputs}) {{ {self.body} }}", self.opset, weights)
        for node in network_proto.graph.node:  # as some exporters do
            node.name = next(filter(None, node.output))
        return network_proto

    @cached_property
    def samples(self) -> list[dict[str, np.ndarray]]:
        rng = np.random.default_rng(3)
        names = [i.name for i in self.proto.graph.input]
        ranges = {n: self.ranges.get(n, RANGES[i % len(RANGES)]) for i, n in enumerate(names)}
        return [{n: rng.uniform(*ranges[n], self.shapes[n]).astype(np.float32) for n in names} for _ in range(SAMPLES)]


def constant(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return values that int8 holds exactly.

    `w`: weights with one step everywhere, their largest code in every row and column.
    `v`: unequal steps for the channels of a Conv [o, c, h, w].
    `u`: the same for those of a ConvTranspose [c, o, h, w], largest codes only, so that each phase of its stride has one.
    `k`: an operand of the vector engine, all 256 codes wide around another zero point.
    `s`: the same above zero.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()) + prod(shape))
    if name[0] in "ks":
        codes = rng.integers(-128, 128, shape)
        if codes.size > 1:
            codes.flat[0], codes.flat[-1] = -128, 127
        return (codes + (128.0 if name[0] == "s" else 50.0)) * 2.0**-6
    codes = rng.integers(-127, 128, shape).astype(np.float64)
    if name[0] == "u":
        codes = np.where(codes < 0, -127.0, 127.0)
    elif len(shape) > 1:
        for i in range(max(shape[:2])):
            codes[(i % shape[0], i % shape[1], *(0,) * (len(shape) - 2))] = 127 if i % 2 else -127
    elif codes.size:
        codes.flat[0] = 127
    axis = {"v": 0, "u": 1}.get(name[0])
    if axis is not None:
        steps = 2.0 ** (np.arange(shape[axis]) % 4 - 2)
        codes *= steps.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return codes * 2.0 ** -np.ceil(7 + np.log2(max(1, prod(shape[1:]))) / 2)
