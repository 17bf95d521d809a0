"""Pipelines of scikit-learn as its converter writes them: operators of ai.onnx.ml, on the chip or on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from scripts.onnx_builder import build_model
from toolchain.api import Build, BuildOptions, CompileError, Session, build
from toolchain.frontend import load_model

RNG = np.random.default_rng(0)
FLOATS = TensorProto.FLOAT


def ml_node(op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, op_type, domain="ai.onnx.ml", **attributes)


def make_model(
    nodes: list[onnx.NodeProto],
    outputs: Mapping[str, int],
    constants: dict[str, np.ndarray] | None = None,
    shape: tuple[int | str | None, ...] = (1, 4),
    dtype: int = FLOATS,
) -> onnx.ModelProto:
    return build_model(nodes, {"X": shape}, dict.fromkeys(outputs), constants, opset=21, types={"X": dtype, **outputs})


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[Any]:
    return [*onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)]


def floats(*shape: int) -> list[float]:
    return RNG.normal(size=shape).astype(np.float32).ravel().tolist()


X = RNG.normal(size=(1, 4)).astype(np.float32) + 1
ROWS = {"coefficients": floats(3, 4), "intercepts": floats(3)}
CLASSES = {"classlabels_ints": [3, 5, 9]}
BOTH = {"label": TensorProto.INT64, "scores": FLOATS}
RULES = {
    "scaler": (ml_node("Scaler", ["X"], ["Y"], offset=floats(4), scale=floats(4)), {"Y": FLOATS}, X),
    "scaler, one number": (ml_node("Scaler", ["X"], ["Y"], offset=[0.5], scale=[3.0]), {"Y": FLOATS}, X),
    "scaler of whole numbers": (ml_node("Scaler", ["X"], ["Y"], offset=[0.5], scale=[3.0]), {"Y": FLOATS}, np.arange(4)[None]),
    "scaler of a vector": (ml_node("Scaler", ["X"], ["Y"], offset=floats(4), scale=floats(4)), {"Y": FLOATS}, X[0]),
    "normalizer l1": (ml_node("Normalizer", ["X"], ["Y"], norm="L1"), {"Y": FLOATS}, X),
    "normalizer l2": (ml_node("Normalizer", ["X"], ["Y"], norm="L2"), {"Y": FLOATS}, X),
    "regressor": (ml_node("LinearRegressor", ["X"], ["Y"], coefficients=floats(4), intercepts=[0.5]), {"Y": FLOATS}, X),
    "regressor of two": (
        ml_node("LinearRegressor", ["X"], ["Y"], coefficients=floats(2, 4), targets=2, post_transform="LOGISTIC"),
        {"Y": FLOATS}, X,
    ),
    **{
        f"classifier {function}": (
            ml_node("LinearClassifier", ["X"], ["label", "scores"], multi_class=1, post_transform=function, **ROWS, **CLASSES),
            BOTH,
            X,
        )
        for function in ("NONE", "SOFTMAX", "LOGISTIC")
    },
    "classifier of two": (
        ml_node(
            "LinearClassifier", ["X"], ["label", "scores"], coefficients=floats(2, 4), intercepts=floats(2),
            classlabels_ints=[0, 1], post_transform="LOGISTIC",
        ),
        BOTH,
        X,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RULES)
def test_expanded_operators_compute_what_onnxruntime_computes(case: str) -> None:
    node, outputs, x = RULES[case]
    model = make_model([node], outputs, shape=x.shape, dtype=helper.np_dtype_to_tensor_dtype(x.dtype))
    normal = load_model(model).proto
    assert {n.domain for n in normal.graph.node} == {""}
    for ours, theirs in zip(run(normal, {"X": x}), run(model, {"X": x}), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


TREE = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0], "nodes_values": [0.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
}  # fmt: skip
UNEXPANDED = {
    "trees": (
        ml_node(
            "TreeEnsembleClassifier", ["X"], ["label", "scores"], class_treeids=[0, 0], class_nodeids=[1, 2], class_ids=[0, 1],
            class_weights=[0.75, 1.0], classlabels_int64s=[4, 7], **TREE,
        ),
        BOTH,
    ),
    "normalizer by the largest": (ml_node("Normalizer", ["X"], ["scores"], norm="MAX"), {"scores": FLOATS}),
    "binarizer": (ml_node("Binarizer", ["X"], ["scores"], threshold=0.5), {"scores": FLOATS}),
    "classifier by probit": (
        ml_node("LinearClassifier", ["X"], ["label", "scores"], post_transform="PROBIT", **ROWS, **CLASSES), BOTH,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNEXPANDED)
def test_what_no_rule_takes_runs_on_the_host(case: str) -> None:
    """onnx infers no shapes for these operators; a run in onnxruntime shows them. A chip part stands before them."""
    node, outputs = UNEXPANDED[case]
    node = onnx.NodeProto.FromString(node.SerializeToString())
    node.input[0] = "relu"
    model = make_model([helper.make_node("Relu", ["X"], ["relu"], "relu"), node], outputs)
    built = build(model, BuildOptions("edge16", calibration=np.clip(X, 0, 1).repeat(2, axis=0), level=0))
    assert built.container.fallbacks[0][1] == node.op_type
    x = np.array([[0.25, 1.0, 0.75, 0.5]], np.float32)
    for ours, theirs in zip(Session(built).run(None, {"X": x}), run(model, {"X": x}), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=0.02)


def test_labels_that_are_text_are_refused() -> None:
    node = ml_node("LinearClassifier", ["X"], ["label", "scores"], classlabels_strings=["a", "b", "c"], **ROWS)
    with pytest.raises(CompileError, match="strings"):
        load_model(make_model([node], {"label": TensorProto.STRING, "scores": FLOATS}))


def make_pipeline(
    columns: int = 20, hidden: int = 32, classes: int = 3, units: float = 0.0
) -> tuple[onnx.ModelProto, np.ndarray]:
    """Return StandardScaler and MLPClassifier in the nodes of skl2onnx, and samples whose columns differ in size.

    `units`: powers of ten from the smallest column to the largest, beside that.
    """
    rng = np.random.default_rng(3)
    data = rng.normal(size=(600, columns)) * rng.uniform(0.5, 4, columns) + rng.normal(size=columns)
    data = (data * 10 ** np.linspace(0, units, columns)).astype(np.float32)
    constants = {
        "coefficient": rng.normal(size=(columns, hidden)) / np.sqrt(columns), "intercepts": rng.normal(size=(1, hidden)) / 4,
        "coefficient1": 2 * rng.normal(size=(hidden, classes)) / np.sqrt(hidden), "intercepts1": rng.normal(size=(1, classes)),
    }  # fmt: skip
    nodes = [
        ml_node("Scaler", ["X"], ["variable"], offset=data.mean(axis=0).tolist(), scale=(1 / data.std(axis=0)).tolist()),
        helper.make_node("Cast", ["variable"], ["cast_input"], "Cast", to=FLOATS),
        helper.make_node("MatMul", ["cast_input", "coefficient"], ["mul_result"], "MatMul"),
        helper.make_node("Add", ["mul_result", "intercepts"], ["add_result"], "Add"),
        helper.make_node("Relu", ["add_result"], ["next_activations"], "Relu"),
        helper.make_node("MatMul", ["next_activations", "coefficient1"], ["mul_result1"], "MatMul1"),
        helper.make_node("Add", ["mul_result1", "intercepts1"], ["add_result1"], "Add1"),
        helper.make_node("Softmax", ["add_result1"], ["probabilities"], "Softmax"),
        helper.make_node("ArgMax", ["probabilities"], ["argmax_output"], "ArgMax", axis=1),
        ml_node("ZipMap", ["probabilities"], ["output_probability"], classlabels_int64s=[10, 20, 30]),
        ml_node("ArrayFeatureExtractor", ["classes", "argmax_output"], ["array_feature_extractor_result"]),
        helper.make_node("Cast", ["array_feature_extractor_result"], ["cast2_result"], "Cast2", to=FLOATS),
        helper.make_node("Reshape", ["cast2_result", "shape_tensor"], ["reshaped_result"], "Reshape"),
        helper.make_node("Cast", ["reshaped_result"], ["output_label"], "Cast1", to=TensorProto.INT64),
    ]
    by_class = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(FLOATS, []))
    maps = helper.make_sequence_type_proto(by_class)
    weights = {name: value.astype(np.float32) for name, value in constants.items()}
    weights |= {"classes": np.array([10, 20, 30], np.int32), "shape_tensor": np.array([-1], np.int64)}
    model = make_model(nodes, {"output_label": TensorProto.INT64}, weights, (None, columns))
    model.graph.output.append(helper.make_value_info("output_probability", maps))
    return model, data


LABELS_ON_HOST = {"ArrayFeatureExtractor", "Cast2", "Reshape", "Cast1"}


@pytest.mark.parametrize("host_ports", [False, True])
def test_a_scaler_and_a_perceptron_run_with_small_errors(host_ports: bool) -> None:
    model, data = make_pipeline()
    built = build(model, BuildOptions("edge16", calibration=data[:100], level=1, host_ports=host_ports))
    assert "output 'output_probability': is a tensor instead of maps, a column for each class: 10, 20, 30" in built.notes
    on_host = {name for name, _, _ in built.container.fallbacks}
    assert on_host - LABELS_ON_HOST == ({"Scaler", "Scaler/rows", "Scaler/back"} if host_ports else set())
    assert on_host >= LABELS_ON_HOST
    check_probabilities(built, model, data[100:])


def test_columns_of_unlike_units_and_sure_samples_keep_probabilities_exact() -> None:
    """Columns differ a thousandfold, and all samples of the calibration are far from the limits between classes."""
    model, data = make_pipeline(units=3.0)
    _, maps = run(model, {"X": data})
    highest = np.array([max(row.values()) for row in maps])
    assert (highest > 0.9).sum() >= 40 and (highest < 0.6).sum() >= 40
    built = build(model, BuildOptions("edge16", calibration=data[highest > 0.9], level=1, repair="none"))
    check_probabilities(built, model, data[highest < 0.6])


def check_probabilities(built: Build, model: onnx.ModelProto, samples: np.ndarray) -> None:
    """Check that probabilities are off by 0.01 in the mean and 0.04 at most, and that labels are those of onnxruntime."""
    session = Session(built.data, backend="reference")
    ours = [session.run(None, {"X": x[None]}) for x in samples]
    labels, maps = run(model, {"X": samples})
    probabilities = np.array([[row[c] for c in (10, 20, 30)] for row in maps])
    error = np.abs(np.concatenate([o[1] for o in ours]) - probabilities)
    assert error.mean() <= 0.01 and error.max() <= 0.04
    assert np.mean(np.concatenate([o[0] for o in ours]) == labels) >= 0.99
