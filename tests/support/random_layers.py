"""Layers that random networks are made of: convolutions and what stands around them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.support.random_network import Network


def convolution(net: Network) -> None:
    x = net.pick(4)
    if not x:
        return
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
    inputs = [x, net.weight((out, c // groups, *kernel))]
    if net.draw(st.booleans()):
        inputs.append(net.weight((out,)))
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
        net.clip(x, net.choose(-0.5, -0.1, 0.0), net.choose(0.5, 1.0))
    elif kind == "HardSwish" and net.opset < 14:
        net.add("Mul", [x, net.add("HardSigmoid", [x], shape, alpha=1 / 6)], shape)
    else:
        net.add(kind, [x], shape)


def _binary(net: Network) -> None:
    a = net.pick()
    kind = net.choose("Add", "Sub", "Mul")
    same = [n for n, s in net.shapes.items() if s == net.shapes[a]]
    if net.draw(st.booleans()):
        net.add(kind, [a, net.draw(st.sampled_from(same))], net.shapes[a])
        return
    shape = tuple(s if net.draw(st.booleans()) else 1 for s in net.shapes[a])
    operands = [a, net.constant(shape[net.number(0, max(0, len(shape) - 1)) :])]
    net.add(kind, operands if net.draw(st.booleans()) else operands[::-1], net.shapes[a])


def _choice(net: Network) -> None:
    """Add a choice between values that are equal where the choice changes; next to a step all roundings are right."""
    a = net.pick()
    shape = net.shapes[a]
    same = [n for n, s in net.shapes.items() if s == shape and n != a]
    low = tuple(s if net.draw(st.booleans()) else 1 for s in shape)
    b = net.draw(st.sampled_from(same)) if same and net.draw(st.booleans()) else net.constant(low)
    kind = net.choose("Max", "Min", "Where", "Where", "Where", "Mul", "Mul")
    if kind in ("Max", "Min"):
        if net.opset >= 8:
            net.add(kind, [a, b], shape)
    elif net.opset >= 11 and kind == "Where":
        truth, above = _truth(net, a, b)
        net.add(kind, [truth, a, b] if above else [truth, b, a], shape)
    elif net.opset >= 9 and kind == "Mul":
        number = net.add("Cast", [net.inner("Greater", [a, net.floats(0.0)])], shape, to=1)
        net.add("Mul", [number, a], shape)


def _truth(net: Network, a: str, b: str) -> tuple[str, bool]:
    """Return a truth of two tensors or one and a constant, and whether it says that a is above b."""
    kind = net.choose("Greater", "Less", *(("GreaterOrEqual", "LessOrEqual") * 2 if net.opset >= 12 else ()))
    operands, above = ([b, a], False) if net.draw(st.booleans()) else ([a, b], True)
    truth, above = net.inner(kind, operands), above == kind.startswith("Greater")
    for logic in net.draw(st.lists(st.sampled_from(("Not", "And", "Or", "Xor")), max_size=3)):
        if logic == "Not":
            truth, above = net.inner("Not", [truth]), not above
            continue
        other = net.choose("Equal", "IsNaN", "IsInf")  # where it is true either of the two is right
        other = net.inner(other, [a, b] if other == "Equal" else [a])
        truth = net.inner(logic, [truth, net.inner("Not", [other]) if logic == "And" else other])
    return truth, above


def _position(net: Network) -> None:
    """The largest, found by where it is: of equal ones any would do."""
    x = net.pick()
    shape = net.shapes[x]
    if net.opset < 13 or not shape or shape[-1] > 100:
        return
    where = {"axis": len(shape) - 1, "select_last_index": net.number(0, 1)}
    smallest = net.draw(st.booleans())
    place = net.inner("ArgMin", [net.add("Neg", [x], shape)], **where) if smallest else net.inner("ArgMax", [x], **where)
    if len(shape) == 1 or net.draw(st.booleans()):  # OneHot wants an axis of its indices
        is_at_position = net.inner("Equal", [place, net.integers(list(range(shape[-1])))])
    else:
        flat = net.inner("Squeeze", [place, net.integers([len(shape) - 1])])
        hot = net.inner("OneHot", [flat, net.integers([shape[-1]]), net.floats([0.0, 1.0])])
        is_at_position = net.inner("Cast", [hot], to=9)
    masked = net.inner("Where", [is_at_position, x, net.floats(-1.0)])
    net.shapes[masked] = shape
    net.reduce("ReduceMax", masked, [len(shape) - 1], 1)
    del net.shapes[masked]


def _channel_scale(net: Network) -> None:
    """Squeeze and excite: a computed operand that broadcasts over space."""
    x = net.pick(4)
    if not x:
        return
    n, c, _, _ = net.shapes[x]
    g = net.add("GlobalAveragePool", [x], (n, c, 1, 1))
    net.add("Mul", [x, net.add("Sigmoid", [g], (n, c, 1, 1))], net.shapes[x])


def _prelu(net: Network) -> None:
    x = net.pick(4)
    if not x:
        return
    net.add("PRelu", [x, net.weight((net.shapes[x][1], 1, 1))], net.shapes[x])


def _pool(net: Network) -> None:
    x = net.pick(4)
    if not x:
        return
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
    if net.opset >= 10 and net.draw(st.booleans()):
        ceiled = [_count_ceiled_windows(*a) for a in zip((h, w), kernel, stride, pads[:2], pads[2:])]
        undropped = [-(-(s + pads[i] + pads[i + 2] - kernel[i]) // stride[i]) + 1 for i, s in enumerate((h, w))]
        # onnxruntime infers another shape than it computes where an AveragePool drops a window: it refuses what follows
        if kind == "MaxPool" or ceiled == undropped:
            attributes["ceil_mode"], size = 1, ceiled
    if kind == "AveragePool":
        attributes["count_include_pad"] = net.number(0, 1)
    net.add(kind, [x], (n, c, *size), **attributes)


def _count_ceiled_windows(size: int, kernel: int, stride: int, before: int, after: int) -> int:
    """Windows of a pool with ceil_mode; one that would begin in the padding behind is dropped (ONNX, MaxPool)."""
    count = -(-(size + before + after - kernel) // stride) + 1
    return count - 1 if (count - 1) * stride >= size + before else count


def _reduce_mean(net: Network) -> None:
    x = net.pick(4)
    if not x:
        return
    axes = net.draw(st.sampled_from([[2, 3], [2], [3]]))
    net.reduce("ReduceMean", x, axes, net.number(0, 1))


def _split(net: Network) -> None:
    x = net.pick()
    if not net.shapes[x]:
        return
    shape = net.shapes[x]
    axis = net.number(0, len(shape) - 1)
    if shape[axis] < 2:
        return
    first = net.number(1, shape[axis] - 1)
    net.split(x, [first, shape[axis] - first], axis)


def _wave(net: Network) -> None:
    """A convolution over one dimension."""
    x = net.pick(3)
    if not x:
        return
    n, c, w = net.shapes[x]
    kernel, stride, out = net.number(1, min(5, w)), net.number(1, 2), net.number(1, 12)
    if c <= 64:
        size = (w - kernel) // stride + 1
        net.add("Conv", [x, net.weight((out, c, kernel))], (n, out, size), kernel_shape=[kernel], strides=[stride])


def _concat(net: Network) -> None:
    x = net.pick()
    if not net.shapes[x]:
        return
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
    if not net.shapes[x]:
        return
    shape = net.shapes[x]
    axis = net.number(0, len(shape) - 1)
    start, step = net.number(0, shape[axis] - 1), net.number(1, 2) if net.opset >= 10 else 1
    end = net.number(start + 1, shape[axis])
    size = tuple(-(-(end - start) // step) if i == axis else n for i, n in enumerate(shape))
    if net.opset >= 10 and net.draw(st.booleans()):  # the same elements backwards
        start, end, step = start + (size[axis] - 1) * step, start - shape[axis] - 1, -step
    net.slice(x, [start], [end], [axis], [step], size)


def _pad(net: Network) -> None:
    x = net.pick()
    if not net.shapes[x]:
        return
    shape = net.shapes[x]
    spatial = len(shape) == 4
    least = [-((shape[i % len(shape)] - 1) // 2) for i in range(2 * len(shape))]
    pads = [0 if spatial and i % 4 < 2 else net.number(max(-1, least[i]), 2) for i in range(2 * len(shape))]
    net.pad(x, pads, value=net.choose(0.0, 0.0, 0.5, -1.25))


def _resize(net: Network) -> None:
    x = net.pick(4)
    if not x:
        return
    n, c, h, w = net.shapes[x]
    fy, fx = net.number(1, 3), net.number(1, 2)
    if n * c * h * w * fy * fx > 20000:
        return
    net.resize(x, (1, 1, fy, fx), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def _transpose(net: Network) -> None:
    x = net.pick()
    if not net.shapes[x]:
        return
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
    net.add("Gemm", [x, net.weight((n, k)), net.weight((n,))], (m, n), transB=1)


def _matmul(net: Network) -> None:
    x = net.pick()
    shape = net.shapes[x]
    if len(shape) < 2:
        return
    if not net.number(0, 2):
        _matmul_of_constant(net, x)
        return
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    transposed = net.add("Transpose", [x], tuple(shape[p] for p in perm), perm=perm)
    if np.prod(shape[:-1]) * shape[-2] < 20000:
        net.add("MatMul", [x, transposed], (*shape[:-1], shape[-2]))


def _matmul_of_constant(net: Network, x: str) -> None:
    """Add a product with a constant on either side, one for all matrices or one for each."""
    *batch, rows, columns = net.shapes[x]
    batch_shape, size = (tuple(batch) if net.number(0, 1) else ()), net.number(1, 12)
    if np.prod(batch_shape) * max(rows, columns) * size > 20000:
        return
    if net.number(0, 1):
        net.add("MatMul", [net.weight((*batch_shape, size, rows)), x], (*batch, size, columns))
    else:
        net.add("MatMul", [x, net.weight((*batch_shape, columns, size))], (*batch, rows, size))


def _softmax(net: Network) -> None:
    x = net.pick()
    if net.shapes[x]:
        net.add("Softmax", [x], net.shapes[x], axis=len(net.shapes[x]) - 1)


LAYERS = (
    [convolution] * 6
    + [
        _activation,
        _binary,
        _binary,
        _choice,
        _choice,
        _choice,
        _position,
        _position,
        _channel_scale,
        _prelu,
        _pool,
        _pool,
        _concat,
        _concat,
        _slice,
        _pad,
        _resize,
    ]
    + [_transpose, _reshape, _gemm, _matmul, _reduce_mean, _split, _wave, _softmax]
)
