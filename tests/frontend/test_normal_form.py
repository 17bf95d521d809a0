"""Check that each operator has one canonical form, with the result that onnxruntime gave before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx_text import model, save
from same_outputs import check_same

from toolchain.frontend import NormalModel
from toolchain.ir.graph import verify

IMAGE = "(float[2,4,9,7] x"
MAP = "(float[2,4,12] x"
MATRIX = "(float[3,5] x"
NO_WEIGHTS: Mapping[str, object] = {}


def ops(model: NormalModel) -> str:
    return " ".join(node.op.op_type for node in model.graph.nodes)


def normalise(tmp_path: Path, graph: str, opset: int = 21, weights: Mapping[str, object] = NO_WEIGHTS) -> NormalModel:
    loaded = check_same(save(model(graph, opset, weights), tmp_path))
    assert not verify(loaded.graph)
    return loaded


WINDOWS = [
    (f"{IMAGE}, float[6,4,3,3] w) => (float[n,m,a,b] y) {{ y = Conv<auto_pad = 'SAME_UPPER', strides = [2,2]>(x, w) }}", "Conv"),
    (f"{IMAGE}, float[6,4,2,4] w) => (float[n,m,a,b] y) {{ y = Conv<auto_pad = 'SAME_LOWER'>(x, w) }}", "Conv"),
    (f"{IMAGE}, float[6,4,3,3] w) => (float[n,m,a,b] y) {{ y = Conv<auto_pad = 'VALID', dilations = [2,1]>(x, w) }}", "Conv"),
    (
        f"{IMAGE}, float[4,2,3,3] w) => (float[n,m,a,b] y) {{ y = ConvTranspose<auto_pad='SAME_UPPER', strides=[2,2]>(x, w) }}",
        "ConvTranspose",
    ),
    (
        f"{IMAGE}, float[4,2,3,3] w) => (float[n,m,a,b] y) {{ y = ConvTranspose<output_shape=[18,14], strides=[2,2]>(x, w) }}",
        "ConvTranspose",
    ),
    (f"{MAP}, float[6,2,3] w) => (float[n,m,a] y) {{ y = Conv<group = 2, pads = [1,1]>(x, w) }}", "Reshape Conv Reshape"),
    (f"{MAP}, float[4,2,3] w) => (float[n,m,a] y) {{ y = ConvTranspose<strides = [2]>(x, w) }}", "Reshape ConvTranspose Reshape"),
    (
        f"{MAP}, float[4,4,3] w, float[4,1] w2, float[2,4,3] w3) => (float[n,m,a] y) "
        "{ a = Conv(x, w) b = Relu(a) s = Sigmoid(b) c = Mul(b, s) d = Add(c, w2) e = Conv(d, w3) "
        "y = MaxPool<kernel_shape = [2]>(e) }",
        "Reshape Conv Relu Sigmoid Mul Add Conv MaxPool Reshape",
    ),
    (
        f"{MAP}, float[4,4,3] w) => (float[n,m] y) {{ a = Conv(x, w) b = Conv(x, w) c = Tanh(b) d = Concat<axis=1>(a, c) "
        "e = GlobalAveragePool(d) y = Flatten(e) }",
        "Reshape Conv Tanh Concat ReduceMean Reshape",
    ),
    (
        f"{MAP}, float[4,4,3] w, float[4,4,3] w2) => (float[n,m,a] y) "
        "{ a = Conv(x, w) b = Conv(x, w2) c = Concat<axis=-1>(a, b) y = Conv(c, w) }",
        "Reshape Conv Conv Concat Conv Reshape",
    ),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ y = MaxPool<kernel_shape=[3,2], strides=[2,2], ceil_mode=1>(x) }}", "MaxPool"),
    # onnxruntime makes no window that begins in the end padding
    (
        f"{IMAGE}) => (float[n,m,a,b] y) {{ y = MaxPool<kernel_shape=[2,2], strides=[3,3], pads=[0,0,1,1], ceil_mode=1>(x) }}",
        "MaxPool",
    ),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ y = MaxPool<kernel_shape=[3,3], strides=[2,2], auto_pad='SAME_UPPER'>(x) }}", "MaxPool"),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ y = AveragePool<kernel_shape=[3,2], strides=[2,2], ceil_mode=1>(x) }}", "AveragePool"),
    (
        f"{IMAGE}) => (float[n,m,a,b] y) {{ y = AveragePool<kernel_shape=[3,2], pads=[1,1,1,1], count_include_pad=1>(x) }}",
        "AveragePool",
    ),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ y = AveragePool<kernel_shape=[9,7]>(x) }}", "ReduceMean"),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ y = GlobalAveragePool(x) }}", "ReduceMean"),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ y = GlobalMaxPool(x) }}", "MaxPool"),
    (
        f"{IMAGE}, float[2,4,3,3] w) => (float[n,m,a,b] y) {{ p = int64[8] {{0,0,1,2,0,0,0,1}} q = Pad(x, p) y = Conv(q, w) }}",
        "Conv",
    ),
    (
        f"{IMAGE}, float[6,4,3,3] w, float[6] w1, float[6] w2, float[6] w3, float[6] wv) => (float[n,m,a,b] y) "
        "{ a = Conv(x, w) b = BatchNormalization(a, w1, w2, w3, wv) y = Relu(b) }",
        "Conv Relu",
    ),
    (
        f"{IMAGE}, float[4] w1, float[4] w2, float[4] w3, float[4] wv) => (float[n,m,a,b] y) "
        "{ y = BatchNormalization(x, w1, w2, w3, wv) }",
        "Mul Add",
    ),
    (
        f"{IMAGE}, float[4,3,2,2] w, float[6,1,1] w1, float[1,6,1,1] w2) => (float[n,m,a,b] y) "
        "{ a = ConvTranspose<group = 2>(x, w) b = Mul(w1, a) y = Sub(b, w2) }",
        "ConvTranspose",
    ),
]

LINEAR = [
    (f"{MATRIX}, float[5,4] w, float[4] w2) => (float[n,m] y) {{ a = MatMul(x, w) y = Add(w2, a) }}", "Gemm"),
    (f"{MATRIX}, float[5,4] w, float[1,4] w2) => (float[n,m] y) {{ y = Gemm<alpha=0.5, beta=2.0>(x, w, w2) }}", "Gemm"),
    (
        f"{MATRIX}, float[3,4] w, float[5,4] w2) => (float[n,m] y) {{ y = Gemm<transA=1, beta=2.0>(x, w, w2) }}",
        "Transpose Gemm Add",
    ),
    (
        f"{MATRIX}, float[4,5] z, float[3,4] c) => (float[n,m] y) {{ y = Gemm<transB=1, alpha=0.5>(x, z, c) }}",
        "Transpose MatMul Mul Add",
    ),
    (f"{MATRIX}, float[5,4] z) => (float[n,m] y) {{ y = Gemm(x, z) }}", "MatMul"),
    (f"{MATRIX}, float[5] w) => (float[n] y) {{ y = MatMul(x, w) }}", "Gemm Reshape"),
    (
        "(float[2,3,5] x, float[5,4] w, float[4] w2) => (float[a,b,c] y) { z = MatMul(x, w) y = Add(z, w2) }",
        "Reshape Gemm Reshape",
    ),
    (
        "(float[2,3,5] x, float[5,8] w, float[8] w2, float[8,4] w3, float[1] w4) => (float[a,b,c] y) "
        "{ a = MatMul(x, w) b = Add(a, w2) c = Relu(b) d = MatMul(c, w3) y = Div(d, w4) }",
        "Reshape Gemm Relu Gemm Reshape",
    ),
    ("(float[2,3,5] x, float[2,5,4] w) => (float[a,b,c] y) { y = MatMul(x, w) }", "MatMul"),
    ("(float[5,4] x, float[3,5] w) => (float[a,b] y) { y = MatMul(w, x) }", "MatMul"),
]

MOMENTS = (
    "k = int64[1] {{{axis}}} o = float {{2}} e = float {{0.00001}} m = ReduceMean(x, k) d = Sub(x, m) p = Pow(d, o) "
    "v = ReduceMean(p, k) s = Add(v, e) r = Sqrt(s) "
)
NORMS = [
    (
        "(float[2,5,8] x, float[8] w, float[8] w2) => (float[a,b,c] y) { "
        + MOMENTS.format(axis=-1)
        + "q = Div(d, r) g = Mul(q, w) y = Add(g, w2) }",
        "LayerNormalization",
    ),
    (
        "(float[2,5,8] x, float[8] w) => (float[a,b,c] y) { "
        + MOMENTS.format(axis=2)
        + "i = Reciprocal(r) q = Mul(i, d) y = Mul(q, w) }",
        "LayerNormalization",
    ),
    (
        "(float[2,4,5,7] x, float[4,1,1] w) => (float[a,b,c,f] y) { " + MOMENTS.format(axis=1) + "q = Div(d, r) y = Mul(q, w) }",
        "Transpose LayerNormalization Transpose",
    ),
    (
        "(float[2,5,8] x) => (float[a,b,c] y) { " + MOMENTS.format(axis=1) + "y = Div(d, r) }",
        "Transpose LayerNormalization Transpose",
    ),
    (
        "(float[20,16] z, float[8,1] w, float[8,1] w2) => (float[a,b,c] y) { "
        "t = Constant<value_ints=[1,8,40]>() a = Constant<value_ints=[1]>() e = Constant<value_float=1e-5>() u = Relu(z)"
        " x = Reshape(u, t) m = ReduceMean(x, a) o = Mul(x, x) p = ReduceMean(o, a) k = Mul(m, m) v = Sub(p, k)"
        " h = Add(v, e) r = Sqrt(h) i = Reciprocal(r) j = Mul(i, w) d = Sub(x, m) q = Mul(d, j) y = Add(q, w2) }",
        "Relu Reshape Transpose LayerNormalization Transpose",
    ),
    (
        "(float[2,4,5,7] x) => (float[a,b,c,f] y) { " + MOMENTS.format(axis=2) + "y = Div(d, r) }",
        "Transpose LayerNormalization Transpose",
    ),
]

# As JAX and TensorFlow write it: mean(x^2) - mean(x)^2, one over the root, scale and bias in any order.
SQUARES = (
    "k = int64[1] {2} e = float {0.001} zero = float {0} one = float {1} half = float {-0.5} minus = float {-1} "
    "m = ReduceMean(x, k) q = Mul(x, x) n = ReduceMean(q, k) mm = Mul(m, m) v = Sub(n, mm) s = Add(v, e) "
)
ROOTS = {
    "Reciprocal(Sqrt)": "r = Sqrt(s) i = Reciprocal(r)",
    "Sqrt(Reciprocal)": "r = Reciprocal(s) i = Sqrt(r)",
    "Pow": "i = Pow(s, half)",
    "1 / Sqrt": "r = Sqrt(s) i = Div(one, r)",
}
ENDS = {
    "plain": "d = Sub(x, m) y = Mul(d, i)",
    "JAX": "d = Sub(x, m) g = Mul(i, w) z = Mul(d, g) y = Add(z, w2)",
    "scale of the difference": "d = Sub(x, m) g = Mul(w, d) z = Mul(i, g) y = Add(w2, z)",
    "scale last": "d = Sub(x, m) z = Mul(i, d) g = Mul(z, w) y = Add(w2, g)",
    "TensorFlow": "g = Mul(i, w) a = Mul(x, g) b = Mul(m, g) c = Sub(w2, b) y = Add(a, c)",
    "TensorFlow, bias last": "g = Mul(i, w) a = Mul(g, x) b = Mul(m, g) c = Sub(a, b) y = Add(c, w2)",
    "without a scale": "a = Mul(x, i) b = Mul(m, i) c = Sub(w2, b) y = Add(a, c)",
    "Neg": "g = Mul(i, w) a = Mul(x, g) n2 = Neg(m) b = Neg(m) d = Add(x, n2) z = Mul(d, g) y = Add(z, w2)",
}
WRITTEN_OUT = [
    (f"(float[2,5,8] x, float[8] w, float[8] w2) => (float[a,b,c] y) {{ {SQUARES}{root} {end} }}", "LayerNormalization")
    for root, end in [(r, ENDS["TensorFlow"]) for r in ROOTS.values()] + [(ROOTS["Reciprocal(Sqrt)"], e) for e in ENDS.values()]
] + [
    (  # kept from below zero, moments without their dimension, sums over the count
        "(float[2,5,8] x, float[8] w, float[8] w2) => (float[a,b,c] y) { k = int64[1] {2} e = float {0.001} zero = float {0} "
        "count = float {0.125} k1 = int64[3] {2,5,1} s1 = ReduceSum<keepdims=0>(x, k) m = Mul(s1, count) q = Mul(x, x) "
        "s2 = ReduceSum<keepdims=0>(q, k) n = Mul(s2, count) mm = Mul(m, m) v = Sub(n, mm) v0 = Max(v, zero) s = Add(v0, e) "
        "r = Sqrt(s) i = Reciprocal(r) m1 = Reshape(m, k1) i1 = Reshape(i, k1) d = Sub(x, m1) g = Mul(i1, w) z = Mul(d, g) "
        "y = Add(z, w2) }",
        "LayerNormalization",
    ),
    (  # over rows and columns
        "(float[2,3,4,6] x) => (float[a,b,c,f] y) { k = int64[2] {2,3} e = float {0.001} m = ReduceMean(x, k) q = Mul(x, x) "
        "n = ReduceMean(q, k) mm = Mul(m, m) v = Sub(n, mm) s = Add(v, e) r = Sqrt(s) d = Sub(x, m) y = Div(d, r) }",
        "LayerNormalization",
    ),
    (  # the mean of other axes is no part of it
        "(float[2,5,5] x) => (float[a,b,c] y) { k = int64[1] {2} j = int64[1] {1} e = float {0.001} m = ReduceMean(x, j) "
        "q = Mul(x, x) n = ReduceMean(q, k) mm = Mul(m, m) v = Sub(n, mm) a = Abs(v) s = Add(a, e) r = Sqrt(s) d = Sub(x, m) "
        "y = Div(d, r) }",
        "ReduceMean Mul ReduceMean Mul Sub Abs Add Sqrt Sub Div",
    ),
    (  # a mean laid along another axis of the same size
        "(float[4,4] x) => (float[a,b] y) { k = int64[1] {1} e = float {0.001} t = int64[2] {1,4} m = ReduceMean(x, k) "
        "q = Mul(x, x) n = ReduceMean(q, k) mm = Mul(m, m) v = Sub(n, mm) s = Add(v, e) r = Sqrt(s) m1 = Reshape(m, t) "
        "d = Sub(x, m1) y = Div(d, r) }",
        "ReduceMean Mul ReduceMean Mul Sub Add Sqrt Reshape Sub Div",
    ),
]

# A root-mean-square norm: as it stands, or scaled, by each root; a mean square of something else is none.
MEAN_SQUARE = (
    "k = int64[1] {{{axis}}} e = float {{0.001}} one = float {{1}} two = float {{2}} half = float {{-0.5}} "
    "q = {square} n = ReduceMean(q, k) s = Add(n, e) "
)
RMS = [
    (f"(float[2,5,8] x, float[8] w) => (float[a,b,c] y) {{ {MEAN_SQUARE.format(axis=2, square=square)}{root} {end} }}", expected)
    for square, root, end, expected in [
        *(("Mul(x, x)", root, "z = Mul(x, i) y = Mul(z, w)", "RMSNormalization") for root in ROOTS.values()),
        ("Pow(x, two)", "r = Sqrt(s)", "z = Div(x, r) y = Mul(w, z)", "RMSNormalization"),
        ("Mul(x, x)", "r = Sqrt(s)", "y = Div(x, r)", "RMSNormalization"),
        ("Mul(x, x)", ROOTS["Pow"], "g = Mul(x, w) y = Mul(g, i)", "RMSNormalization"),
        ("Mul(x, x)", ROOTS["Pow"], "g = Mul(i, w) y = Mul(g, x)", "RMSNormalization"),
        ("Mul(x, x)", "r = Sqrt(s)", "z = Div(x, r) g = Mul(z, w) y = Add(g, w)", "RMSNormalization Add"),
        ("Mul(x, x)", "r = Sqrt(s)", "a = Abs(x) z = Div(a, r) y = Mul(z, w)", "Mul ReduceMean Add Sqrt Abs Div Mul"),
    ]
] + [
    (
        "(float[2,4,5,7] x) => (float[a,b,c,f] y) { "
        + MEAN_SQUARE.format(axis=1, square="Mul(x, x)")
        + "r = Sqrt(s) y = Div(x, r) }",
        "Transpose RMSNormalization Transpose",
    ),
    (
        "(float[2,5,8] x) => (float[a,b,c] y) { "
        + MEAN_SQUARE.format(axis=1, square="Mul(x, x)")
        + "r = Sqrt(s) y = Div(x, r) }",
        "Transpose RMSNormalization Transpose",
    ),
]

EXPONENTIALS = "k = int64[1] {{{axis}}} m = ReduceMax(x, k) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, k) "
SOFTMAXES = [
    ("(float[2,5,8] x) => (float[a,b,c] y) { " + EXPONENTIALS.format(axis=-1) + "y = Div(e, s) }", "Softmax"),
    (
        "(float[2,5,8] x) => (float[a,b,c] y) { " + EXPONENTIALS.format(axis=1) + "l = Log(s) y = Sub(d, l) }",
        "Transpose LogSoftmax Transpose",
    ),
    ("(float[2,5] x) => (float[a,b] y) { k = int64[1] {1} e = Exp(x) s = ReduceSum(e, k) y = Div(e, s) }", "Softmax"),
    (
        "(float[2,5] x) => (float[a,b] y) { k = int64[1] {1} j = int64[1] {0} m = ReduceMax(x, j) d = Sub(x, m) e = Exp(d) "
        "s = ReduceSum(e, k) y = Div(e, s) }",
        "ReduceMax Sub Softmax",
    ),
    (
        "(float[2,5] x) => (float[a,b] y) { k = int64[1] {1} e = Exp(x) s = ReduceMean(e, k) y = Div(e, s) }",
        "Exp ReduceMean Div",
    ),
    (
        "(float[2,5] x) => (float[a,b] y) { k = int64[2] {0,1} e = Exp(x) s = ReduceSum(e, k) y = Div(e, s) }",
        "Exp ReduceMean Mul Div",
    ),
]
SHARED = "float[6,4,1,1] w, float w2) => (float[n,m,a,b] y"  # what two read is not taken in by one of them
SHAPING = [
    (f"{IMAGE}, {SHARED}) {{ a = Conv(x, w) c = Mul(a, w2) d = Relu(a) y = Sub(c, d) }}", "Conv Mul Relu Sub"),
    (f"{IMAGE}, {SHARED}) {{ a = Conv(x, w) b = Identity(a) c = Mul(b, w2) d = Relu(b) y = Sub(c, d) }}", "Conv Mul Relu Sub"),
    (f"{IMAGE}, {SHARED}, float[n,m,a,b] z) {{ z = Conv(x, w) y = Mul(z, w2) }}", "Conv Mul"),
    (
        f"{IMAGE}) => (float[n,a,b,m] y) {{ s = float[4] {{1,1,2,3}} "
        "y = Resize<mode='nearest', coordinate_transformation_mode='asymmetric', nearest_mode='ceil'>(x, , s) }",
        "MatMul Reshape Gemm Reshape",
    ),
    (f"{IMAGE}) => (float[n,m] y) {{ y = Flatten(x) }}", "Reshape"),
    (f"{IMAGE}) => (float[2,4,63] y) {{ s = int64[3] {{0,0,-1}} y = Reshape(x, s) }}", "Reshape"),
    (
        f"{IMAGE}) => (float[n,m] y) {{ a = Flatten<axis=2>(x) s = int64[2] {{4,126}} b = Reshape(a, s) y = Relu(b) }}",
        "Relu Reshape",
    ),
    (
        f"{IMAGE}) => (float[n,a,b,m] y) {{ a = Transpose<perm=[0,2,3,1]>(x) b = Identity(a) y = Transpose<perm=[0,3,1,2]>(b) }}",
        "Identity",
    ),
    ("(float[1,4,1,3] x) => (float[n,a,b,m] y) { y = Transpose<perm=[2,1,3,0]>(x) }", "Reshape"),
    (f"{IMAGE}) => (float[n,a,b,m] y) {{ a = Transpose(x) y = Transpose<perm=[0,3,2,1]>(a) }}", "Transpose"),
    (f"{IMAGE}) => (float[n,a,b,m] y) {{ a, b = Split<axis=1, num_outputs=2>(x) y = Mul(a, b) }}", "Slice Slice Mul"),
    (f"{IMAGE}) => (float[n,a,b,m] y) {{ s = int64[2] {{1,3}} a, b = Split<axis=1>(x, s) y = Sigmoid(b) }}", "Slice Sigmoid"),
    (f"{IMAGE}) => (float[n,a,b,m] y) {{ a = Concat<axis=-1>(x) d, e = Dropout(a) y = Cast<to=1>(d) }}", "Identity"),
    (f"{IMAGE}) => (float[n,a,b,m] y) {{ i = int64 {{-1}} y = Gather<axis=1>(x, i) }}", "Slice Reshape"),
    (f"{IMAGE}) => (float[n,a,b,m] y) {{ i = int64[3] {{3,1,2}} y = Gather<axis=1>(x, i) }}", "Slice Slice Concat"),
    (
        f"{IMAGE}) => (float[n,a,b,m] y) {{ s = int64[2] {{-1,0}} e = int64[2] {{-100,100}} a = int64[2] {{-1,0}} "
        "d = int64[2] {-2,1} y = Slice(x, s, e, a, d) }",
        "Slice Slice Slice Slice Concat",
    ),
    (f"{IMAGE}) => (float[n,a,b,m] y) {{ p = int64[8] {{0,0,0,0,0,0,0,0}} a = Pad(x, p) y = Relu(a) }}", "Relu"),
    (
        f"{IMAGE}) => (float[n,m,a,b] y) {{ p = int64[8] {{0,0,1,0,0,0,1,2}} v = float {{-inf}} q = Pad(x, p, v) "
        "y = MaxPool<kernel_shape = [3,3]>(q) }",
        "MaxPool",
    ),
    (f"{IMAGE}, float[1,1,1,1,1] w) => (float[n,m,a,b,c] y) {{ a = Relu(x) y = Mul(w, a) }}", "Relu Mul Reshape"),
    (f"{IMAGE}, float[2,1,1,1,1] w) => (float[n,m,a,b,c] y) {{ a = Relu(x) y = Sub(w, a) }}", "Relu Reshape Sub"),
    (
        f"{IMAGE}) => (float[n,a,b,m] y) {{ p = int64[2] {{1,2}} v = float {{3.0}} i = int64[1] {{-1}} y = Pad(x, p, v, i) }}",
        "Pad",
    ),
    (f"{IMAGE}) => (float[n,a,b,m] y) {{ s = Shape(x) t = ConstantOfShape(s) y = Add(x, t) }}", "Identity"),
    (f"{IMAGE}) => (float[n,a,b,m] y, float[n,a,b,m] z) {{ a = Relu(x) y = Identity(a) z = Identity(a) }}", "Relu Identity"),
    (f"{IMAGE}) => (float[2] y, float[n,a,b,m] z) {{ y = Constant<value_floats=[1.0,2.0]>() z = Relu(x) }}", "Relu Identity"),
    (f"{IMAGE}) => (float[n,a,b,m] y) {{ a = Relu(x) b = Relu(x) d = Sin(x) y = Mul(a, b) }}", "Relu Mul"),
    (
        f"{IMAGE}) => (float[n,a,b,m] y) {{ s = float[4] {{1,1,2,3}} "
        "y = Resize<mode='nearest', coordinate_transformation_mode='half_pixel', nearest_mode='round_prefer_floor'>(x, , s) }",
        "Resize",
    ),
    (f"{IMAGE}) => (float[n,a,b,m] y) {{ s = int64[4] {{2,4,18,14}} y = Resize<mode='linear'>(x, , , s) }}", "Resize"),
    (f"{IMAGE}) => (float[n,a,b,m] y) {{ s = int64[4] {{2,4,9,7}} a = Resize<mode='linear'>(x, , , s) y = Relu(a) }}", "Relu"),
]

ARITHMETIC = [
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ c = float {{2}} d = float {{-1}} a = Min(x, c) y = Max(a, d) }}", "Clip"),
    (f"{IMAGE}, float[1,4,1,1] w) => (float[n,m,a,b] y) {{ y = Div(x, w) }}", "Mul"),
    (f"{IMAGE}, float w) => (float[n,m,a,b] y) {{ a = Sub(x, w) y = Add(w, a) }}", "Identity"),
    (f"{IMAGE}, float w) => (float[n,m,a,b] y) {{ y = Sub(w, x) }}", "Sub"),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ c = float {{2.0}} y = Pow(x, c) }}", "Mul"),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ b = Abs(x) c = float {{0.5}} y = Pow(b, c) }}", "Abs Sqrt"),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ c = float {{1.0}} z = float {{0.0}} a = Mul(x, c) b = Add(z, a) y = Relu(b) }}", "Relu"),
    (f"{IMAGE}, float[2,4,1,1] z) => (float[n,m,a,b] y) {{ y = Sum(x, z, x) }}", "Add Add"),
    (f"{IMAGE}, float[2,4,1,1] z) => (float[n,m,a,b] y) {{ y = Mean(x, z) }}", "Add Mul"),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ c = float {{0.5}} y = Min(c, x) }}", "Clip"),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ c = float {{0}} d = float {{6}} a = Max(x, c) y = Min(a, d) }}", "Clip"),
    (f"{IMAGE}, float[7] z) => (float[n,m,a,b] y) {{ y = Max(x, z, z) }}", "Max Max"),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ c = float {{0.0}} y = Clip(x, c) }}", "Relu"),
    (
        f"{IMAGE}) => (float[n,m,a,b] y) {{ c = float {{0.5}} d = float {{-1}} a = Relu(x) b = Clip(a, d, c) y = Relu(b) }}",
        "Clip",
    ),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ a = Clip(x) y = Tanh(a) }}", "Tanh"),
    (f"{IMAGE}, float[1,4,1,1] w) => (float[n,m,a,b] y) {{ y = PRelu(x, w) }}", "PRelu"),
    (f"{IMAGE}, float[1] w) => (float[n,m,a,b] y) {{ y = PRelu(x, w) }}", "LeakyRelu"),
    (f"{IMAGE}) => (float[n,m] y) {{ i = int64[2] {{-1,2}} y = ReduceMean<keepdims=0>(x, i) }}", "ReduceMean Reshape"),
    (f"{IMAGE}) => (float y) {{ y = ReduceSum<keepdims=0>(x) }}", "ReduceMean Mul Reshape"),
    ("(float x) => (float y) { y = ReduceSum(x) }", "ReduceSum"),
    (f"{IMAGE}) => (float[n,m,a,b] y) {{ i = int64[1] {{-3}} y = ReduceMax(x, i) }}", "ReduceMax"),
    (
        f"{IMAGE}) => (float[n,m,a,b] y) {{ c = float {{3}} z = float {{0}} d = float {{6}} "
        "a = Add(x, c) b = Clip(a, z, d) e = Mul(x, b) y = Div(e, d) }",
        "HardSwish",
    ),
    (
        f"{IMAGE}) => (float[n,m,a,b] y) {{ c = float {{3}} z = float {{0}} d = float {{6}} "
        "a = Add(x, c) b = Clip(a, z, d) e = Div(b, d) y = Mul(e, x) }",
        "HardSwish",
    ),
    (
        f"{IMAGE}) => (float[n,m,a,b] y) {{ c = float {{2}} z = float {{0}} d = float {{4}} "
        "a = Add(c, x) b = Clip(a, z, d) y = Div(b, d) }",
        "HardSigmoid",
    ),
    (
        f"{IMAGE}) => (float[n,m,a,b] y) {{ r = float {{1.41421356}} o = float {{1}} h = float {{0.5}} "
        "a = Div(x, r) b = Erf(a) c = Add(b, o) d = Mul(x, c) y = Mul(d, h) }",
        "Gelu",
    ),
    (
        f"{IMAGE}) => (float[n,m,a,b] y) {{ r = float {{0.70710678}} o = float {{1}} h = float {{0.5}} "
        "e = Mul(h, x) a = Mul(x, r) b = Erf(a) c = Add(b, o) y = Mul(e, c) }",
        "Gelu",
    ),
]

CHOICES = [
    (f"{MATRIX}, float[3,5] z) => (bool[a,b] y) {{ a = Less(x, z) b = Not(a) y = Not(b) }}", "Less"),
    (f"{MATRIX}, float[3,5] z) => (float[a,b] y) {{ a = Less(x, z) b = Not(a) y = Where(b, x, z) }}", "Less Where"),
    (f"{MATRIX}, float[3,5] z) => (float[a,b] y) {{ a = Less(x, z) b = Cast<to = 7>(a) y = Cast<to = 1>(b) }}", "Less Cast"),
    (f"{MATRIX}, float[3,5] z) => (bool[a,b] y) {{ a = Less(x, z) b = Cast<to = 1>(a) y = Cast<to = 9>(b) }}", "Less"),
    (f"{MATRIX}) => (float[a,b] y) {{ a = Cast<to = 7>(x) y = Cast<to = 1>(a) }}", "Cast Cast"),
    (f"{MATRIX}, float z, float h) => (float[a,b] y) {{ y = Clip(x, z, h) }}", "Max Min"),
    (
        "(int64[3,5] x) => (int64[a,b] y) { c = int64 {3} z = int64 {0} d = int64 {6} "
        "a = Add(x, c) b = Clip(a, z, d) y = Mul(x, b) }",
        "Add Clip Mul",
    ),
    (f"{MATRIX}, float z) => (float[a,b] y) {{ h = float {{0.2}} y = Clip(x, z, h) }}", "Max Clip"),
    (f"{MATRIX}, float h) => (float[a,b] y) {{ n = float {{-0.3}} y = Clip(x, n, h) }}", "Clip Min"),
]

NARROWER = "Reshape Gemm Reshape MatMul"
OLDER = [
    (19, "(float[2,5] x, double[3] w) => (double[a,b] y) { a = CastLike(x, w) y = Exp(a) }", "Exp Cast"),
    (19, "(float[2,5] x, float[3] w) => (float[a,b] y) { a = CastLike(x, w) y = Exp(a) }", "Exp"),
    (9, f"{IMAGE}) => (float[n,m,a,b] y) {{ y = Clip<min = -0.5, max = 0.5>(x) }}", "Clip"),
    (9, f"{IMAGE}) => (float[n,m,a,b] y) {{ y = Clip<min = 0.0>(x) }}", "Relu"),
    (9, f"{IMAGE}) => (float[n,m,a,b] y) {{ y = Slice<axes = [1,3], starts = [1,-3], ends = [3,1000]>(x) }}", "Slice"),
    (9, f"{IMAGE}) => (float[n,m,a,b] y) {{ y = Pad<pads = [0,0,1,2,0,0,3,0], value = 1.5>(x) }}", "Pad"),
    (9, f"{IMAGE}) => (float[n,m,a,b] y) {{ s = float[4] {{1,1,2,2}} y = Upsample<mode = 'nearest'>(x, s) }}", "Resize"),
    (9, f"{IMAGE}) => (float[n,m,a,b] y) {{ s = float[4] {{1,1,2,2}} y = Upsample<mode = 'linear'>(x, s) }}", "Resize"),
    (10, f"{IMAGE}) => (float[n,m,a,b] y) {{ s = float[4] {{1,1,3,1.5}} y = Resize<mode = 'nearest'>(x, s) }}", NARROWER),
    (9, f"{IMAGE}) => (float[n,m,a,b] y) {{ a, b = TopK<k = 3, axis = 1>(x) y = Relu(a) }}", "TopK Relu"),
    (11, f"{IMAGE}) => (float[n,m,a,b] y) {{ y = Softmax(x) }}", "Reshape Softmax Reshape"),
    (11, f"{IMAGE}) => (float[n,m,a,b] y) {{ y = Softmax<axis = 3>(x) }}", "Softmax"),
    (
        11,
        f"{IMAGE}) => (float[n,m] y) {{ a = GlobalAveragePool(x) b = Squeeze<axes = [2,3]>(a) y = LogSoftmax(b) }}",
        "ReduceMean Reshape LogSoftmax",
    ),
    (11, f"{IMAGE}) => (float[n,m,a,b,c] y) {{ y = Unsqueeze<axes = [0]>(x) }}", "Reshape"),
    (11, f"{IMAGE}) => (float[n,m,a,b] y) {{ a, b = Split<axis = 1, split = [1,3]>(x) y = Add(b, a) }}", "Slice Slice Add"),
    (11, f"{IMAGE}) => (float[n,m] y) {{ y = ReduceMean<axes = [2,3], keepdims = 0>(x) }}", "ReduceMean Reshape"),
    (11, f"{IMAGE}) => (float[n,m,a,b] y) {{ y = ReduceSum<axes = [-1]>(x) }}", "ReduceMean Mul"),
    (11, f"{IMAGE}) => (float[n,m,a,b] y) {{ a = Dropout<ratio = 0.3>(x) y = Relu(a) }}", "Relu"),
    (
        11,
        f"{IMAGE}) => (float[n,m,a,b] y) {{ r = float[0] {{}} s = float[4] {{1,1,2,2}} "
        "y = Resize<mode = 'nearest', nearest_mode = 'floor', coordinate_transformation_mode = 'asymmetric'>(x, r, s) }",
        "Resize",
    ),
    (
        11,
        f"{IMAGE}) => (float[n,m,a,b] y) {{ r = float[0] {{}} s = int64[4] {{2,4,18,21}} "
        "y = Resize<mode = 'linear', coordinate_transformation_mode = 'pytorch_half_pixel'>(x, r, r, s) }",
        "Resize",
    ),
    (
        9,
        f"{IMAGE}, float[4] w1, float[4] w2, float[4] w3, float[4] wv) => (float[n,m,a,b] y) "
        "{ y = BatchNormalization(x, w1, w2, w3, wv) }",
        "Mul Add",
    ),
    (
        11,
        f"{IMAGE}) => (float[n,m,a,b] y) {{ y = AveragePool<kernel_shape=[3,2], strides=[2,2], ceil_mode=1>(x) }}",
        "AveragePool",
    ),
]

CASES = [
    (21, g, o) for g, o in (*WINDOWS, *LINEAR, *NORMS, *WRITTEN_OUT, *RMS, *SOFTMAXES, *SHAPING, *ARITHMETIC, *CHOICES)
] + OLDER


@pytest.mark.parametrize(("opset", "graph", "expected"), CASES)
def test_spelling(tmp_path: Path, opset: int, graph: str, expected: str) -> None:
    variance = {"wv": np.linspace(0.5, 2, 6)[: 6 if "float[6] wv" in graph else 4]}
    loaded = normalise(tmp_path, graph, opset, variance)
    assert ops(loaded) == expected


@pytest.mark.parametrize(("rows", "expected"), [(1, "RMSNormalization"), (3, "Mul ReduceMean Add Sqrt Expand Div")])
def test_a_norm_whose_root_is_expanded_is_one_where_its_result_has_the_shape_of_its_input(
    rows: int, expected: str, tmp_path: Path
) -> None:
    graph = (
        f"(float[1,8] x) => (float[n,m] y) {{ a = int64[1] {{-1}} e = float {{0.001}} s = int64[2] {{{rows},8}} q = Mul(x, x) "
        "v = ReduceMean<keepdims = 1>(q, a) w = Add(v, e) r = Sqrt(w) z = Expand(r, s) y = Div(x, z) }"
    )
    assert ops(normalise(tmp_path, graph)) == expected
