"""Expand operators into which onnxruntime's optimizer has fused several, back into standard ONNX, during import.

`DECOMPOSITIONS` has the function of each operator of com.microsoft; it adds nodes to an `ExpansionBuilder`.
Each raises NodeFault for forms that it cannot expand. Source: onnxruntime docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from toolchain.frontend.errors import refuse_node
from toolchain.frontend.expand_attention import attention, group_query_attention, multi_head_attention, rotary_embedding
from toolchain.frontend.expansion_builder import Expansion, ExpansionBuilder

PLAIN = "export the model before onnxruntime optimizes it"
_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _number(w: ExpansionBuilder, suffix: str, value: Any) -> str:
    """Add a constant of the first input's type and return its name."""
    return w.constant(suffix, np.asarray(value, w.types[w.node.inputs[0]].dtype))


def _gelu(approximate: str) -> Expansion:
    """Return a rule that expands a Gelu of the input, with a bias where there is one."""

    def rule(w: ExpansionBuilder) -> None:
        x = w.node.inputs[0]
        x = w.add("Add", x, w.input(1), what="bias") if w.input(1) else x
        w.add("Gelu", x, output=0, approximate=approximate)

    return rule


def _quick_gelu(w: ExpansionBuilder) -> None:
    """Expand QuickGelu, x sigmoid(alpha x); with alpha = 1 it is a SiLU."""
    x, alpha = w.node.inputs[0], w.attribute("alpha", 1.702)
    gate = x if alpha == 1 else w.add("Mul", x, _number(w, "alpha", alpha), what="scaled")
    w.add("Mul", x, w.add("Sigmoid", gate, what="gate"), output=0)


def _skip_norm(w: ExpansionBuilder) -> None:
    """Expand SkipLayerNormalization, a norm of a sum. Inputs are input, skip, gamma, beta, bias; the sum is the fourth output."""
    _only(w, 3, "its mean or deviation is used")
    x = _add_inputs(w, 4)
    inputs = [x, w.node.inputs[2], *([w.input(3)] if w.input(3) else [])]
    w.add("LayerNormalization", *inputs, output=0, axis=-1, epsilon=w.attribute("epsilon", 1e-12))


def _skip_rms(w: ExpansionBuilder) -> None:
    """Expand SkipSimplifiedLayerNormalization. Inputs are input, skip, gamma, bias; the sum is the fourth output."""
    _only(w, 3, "its mean or deviation is used")
    _rms(w, _add_inputs(w, 3), w.node.inputs[2], w.attribute("epsilon", 1e-12))


def _expand_simplified_norm(w: ExpansionBuilder) -> None:
    """Expand SimplifiedLayerNormalization (inputs x, scale).

    The node is in the domain of ONNX, which has no operator of that name.
    """
    _only(w, 2, "its deviation is used")
    if w.attribute("axis", -1) % len(w.types[w.node.inputs[0]].shape) != len(w.types[w.node.inputs[0]].shape) - 1:
        raise refuse_node(w.node, "normalises more than the last dimension", PLAIN)
    _rms(w, w.node.inputs[0], w.node.inputs[1], w.attribute("epsilon", 1e-5))


def _add_inputs(w: ExpansionBuilder, bias: int) -> str:
    """Return the sum of the first two inputs, with the bias where there is one.

    `bias`: the number of the bias input.
    """
    x = w.add("Add", *w.node.inputs[:2], what="sum", output=None if w.input(bias) else 3)
    return w.add("Add", x, w.input(bias), what="bias", output=3) if w.input(bias) else x


def _only(w: ExpansionBuilder, first: int, fault: str) -> None:
    """Raise NodeFault where an output from the second up to number `first` is used."""
    if any(w.node.outputs[1:first]):
        raise refuse_node(w.node, fault, "export the model for inference (eval mode)")


