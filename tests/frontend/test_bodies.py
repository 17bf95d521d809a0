"""Attention and RotaryEmbedding are what ONNX says that they are made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from onnx_text import model, save
from same_outputs import check_same

from scripts.onnx_builder import build_model
from toolchain.frontend import NormalModel, load_model
from toolchain.frontend.read_onnx import newest_opset

OPSET = 23
QKV = "(float[2,3,8,16] x, float[2,3,12,16] k, float[2,3,12,16] v"
pytestmark = pytest.mark.skipif(newest_opset() < OPSET, reason="the installed onnxruntime reads no Attention")


def ops(loaded: NormalModel) -> str:
    return " ".join(node.op.op_type for node in loaded.graph.nodes)


CASES = [
    (f"{QKV}) => (float[a,b,c,d] y) {{ y = Attention(x, k, v) }}", "Transpose Mul Mul MatMul Softmax MatMul"),
    (f"{QKV}) => (float[a,b,c,d] y) {{ y = Attention<is_causal = 1>(x, k, v) }}", "Transpose Mul Mul MatMul Add Softmax MatMul"),
    (
        f"{QKV}, float[8,12] m) => (float[a,b,c,d] y) {{ y = Attention<softcap = 2.0>(x, k, v, m) }}",
        None,  # where its mask is minus infinity a row may be nothing but that
    ),
    (
        "(float[2,8,48] x, float[2,8,16] k, float[2,8,16] v) => (float[a,b,c] y) "
        "{ y = Attention<q_num_heads = 3, kv_num_heads = 1>(x, k, v) }",
        None,
    ),
    ("(float[2,3,8,16] x, float[2,8,8] c, float[2,8,8] s) => (float[a,b,c,d] y) { y = RotaryEmbedding(x, c, s) }", None),
]


@pytest.mark.parametrize(("graph", "expected"), CASES)
def test_bodies(tmp_path: Path, graph: str, expected: str | None) -> None:
    loaded = check_same(save(model(graph, OPSET, {}), tmp_path))
    assert not {"Attention", "RotaryEmbedding", "Cast", "Identity"}.intersection(ops(loaded).split())
    assert expected in (None, ops(loaded))
    assert {source for node in loaded.graph.nodes for source in node.sources} <= {name for name, _ in loaded.nodes}


def test_minus_infinity_of_a_mask_makes_no_row_of_nothing(tmp_path: Path) -> None:
    """Check that a fully masked row stays finite, although a Softmax of it would be NaN."""
    graph = f"{QKV}, bool[8,12] m) => (float[a,b,c,d] y) {{ y = Attention(x, k, v, m) }}"
    loaded = load_model(save(model(graph, OPSET, {}), tmp_path))
    assert not [n for n, value in loaded.graph.constants.items() if value.dtype.kind == "f" and np.isinf(value).any()]


def test_scores_that_are_asked_for_keep_it_whole(tmp_path: Path) -> None:
    node = helper.make_node("Attention", ["x", "k", "v"], ["y", "", "", "s"], name="a")
    shape = [1, 2, 4, 8]
    proto = build_model([node], dict.fromkeys("xkv", shape), {"y": shape, "s": [1, 2, 4, 4]}, opset=OPSET)
    assert ops(load_model(save(proto, tmp_path))) == "Attention"


def test_a_constant_output_of_half_precision_keeps_its_type(tmp_path: Path) -> None:
    graph = (
        "(float16[3] x) => (float16[a] y, float16[b] z) { c = Constant<value = float16[2] {1, 2}>() z = Identity(c) y = Exp(x) }"
    )
    check_same(save(model(graph, 21, {}), tmp_path))
