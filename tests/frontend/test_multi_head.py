"""MultiHeadAttention, Attention and RotaryEmbedding of com.microsoft are what onnxruntime computes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_text import save
from same_outputs import check_same

from scripts.onnx_builder import build_model
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.frontend.read_onnx import newest_opset

pytestmark = pytest.mark.skipif(newest_opset() < 23, reason="the installed onnxruntime reads no Attention")
SHAPES = {
    "x": [2, 5, 32], "q": [2, 5, 32], "k": [2, 7, 32], "v": [2, 7, 32], "own": [2, 5, 32], "past": [2, 4, 3, 8],
    "keys": [2, 7], "tokens": [2, 5], "later": [2, 8], "bias": [1, 4, 5, 7], "whole": [2, 4, 5, 8], "lengths": [2],
    "first": [1], "each": [2, 5], "heads": [2, 4, 5, 8],
}  # fmt: skip
CONSTANT_SHAPES = {"w": (32, 96), "b": (96,), "qkv": (96,), "cos": (64, 4), "sin": (64, 4), "wide": (32, 80), "wb": (80,)}
INTEGER_TYPES = {"keys": TensorProto.INT32, "tokens": TensorProto.INT32, "later": TensorProto.INT32, "lengths": TensorProto.INT32,
         "first": TensorProto.INT64, "each": TensorProto.INT64}  # fmt: skip


def model(kind: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.ModelProto:
    """Return a model of one attention operator.

    `inputs`: names of SHAPES and CONSTANT_SHAPES, with a number after a name that occurs twice; - for none.
    """
    rng, names = np.random.default_rng(3), ["" if n == "-" else n for n in inputs.split()]
    base = {n: n.rstrip("012") for n in names if n}
    shapes = {n: SHAPES[b] for n, b in base.items() if b in SHAPES}
    types = {n: INTEGER_TYPES[b] for n, b in base.items() if b in INTEGER_TYPES}
    constants = {
        n: rng.uniform(-0.5, 0.5, CONSTANT_SHAPES[b]).astype(np.float32) for n, b in base.items() if b in CONSTANT_SHAPES
    }
    output_names = outputs.split()
    node = helper.make_node(kind, names, output_names, "n", domain="com.microsoft", **attributes)
    return build_model([node], shapes, dict.fromkeys(output_names), constants, types=types)


CASES = {
    "keys of their own": model("MultiHeadAttention", "q k v", num_heads=4),
    "biases": model("MultiHeadAttention", "q k v qkv", num_heads=4, scale=0.2),
    "masked keys": model("MultiHeadAttention", "q k v - keys", num_heads=4),
    "masked keys and a bias": model("MultiHeadAttention", "q k v - keys bias", num_heads=4),
    "a bias": model("MultiHeadAttention", "q k v - - bias", num_heads=4),
    "causal": model("MultiHeadAttention", "q own1 own2", num_heads=4, unidirectional=1),
    "a cache": model("MultiHeadAttention", "q own1 own2 - - whole past1 past2", "y a b", num_heads=4),
    "causal, a cache": model("MultiHeadAttention", "q own1 own2 - - - past1 past2", "y a b", num_heads=4, unidirectional=1),
    "the beginning of a cache": model("MultiHeadAttention", "q own1 own2", "y a b", num_heads=4),
    "one product": model("Attention", "x w b", num_heads=4),
    "one product, causal": model("Attention", "x w b", num_heads=4, unidirectional=1),
    "one product, masked": model("Attention", "x w b tokens", num_heads=4),
    "narrow values": model("Attention", "x wide wb", num_heads=4, qkv_hidden_sizes=[32, 32, 16]),
    "turned from a place on": model("RotaryEmbedding", "q first cos sin"),
    "turned at places": model("RotaryEmbedding", "q each cos sin"),
    "heads turned": model("RotaryEmbedding", "heads each cos sin", interleaved=1),
}


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime_computes_it(name: str, tmp_path: Path) -> None:
    rng, feeds = np.random.default_rng(1), dict[str, np.ndarray]()
    for port in CASES[name].graph.input:
        base = port.name.rstrip("012")
        shape = SHAPES[base]
        feeds[port.name] = rng.normal(size=shape).astype(np.float32)
        if base in INTEGER_TYPES:
            feeds[port.name] = (
                rng.integers(0, 9, shape) if base in ("first", "each") else (np.indices(shape)[-1] < 4).astype(np.int32)
            )
    loaded = check_same(save(CASES[name], tmp_path), feeds=feeds)
    assert not {n.op.domain for n in loaded.graph.nodes} - {""}
    assert {source for node in loaded.graph.nodes for source in node.sources} == {"n"}


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (model("MultiHeadAttention", "q", num_heads=4), "has packed or transposed keys or values"),
        (model("MultiHeadAttention", "q k v - lengths", num_heads=4), "has a mask of 1 dimensions; those of 2 are read"),
        (model("Attention", "x w b", num_heads=4, do_rotary=1), "has a cache of keys and values together, or turns them"),
        (model("RotaryEmbedding", "q each cos sin", scale=2.0), "packs its batch, or scales"),
        (model("RotaryEmbedding", "q each cos"), "its input 3 is missing; 2 are needed"),
        (model("Attention", "x b"), "its input 1 has 1 dimensions; 2 are needed"),
        (
            model("Attention", "x w b", num_heads=4, qkv_hidden_sizes=[32, 32]),
            r"has qkv_hidden_sizes=\[32, 32\]; three are needed, to",
        ),
        (model("Attention", "x w b", num_heads="4"), 'its attribute "num_heads" is STRING, Attention takes INT'),
        (model("Attention", "x w b"), "has num_heads=0; 1 or more are needed"),
    ],
)
def test_what_is_not_read_is_refused(proto: onnx.ModelProto, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=rf"^node n \({proto.graph.node[0].op_type}\): {reason}"):
        load_model(save(proto, tmp_path))