def _rms(w: ExpansionBuilder, x: str, scale: str, epsilon: float) -> None:
    """Add x / sqrt(mean(x^2) + epsilon) * scale, over the last dimension, as the node's output."""
    mean = w.add("ReduceMean", w.add("Mul", x, x, what="square"), w.constant("axes", np.asarray([-1], np.int64)), what="mean")
    root = w.add("Sqrt", w.add("Add", mean, _number(w, "least", epsilon), what="epsilon"), what="root")
    w.add("Mul", w.add("Div", x, root, what="quotient"), scale, output=0)


def _product(w: ExpansionBuilder) -> None:
    """Expand FusedMatMul, alpha A' B', each transposed in its last two dimensions where an attribute says so."""
    if w.attribute("transBatchA", 0) or w.attribute("transBatchB", 0):
        raise refuse_node(
            w.node, "takes its matrices across batches (transBatchA, transBatchB)", "export it without optimization"
        )
    operands = list[str]()
    for index, key in enumerate(("transA", "transB")):
        name = w.node.inputs[index]
        rank = len(w.types[name].shape)
        if w.attribute(key, 0) and rank > 1:
            name = w.add("Transpose", name, what=key, perm=(*range(rank - 2), rank - 1, rank - 2))
        operands.append(name)
    alpha = w.attribute("alpha", 1.0)
    if alpha == 1:
        w.add("MatMul", *operands, output=0)
    else:
        product = w.add("MatMul", *operands)
        w.add("Mul", product, _number(w, "alpha", alpha), what="scale", output=0)


def _convolution(w: ExpansionBuilder) -> None:
    """Expand FusedConv. Its inputs are X, W, B and an addend; its activation comes last."""
    window_attributes = {k: v for k, v in w.node.op.attributes.items() if k in _WINDOW}
    inputs = [n for n in w.node.inputs[:3] if n]
    kind = w.attribute("activation", "")
    y = w.add("Conv", *inputs, output=None if kind or w.input(3) else 0, **window_attributes)
    if w.input(3):
        y = w.add("Add", y, w.input(3), what="sum", output=None if kind else 0)
    if kind:
        _activation(w, y, kind, w.attribute("activation_params", ()))


def _gemm(w: ExpansionBuilder) -> None:
    """Expand FusedGemm: a Gemm, then its activation."""
    gemm_attributes = {k: v for k, v in w.node.op.attributes.items() if k in ("alpha", "beta", "transA", "transB")}
    kind = w.attribute("activation", "")
    y = w.add("Gemm", *filter(None, w.node.inputs), output=None if kind else 0, **gemm_attributes)
    if kind:
        names = ("alpha", "beta", "gamma")
        _activation(
            w, y, kind, [w.attribute(f"activation_{n}", None) for n in names if f"activation_{n}" in w.node.op.attributes]
        )


def _activation(w: ExpansionBuilder, x: str, kind: str, numbers: Any) -> None:
    """Add the activation `kind` after `x` as the node's output.

    `numbers`: values of its attributes, in onnxruntime's order.
    """
    named = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Elu": ("alpha",)}
    inputs, attributes = [x], dict(zip(named.get(kind, ()), numbers))
    if kind == "Clip":
        inputs += [_number(w, name, value) for name, value in zip(("min", "max"), numbers)]
    elif kind not in ("Relu", "Tanh", "Sigmoid", *named):
        raise refuse_node(w.node, f"has the activation {kind}", PLAIN)
    w.add(kind, *inputs, what="activation", output=0, **attributes)


DECOMPOSITIONS: Mapping[str, Expansion] = {
    "Attention": attention,
    "BiasGelu": _gelu("none"),
    "FastGelu": _gelu("tanh"),
    "FusedConv": _convolution,
    "FusedGemm": _gemm,
    "FusedMatMul": _product,
    "Gelu": _gelu("none"),
    "GroupQueryAttention": group_query_attention,
    "MultiHeadAttention": multi_head_attention,
    "QuickGelu": _quick_gelu,
    "RotaryEmbedding": rotary_embedding,
    "SimplifiedLayerNormalization": _expand_simplified_norm,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms,
}
