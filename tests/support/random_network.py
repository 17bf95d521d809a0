"""An ONNX graph under construction, in the spelling of any opset: what the layers of random networks are written with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from scripts.onnx_builder import build_model

Shape = tuple[int, ...]


class DrawnModel:
    """Shown in short when a case fails."""

    def __init__(self, proto: onnx.ModelProto):
        self.proto = proto

    def __repr__(self) -> str:
        shown = {
            n.name: [list(n.input), {a.name: helper.get_attribute_value(a) for a in n.attribute if a.name != "value"}]
            for n in self.proto.graph.node
        }
        inputs = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in self.proto.graph.input}
        weights = {w.name: list(w.dims) for w in self.proto.graph.initializer}
        return f"opset {self.proto.opset_import[0].version} {inputs} {shown} {weights}"


@dataclass
class Network:
    """Every tensor so far may be used again. Constants hold values that int8 codes hold exactly."""

    draw: Any
    opset: int = 17
    constant_nodes: bool = False  # constants as nodes, not as initializers
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: dict[str, Shape] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    seed: int = 0

    def pick(self, rank: int | None = None) -> str:
        names = [n for n, s in self.shapes.items() if rank is None or len(s) == rank]
        return self.draw(st.sampled_from(names[-4:])) if names else ""

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choose(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def add(self, kind: str, inputs: Sequence[str], shape: Shape, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        return self.several(kind, inputs, {name: shape}, **attributes)

    def several(self, kind: str, inputs: Sequence[str], outputs: dict[str, Shape], **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, list(outputs), f"n{len(self.nodes)}_{kind}", **attributes))
        self.shapes.update(outputs)
        return next(iter(outputs))

    def inner(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """A tensor that no other layer picks: of bools or whole numbers, or one that is another for the least difference."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], f"n{len(self.nodes)}_{kind}", **attributes))
        return name

    # Constants

    def hold(self, value: np.ndarray) -> str:
        self.seed += 1
        name = f"c{self.seed}"
        if self.constant_nodes:
            tensor = numpy_helper.from_array(value, name)
            self.nodes.append(helper.make_node("Constant", [], [name], f"n{len(self.nodes)}_Constant", value=tensor))
        else:
            self.weights[name] = value
        return name

    def integers(self, values: Sequence[int]) -> str:
        return self.hold(np.array(values, np.int64))

    def floats(self, values: Any) -> str:
        return self.hold(np.array(values, np.float32))

    def weight(self, shape: Shape, fan: int | None = None) -> str:
        """Symmetric int8 codes, the largest in every row and column, times a power of two that keeps the sum of `fan` small."""
        codes = np.random.default_rng(self.seed).integers(-127, 128, shape).astype(np.float64)
        if len(shape) > 1:
            for i in range(max(shape[:2])):
                codes[(i % shape[0], i % shape[1], *(0,) * (len(shape) - 2))] = 127 if i % 2 else -127
        elif codes.size:
            codes.flat[0] = 127
        fan = fan or int(np.prod(shape[1:]))
        return self.floats(codes * 2.0 ** -np.ceil(6 + np.log2(max(fan, 1)) / 2))

    def constant(self, shape: Shape) -> str:
        """All 256 codes of a tensor whose zero is not in the middle."""
        rng = np.random.default_rng(self.seed)
        codes = rng.integers(-128, 128, shape)
        if codes.size > 1:
            codes.flat[0], codes.flat[-1] = -128, 127
        return self.floats((codes + rng.integers(-60, 60)) * 2.0**-7)

    # Operators whose spelling changed

    def clip(self, x: str, low: float, high: float) -> str:
        if self.opset < 11:
            return self.add("Clip", [x], self.shapes[x], min=low, max=high)
        return self.add("Clip", [x, self.floats(low), self.floats(high)], self.shapes[x])

    def reduce(self, kind: str, x: str, axes: Sequence[int], keep: int) -> str:
        shape = self.shapes[x]
        places = {a % len(shape) for a in axes}
        reduced_shape = tuple(1 if i in places else n for i, n in enumerate(shape) if keep or i not in places)
        if self.opset >= (13 if kind == "ReduceSum" else 18):
            return self.add(kind, [x, self.integers(axes)], reduced_shape, keepdims=keep)
        return self.add(kind, [x], reduced_shape, axes=list(axes), keepdims=keep)

    def squeeze(self, kind: str, x: str, axes: Sequence[int], shape: Shape) -> str:
        if self.opset >= 13:
            return self.add(kind, [x, self.integers(axes)], shape)
        return self.add(kind, [x], shape, axes=list(axes))

    def pad(self, x: str, pads: Sequence[int], mode: str = "constant", value: float = 0.0) -> str:
        shape = self.shapes[x]
        size = tuple(n + pads[i] + pads[i + len(shape)] for i, n in enumerate(shape))
        if self.opset < 11:
            return self.add("Pad", [x], size, pads=list(pads), mode=mode, value=value)
        inputs = [x, self.integers(pads)]
        return self.add("Pad", inputs + [self.floats(value)] * (value != 0.0), size, mode=mode)

    def slice(self, x: str, starts: list[int], ends: list[int], axes: list[int], steps: list[int], shape: Shape) -> str:
        if self.opset < 10:
            assert set(steps) == {1}
            return self.add("Slice", [x], shape, starts=starts, ends=ends, axes=axes)
        return self.add("Slice", [x, *(self.integers(v) for v in (starts, ends, axes, steps))], shape)

    def split(self, x: str, sizes: list[int], axis: int) -> list[str]:
        shape, k = self.shapes[x], len(self.nodes)
        outputs = {f"t{k}{'abc'[i]}": tuple(n if d == axis else s for d, s in enumerate(shape)) for i, n in enumerate(sizes)}
        if self.opset < 13:
            self.several("Split", [x], outputs, axis=axis, split=sizes)
        else:
            constant = self.integers(sizes)
            self.several("Split", [x, constant], outputs, axis=axis)
        return list(outputs)

    def resize(self, x: str, factors: Sequence[int], **attributes: Any) -> str:
        size = tuple(n * f for n, f in zip(self.shapes[x], factors))
        if self.opset < 9:
            return self.add("Upsample", [x], size, mode=attributes["mode"], scales=[float(f) for f in factors])
        scales = self.floats([float(f) for f in factors])
        if self.opset < 11:
            return self.add("Upsample" if self.opset < 10 else "Resize", [x, scales], size, mode=attributes["mode"])
        roi = "" if self.opset >= 13 else self.floats(np.zeros(0))
        return self.add("Resize", [x, roi, scales], size, **attributes)

    def model(self) -> DrawnModel:
        """Return the model: its outputs are tensors without a reader, and its inputs those that are read."""
        read = {i for n in self.nodes for i in n.input}
        outputs = [o for n in self.nodes if n.op_type != "Constant" for o in n.output if o not in read]
        input_shapes = {n: s for n, s in self.inputs.items() if n in read}
        output_shapes = {n: self.shapes[n] for n in outputs}
        return DrawnModel(build_model(self.nodes, input_shapes, output_shapes, self.weights, opset=self.opset))
