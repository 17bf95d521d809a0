"""Operators that the normal form has not, spelled as those that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from toolchain.frontend.node_chain import NodeChain
from toolchain.frontend.rewrite import Rewrite, Rewriter, Rule
from toolchain.ir.graph import OnnxNode

MOST_CHANNELS = 1024  # of which the windows of an LRN are a matrix
TINY = float(np.finfo(np.float32).tiny)  # a variance of zero divides by its root


def transpose_to_last(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """Over another dimension than the last, of those that are not one: between two Transposes."""
    axis, shape = n.op.attributes["axis"], scope.shape(n.inputs[0])
    if not shape or axis == len(shape) - 1 or not scope.is_float(n.inputs[0]):
        return None
    chain, perm = NodeChain(n, scope), [*range(axis), *range(axis + 1, len(shape)), axis]
    last = chain.make("Transpose", n.inputs[0], perm=tuple(perm))
    result = chain.make(n.op.op_type, last, takes_node_name=True, axis=len(shape) - 1)
    chain.make("Transpose", result, perm=tuple(int(i) for i in np.argsort(perm)))
    return chain.done()


def hardmax(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """One at the first place of the largest."""
    axis, shape = n.op.attributes["axis"], scope.shape(n.inputs[0])
    if not shape or not scope.is_float(n.inputs[0]):
        return None
    chain = NodeChain(n, scope)
    place = chain.make("ArgMax", n.inputs[0], axis=axis, keepdims=0)
    depth, values = np.asarray(shape[axis], np.int64), np.asarray([0, 1], scope.types[n.inputs[0]].dtype)
    chain.make("OneHot", place, depth, values, axis=axis)
    return chain.done()


def local_response(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """x (bias + alpha / size * the squares' sum over neighbouring channels)^-beta: the sum is a 1x1 convolution."""
    a, shape, x = n.op.attributes, scope.shape(n.inputs[0]), n.inputs[0]
    if len(shape) != 4 or shape[1] > MOST_CHANNELS or not scope.is_float(x):
        return None
    channel = np.arange(shape[1])
    distance = channel[None, :] - channel[:, None]
    within = (distance >= -((a["size"] - 1) // 2)) & (distance <= a["size"] // 2)
    weights = (within * (a["alpha"] / a["size"])).astype(scope.types[x].dtype).reshape(*within.shape, 1, 1)
    chain = NodeChain(n, scope)
    same = {"kernel_shape": (1, 1), "pads": (0, 0, 0, 0), "strides": (1, 1), "dilations": (1, 1)}
    total = chain.make("Conv", chain.make("Mul", x, x), weights, **same)
    chain.make("Mul", x, chain.make("Pow", chain.make("Add", total, a["bias"]), -a["beta"]))
    return chain.done()


def decompose_lp_normalization(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """LpNormalization: x over its norm, and zero where that is zero."""
    x, a = n.inputs[0], n.op.attributes
    if not scope.shape(x) or not scope.is_float(x):
        return None
    chain = NodeChain(n, scope)
    if a["p"] == 2:  # a norm of the mean square, which is found
        squares = chain.make("ReduceSum", chain.make("Mul", x, x), (a["axis"] % len(scope.shape(x)),))
        chain.make("Div", x, chain.make("Sqrt", chain.make("Add", squares, TINY)))
        return chain.done()
    norm = chain.make(f"ReduceL{a['p']}", x, (a["axis"] % len(scope.shape(x)),))
    nothing = chain.make("Cast", chain.make("Equal", norm, 0.0), to=onnx.TensorProto.FLOAT)
    chain.make("Div", x, chain.make("Add", norm, nothing))
    return chain.done()


def mean_and_variance(n: OnnxNode, scope: Rewriter) -> Rewrite | None:
    """MeanVarianceNormalization: a norm over its axes, between two Transposes where they are not the last."""
    x, shape = n.inputs[0], scope.shape(n.inputs[0])
    axes = sorted(a % len(shape) for a in n.op.attributes["axes"])
    if not axes or not scope.is_float(x):
        return None
    chain, perm = NodeChain(n, scope), [*(a for a in range(len(shape)) if a not in axes), *axes]
    last = chain.make("Transpose", x, perm=tuple(perm))
    ones = np.ones([shape[a] for a in axes], scope.types[x].dtype)
    normal = chain.make("LayerNormalization", last, ones, takes_node_name=True, axis=len(shape) - len(axes), epsilon=TINY)
    chain.make("Transpose", normal, perm=tuple(int(i) for i in np.argsort(perm)))
    return chain.done()


RULES: Mapping[str, Sequence[Rule]] = {
    "Hardmax": (hardmax,),
    "LRN": (local_response,),
    "LogSoftmax": (transpose_to_last,),
    "LpNormalization": (decompose_lp_normalization,),
    "MeanVarianceNormalization": (mean_and_variance,),
    "Softmax": (transpose_to_last,),
}
