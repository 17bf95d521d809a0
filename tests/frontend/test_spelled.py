"""Operators that the normal form has not are others there, and mean in onnxruntime what they meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_text import model, save
from same_outputs import check_same

from toolchain.ir.graph import verify

CUBE = "(float[2,5,3] x) => (float[a,b,c] y)"
MAP = "(float[2,6,4,5] x) => (float[a,b,c,d] y)"
SUM = "ReduceMean Mul"
CASES = [
    (f"{CUBE} {{ i = int64[1] {{1}} y = ReduceMin(x, i) }}", "Neg ReduceMax Neg"),
    (f"{CUBE} {{ y = ReduceMin<keepdims = 0>(x) }}", "Neg ReduceMax Neg Reshape"),
    (f"{CUBE} {{ i = int64[1] {{1}} y = ReduceL1(x, i) }}", f"Abs {SUM}"),
    (f"{CUBE} {{ i = int64[1] {{1}} y = ReduceL2(x, i) }}", f"Mul {SUM} Sqrt"),
    (f"{CUBE} {{ i = int64[1] {{1}} y = ReduceSumSquare(x, i) }}", f"Mul {SUM}"),
    (f"{CUBE} {{ i = int64[1] {{1}} p = Exp(x) y = ReduceLogSum(p, i) }}", f"Exp {SUM} Log"),
    (f"{CUBE} {{ i = int64[1] {{1}} y = ReduceLogSumExp(x, i) }}", f"ReduceMax Sub Exp {SUM} Log Add"),
    (
        f"{CUBE} {{ i = int64[1] {{1}} y = ReduceProd(x, i) }}",
        "Slice Slice Mul Slice Concat Slice Slice Mul Slice Concat Slice Slice Mul",
    ),
    (f"{CUBE} {{ y = ReduceProd<keepdims = 0>(x) }}", "ReduceProd Reshape"),  # of more than 16 numbers
    (f"{CUBE} {{ i = int64[2] {{0,2}} y = ReduceMean(x, i) }}", "ReduceMean ReduceMean"),
    (f"{MAP} {{ i = int64[3] {{0,2,3}} y = ReduceMean(x, i) }}", "ReduceMean"),  # neighbours where channels are last
    (f"{MAP} {{ i = int64[2] {{0,3}} y = ReduceMax(x, i) }}", "ReduceMax ReduceMax"),
    (f"{MAP} {{ y = Softmax<axis = 1>(x) }}", "Transpose Softmax Transpose"),
    ("(float[2,6,1,1] x) => (float[a,b,c,d] y) { y = Softmax<axis = 1>(x) }", "Reshape Softmax Reshape"),
    (f"{CUBE} {{ y = LogSoftmax<axis = 0>(x) }}", "Transpose LogSoftmax Transpose"),
    (f"{CUBE} {{ y = Hardmax<axis = 1>(x) }}", "ArgMax OneHot"),
    (f"{MAP} {{ y = LRN<size = 3, alpha = 0.3>(x) }}", "Mul Conv Pow Mul"),
    (f"{CUBE} {{ y = LpNormalization<axis = 1>(x) }}", "Transpose RMSNormalization Transpose"),
    (f"{CUBE} {{ y = LpNormalization<axis = 0, p = 1>(x) }}", f"Abs {SUM} Equal Cast Add Div"),
    (f"{MAP} {{ y = MeanVarianceNormalization(x) }}", "Transpose LayerNormalization Transpose"),
    (f"{MAP} {{ y = MeanVarianceNormalization<axes = [2, 3]>(x) }}", "LayerNormalization"),
]


@pytest.mark.parametrize(("graph", "expected"), CASES)
def test_spelling(tmp_path: Path, graph: str, expected: str) -> None:
    loaded = check_same(save(model(graph, 21), tmp_path))
    assert not verify(loaded.graph)
    assert " ".join(node.op.op_type for node in loaded.graph.nodes) == expected


def test_a_norm_over_dimensions_that_are_no_neighbours_is_found(tmp_path: Path) -> None:
    """Check that the norm is matched before its means are decomposed."""
    graph = (
        "(float[3,5,4] x) => (float[a,b,c] y) { i = int64[2] {0,2} e = float {0.001} m = ReduceMean(x, i) d = Sub(x, m) "
        "q = Mul(d, d) v = ReduceMean(q, i) s = Add(v, e) r = Sqrt(s) y = Div(d, r) }"
    )
    loaded = check_same(save(model(graph, 21), tmp_path))
    assert [node.op.op_type for node in loaded.graph.nodes] == ["Transpose", "LayerNormalization", "Transpose"]


RESIZED = "(float[1,3,12,10] x) => (float[a,b,c,d] y) {{ s = {by} r = float[0] {{}} y = Resize<{how}>(x, r, {at}) }}"
MATRICES = [
    ("(float[1,2,60] x) => (float[a,b,c] y) { p = int64[6] {0,0,30,0,0,25} y = Pad<mode = 'reflect'>(x, p) }",
     "Slice Reshape Gemm Reshape Slice Reshape Gemm Reshape Concat"),
    ("(float[2,40,3] x) => (float[a,b,c] y) { p = int64[6] {0,30,0,0,0,0} y = Pad<mode = 'reflect'>(x, p) }",
     "Slice MatMul Concat"),
    ("(float[1,2,60] x) => (float[a,b,c] y) { p = int64[6] {0,0,30,0,0,0} y = Pad<mode = 'edge'>(x, p) }", "Slice Expand Concat"),
    ("(float[1,2,60] x) => (float[a,b,c] y) { p = int64[6] {0,0,30,0,0,25} y = Pad<mode = 'wrap'>(x, p) }", "Slice Slice Concat"),
    ("(float[1,2,6] x) => (float[a,b,c] y) { p = int64[6] {0,0,30,0,0,7} y = Pad<mode = 'edge'>(x, p) }",
     "Slice Expand Slice Expand Concat"),
    ("(float[1,2,6] x) => (float[a,b,c] y) { p = int64[6] {0,0,15,0,0,12} y = Pad<mode = 'wrap'>(x, p) }", "Slice Concat"),
    ("(float[60,2,3] x) => (float[a,b,c] y) { s = int64[1] {-3} e = int64[1] {-100} a = int64[1] {0} d = int64[1] {-2} "
     "y = Slice(x, s, e, a, d) }", "Transpose Reshape Gemm Reshape Transpose"),
    ("(float[1,40,2] x, int64[39] wi) => (float[a,b,c] y) { y = Gather<axis = 1>(x, wi) }", "MatMul"),
    (RESIZED.format(by="float[4] {1,1,1.5,0.5}", how="mode = 'linear'", at="s"), "Reshape Gemm Reshape MatMul"),
    (RESIZED.format(by="float[4] {1,1,1.5,0.7}", how="mode = 'linear'", at="s"), "Reshape Gemm Reshape MatMul"),
    (RESIZED.format(by="float[2] {1.5,0.7}", how="mode = 'linear', axes = [2,-1]", at="s"), "Resize"),
    (RESIZED.format(by="float[4] {1,1,1.05,2.5}", how="mode = 'linear'", at="s"), "MatMul Reshape Gemm Reshape"),
    (RESIZED.format(by="float[4] {1,1,1.05,0.5}", how="coordinate_transformation_mode = 'asymmetric', nearest_mode = 'floor'",
                    at="s"), "Reshape Gemm Reshape MatMul"),
    (RESIZED.format(by="float[4] {1,1.1,1.05,1}", how="mode = 'nearest'", at="s"),  # a copy
     "Transpose Reshape Gemm Reshape Transpose MatMul"),
    (RESIZED.format(by="float[4] {1,0.3,1,0.75}", how="mode = 'nearest'", at="s"), "Resize"),  # it has no elements
    (RESIZED.format(by="int64[4] {1,3,17,23}", how="mode = 'cubic'", at="r, s"), "MatMul Reshape Gemm Reshape"),
    (RESIZED.format(by="int64[4] {1,3,7,5}", how="mode = 'nearest'", at="r, s"), "Reshape Gemm Reshape MatMul"),
    (RESIZED.format(by="int64[4] {1,3,24,20}", how="mode = 'linear'", at="r, s"), "Resize"),  # the chip has it
    (RESIZED.format(by="int64[4] {1,3,5,5}", how="mode = 'linear', antialias = 1", at="r, s"), "MatMul Reshape Gemm Reshape"),
]  # fmt: skip


@pytest.mark.parametrize(("graph", "expected"), MATRICES)
def test_matrices(tmp_path: Path, graph: str, expected: str) -> None:
    order = {"wi": np.random.default_rng(2).permutation(40)[:39]}
    loaded = check_same(save(model(graph, 21, order if "wi)" in graph else {}), tmp_path))
    assert not verify(loaded.graph)
    assert " ".join(node.op.op_type for node in loaded.graph.nodes) == expected


DEVIATION = "m = ReduceMean(x, i) d = Sub(x, m) q = Mul(d, d) "
NORMS = {
    "by one less than the count": (
        DEVIATION + "v = ReduceSum(q, i) c = float {3} u = Div(v, c) s = Add(u, e) r = Sqrt(s) y = Div(d, r)",
        "Layer",
    ),
    "epsilon behind the root": (DEVIATION + "v = ReduceMean(q, i) r = Sqrt(v) s = Add(r, e) y = Div(d, s)", "Layer"),
    "by one less, epsilon behind": (
        DEVIATION + "v = ReduceMean(q, i) c = float {1.3333333} u = Mul(v, c) r = Sqrt(u) s = Add(r, e) y = Div(d, s)",
        "Layer",
    ),
    "without epsilon": (DEVIATION + "v = ReduceMean(q, i) r = Sqrt(v) y = Div(d, r)", "Layer"),
    "length at least epsilon": ("n = ReduceL2(x, i) s = Max(n, e) y = Div(x, s)", "RMS"),
    "length and epsilon": ("n = ReduceL2(x, i) s = Add(n, e) y = Div(x, s)", "RMS"),
    "length, expanded": ("z = int64[3] {2,5,4} n = ReduceL2(x, i) s = Clip(n, e) t = Expand(s, z) y = Div(x, t)", "RMS"),
    "sum of squares at least epsilon": ("q = Mul(x, x) v = ReduceSum(q, i) s = Max(v, e) r = Sqrt(s) y = Div(x, r)", "RMS"),
    "length alone": ("n = ReduceL2(x, i) y = Div(x, n)", "RMS"),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_by_other_counts_and_other_epsilons_are_norms(name: str, tmp_path: Path) -> None:
    body, kind = NORMS[name]
    graph = f"(float[2,5,4] x) => (float[a,b,c] y) {{ i = int64[1] {{2}} e = float {{0.000001}} {body} }}"
    loaded = check_same(save(model(graph, 21), tmp_path))
    assert [node.op.op_type for node in loaded.graph.nodes] == [f"{kind}Normalization"]


def test_a_large_epsilon_behind_the_root_stays_there(tmp_path: Path) -> None:
    """It is a term of the quotient, and no guard against zero."""
    body = DEVIATION + "v = ReduceMean(q, i) r = Sqrt(v) s = Add(r, e) y = Div(d, s)"
    loaded = check_same(
        save(model(f"(float[2,5,4] x) => (float[a,b,c] y) {{ i = int64[1] {{2}} e = float {{0.1}} {body} }}", 21), tmp_path)
    )
    assert "LayerNormalization" not in {node.op.op_type for node in loaded.graph.nodes}
