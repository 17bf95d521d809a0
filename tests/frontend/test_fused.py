"""Check that what onnxruntime's optimizer writes into files is expanded to the original operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_text import save
from same_outputs import check_same

from scripts.onnx_builder import build_model
from toolchain.errors import CompileError
from toolchain.frontend import NormalModel, load_model

ROWS = {"x": (2, 4, 16), "z": (2, 4, 16)}
MAP = {"x": (1, 4, 6, 6), "z": (1, 3, 4, 4)}
NORM = "Add LayerNormalization"


def model(
    kind: str,
    inputs: str,
    shapes: dict[str, tuple[int, ...]],
    outputs: str = "y",
    domain: str = "com.microsoft",
    opset: int = 17,
    **a: Any,
) -> onnx.ModelProto:
    """Return a model of one fused operator.

    `inputs`: names; those that are not in `shapes` are constants of 16 numbers, w and v are matrices, - is no input.
    """
    rng = np.random.default_rng(3)
    shape_by_name = {"w": (3, 4, 3, 3), "v": (16, 5), "c": (3,), "d": (5,)}
    names = ["" if n == "-" else n for n in inputs.split()]
    constants = {n: rng.uniform(0.4, 1.2, shape_by_name.get(n, (16,))).astype(np.float32) for n in names if n and n not in shapes}
    output_names = ["" if n == "-" else n for n in outputs.split()]
    node = helper.make_node(kind, names, output_names, "n", domain=domain, **a)
    inputs_of = {n: shapes[n] for n in names if n in shapes}
    return build_model([node], inputs_of, {n: None for n in output_names if n}, constants, opset=opset)


def ops(loaded: NormalModel) -> str:
    return " ".join(node.op.op_type for node in loaded.graph.nodes)


CASES = [
    (model("Gelu", "x", ROWS), "Gelu"),
    (model("FastGelu", "x", ROWS), "Gelu"),
    (model("FastGelu", "x b", ROWS), "Add Gelu"),
    (model("QuickGelu", "x", ROWS, alpha=1.0), "Sigmoid Mul"),
    (model("QuickGelu", "x", ROWS), "Mul Sigmoid Mul"),
    (model("BiasGelu", "x b", ROWS), "Add Gelu"),
    (model("SkipLayerNormalization", "x z g", ROWS), NORM),
    (model("SkipLayerNormalization", "x z g b", ROWS, epsilon=1e-5), NORM),
    (model("SkipLayerNormalization", "x z g b a", ROWS, "y - - s"), "Add Add LayerNormalization"),
    (model("SkipSimplifiedLayerNormalization", "x z g", ROWS, "y - - s"), None),
    (model("SimplifiedLayerNormalization", "x g", ROWS, domain="", axis=-1, epsilon=1e-6), None),
    (model("LayerNormalization", "x g b", ROWS, domain="", opset=12, axis=-1), "LayerNormalization"),
    (model("FusedMatMul", "x z", ROWS, transB=1), "Transpose MatMul"),
    (model("FusedMatMul", "x z", ROWS, transA=1, alpha=0.25), "Transpose MatMul Mul"),
    (model("FusedConv", "x w c", MAP, activation="Relu", kernel_shape=[3, 3]), "Conv Relu"),
    (model("FusedConv", "x w c z", MAP, activation="Relu", kernel_shape=[3, 3]), "Conv Add Relu"),
    (model("FusedConv", "x w", MAP, activation="Clip", activation_params=[0.0, 6.0], strides=[2, 2]), "Conv Clip"),
    (model("FusedConv", "x w c", MAP, activation="HardSigmoid", activation_params=[0.2, 0.4], pads=[1] * 4), "Conv HardSigmoid"),
    (model("FusedGemm", "x v d", {"x": (4, 16)}, activation="LeakyRelu", activation_alpha=0.1), "Gemm LeakyRelu"),
]


@pytest.mark.parametrize(
    ("proto", "expected"), CASES, ids=lambda value: value.graph.node[0].op_type if hasattr(value, "graph") else ""
)
def test_spelling(tmp_path: Path, proto: onnx.ModelProto, expected: str | None) -> None:
    loaded = check_same(save(proto, tmp_path))
    assert expected in (None, ops(loaded))
    assert not {"SimplifiedLayerNormalization", "Div"}.intersection(ops(loaded).split())
    assert {source for node in loaded.graph.nodes for source in node.sources} == {"n"}


@pytest.mark.parametrize(
    ("kind", "inputs", "domain"),
    [
        ("SkipLayerNormalization", "x z g", "com.microsoft"),
        ("SkipSimplifiedLayerNormalization", "x z g", "com.microsoft"),
        ("SimplifiedLayerNormalization", "x g", ""),
    ],
)
def test_the_default_epsilon_shows_in_small_values(kind: str, inputs: str, domain: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    feeds = {n: rng.normal(0, 1e-3, ROWS[n]).astype(np.float32) for n in inputs.split() if n in ROWS}
    check_same(save(model(kind, inputs, ROWS, domain=domain), tmp_path), feeds=feeds)


@pytest.mark.parametrize("points", ["middle", "between"])
def test_weights_in_blocks_of_half_precision(points: str, tmp_path: Path) -> None:
    """Check that dequantized weights have the type of what they are multiplied with.

    `points`: integer zero points, or zero points added after the product.
    """
    rng, kind = np.random.default_rng(4), onnx.TensorProto.FLOAT16
    constants = {"w": rng.integers(0, 256, (8, 2, 16), np.uint8), "s": rng.uniform(0.01, 0.02, 16).astype(np.float16)}
    constants |= {"z": np.full(16, 7.5, np.float16)} if points == "between" else {}
    attributes: dict[str, Any] = {"K": 64, "N": 8, "bits": 4, "block_size": 32}
    node = helper.make_node("MatMulNBits", ["x", *constants], ["y"], "n", domain="com.microsoft", **attributes)
    proto = build_model([node], {"x": [3, 64]}, {"y": [3, 8]}, constants, opset=21, types={"x": kind, "y": kind})
    check_same(save(proto, tmp_path), tolerance=2e-3)


def test_what_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    proto = model("FusedConv", "x w", MAP, activation="Erf", kernel_shape=[3, 3])
    with pytest.raises(CompileError, match="has the activation Erf"):
        load_model(save(proto, tmp_path))


def test_an_older_opset_has_no_other_operators_of_later_ones(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="is not an operator of opset 12"):
        load_model(save(model("Gelu", "x", ROWS, domain="", opset=12), tmp_path))
