"""Move a Reshape down through operators that do not depend on the shape, until it meets another Reshape and cancels.

That keeps the results of 1-D windows in their four dimensions [n, c, h, 1]. Each rule returns the replacement of its node, or
None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from toolchain.frontend.rewrite import Rewrite, Rewriter, Rule, operand, reshape
from toolchain.ir.graph import OnnxNode

UNARY = (
    *("Abs", "Ceil", "Celu", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu"),
    *("Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt"),
    *("Swish", "Tanh", "ThresholdedRelu"),
)
BINARY = ("Add", "Sub", "Mul", "Div", "PRelu")


def sink_reshape(n: OnnxNode, inputs: Sequence[str], scope: Rewriter) -> Rewrite:
    """Return the node on these inputs, followed by the Reshape to its output's shape."""
    y = scope.tensor(f"{n.outputs[0]}/before_reshape")
    after = reshape(n, "reshape", y, scope.shape(n.outputs[0]), n.outputs[0], scope)
    return Rewrite((replace(n, inputs=tuple(inputs), outputs=(y,)), after))


def unary(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Move a Reshape before an operator of one operand behind it."""
    before = scope.producer(n.inputs[0], "Reshape")
    if before is None or any(name and name not in scope.constants for name in n.inputs[1:]):
        return None
    return sink_reshape(n, (before.inputs[0], *n.inputs[1:]), scope)


def binary(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Move Reshapes from the operands of a binary operator to its result.

    Both operands are reshaped between the same two shapes, or one is reshaped and the other is a constant that
    can follow.
    One operand may also be the result of a 1-D window; the other then takes its four dimensions.
    """
    target = scope.shape(n.outputs[0])
    left, right = (scope.producer(name, "Reshape") for name in n.inputs)
    three = all(len(scope.shape(name)) == 3 and name not in scope.constants for name in n.inputs)
    if three and any(with_width(name, scope) for name in n.inputs):
        return in_2d(n, scope)
    if left is None or scope.shape(n.inputs[0]) != target:
        return None
    source = scope.shape(left.inputs[0])
    if right is not None:
        if scope.shape(right.inputs[0]) != source or scope.shape(n.inputs[1]) != target:
            return None
        return sink_reshape(n, (left.inputs[0], right.inputs[0]), scope)
    value = scope.constants.get(n.inputs[1])
    if value is None:
        return None
    shape = constant_shape(value.shape, source, target)
    if shape is None:
        return None
    constant = n.inputs[1] if shape == value.shape else scope.constant(n.inputs[1], np.reshape(value, shape))
    return sink_reshape(n, (left.inputs[0], constant), scope)


def constant_shape(shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape in which a constant that fits `target` fits `source` at the same elements; None where there is none."""
    if not shape:
        return shape
    if len(shape) == 1 and source and source[-1] == target[-1]:
        return shape
    if [d for d in source if d != 1] != [d for d in target if d != 1]:
        return None
    aligned = (1,) * (len(target) - len(shape)) + shape
    remaining_dims = iter([d for d, t in zip(aligned, target) if t != 1])
    full = [1 if d == 1 else next(remaining_dims) for d in source]
    first = next((axis for axis, d in enumerate(full) if d != 1), len(full))
    return tuple(full[first:])


def with_width(name: str, scope: Rewriter) -> str | None:
    """Return the tensor [n, c, h, 1] that a Reshape makes [n, c, h], as behind a 1-D window. None: `name` is no such tensor."""
    before = scope.producer(name, "Reshape")
    if before is None:
        return None
    source, target = scope.shape(before.inputs[0]), scope.shape(name)
    return before.inputs[0] if len(source) == 4 and source[3] == 1 and target == source[:3] else None


def in_2d(n: OnnxNode, scope: Rewriter) -> Rewrite:
    """Return the node on operands of four dimensions; operands that are no result of a 1-D window are reshaped."""
    operands, more = list[str](), list[OnnxNode]()
    for name in n.inputs:
        name_4d = with_width(name, scope)
        operands.append(name_4d or scope.tensor(f"{name}/2d"))
        if name_4d is None:
            more.append(reshape(n, f"operand_to_2d_{len(more)}", name, (*scope.shape(name), 1), operands[-1], scope))
    return Rewrite((*more, *sink_reshape(n, operands, scope).nodes))


def concat(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite a Concat that has the result of a 1-D window among its parts."""
    if not any(with_width(x, scope) for x in n.inputs):
        return None
    return in_2d(replace(n, op=replace(n.op, attributes={"axis": n.op.attributes["axis"] % 3})), scope)


def pad(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Move the Reshape of a 1-D window's result behind a Pad."""
    x, pads = with_width(n.inputs[0], scope), scope.constants.get(operand(n, 1))
    if x is None or pads is None or operand(n, 3):
        return None
    ends = pads.tolist()
    four = scope.ints(f"{n.name}/pads", (*ends[:3], 0, *ends[3:], 0))
    return sink_reshape(n, (x, four, *n.inputs[2:]), scope)


def cut(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Move the Reshape of a 1-D window's result behind a Slice."""
    x, axes = with_width(n.inputs[0], scope), scope.constants.get(operand(n, 3))
    if x is None or axes is None:
        return None
    four = scope.ints(f"{n.name}/axes", tuple(int(axis) % 3 for axis in axes.tolist()))
    return sink_reshape(n, (x, *n.inputs[1:3], four, *n.inputs[4:]), scope)


def resize(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Move the Reshape of a 1-D window's result behind a Resize along its rows."""
    x = with_width(n.inputs[0], scope)
    _, roi, scales, sizes = (*n.inputs, "", "", "")[:4]
    by = scope.constants.get(sizes or scales)
    if x is None or roi or n.op.attributes.get("axes") or by is None:
        return None
    four = scope.constant(f"{n.name}/by", np.append(by, by.dtype.type(1)))
    return sink_reshape(n, (x, "", *(("", four) if sizes else (four,))), scope)


def mean(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Move the Reshape of a 1-D window's result behind a ReduceMean over its rows."""
    x, axes = with_width(n.inputs[0], scope), scope.constants.get(operand(n, 1))
    if x is None or axes is None or axes.tolist() != [2]:
        return None
    return sink_reshape(n, (x, scope.ints(f"{n.name}/axes", (2, 3))), scope)


RULES: Mapping[str, Sequence[Rule]] = {
    **dict.fromkeys(UNARY, (unary,)),
    **dict.fromkeys(BINARY, (binary,)),
    "Concat": (concat,),
    "Pad": (pad,),
    "Resize": (resize,),
    "Slice": (cut,),
    "ReduceMean": (mean,),
}
