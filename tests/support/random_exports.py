"""Layers as exporters write them: odd ranks of constants, operators spelled in several, the less usual operators."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.support.random_network import Network, Shape

MOST = 4000  # elements of a tensor


def _one_number(net: Network) -> None:
    """An operand of one element and any rank up to one above the tensor's."""
    x = net.pick()
    shape = net.shapes[x]
    rank = net.number(0, len(shape) + 1)
    kind = net.choose("Add", "Sub", "Mul", "Div", "Max", "Min")
    if kind in ("Max", "Min") and net.opset < 8:  # they did not broadcast
        return
    value = net.floats(np.full((1,) * rank, net.choose(0.5, 1.7, -0.3, 3.0)))
    longer = (1,) * (rank - len(shape)) + shape
    net.add(kind, [x, value] if net.choose(0, 1) or kind == "Div" else [value, x], longer)


def _conv_transpose(net: Network) -> None:
    x = net.pick(4)
    if not x:
        return
    n, c, h, w = net.shapes[x]
    groups = net.choose(1, 1, 2) if c % 2 == 0 else 1
    out, kernel, stride = net.number(1, 4), [net.number(1, 4), net.number(1, 4)], [net.number(1, 3), net.number(1, 3)]
    pads = [net.number(0, (k - 1) // 2) for k in kernel] * 2
    extra = [net.number(0, s - 1) for s in stride]
    size = [(d - 1) * stride[i] + kernel[i] - 2 * pads[i] + extra[i] for i, d in enumerate((h, w))]
    if min(size) < 1 or n * out * groups * prod(size) > MOST:
        return
    inputs = [x, net.weight((c, out, *kernel), c * prod(kernel) // prod(stride) + 1)]
    if net.choose(0, 1):
        inputs.append(net.weight((out * groups,)))
    attributes: dict[str, Any] = {"strides": stride, "pads": pads, "output_padding": extra, "group": groups}
    net.add("ConvTranspose", inputs, (n, out * groups, *size), **attributes)


def _same_convolution(net: Network) -> None:
    x = net.pick(4)
    if not x:
        return
    n, c, h, w = net.shapes[x]
    stride, out = net.number(1, 2), net.number(1, 6)
    kernel = [net.number(1, 4), net.number(1, 4)]
    size = (-(-h // stride), -(-w // stride))
    how = {"auto_pad": net.choose("SAME_UPPER", "SAME_LOWER"), "strides": [stride, stride]}
    y = net.add("Conv", [x, net.weight((out, c, *kernel))], (n, out, *size), **how)
    if net.choose(0, 1):
        scale, shift, mean = (net.constant((out,)) for _ in range(3))
        variance = net.floats(np.linspace(0.4, 1.9, out))
        net.add("BatchNormalization", [y, scale, shift, mean, variance], net.shapes[y], epsilon=0.01)


def _residual(net: Network) -> None:
    x = net.pick(4)
    if x:
        c = net.shapes[x][1]
        y = net.add("Conv", [x, net.weight((c, c, 3, 3)), net.weight((c,))], net.shapes[x], pads=[1, 1, 1, 1])
        net.add("Add", [y, x] if net.choose(0, 1) else [x, y], net.shapes[x])


def _pad_and_pool(net: Network) -> None:
    x = net.pick(4)
    if not x or min(net.shapes[x][2:]) < 2:
        return
    n, c, h, w = net.shapes[x]
    kind, pads = net.choose("MaxPool", "AveragePool"), [net.number(0, 1) for _ in range(4)]
    counted = {"count_include_pad": net.number(0, 1)} if kind == "AveragePool" else {}
    size = [d + pads[i] + pads[i + 2] - 1 for i, d in enumerate((h, w))]
    net.add(kind, [x], (n, c, *size), kernel_shape=[2, 2], pads=pads, **counted)


def _channels_and_space(net: Network) -> None:
    x = net.pick(4)
    if not x:
        return
    n, c, h, w = net.shapes[x]
    even = h % 2 == 0 and w % 2 == 0
    if even and (c % 4 or net.choose(0, 1)):
        net.add("SpaceToDepth", [x], (n, c * 4, h // 2, w // 2), blocksize=2)
    elif c % 4 == 0:
        mode = {"mode": net.choose("DCR", "CRD")} if net.opset >= 11 else {}
        net.add("DepthToSpace", [x], (n, c // 4, h * 2, w * 2), blocksize=2, **mode)


def _expand(net: Network) -> None:
    x = net.pick()
    shape = net.shapes[x]
    wide = tuple(net.number(2, 3) if n == 1 and net.choose(0, 1) else n for n in shape)
    wide = (net.number(1, 2), *wide) if len(wide) < 5 and net.choose(0, 1) else wide
    if prod(wide) > MOST:
        return
    if len(wide) == len(shape) and shape and net.choose(0, 1):
        net.add("Tile", [x, net.integers([b // a for a, b in zip(shape, wide)])], wide)
    elif net.opset >= 8:
        net.add("Expand", [x, net.integers(wide)], wide)


def _squeeze(net: Network) -> None:
    x = net.pick()
    shape = net.shapes[x]
    ones = [i for i, n in enumerate(shape) if n == 1]
    if ones and net.choose(0, 1):
        axis = net.choose(*ones)
        net.squeeze("Squeeze", x, [axis], shape[:axis] + shape[axis + 1 :])
    elif len(shape) < 5:
        axis = net.number(0, len(shape))
        net.squeeze("Unsqueeze", x, [axis], (*shape[:axis], 1, *shape[axis:]))


def _shuffle(net: Network) -> None:
    """Five dimensions in between."""
    x = net.pick(4)
    if not x or net.shapes[x][1] % 2:
        return
    n, c, h, w = net.shapes[x]
    five = net.add("Reshape", [x, net.integers([n, 2, c // 2, h, w])], (n, 2, c // 2, h, w))
    transposed = net.add("Transpose", [five], (n, c // 2, 2, h, w), perm=[0, 2, 1, 3, 4])
    net.add("Reshape", [transposed, net.integers([n, c, h, w])], (n, c, h, w))


def _gemm(net: Network) -> None:
    x = net.pick(2)
    if not x:
        return
    is_transposed, weights_turned = net.number(0, 1), net.number(0, 1)
    k, m = net.shapes[x] if is_transposed else net.shapes[x][::-1]
    n = net.number(1, 6)
    inputs = [x, net.weight((n, k) if weights_turned else (k, n), k)]
    if net.opset < 11 or net.choose(0, 1):
        inputs.append(net.constant(net.choose((n,), (1, n), (1,), (m, n), (m, 1))))
    factors = {"alpha": net.choose(1.0, 0.5), "beta": net.choose(1.0, -1.5)}
    net.add("Gemm", inputs, (m, n), transA=is_transposed, transB=weights_turned, **factors)


def _matmul(net: Network) -> None:
    x = net.pick()
    shape = net.shapes[x]
    if len(shape) < 2:
        return
    n = net.number(1, 6)
    y = net.add("MatMul", [x, net.weight((shape[-1], n), shape[-1])], (*shape[:-1], n))
    if net.choose(0, 1):
        net.add("Add", [y, net.constant((n,))], net.shapes[y])


def _reduce(net: Network) -> None:
    x = net.pick()
    rank = len(net.shapes[x])
    if not rank:
        return
    first = net.number(0, rank - 1)
    axes = list(range(first, net.number(first, rank - 1) + 1))
    axes = axes if net.choose(0, 1) else [a - rank for a in axes] if net.opset >= 11 else axes
    net.reduce(net.choose("ReduceMean", "ReduceMean", "ReduceMax", "ReduceSum", "ReduceMin"), x, axes, net.number(0, 1))


def _softmax(net: Network) -> None:
    x = net.pick()
    rank = len(net.shapes[x])
    if rank:
        net.add("Softmax", [x], net.shapes[x], axis=net.number(0, rank - 1))


def _norm(net: Network) -> None:
    """A LayerNormalization written out."""
    x = net.pick()
    shape = net.shapes[x]
    if len(shape) < 2 or shape[-1] < 3:
        return
    less = net.add("Sub", [x, net.reduce("ReduceMean", x, [len(shape) - 1], 1)], shape)
    square = net.add("Pow", [less, net.floats(2.0)], shape) if net.choose(0, 1) else net.add("Mul", [less, less], shape)
    variance = net.reduce("ReduceMean", square, [len(shape) - 1], 1)
    root = net.add("Sqrt", [net.add("Add", [variance, net.floats(1e-3)], net.shapes[variance])], net.shapes[variance])
    normal = net.add("Div", [less, root], shape)
    net.add("Mul", [normal, net.constant(shape[-1:])], shape)


def _function(net: Network) -> None:
    """Functions where they are gentle; those of positive numbers behind a Sigmoid."""
    x = net.pick()
    shape = net.shapes[x]
    kinds = ("Softplus", "Softsign", "Elu", "Selu", "Abs", "Neg", "Atan", "Log", "Sqrt", "Reciprocal", "Cos")
    kind = net.choose(*kinds, *(("Erf", "Gelu") if net.opset >= 9 else ()))
    if kind in ("Log", "Sqrt", "Reciprocal"):
        x = net.add("Add", [net.add("Sigmoid", [x], shape), net.floats(0.5)], shape)
    elif kind == "Gelu":
        inner = net.add("Erf", [net.add("Div", [x, net.floats(np.sqrt(2))], shape)], shape)
        product = net.add("Mul", [x, net.add("Add", [inner, net.floats(1.0)], shape)], shape)
        net.add("Mul", [product, net.floats(0.5)], shape)
        return
    net.add(kind, [x], shape)


def _several(net: Network) -> None:
    """Sum, Mean, Max, Min of up to three of one shape."""
    x = net.pick()
    same = [n for n, s in net.shapes.items() if s == net.shapes[x]]
    net.add(net.choose("Sum", "Mean", "Max", "Min"), [x] + [net.choose(*same) for _ in range(net.number(1, 2))], net.shapes[x])


def _gather(net: Network) -> None:
    x = net.pick()
    shape = net.shapes[x]
    if not shape:
        return
    axis = net.number(0, len(shape) - 1)
    indices = [net.number(-shape[axis] if net.opset >= 11 else 0, shape[axis] - 1) for _ in range(net.number(1, 4))]
    net.add("Gather", [x, net.integers(indices)], (*shape[:axis], len(indices), *shape[axis + 1 :]), axis=axis)


def _pad_by_copies(net: Network) -> None:
    x = net.pick()
    shape = net.shapes[x]
    if shape and min(shape) > 2:
        places = range(max(0, len(shape) - 2), len(shape))
        pads = [net.number(0, 2) if i % len(shape) in places else 0 for i in range(2 * len(shape))]
        net.pad(x, pads, net.choose("edge", "reflect"))


def _linear(net: Network) -> None:
    x = net.pick(4)
    if x and prod(net.shapes[x]) * 4 <= MOST:
        how = net.choose("half_pixel", "asymmetric") if net.opset >= 11 else "asymmetric"
        net.resize(x, (1, 1, net.number(1, 2), 2), mode="linear", coordinate_transformation_mode=how)


def _nothing(net: Network) -> None:
    x = net.pick()
    kind = net.choose("Identity", "Dropout", "Cast", "Flatten")
    shape: Shape = net.shapes[x]
    if kind == "Flatten" and shape:
        axis = net.number(0, len(shape))
        net.add("Flatten", [x], (prod(shape[:axis]), prod(shape[axis:])), axis=axis)
    elif kind != "Flatten":
        net.add(kind, [x], shape, **({"to": 1} if kind == "Cast" else {}))


def _prelu(net: Network) -> None:
    x = net.pick()
    shape = net.shapes[x]
    if shape:
        slope = tuple(n if net.choose(0, 1) else 1 for n in shape)[net.number(0, len(shape) - 1) :]
        net.add("PRelu", [x, net.constant(slope)], shape)


def _quotient(net: Network) -> None:
    """Add a quotient by a tensor that stays away from zero."""
    x = net.pick()
    shape = net.shapes[x]
    away = net.add(
        "Add",
        [net.add("Sigmoid", [net.choose(*(n for n, s in net.shapes.items() if s == shape))], shape), net.floats(0.5)],
        shape,
    )
    net.add("Div", [x, away], shape)


def return_twice(net: Network) -> None:
    """The last tensor; nothing is drawn."""
    x, shape = list(net.shapes.items())[-1]
    for _ in range(2):
        net.add("Identity", [x], shape)


def rows(net: Network) -> None:
    """Into a sample of the last tensor that has rows, where a number says that is computed and always the same; nothing is
    drawn."""
    candidates = [(x, shape) for x, shape in net.shapes.items() if len(shape) > 1]
    if net.opset < 24 or not candidates:
        return
    x, (samples, *lies) = candidates[-1]
    axis, x = 1, x if samples == 1 else net.slice(x, [0], [1], [0], [1], (1, *lies))
    count = 1 + len(net.nodes) % lies[0]
    new = net.slice(x, [0], [count], [axis], [1], (1, count, *lies[1:]))
    one = net.inner("Cast", [net.inner("Less", [x, net.floats(1e6)])], to=TensorProto.INT64)
    flat = net.inner("Reshape", [one, net.integers([-1])])
    first = net.inner("Slice", [flat, net.integers([0]), net.integers([1])])
    place = net.inner("Mul", [first, net.integers([lies[0] - count])])
    net.add("TensorScatter", [x, new, place], (1, *lies), axis=axis)


EXPORTS = [
    *(_one_number, _one_number, _conv_transpose, _same_convolution, _expand, _squeeze, _shuffle, _gemm),
    *(_channels_and_space, _channels_and_space),
    *(_matmul, _reduce, _reduce, _softmax, _norm, _function, _function, _several, _gather, _pad_by_copies, _linear, _nothing),
    *(_prelu, _quotient, _residual, _residual, _pad_and_pool, _pad_and_pool),
]
