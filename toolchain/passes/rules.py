"""From the frontend's one spelling of each ONNX operator to the chip's float operators, on the chip's layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from toolchain.ir.graph import Node, TensorType
from toolchain.ops.convolution import Convolution
from toolchain.ops.elementwise import Binary, Kind
from toolchain.ops.integer_convolution import exceeds_max_pad
from toolchain.ops.matrix_product import MatrixProduct
from toolchain.ops.movement import Concat, Pad, Reshape, ResizeNearest, Slice, permutation
from toolchain.ops.pool import AveragePool, Geometry, MaxPool, split_max_pool
from toolchain.ops.unary import Unary
from toolchain.passes.interleave import conv_transpose, depth_to_space, space_to_depth
from toolchain.passes.linear_resize import linear_resize
from toolchain.passes.reductions import reduce_max, reduce_mean

if TYPE_CHECKING:
    from toolchain.passes.select import Scope

NHWC = (0, 2, 3, 1)
AXIS_NHWC = {0: 0, 1: 3, 2: 1, 3: 2}  # a dimension of the model's order -> where it lies in nhwc


def _axis(axis: int, layout: str) -> int:
    return AXIS_NHWC[axis] if layout == "nhwc" else axis


def _arranged(values: tuple[int, ...], layout: str) -> tuple[int, ...]:
    return tuple(values[i] for i in NHWC) if layout == "nhwc" else tuple(values)


def _pair(values: object, default: int) -> tuple[int, int]:
    found = tuple(int(v) for v in values) if values else (default, default)  # type: ignore[attr-defined]
    return found[0], found[1]


def convolution(scope: Scope) -> None:
    x, w = scope.node.inputs[:2]
    bias = scope.node.inputs[2] if len(scope.node.inputs) > 2 else ""
    weights = scope.value(w)
    if weights is None or (bias and scope.value(bias) is None):
        return scope.refuse("its weights or bias are computed, not constant")
    if weights.ndim != 4:
        return scope.refuse(f"{weights.ndim - 2}-dimensional windows; the chip has rows and columns")
    a = scope.attributes
    pads = tuple(int(p) for p in a.get("pads", (0, 0, 0, 0)))
    op = Convolution(
        _pair(a.get("strides"), 1), (pads[0], pads[1], pads[2], pads[3]), _pair(a.get("dilations"), 1), int(a.get("group", 1))
    )
    source = scope.read(x, "nhwc")
    if exceeds_max_pad(op.pads, op.groups, scope.shape(x)[1], weights.shape[0], scope.chip):
        source, op = _padded(scope, source, op)
    names = (source, scope.constant(f"{w}@nhwc", np.ascontiguousarray(weights.transpose(0, 2, 3, 1))), bias)
    return scope.emit(op, names, "nhwc")


def _padded(scope: Scope, source: str, op: Convolution) -> tuple[str, Convolution]:
    """Padding beyond the limit is written into memory first."""
    top, left, bottom, right = op.pads
    n, h, w, c = scope.types[source].shape
    name = f"{scope.node.name}@padded"
    scope.types[name] = TensorType((n, h + top + bottom, w + left + right, c), "float32")
    scope.origins[name] = scope.origins[source]
    scope.nodes.append(Node(name, Pad((0, top, left, 0), (0, bottom, right, 0), 0.0), (source,), (name,), ()))
    return name, Convolution(op.strides, (0, 0, 0, 0), op.dilations, op.groups)


def gemm(scope: Scope) -> None:
    """x[m, k] w[n, k]^T + b: a 1x1 convolution over m columns."""
    x, w = scope.node.inputs[:2]
    bias = scope.node.inputs[2] if len(scope.node.inputs) > 2 else ""
    weights, values = scope.value(w), scope.value(bias) if bias else None
    if weights is None or (bias and values is None):
        return scope.refuse("its weights or bias are computed, not constant")
    a = scope.attributes
    if a.get("transA", 0) or float(a.get("alpha", 1.0)) != 1.0 or float(a.get("beta", 1.0)) != 1.0:
        return scope.refuse("alpha, beta or transA is not the default")
    if not a.get("transB", 0):
        weights = weights.T
    n, k = weights.shape
    m = scope.shape(x)[0]
    source = scope.read(x, "plain")
    wide = scope.inner("rows", (1, 1, m, k), "plain")
    scope.origins[wide] = scope.origins[source]
    scope.nodes.append(Node(wide, Reshape((1, 1, m, k)), (source,), (wide,), ()))
    names = [wide, scope.constant(f"{w}@nhwc", np.ascontiguousarray(weights.reshape(n, 1, 1, k))), ""]
    if values is not None:
        names[2] = scope.constant(f"{bias}@row", np.broadcast_to(values.reshape(-1), (n,)).copy())
    product = scope.inner("product", (1, 1, m, n), "plain")
    op = Convolution((1, 1), (0, 0, 0, 0), (1, 1), 1)
    sources = scope.node.sources or (scope.node.name,)
    scope.nodes.append(Node(f"{scope.node.name}", op, tuple(names), (product,), sources))
    scope.node = Node(f"{scope.node.name}@shape", scope.node.op, scope.node.inputs, scope.node.outputs, sources)
    return scope.emit(Reshape((m, n)), (product,), "plain")


def matmul(scope: Scope) -> None:
    a, b = scope.node.inputs
    if len(scope.shape(a)) < 2 or len(scope.shape(b)) < 2:
        return scope.refuse("a one-dimensional operand")
    if scope.value(a) is not None or scope.value(b) is not None:
        return scope.refuse("a constant operand of more than two dimensions, or on the left")
    return scope.emit(MatrixProduct(), (scope.read(a, "plain"), scope.read(b, "plain")), "plain")


def _binary(kind: Kind) -> Callable[[Scope], None]:
    def rule(scope: Scope) -> None:
        names = list(scope.node.inputs)
        rank = len(scope.shape(scope.node.outputs[0]))
        if kind in ("add", "mul") and names[0] in scope.graph.constants:
            names.reverse()
        layout = scope.layout(*names) if rank == 4 else "plain"
        if scope.shape(names[0]) != scope.shape(scope.node.outputs[0]) and kind == "prelu":
            return scope.refuse("its slope has more dimensions than its input")
        operands = tuple(_operand(scope, n, layout, rank) for n in names)
        return scope.emit(Binary(kind), operands, layout)

    return rule


def _operand(scope: Scope, name: str, layout: str, rank: int) -> str:
    value = scope.value(name)
    if value is None:
        return scope.read(name, layout)
    if layout == "nhwc":
        value = value.reshape((1,) * (rank - value.ndim) + value.shape).transpose(NHWC)
    return scope.constant(f"{name}@{layout}", np.ascontiguousarray(value))


def unary(scope: Scope) -> None:
    x = scope.node.inputs[0]
    layout = scope.layout(x)
    assert isinstance(scope.node.op, Unary)
    return scope.emit(scope.node.op, (scope.read(x, layout),), layout)


def _geometry(scope: Scope) -> Geometry | None:
    a = scope.attributes
    kernel = a.get("kernel_shape")
    if kernel is None or len(kernel) != 2 or a.get("ceil_mode", 0):
        return None
    top, left, bottom, right = (int(p) for p in a.get("pads", (0, 0, 0, 0)))
    return Geometry(_pair(kernel, 1), _pair(a.get("strides"), 1), (top, left, bottom, right), _pair(a.get("dilations"), 1))


def max_pool(scope: Scope) -> None:
    geometry = _geometry(scope)
    if geometry is None or len([o for o in scope.node.outputs if o]) > 1:
        return scope.refuse("windows that are not over rows and columns, or indices asked for")
    source = scope.read(scope.node.inputs[0], "nhwc")
    limit = scope.chip.limits.pool.max_kernel
    chain = [geometry]
    if limit and (geometry.kernel[0] > limit[0] or geometry.kernel[1] > limit[1]):
        chain = split_max_pool(geometry, limit) or chain
    for i, step in enumerate(chain[:-1]):
        n, h, w, c = scope.types[source].shape
        top, left, bottom, right = step.pads
        shape = (n, h + top + bottom - step.kernel[0] + 1, w + left + right - step.kernel[1] + 1, c)
        name = scope.inner(f"stage{i}", shape, "nhwc")
        scope.nodes.append(Node(f"{scope.node.name}@stage{i}", MaxPool(step), (source,), (name,), scope.node.sources))
        source = name
    return scope.emit(MaxPool(chain[-1]), (source,), "nhwc")


def average_pool(scope: Scope) -> None:
    geometry = _geometry(scope)
    if geometry is None:
        return scope.refuse("windows that are not over rows and columns")
    op = AveragePool(geometry, bool(scope.attributes.get("count_include_pad", 0)))
    if geometry.dilations != (1, 1) and any(geometry.pads):
        return scope.refuse("dilation together with padding")
    return scope.emit(op, (scope.read(scope.node.inputs[0], "nhwc"),), "nhwc")


def concat(scope: Scope) -> None:
    names = scope.node.inputs
    layout = scope.layout(*names)
    axis = int(scope.attributes["axis"]) % len(scope.shape(names[0]))
    if any(n in scope.graph.constants for n in names):
        return scope.refuse("a part is constant")
    return scope.emit(Concat(_axis(axis, layout)), tuple(scope.read(n, layout) for n in names), layout)


def slice_(scope: Scope) -> None:
    x = scope.node.inputs[0]
    shape = scope.shape(x)
    a = scope.attributes
    if "starts" not in a:
        return scope.refuse("its bounds are computed")
    starts, steps = [0] * len(shape), [1] * len(shape)
    axes = a.get("axes") or range(len(a["starts"]))
    for axis, start, step in zip(axes, a["starts"], a.get("steps") or [1] * len(a["starts"])):
        if step < 1:
            return scope.refuse(f"a step of {step}")
        starts[axis % len(shape)], steps[axis % len(shape)] = int(start), int(step)
    layout = scope.layout(x)
    size = _arranged(scope.shape(scope.node.outputs[0]), layout)
    op = Slice(_arranged(tuple(starts), layout), _arranged(tuple(steps), layout), size)
    return scope.emit(op, (scope.read(x, layout),), layout)


def pad(scope: Scope) -> None:
    x, a = scope.node.inputs[0], scope.attributes
    rank = len(scope.shape(x))
    if a.get("mode", "constant") != "constant" or "pads" not in a or min(a["pads"]) < 0:
        return scope.refuse("padding that is not by a constant, or negative")
    pads = tuple(int(p) for p in a["pads"])
    layout = scope.layout(x)
    op = Pad(_arranged(pads[:rank], layout), _arranged(pads[rank:], layout), float(a.get("value") or 0.0))
    return scope.emit(op, (scope.read(x, layout),), layout)


def reshape(scope: Scope) -> None:
    y = scope.node.outputs[0]
    target, source = scope.shape(y), scope.read(scope.node.inputs[0], "plain")
    if y not in scope.spatial:
        return scope.emit(Reshape(target), (source,), "plain")
    view = scope.inner("plain", target, "plain")
    scope.nodes.append(Node(view, Reshape(target), (source,), (view,), scope.node.sources))
    return scope.emit(permutation(target, NHWC), (view,), "nhwc")


def transpose(scope: Scope) -> None:
    x = scope.node.inputs[0]
    perm = tuple(int(p) for p in scope.attributes["perm"])
    layout = scope.layouts.get(x, "plain")
    source = scope.read(x, layout)
    target = "nhwc" if scope.node.outputs[0] in scope.spatial else "plain"
    arranged = tuple(_axis(p, layout) for p in _arranged(perm, target))
    return scope.emit(permutation(scope.types[source].shape, arranged), (source,), target)


def resize(scope: Scope) -> None:
    x, a = scope.node.inputs[0], scope.attributes
    before, after = scope.shape(x), scope.shape(scope.node.outputs[0])
    if a.get("mode", "nearest") == "linear":
        return linear_resize(scope)
    factors = tuple(b // s for s, b in zip(before, after))
    if a.get("mode", "nearest") != "nearest" or any(s * f != b for s, f, b in zip(before, factors, after)):
        return scope.refuse(f"mode {a.get('mode', 'nearest')} from {before} to {after}; the chip repeats by whole factors")
    if not _repeats(a, max(factors)):
        return scope.refuse("its coordinates do not repeat each element alike")
    layout = scope.layout(x)
    return scope.emit(ResizeNearest(_arranged(factors, layout)), (scope.read(x, layout),), layout)


def expand(scope: Scope) -> None:
    """Dimensions of size one, repeated."""
    x, y = scope.node.inputs[0], scope.node.outputs[0]
    after = scope.shape(y)
    before = (1,) * (len(after) - len(scope.shape(x))) + scope.shape(x)
    if any(b % s for s, b in zip(before, after)) or any(s not in (1, b) for s, b in zip(before, after)):
        return scope.refuse(f"copies of dimensions larger than one, from {before} to {after}")
    layout = scope.layout(x) if len(scope.shape(x)) == 4 else "plain"
    source = scope.read(x, layout)
    if len(before) != len(scope.shape(x)):
        view = scope.inner("view", before, "plain")
        scope.nodes.append(Node(view, Reshape(before), (source,), (view,), ()))
        source = view
    factors = tuple(b // s for s, b in zip(before, after))
    return scope.emit(ResizeNearest(_arranged(factors, layout)), (source,), layout)


def _repeats(a: object, factor: int) -> bool:
    """True when output i comes from input i // factor for every i (ONNX Resize, nearest)."""
    get = a.get  # type: ignore[attr-defined]
    how, rounding = get("coordinate_transformation_mode", "half_pixel"), get("nearest_mode", "round_prefer_floor")
    out = np.arange(4 * factor, dtype=np.float64)
    if how in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"):
        at = (out + 0.5) / factor - 0.5
    elif how == "asymmetric":
        at = out / factor
    else:
        return factor == 1
    rounded = {
        "floor": np.floor(at),
        "ceil": np.ceil(at),
        "round_prefer_floor": np.ceil(at - 0.5),
        "round_prefer_ceil": np.floor(at + 0.5),
    }[rounding]
    return bool((np.clip(rounded, 0, 3) == out // factor).all())


RULES: dict[str, Callable[[Scope], None]] = {
    "Conv": convolution,
    "Gemm": gemm,
    "MatMul": matmul,
    "Add": _binary("add"),
    "Sub": _binary("sub"),
    "Mul": _binary("mul"),
    "PRelu": _binary("prelu"),
    "Unary": unary,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "ReduceMean": reduce_mean,
    "ReduceMax": reduce_max,
    "ConvTranspose": conv_transpose,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "Concat": concat,
    "Slice": slice_,
    "Pad": pad,
    "Reshape": reshape,
    "Transpose": transpose,
    "Resize": resize,
    "Expand": expand,
    "Tile": expand,
}
