"""Rewrite convolutions, pools and batch normalisation into canonical form; `canonicalize` applies `RULES` by operator.

Each rule returns the replacement of its node, or None where it does not apply. All window attributes are written out.
Padding stands for auto_pad and ceil_mode. Windows of one dimension get a second one. Batch normalisation becomes Mul and Add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from toolchain.frontend.errors import refuse_node
from toolchain.frontend.rewrite import Rewrite, Rewriter, Rule, node, reshape
from toolchain.ir.graph import OnnxNode, OnnxOp

CONVS = ("Conv", "ConvTranspose")


def with_attributes(n: OnnxNode, attributes: dict[str, Any]) -> Rewrite | None:
    """Return the node with exactly these attributes; None where it has them already."""
    if dict(n.op.attributes) == attributes:
        return None
    return Rewrite((replace(n, op=OnnxOp(n.op.op_type, attributes)),))


def spatial(n: OnnxNode, scope: Rewriter, kernel: Sequence[int]) -> dict[str, Any]:
    """Return kernel_shape, strides, dilations and pads with every default and auto_pad resolved.

    `kernel`: sizes of the window.
    """
    a, rank = n.op.attributes, len(kernel)
    strides = tuple(a.get("strides") or (1,) * rank)
    dilations = tuple(a.get("dilations") or (1,) * rank)
    pads = tuple(a.get("pads") or (0,) * 2 * rank)
    mode = a.get("auto_pad", "NOTSET")
    if mode == "VALID":
        pads = (0,) * 2 * rank
    elif mode != "NOTSET":
        x, y = scope.shape(n.inputs[0])[2:], scope.shape(n.outputs[0])[2:]
        total = [max(0, (o - 1) * s + (k - 1) * d + 1 - i) for i, o, s, k, d in zip(x, y, strides, kernel, dilations)]
        pads = halves(total, small_first=mode == "SAME_UPPER")
    return {"kernel_shape": tuple(kernel), "strides": strides, "dilations": dilations, "pads": pads}


def halves(total: Sequence[int], small_first: bool) -> tuple[int, ...]:
    """Return begin and end pads that split these totals. `small_first`: the smaller half goes in front."""
    small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    return small + large if small_first else large + small


def conv(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Write out all window attributes of a Conv."""
    kernel = scope.shape(n.inputs[1])[2:]
    return with_attributes(n, {**spatial(n, scope, kernel), "group": n.op.attributes["group"]})


