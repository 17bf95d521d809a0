"""Rewrite Reduce operators and Resize into canonical form.

Each rule returns the replacement of its node, or None where the node stays. `RULES` has the rules by operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from toolchain.frontend.rewrite import Rewrite, Rewriter, Rule, node, operand, reshape
from toolchain.ir.graph import OnnxNode, OnnxOp

REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
OTHER_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")


def reduce(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Write a reduction's axes out, rising and non-negative, with kept dimensions, which a Reshape then drops.

    Axes of size 1 are left out of REDUCTIONS, which change nothing there; a node without other axes becomes a Reshape.
    A node with axes that are computed, and one of a scalar, stays.
    """
    x, shape, a = n.inputs[0], scope.shape(n.inputs[0]), n.op.attributes
    axis_values = scope.constants.get(operand(n, 1)) if operand(n, 1) else np.zeros(0, np.int64)
    if axis_values is None or not shape:
        return None
    if not axis_values.size and a["noop_with_empty_axes"]:
        return Rewrite(same=x) if n.op.op_type in REDUCTIONS else None
    axes = sorted({int(v) % len(shape) for v in axis_values.reshape(-1)}) or list(range(len(shape)))
    if n.op.op_type in REDUCTIONS:
        axes = [v for v in axes if shape[v] != 1]
    if not axes:
        return Rewrite((reshape(n, "", x, scope.shape(n.outputs[0]), n.outputs[0], scope),))
    if a["keepdims"] and operand(n, 1) and axis_values.tolist() == axes:
        return None
    inputs = (x, scope.ints(f"{n.name}/axes", axes))
    op = OnnxOp(n.op.op_type, {"keepdims": 1, "noop_with_empty_axes": 0})
    unit_axes_shape = tuple(1 if v in axes else d for v, d in enumerate(shape))
    if scope.shape(n.outputs[0]) == unit_axes_shape:
        return Rewrite((replace(n, op=op, inputs=inputs),))
    y = scope.tensor(f"{n.outputs[0]}/kept")
    return Rewrite(
        (replace(n, op=op, inputs=inputs, outputs=(y,)), reshape(n, "reshape", y, scope.shape(n.outputs[0]), n.outputs[0], scope))
    )


def decompose_reduce_sum(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite a ReduceSum of floats as their mean, which the chip has, times their number. `reduce` comes first."""
    axes = scope.constants.get(operand(n, 1)) if operand(n, 1) else None
    x, y = n.inputs[0], n.outputs[0]
    if axes is None or not axes.size or not n.op.attributes["keepdims"] or not scope.is_float(x):
        return None
    shape = scope.shape(x)
    positions: list[int] = axes.tolist()
    count = scope.constant(f"{n.name}/count", np.asarray(prod(shape[a] for a in positions), scope.types[x].dtype))
    mean = scope.tensor(f"{y}/mean")
    return Rewrite(
        (
            replace(n, op=OnnxOp("ReduceMean", n.op.attributes), outputs=(mean,)),
            node(f"{n.name}/count", "Mul", (mean, count), y, n.sources),
        )
    )


def resize(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Write a Resize by whole factors with scales instead of sizes; nearest upsampling that repeats elements in one spelling.

    A Resize that changes no size is removed. One by other factors, of a region or with `axes` stays as it is.
    """
    a, x = n.op.attributes, n.inputs[0]
    before, after = scope.shape(x), scope.shape(n.outputs[0])
    _, roi, scales, sizes = (*n.inputs, "", "", "")[:4]
    if roi or a.get("axes") or a["keep_aspect_ratio_policy"] != "stretch" or 0 in before:
        return None
    scale_values = scope.constants.get(scales)
    if before == after and (sizes or (scale_values is not None and (scale_values == 1).all())):
        return Rewrite(same=x)
    factors = [o // i for i, o in zip(before, after)]
    if any(o % i for i, o in zip(before, after)) or (scale_values is not None and scale_values.tolist() != factors):
        return None
    plain = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor", "mode": "nearest"}
    repeats = a["mode"] == "nearest" and all(is_repeat(i, f, a) for i, f in zip(before, factors))
    attributes = {**a, **plain} if repeats else dict(a)
    if scale_values is not None and attributes == dict(a):
        return None
    inputs = (x, "", scope.constant(f"{n.name}/scales", np.asarray(factors, np.float32)))
    return Rewrite((replace(n, op=OnnxOp("Resize", attributes), inputs=inputs),))


def is_repeat(size: int, factor: int, a: Mapping[str, object]) -> bool:
    """Return whether nearest resizing of an axis of `size` by `factor` is y[i] = x[i // factor].

    `a`: the attributes of the node, with the modes of ONNX Resize-19.
    """
    if factor == 1:
        return True
    i = np.arange(size * factor, dtype=np.float64)
    mode = a["coordinate_transformation_mode"]
    if mode in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"):
        x = (i + 0.5) / factor - 0.5
    elif mode == "asymmetric":
        x = i / factor
    elif mode == "align_corners":
        x = i * (size - 1) / (size * factor - 1)
    else:
        return False
    x = np.round(x, 6)  # a coordinate meant to be whole is whole
    rounded = {
        "floor": np.floor(x),
        "ceil": np.ceil(x),
        "round_prefer_floor": np.ceil(x - 0.5),
        "round_prefer_ceil": np.floor(x + 0.5),
    }[str(a["nearest_mode"])]
    return bool((np.clip(rounded, 0, size - 1) == i // factor).all())


RULES: Mapping[str, Sequence[Rule]] = {
    **dict.fromkeys((*REDUCTIONS, *OTHER_REDUCTIONS), (reduce,)),
    "ReduceSum": (reduce, decompose_reduce_sum),
    "Resize": (resize,),
}
