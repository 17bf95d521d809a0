"""Random small networks and random machines, drawn by hypothesis."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from toolchain.hw.chip import Chip
from toolchain.hw.rules import broken_rules
from toolchain.isa import Machine, load_machine
from toolchain.isa.needs import broken_needs

Shape = tuple[int, ...]
_machine = cache(load_machine)  # reading YAML would take longer than a case


class DrawnModel:
    """Shown in short when a case fails."""

    def __init__(self, proto: onnx.ModelProto):
        self.proto = proto

    def __repr__(self) -> str:
        shown = {
            n.name: [list(n.input), {a.name: helper.get_attribute_value(a) for a in n.attribute}] for n in self.proto.graph.node
        }
        weights = {w.name: list(w.dims) for w in self.proto.graph.initializer}
        return f"{[d.dim_value for d in self.proto.graph.input[0].type.tensor_type.shape.dim]} {shown} {weights}"


class DrawnMachine:
    """Shown in short when a case fails."""

    def __init__(self, machine: Machine):
        self.machine = machine

    def __repr__(self) -> str:
        chip = self.machine.chip
        parts = [chip.name, chip.engines, chip.memories, chip.numerics, chip.limits]
        return " ".join(p if isinstance(p, str) else p.model_dump_json(exclude_none=True) for p in parts)


@dataclass
class Network:
    """An ONNX graph under construction; every tensor so far may be used again."""

    draw: Any
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    seed: int = 0

    def constant(self, shape: Shape, low: float = -1.0, high: float = 1.0) -> str:
        self.seed += 1
        name = f"c{self.seed}"
        values = np.random.default_rng(self.seed).uniform(low, high, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def integers(self, values: list[int]) -> str:
        self.seed += 1
        name = f"i{self.seed}"
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def add(self, kind: str, inputs: list[str], shape: Shape, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], f"n{len(self.nodes)}_{kind}", **attributes))
        self.shapes[name] = shape
        return name

    def pick(self, rank: int | None = None) -> str:
        names = [n for n, s in self.shapes.items() if rank is None or len(s) == rank]
        return self.draw(st.sampled_from(names[-4:])) if names else ""

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))


def _convolution(net: Network) -> None:
    x = net.pick(4)
    n, c, h, w = net.shapes[x]
    kernel = [net.number(1, min(5, h)), net.number(1, min(5, w))]
    dilation = [net.number(1, 2) if (kernel[0] - 1) * 2 < h else 1, net.number(1, 2) if (kernel[1] - 1) * 2 < w else 1]
    stride = [net.number(1, 3), net.number(1, 3)]
    pads = [net.number(0, kernel[i % 2] - 1) for i in range(4)]
    groups = net.draw(st.sampled_from([1, 1, 1, c] + ([2] if c % 2 == 0 else [])))
    out = groups * net.number(1, max(1, 24 // groups)) if groups != c else c * net.draw(st.sampled_from([1, 1, 2]))
    size = [(s + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilation[i] - 1) // stride[i] + 1 for i, s in enumerate((h, w))]
    if min(size) < 1:
        return
    inputs = [x, net.constant((out, c // groups, *kernel))]
    if net.draw(st.booleans()):
        inputs.append(net.constant((out,)))
    y = net.add("Conv", inputs, (n, out, *size), kernel_shape=kernel, strides=stride, pads=pads, dilations=dilation, group=groups)
    if net.draw(st.booleans()):
        _activation(net, y)


def _activation(net: Network, x: str | None = None) -> None:
    x = x or net.pick()
    kind = net.draw(st.sampled_from(["Relu", "Clip", "Sigmoid", "LeakyRelu", "HardSwish", "SiLU", "Tanh", "Scaled"]))
    shape = net.shapes[x]
    if kind == "SiLU":
        s = net.add("Sigmoid", [x], shape)
        net.add("Mul", [x, s], shape)
    elif kind == "Scaled":
        net.add("Add", [net.add("Mul", [x, net.constant((1,))], shape), net.constant((1,))], shape)
    elif kind == "Clip":
        net.add("Clip", [x, net.constant((), -0.5, 0.0), net.constant((), 0.5, 1.0)], shape)
    else:
        net.add(kind, [x], shape)


def _binary(net: Network) -> None:
    a = net.pick()
    kind = net.draw(st.sampled_from(["Add", "Sub", "Mul"]))
    same = [n for n, s in net.shapes.items() if s == net.shapes[a]]
    if net.draw(st.booleans()):
        net.add(kind, [a, net.draw(st.sampled_from(same))], net.shapes[a])
        return
    shape = tuple(s if net.draw(st.booleans()) else 1 for s in net.shapes[a])
    operands = [a, net.constant(shape[net.number(0, len(shape) - 1) :])]
    net.add(kind, operands if net.draw(st.booleans()) else operands[::-1], net.shapes[a])


def _channel_scale(net: Network) -> None:
    """Squeeze and excite: a computed operand that broadcasts over space."""
    x = net.pick(4)
    n, c, _, _ = net.shapes[x]
    g = net.add("GlobalAveragePool", [x], (n, c, 1, 1))
    net.add("Mul", [x, net.add("Sigmoid", [g], (n, c, 1, 1))], net.shapes[x])


def _prelu(net: Network) -> None:
    x = net.pick(4)
    net.add("PRelu", [x, net.constant((net.shapes[x][1], 1, 1))], net.shapes[x])


def _pool(net: Network) -> None:
    x = net.pick(4)
    n, c, h, w = net.shapes[x]
    kind = net.draw(st.sampled_from(["MaxPool", "AveragePool", "GlobalAveragePool"]))
    if kind == "GlobalAveragePool":
        net.add(kind, [x], (n, c, 1, 1))
        return
    kernel = [net.number(1, min(6, h)), net.number(1, min(6, w))]
    stride = [net.number(1, 3), net.number(1, 3)]
    pads = [net.number(0, (kernel[i % 2] - 1) // 2) for i in range(4)]
    size = [(s + pads[i] + pads[i + 2] - kernel[i]) // stride[i] + 1 for i, s in enumerate((h, w))]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": stride, "pads": pads}
    if net.draw(st.booleans()):
        attributes["ceil_mode"] = 1
        size = [_ceiled(*a) for a in zip((h, w), kernel, stride, pads[:2], pads[2:])]
    if kind == "AveragePool":
        attributes["count_include_pad"] = net.number(0, 1)
    net.add(kind, [x], (n, c, *size), **attributes)


def _ceiled(size: int, kernel: int, stride: int, before: int, after: int) -> int:
    """Windows of a pool with ceil_mode; one that would begin in the padding behind is dropped (ONNX, MaxPool)."""
    count = -(-(size + before + after - kernel) // stride) + 1
    return count - 1 if (count - 1) * stride >= size + before else count


def _reduce_mean(net: Network) -> None:
    x = net.pick(4)
    axes = net.draw(st.sampled_from([[2, 3], [2], [3]]))
    keep = net.number(0, 1)
    shape = tuple(1 if i in axes else s for i, s in enumerate(net.shapes[x]) if keep or i not in axes)
    net.add("ReduceMean", [x], shape, axes=axes, keepdims=keep)


def _split(net: Network) -> None:
    x = net.pick()
    shape = net.shapes[x]
    axis = net.number(0, len(shape) - 1)
    if shape[axis] < 2:
        return
    first = net.number(1, shape[axis] - 1)
    sizes, k = [first, shape[axis] - first], len(net.nodes)
    names = [f"t{k}a", f"t{k}b"]
    net.nodes.append(helper.make_node("Split", [x, net.integers(sizes)], names, f"n{k}_Split", axis=axis))
    for name, size in zip(names, sizes):
        net.shapes[name] = tuple(size if i == axis else s for i, s in enumerate(shape))


def _wave(net: Network) -> None:
    """A convolution over one dimension."""
    x = net.pick(3)
    if not x:
        return
    n, c, w = net.shapes[x]
    kernel, stride, out = net.number(1, min(5, w)), net.number(1, 2), net.number(1, 12)
    if c <= 64:
        size = (w - kernel) // stride + 1
        net.add("Conv", [x, net.constant((out, c, kernel))], (n, out, size), kernel_shape=[kernel], strides=[stride])


def _concat(net: Network) -> None:
    x = net.pick()
    axis = net.number(0, len(net.shapes[x]) - 1)
    fits = [n for n, s in net.shapes.items() if len(s) == len(net.shapes[x])]
    fits = [n for n in fits if all(p == q for i, (p, q) in enumerate(zip(net.shapes[n], net.shapes[x])) if i != axis)]
    parts = [x] + [net.draw(st.sampled_from(fits)) for _ in range(net.number(1, 2))]
    shape = list(net.shapes[x])
    shape[axis] = sum(net.shapes[p][axis] for p in parts)
    if np.prod(shape) < 20000:
        net.add("Concat", parts, tuple(shape), axis=axis)


def _slice(net: Network) -> None:
    x = net.pick()
    shape = net.shapes[x]
    axis = net.number(0, len(shape) - 1)
    start, step = net.number(0, shape[axis] - 1), net.number(1, 2)
    end = net.number(start + 1, shape[axis])
    size = tuple(-(-(end - start) // step) if i == axis else n for i, n in enumerate(shape))
    if net.draw(st.booleans()):  # the same elements backwards
        start, end, step = start + (size[axis] - 1) * step, start - shape[axis] - 1, -step
    net.add("Slice", [x, *(net.integers([v]) for v in (start, end, axis, step))], size)


def _pad(net: Network) -> None:
    x = net.pick()
    shape = net.shapes[x]
    spatial = len(shape) == 4
    least = [-((shape[i % len(shape)] - 1) // 2) for i in range(2 * len(shape))]
    pads = [0 if spatial and i % 4 < 2 else net.number(max(-1, least[i]), 2) for i in range(2 * len(shape))]
    size = tuple(n + pads[i] + pads[i + len(shape)] for i, n in enumerate(shape))
    net.add("Pad", [x, net.integers(pads)], size)


def _resize(net: Network) -> None:
    x = net.pick(4)
    n, c, h, w = net.shapes[x]
    fy, fx = net.number(1, 3), net.number(1, 2)
    if n * c * h * w * fy * fx > 20000:
        return
    net.seed += 1
    scales = f"s{net.seed}"
    net.weights.append(numpy_helper.from_array(np.array([1, 1, fy, fx], np.float32), scales))
    net.add(
        "Resize",
        [x, "", scales],
        (n, c, h * fy, w * fx),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def _transpose(net: Network) -> None:
    x = net.pick()
    perm = net.draw(st.permutations(range(len(net.shapes[x]))))
    net.add("Transpose", [x], tuple(net.shapes[x][p] for p in perm), perm=list(perm))


def _reshape(net: Network) -> None:
    x = net.pick()
    shape = net.shapes[x]
    if len(shape) == 4:
        n, c, h, w = shape
        target = net.draw(st.sampled_from([(n, c, h * w), (n, c * h * w), (n * c, h, w), (n, h, c, w)]))
    else:
        target = (1,) * (4 - len(shape)) + shape
    net.add("Reshape", [x, net.integers(list(target))], tuple(target))


def _gemm(net: Network) -> None:
    x = net.pick(2)
    if not x or net.shapes[x][1] > 3000:
        return
    m, k = net.shapes[x]
    n = net.number(1, 40)
    net.add("Gemm", [x, net.constant((n, k)), net.constant((n,))], (m, n), transB=1)


def _matmul(net: Network) -> None:
    x = net.pick()
    shape = net.shapes[x]
    if len(shape) < 2:
        return
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    turned = net.add("Transpose", [x], tuple(shape[p] for p in perm), perm=perm)
    if np.prod(shape[:-1]) * shape[-2] < 20000:
        net.add("MatMul", [x, turned], (*shape[:-1], shape[-2]))


LAYERS = (
    [_convolution] * 6
    + [_activation, _binary, _binary, _channel_scale, _prelu, _pool, _pool, _concat, _concat, _slice, _pad, _resize]
    + [_transpose, _reshape, _gemm, _matmul, _reduce_mean, _split, _wave]
)


@st.composite
def networks(draw: Any) -> DrawnModel:
    """1 to 7 layers over a small feature map; everything nothing else reads is an output."""
    net = Network(draw)
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 20)), draw(st.integers(1, 12)), draw(st.integers(1, 12)))
    net.shapes["x"] = shape
    _convolution(net)
    for _ in range(draw(st.integers(0, 6))):
        draw(st.sampled_from(LAYERS))(net)
    if not net.nodes:
        net.add("Relu", ["x"], shape)
    read = {i for n in net.nodes for i in n.input}
    outputs = [o for n in net.nodes for o in n.output if o not in read]
    graph = helper.make_graph(
        net.nodes,
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, net.shapes[n]) for n in outputs],
        net.weights,
    )
    return DrawnModel(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


_MULTIPLIER = ("single_half_up", "double_round", "half_away", "half_even", "truncate", "floor")
_POW2 = ("single_half_up", "half_away", "half_even", "truncate", "floor", "pow2")


@st.composite
def machines(draw: Any) -> DrawnMachine:
    """A shipped machine with its array, memories, DMA, numerics and limits drawn anew."""
    base = _machine(draw(st.sampled_from(["edge16", "wide32_w4a16", "ws8_pow2", "ethos_u55_256"])))
    data = json.loads(base.chip.model_dump_json())
    mac, vector, dma = (data["engines"][k] for k in ("mac", "vector", "dma"))
    mac["rows"], mac["columns"] = draw(st.sampled_from([1, 4, 8, 16])), draw(st.sampled_from([1, 3, 8, 16]))
    mac["depth"] = draw(st.sampled_from([1, 1, 4]))
    mac["dataflow"] = draw(st.sampled_from(["os", "ws", "is"]))
    mac["folds_overlap"] = draw(st.booleans())
    mac["depthwise"] = draw(st.sampled_from(["diagonal", "column", "none"]))
    mac["accumulators"]["entries"] = max(mac["rows"] * mac["columns"], draw(st.sampled_from([64, 256, 1024, 8192])))
    mac["post"] = draw(st.sampled_from([[], ["table"], ["add"], ["table", "add"]]))
    vector["lanes"] = draw(st.sampled_from([1, 4, 16]))
    if draw(st.integers(0, 3)) == 0:
        vector["operations"] = [o for o in vector["operations"] if draw(st.booleans())]
    dma["dimensions"], dma["channels"] = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3, 4]))
    data["sync"]["semaphores"] = draw(st.sampled_from([6, 9, 32]))
    data["sync"]["max_count"] = draw(st.sampled_from([1, 2, 15]))
    for memory in data["memories"].values():
        memory["alignment_bytes"] = max(base.chip.activation_bytes, draw(st.sampled_from([1, 4, 16, 64])))
        memory["read_bytes_per_cycle"] = draw(st.sampled_from([1.0, 3.75, 16.0]))
        memory["shared_ports"] = draw(st.booleans())
        memory["banks"] = draw(st.sampled_from([1, 2, 8]))
    data["memories"]["sram"]["size"] = draw(st.sampled_from([8, 16, 64])) * 1024
    _numerics(draw, data["numerics"])
    _limits(draw, data["limits"])
    chip = Chip.model_validate_json(json.dumps(data))
    assert not broken_rules(chip), broken_rules(chip)
    # An instruction table that cannot hold what the drawn chip needs gives way to one that can.
    isa = _machine("edge16").isa if broken_needs(chip, base.isa) else base.isa
    return DrawnMachine(replace(base, chip=chip, isa=isa))


def _numerics(draw: Any, numerics: dict[str, Any]) -> None:
    kind = draw(st.sampled_from(["multiplier", "multiplier", "pow2", "float32", "scale16"]))
    numerics["symmetric_activations"] = draw(st.booleans())
    numerics["weights_per_channel"] = draw(st.booleans())
    numerics["per_op"] = {}
    numerics["overflow"] = draw(st.sampled_from(["saturate", "saturate", "wrap"]))
    if kind == "multiplier":
        bits = draw(st.sampled_from([8, 15, 24, 31]))
        numerics["scale"] = {"kind": "multiplier", "multiplier_bits": bits, "shift_min": 0, "shift_max": 62}
        numerics["rounding"] = draw(st.sampled_from(_MULTIPLIER))
        for operation in ("add", "average_pool", "mul"):
            if draw(st.booleans()):
                numerics["per_op"][operation] = draw(st.sampled_from(_MULTIPLIER))
    elif kind == "pow2":
        numerics["scale"] = {"kind": "pow2", "multiplier_bits": 1, "shift_min": -31, "shift_max": 62}
        numerics["rounding"] = draw(st.sampled_from(_POW2))
    elif kind == "float32":
        numerics["scale"] = {"kind": "float32", "multiplier_bits": 24, "shift_min": 0, "shift_max": 62}
        numerics["rounding"] = "fp32_rne"
    else:
        numerics["scale"] = {"kind": "multiplier", "multiplier_bits": 15, "shift_min": 0, "shift_max": 62}
        numerics["rounding"] = "scale16"


def _limits(draw: Any, limits: dict[str, Any]) -> None:
    def maybe(values: list[Any]) -> Any:
        return draw(st.sampled_from([None, None, *values]))

    for key in ("convolution", "depthwise"):
        limits[key]["max_kernel"] = maybe([[1, 1], [3, 3], [2, 3]])
        limits[key]["max_stride"] = maybe([[1, 1], [2, 2]])
        limits[key]["max_dilation"] = maybe([[1, 1]])
        limits[key]["max_pad"] = maybe([[0, 0], [1, 1]])
        limits[key]["max_width"] = maybe([4, 7])
    limits["convolution"]["max_input_channels"] = maybe([8, 5])
    limits["convolution"]["max_output_channels"] = maybe([8, 3])
    limits["matrix_product"]["max_k"] = maybe([8])
    limits["matrix_product"]["max_n"] = maybe([8])
    limits["pool"]["max_kernel"] = maybe([[2, 2], [3, 3]])
    limits["pool"]["max_stride"] = maybe([[2, 2]])
    limits["elementwise"]["broadcast"] = draw(st.booleans())
