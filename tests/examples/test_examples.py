"""Check the examples of the repository: the trained classifier with its data, and the graphs of eight networks."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from tests.support.example_networks import fill_network

EXAMPLES = Path(__file__).parents[2] / "examples"
CLASSIFIER = EXAMPLES / "classifier"
NETWORKS = EXAMPLES / "networks"
LARGEST_CLASSIFIER_BYTES = 1_500_000
LARGEST_NETWORKS_BYTES = 200_000


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def load_shipped_test() -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """x float32[n, 1, 28, 28] in [0, 1], y uint8[n]."""
    with np.load(CLASSIFIER / "test.npz") as data:
        return data["x"][:, None].astype(np.float32) / np.float32(255), data["y"]


@pytest.mark.slow
def test_classifier_scores_above_90_percent_in_float() -> None:
    x, y = load_shipped_test()
    logits = np.asarray(session(onnx.load(CLASSIFIER / "classifier.onnx")).run(["logits"], {"x": x})[0])
    assert logits.shape == (len(x), 10)
    assert (logits.argmax(1) == y).mean() > 0.90


def test_classifier_is_a_mobilenet_v2() -> None:
    model = onnx.load(CLASSIFIER / "classifier.onnx")
    onnx.checker.check_model(model, full_check=True)
    depthwise = [n for n in model.graph.node if n.op_type == "Conv" for a in n.attribute if a.name == "group" and a.i > 1]
    assert len(depthwise) == 7
    kinds = {node.op_type for node in model.graph.node}
    assert kinds == {"Conv", "Clip", "Add", "GlobalAveragePool", "Flatten", "Gemm"}


def test_test_images_are_enough_and_of_every_class() -> None:
    with np.load(CLASSIFIER / "test.npz") as data:
        x, y = data["x"], data["y"]
    assert x.dtype == y.dtype == np.uint8
    assert x.shape == (len(y), 28, 28)
    assert len(y) >= 1000
    assert np.bincount(y, minlength=10).min() >= len(y) // 20


def test_calibration_images_fit_the_input_as_they_are() -> None:
    with np.load(CLASSIFIER / "calib.npz") as data:
        assert data.files == ["x"]
        x = data["x"]
    assert x.dtype == np.float32
    assert x.shape[1:] == (1, 28, 28)
    assert len(x) >= 64
    assert (x.min(), x.max()) == (0, 1)


def test_calibration_images_are_not_test_images() -> None:
    with np.load(CLASSIFIER / "calib.npz") as data:
        calibration = {np.round(image * 255).astype(np.uint8).tobytes() for image in data["x"]}
    with np.load(CLASSIFIER / "test.npz") as data:
        assert not calibration & {image.tobytes() for image in data["x"]}


@pytest.mark.parametrize(("folder", "limit_bytes"), [(CLASSIFIER, LARGEST_CLASSIFIER_BYTES), (NETWORKS, LARGEST_NETWORKS_BYTES)])
def test_examples_stay_small(folder: Path, limit_bytes: int) -> None:
    assert sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) <= limit_bytes


def test_networks_fill_to_the_same_runnable_model() -> None:
    model = fill_network("dscnn_kws")
    assert model.SerializeToString() == fill_network("dscnn_kws").SerializeToString()
    port = model.graph.input[0]
    shape = [dimension.dim_value for dimension in port.type.tensor_type.shape.dim]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for output in session(model).run(None, {port.name: x}):
        assert np.isfinite(np.asarray(output)).all()
        assert np.asarray(output).std() > 0


def test_there_are_eight_networks() -> None:
    assert len(list(NETWORKS.glob("*.graph.onnx"))) == 8