def conv_transpose(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Resolve output_shape and auto_pad of a ConvTranspose into pads; not where pads alone cannot express them."""
    a, kernel = n.op.attributes, scope.shape(n.inputs[1])[2:]
    explicit = {**a, "auto_pad": "NOTSET"}
    window = spatial(replace(n, op=OnnxOp("ConvTranspose", explicit)), scope, kernel)
    extra = tuple(a.get("output_padding") or (0,) * len(kernel))
    if a.get("output_shape") or a.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        x, y = scope.shape(n.inputs[0])[2:], scope.shape(n.outputs[0])[2:]
        sizes = zip(x, y, window["strides"], kernel, window["dilations"], extra)
        total = [s * (i - 1) + e + (k - 1) * d + 1 - o for i, o, s, k, d, e in sizes]
        extra = tuple(e - min(t, 0) for e, t in zip(extra, total))
        if any(e >= max(s, d) for e, s, d in zip(extra, window["strides"], window["dilations"])):
            return None
        window["pads"] = halves([max(t, 0) for t in total], small_first=a.get("auto_pad") == "SAME_UPPER")
    return with_attributes(n, {**window, "group": a["group"], "output_padding": extra})


def pool(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Write out a pool's window, with ceil_mode as end padding that does not enter the result.

    Where padding counts as zeros it is written as a Pad. An average over the whole input becomes a ReduceMean.
    """
    if any(n.outputs[1:]):
        return None
    a = n.op.attributes
    window = spatial(n, scope, a["kernel_shape"])
    counts_pads = bool(a.get("count_include_pad", 0)) and any(window["pads"])
    ceil = a["ceil_mode"]
    pads = end_padding(window, scope.shape(n.inputs[0])[2:], scope.shape(n.outputs[0])[2:]) if ceil else None
    if pads is not None and counts_pads:
        return pad_then_average(n, window, pads, scope)
    if pads is not None:
        ceil, window["pads"] = 0, pads
    if n.op.op_type == "MaxPool":
        return with_attributes(n, {**window, "ceil_mode": ceil, "storage_order": a["storage_order"]})
    if counts_pads or ceil or any(window["pads"]) or scope.shape(n.outputs[0])[2:] != (1,) * len(window["kernel_shape"]):
        return with_attributes(n, {**window, "ceil_mode": ceil, "count_include_pad": int(counts_pads)})
    if window["kernel_shape"] == scope.shape(n.inputs[0])[2:]:
        return Rewrite((mean_over_space(n, scope),))
    return with_attributes(n, {**window, "ceil_mode": ceil, "count_include_pad": 0})


def pad_then_average(n: OnnxNode, window: Mapping[str, Any], pads: Sequence[int], scope: Rewriter) -> Rewrite:
    """Return a Pad by the zeros that count, and a pool with the end padding from rounding up, which does not count."""
    rank, x = len(pads) // 2, n.inputs[0]
    window_pads, padded = window["pads"], scope.tensor(f"{n.inputs[0]}/padded")
    around = scope.ints(f"{n.name}/pads", (0, 0, *window_pads[:rank], 0, 0, *window_pads[rank:]))
    value = scope.constant(f"{n.name}/value", np.zeros((), scope.types[x].dtype))
    attributes = {**window, "pads": (0,) * rank + tuple(p - o for p, o in zip(pads[rank:], window_pads[rank:]))}
    op = OnnxOp(n.op.op_type, {**attributes, "ceil_mode": 0, "count_include_pad": 0})
    pad = node(f"{n.name}/pad", "Pad", (x, around, value), padded, n.sources, mode="constant")
    return Rewrite((pad, replace(n, op=op, inputs=(padded,))))


def end_padding(window: Mapping[str, Any], x: Sequence[int], y: Sequence[int]) -> tuple[int, ...] | None:
    """Return pads with which rounding down gives the output sizes `y`; None where onnxruntime refuses such pads.

    `x`: input sizes.
    """
    rank = len(x)
    begin, end = window["pads"][:rank], window["pads"][rank:]
    sizes = zip(x, y, window["strides"], window["kernel_shape"], window["dilations"], begin, end)
    end_pads = tuple(max(e, (o - 1) * s + (k - 1) * d + 1 - i - b) for i, o, s, k, d, b, e in sizes)
    if any(e >= k for e, k in zip(end_pads, window["kernel_shape"])):
        return None
    return (*begin, *end_pads)


def mean_over_space(n: OnnxNode, scope: Rewriter) -> OnnxNode:
    """Return a ReduceMean over all spatial dimensions in the place of `n`."""
    axes = scope.ints(f"{n.name}/axes", range(2, len(scope.shape(n.inputs[0]))))
    return node(n.name, "ReduceMean", (n.inputs[0], axes), n.outputs[0], n.sources, keepdims=1, noop_with_empty_axes=0)


def global_average(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite GlobalAveragePool as a ReduceMean."""
    if len(scope.shape(n.inputs[0])) < 3:
        return None
    return Rewrite((mean_over_space(n, scope),))


def global_max(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite GlobalMaxPool as a MaxPool over the whole input."""
    kernel = scope.shape(n.inputs[0])[2:]
    if not kernel:
        return None
    op = OnnxOp("MaxPool", {"kernel_shape": kernel, "ceil_mode": 0, "storage_order": 0})
    return Rewrite((replace(n, op=op),))


def to_2d(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite a window over [n, c, h] as one over [n, c, h, 1], between Reshapes.

    The axis becomes rows, so that such layers can be executed stripe by stripe.
    """
    shape = scope.shape(n.inputs[0])
    if len(shape) != 3 or any(n.outputs[1:]) or "auto_pad" in n.op.attributes:
        return None
    a = dict(n.op.attributes)
    for key, unit in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("output_padding", 0)):
        if key in a:
            a[key] = (*a[key], unit)
    a["pads"] = (a["pads"][0], 0, a["pads"][1], 0)
    x, y = scope.tensor(f"{n.inputs[0]}/2d"), scope.tensor(f"{n.outputs[0]}/2d")
    before = [reshape(n, "to_2d", n.inputs[0], (*shape, 1), x, scope)]
    inputs = [x, *n.inputs[1:]]
    if n.op.op_type in CONVS:
        w = scope.shape(n.inputs[1])
        inputs[1] = scope.tensor(f"{n.inputs[1]}/2d")
        before.append(reshape(n, "weight_to_2d", n.inputs[1], (*w, 1), inputs[1], scope))
    window = replace(n, op=OnnxOp(n.op.op_type, a), inputs=tuple(inputs), outputs=(y,))
    return Rewrite((*before, window, reshape(n, "to_1d", y, scope.shape(n.outputs[0]), n.outputs[0], scope)))


def pad_into_conv(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Fold a Pad by zeros over the spatial axes into the Conv's own padding."""
    pad = scope.only_user(n.inputs[0], ("Pad",))
    if pad is None or pad.op.attributes["mode"] != "constant" or len(pad.inputs) != 3 or "auto_pad" in n.op.attributes:
        return None
    pads, value = (scope.constants.get(name) for name in pad.inputs[1:])
    if pads is None or value is None or value.any() or pads.min() < 0:
        return None
    rank = len(scope.shape(n.inputs[0]))
    begin, end = pads[:rank].tolist(), pads[rank:].tolist()
    if len(begin) != rank or any(begin[:2] + end[:2]):
        return None
    conv_pads = n.op.attributes["pads"]
    total = tuple(a + b for a, b in zip(conv_pads, begin[2:] + end[2:]))
    op = OnnxOp("Conv", {**n.op.attributes, "pads": total})
    return Rewrite((replace(n, op=op, inputs=(pad.inputs[0], *n.inputs[1:]), sources=(*pad.sources, *n.sources)),))


def pad_into_max(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Fold a Pad by the lowest number into a MaxPool, as far as onnxruntime takes such padding.

    A MaxPool's own padding is that number.
    """
    pad, a = scope.producer(n.inputs[0], "Pad"), n.op.attributes
    if pad is None or pad.op.attributes["mode"] != "constant" or len(pad.inputs) != 3 or any(n.outputs[1:]) or a["ceil_mode"]:
        return None
    pads, value = (scope.constants.get(name) for name in pad.inputs[1:])
    if pads is None or value is None or value.size != 1 or value.dtype.kind != "f" or pads.min() < 0:
        return None
    rank = len(scope.shape(n.inputs[0]))
    begin, end = pads[:rank].tolist(), pads[rank:].tolist()
    if float(value.reshape(-1)[0]) > float(np.finfo(value.dtype).min) or any(begin[:2] + end[:2]):
        return None
    total = tuple(window_pad + more for window_pad, more in zip(a["pads"], begin[2:] + end[2:]))
    kernel = a["kernel_shape"]
    if any(p >= k for p, k in zip(total, (*kernel, *kernel))):
        return None
    op = OnnxOp("MaxPool", {**a, "pads": total})
    return Rewrite((replace(n, op=op, inputs=pad.inputs[:1], sources=(*pad.sources, *n.sources)),))


def batch_norm(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Rewrite BatchNormalization as a Mul and an Add, which fold into a Conv or Gemm before them.

    Raise NodeFault where its variance plus epsilon is not positive.
    """
    values = [scope.constants.get(name) for name in n.inputs[1:5]]
    if any(v is None for v in values):
        return None
    scale, bias, mean, var = (np.asarray(v, np.float64) for v in values)
    dtype = scope.types[n.inputs[0]].dtype
    if (var + n.op.attributes["epsilon"] <= 0).any():
        raise refuse_node(n, f'its variance "{n.inputs[4]}" is negative', "train or export the model again")
    factor = scale / np.sqrt(var + n.op.attributes["epsilon"])
    shape = (-1,) + (1,) * max(0, len(scope.shape(n.inputs[0])) - 2)
    mul = scope.constant(f"{n.name}/scale", factor.astype(dtype).reshape(shape))
    add = scope.constant(f"{n.name}/shift", (bias - mean * factor).astype(dtype).reshape(shape))
    scaled = scope.tensor(f"{n.outputs[0]}/scaled")
    return Rewrite(
        (
            node(f"{n.name}/scale", "Mul", (n.inputs[0], mul), scaled, n.sources),
            node(f"{n.name}/shift", "Add", (scaled, add), n.outputs[0], n.sources),
        )
    )


RULES: Mapping[str, Sequence[Rule]] = {
    "Conv": (conv, to_2d, pad_into_conv),
    "ConvTranspose": (conv_transpose, to_2d),
    "AveragePool": (pool, to_2d),
    "MaxPool": (pool, pad_into_max, to_2d),
    "GlobalAveragePool": (global_average,),
    "GlobalMaxPool": (global_max,),
    "BatchNormalization": (batch_norm,),
}
