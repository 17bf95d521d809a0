"""Operators that the normal form has not, spelled as those that it has."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from toolchain.frontend.node_chain import Decomposition, NodeChain

MOST_CHANNELS = 1024  # of which the windows of an LRN are a matrix
TINY = float(np.finfo(np.float32).tiny)  # a variance of zero divides by its root


def transpose_to_last(chain: NodeChain) -> None:
    """Over another dimension than the last, of those that are not one: between two Transposes."""
    n, scope = chain.node, chain.scope
    axis, shape = n.op.attributes["axis"], scope.shape(n.inputs[0])
    if not shape or axis == len(shape) - 1 or not scope.is_float(n.inputs[0]):
        return
    perm = [*range(axis), *range(axis + 1, len(shape)), axis]
    last = chain.add("Transpose", n.inputs[0], perm=tuple(perm))
    result = chain.add(n.op.op_type, last, takes_node_name=True, axis=len(shape) - 1)
    chain.add("Transpose", result, perm=tuple(int(i) for i in np.argsort(perm)))


def hardmax(chain: NodeChain) -> None:
    """One at the first place of the largest."""
    n, scope = chain.node, chain.scope
    axis, shape = n.op.attributes["axis"], scope.shape(n.inputs[0])
    if not shape or not scope.is_float(n.inputs[0]):
        return
    place = chain.add("ArgMax", n.inputs[0], axis=axis, keepdims=0)
    depth, values = np.asarray(shape[axis], np.int64), np.asarray([0, 1], scope.types[n.inputs[0]].dtype)
    chain.add("OneHot", place, depth, values, axis=axis)


def local_response(chain: NodeChain) -> None:
    """x (bias + alpha / size * the squares' sum over neighbouring channels)^-beta: the sum is a 1x1 convolution."""
    n, scope = chain.node, chain.scope
    a, shape, x = n.op.attributes, scope.shape(n.inputs[0]), n.inputs[0]
    if len(shape) != 4 or shape[1] > MOST_CHANNELS or not scope.is_float(x):
        return
    channel = np.arange(shape[1])
    distance = channel[None, :] - channel[:, None]
    within = (distance >= -((a["size"] - 1) // 2)) & (distance <= a["size"] // 2)
    weights = (within * (a["alpha"] / a["size"])).astype(scope.types[x].dtype).reshape(*within.shape, 1, 1)
    same = {"kernel_shape": (1, 1), "pads": (0, 0, 0, 0), "strides": (1, 1), "dilations": (1, 1)}
    total = chain.add("Conv", chain.add("Mul", x, x), weights, **same)
    chain.add("Mul", x, chain.add("Pow", chain.add("Add", total, a["bias"]), -a["beta"]))


def decompose_lp_normalization(chain: NodeChain) -> None:
    """LpNormalization: x over its norm, and zero where that is zero."""
    n, scope = chain.node, chain.scope
    x, a = n.inputs[0], n.op.attributes
    if not scope.shape(x) or not scope.is_float(x):
        return
    if a["p"] == 2:  # a norm of the mean square, which is found
        squares = chain.add("ReduceSum", chain.add("Mul", x, x), (a["axis"] % len(scope.shape(x)),))
        chain.add("Div", x, chain.add("Sqrt", chain.add("Add", squares, TINY)))
        return
    norm = chain.add(f"ReduceL{a['p']}", x, (a["axis"] % len(scope.shape(x)),))
    nothing = chain.add("Cast", chain.add("Equal", norm, 0.0), to=onnx.TensorProto.FLOAT)
    chain.add("Div", x, chain.add("Add", norm, nothing))


def mean_and_variance(chain: NodeChain) -> None:
    """MeanVarianceNormalization: a norm over its axes, between two Transposes where they are not the last."""
    n, scope = chain.node, chain.scope
    x, shape = n.inputs[0], scope.shape(n.inputs[0])
    axes = sorted(a % len(shape) for a in n.op.attributes["axes"])
    if not axes or not scope.is_float(x):
        return
    perm = [*(a for a in range(len(shape)) if a not in axes), *axes]
    last = chain.add("Transpose", x, perm=tuple(perm))
    ones = np.ones([shape[a] for a in axes], scope.types[x].dtype)
    normal = chain.add("LayerNormalization", last, ones, takes_node_name=True, axis=len(shape) - len(axes), epsilon=TINY)
    chain.add("Transpose", normal, perm=tuple(int(i) for i in np.argsort(perm)))


DECOMPOSITIONS: Mapping[str, Decomposition] = {
    "Hardmax": hardmax,
    "LRN": local_response,
    "LogSoftmax": transpose_to_last,
    "LpNormalization": decompose_lp_normalization,
    "MeanVarianceNormalization": mean_and_variance,
    "Softmax": transpose_to_last,
}
