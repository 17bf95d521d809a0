"""Running a model over data: every tensor's range as a plain run finds it, in any grouping, and each fault in one message."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from edge_numerics import EDGE
from models import convolution_net, model, node
from onnx import TensorProto

from quant.calibrate import calibrate, default_observer, list_calibrated_tensors, tensor_sources
from quant.calibration_data import random_data
from quant.fidelity import sqnr_db
from quant.fixed_point import Numerics, ScaleForm
from quant.observe import Range
from quant.parameters import activation_quant
from tests.support.fake_quant import fake_quantized, list_stored_tensors
from toolchain.errors import CompileError
from toolchain.ir.graph import TensorType

INPUTS = {"x": TensorType((1, 3, 8, 8), "float32")}
TENSORS = ["x", "c", "r", "d", "y"]
POW2 = replace(EDGE, scale=ScaleForm("pow2"))


def plain_ranges(proto: onnx.ModelProto, samples) -> dict[str, Range]:
    """Node by node with the reference evaluator of the onnx package, which shares nothing with onnxruntime."""
    extended = onnx.ModelProto()
    extended.CopyFrom(proto)
    del extended.graph.output[:]
    extended.graph.output.extend(onnx.helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in TENSORS[1:])
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(extended)
    values_by_tensor: dict[str, list[np.ndarray]] = {n: [] for n in TENSORS}
    for sample in samples:
        values_by_tensor["x"].append(sample["x"])
        for name, value in zip(TENSORS[1:], evaluator.run(None, sample), strict=True):
            values_by_tensor[name].append(np.asarray(value))
    return {n: Range(float(min(v.min() for v in vs)), float(max(v.max() for v in vs))) for n, vs in values_by_tensor.items()}


def test_minmax_is_what_a_plain_run_gives() -> None:
    proto, data = convolution_net(), random_data(INPUTS, 5)
    before = proto.SerializeToString()
    calls: list[tuple[int, int | None]] = []
    ranges = calibrate(proto, data, TENSORS, progress=lambda *call: calls.append(call))
    assert list(ranges) == TENSORS and calls == [(i, 5) for i in range(1, 6)]
    assert proto.SerializeToString() == before
    for name, expected in plain_ranges(proto, data).items():
        assert [ranges[name].low, ranges[name].high] == pytest.approx([expected.low, expected.high], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("form", [list, tuple])
def test_progress_has_the_number_of_samples_of_any_sequence(form: type) -> None:
    calls: list[tuple[int, int | None]] = []
    calibrate(convolution_net(), form(random_data(INPUTS, 2)), TENSORS, progress=lambda *call: calls.append(call))
    assert calls == [(1, 2), (2, 2)]


@pytest.mark.parametrize("observer", ["minmax", "percentile", "mse"])
def test_groups_change_nothing(observer) -> None:
    proto, data = convolution_net(), random_data(INPUTS, 3)
    unsplit = calibrate(proto, data, TENSORS, observer=observer, numerics=EDGE)
    single = calibrate(proto, data, TENSORS, observer=observer, numerics=EDGE, held_bytes=1)
    for name in TENSORS:  # fused and unfused kernels differ in the last bits
        assert [unsplit[name].low, unsplit[name].high] == pytest.approx([single[name].low, single[name].high], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(("held_bytes", "outputs"), [(1, [1, 1, 1, 1]), (5135, [1, 1, 2]), (5136, [4])])
def test_pieces_hold_what_they_may(held_bytes: int, outputs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that tensors beyond the memory limit are computed in pieces of a quarter of the limit.
    Tensors c and r are 2048 bytes each, d 1024, y 16.
    """
    opened: list[int] = []
    session = ort.InferenceSession

    def counting(model: bytes, options: ort.SessionOptions, **more):
        opened_session = session(model, options, **more)
        if options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL:  # each is opened unoptimized first
            opened.append(len(opened_session.get_outputs()))
        return opened_session

    monkeypatch.setattr(ort, "InferenceSession", counting)
    calibrate(convolution_net(), random_data(INPUTS, 1), TENSORS, held_bytes=held_bytes)
    assert opened == outputs


def test_a_generator_is_read_once() -> None:
    drawn = 0

    def stream():
        nonlocal drawn
        for sample in random_data(INPUTS, 4):
            drawn += 1
            yield sample

    calibrate(convolution_net(), stream(), TENSORS, held_bytes=1)
    assert drawn == 4


def test_tensor_lists() -> None:
    proto = convolution_net()
    types = {n: TensorType((1,), "float32") for n in [*TENSORS, "w1", "b1", "w2"]}
    assert list_calibrated_tensors(proto, types) == TENSORS
    assert list_calibrated_tensors(proto, {**types, "c": TensorType((1,), "int64")}) == ["x", "r", "d", "y"]
    assert tensor_sources(proto) == {
        "x": "input",
        "c": "c_node (Conv)",
        "r": "r_node (Relu)",
        "d": "d_node (Conv)",
        "y": "y_node (GlobalAveragePool)",
    }
    assert list_stored_tensors(proto) == ["x", "r", "d", "y"]
    assert default_observer(EDGE) == "minmax" and default_observer(POW2) == "mse"


@pytest.mark.parametrize(("numerics", "least_db"), [(EDGE, 30), (POW2, 27)])
def test_parameters_keep_a_small_network(numerics: Numerics, least_db: float) -> None:
    """Measured 31.1 and 28.5 dB; activation scales twice as large give 26.8 and 25.7."""
    proto, data = convolution_net(), random_data(INPUTS, 16)
    ranges = calibrate(proto, data, list_stored_tensors(proto), observer=default_observer(numerics), numerics=numerics)
    rounded = fake_quantized(proto, {n: activation_quant(r, numerics) for n, r in ranges.items()}, numerics)
    samples = list(data)
    runs = [[_run(m, sample) for sample in samples] for m in (proto, rounded)]
    assert sqnr_db(np.stack(runs[0]), np.stack(runs[1])) > least_db


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_each_output_channel_of_fake_quantized_weights_has_a_scale(op: str, groups: int) -> None:
    """Channels grow tenfold each, so a scale that two of them share would round one of them to nothing."""
    gains = 10.0 ** np.arange(4)
    w = np.random.default_rng(0).normal(size=(4, 6 // groups, 3, 3)) * gains[:, None, None, None]  # [oc, ic / groups, 3, 3]
    stored = np.concatenate([part.swapaxes(0, 1) for part in np.split(w, groups)]) if op == "ConvTranspose" else w
    proto = model([node(op, "x w", "y", group=groups)], {"x": [1, 6, 8, 8]}, ["y"], {"w": stored.astype(np.float32)})
    rounded = onnx.numpy_helper.to_array(fake_quantized(proto, {}, EDGE).graph.initializer[0])
    if op == "ConvTranspose":
        rounded = np.concatenate([part.swapaxes(0, 1) for part in np.split(rounded, groups)])
    steps = abs(w).max(axis=(1, 2, 3)) / 127
    assert (abs(rounded - w).max(axis=(1, 2, 3)) < 0.51 * steps).all()


def _run(proto: onnx.ModelProto, sample) -> np.ndarray:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["y"], sample)[0])


# --- refusals


def log_model() -> onnx.ModelProto:
    return model([node("Log", "x", "l"), node("Relu", "l", "y")], {"x": [4]}, ["y"])


def samples(*values: list[float]):
    return [{"x": np.array(v, np.float32)} for v in values]


def gather_model() -> onnx.ModelProto:
    constants = {"table": np.zeros((3, 2), np.float32)}
    return model([node("Gather", "table x", "y")], {"x": [1]}, ["y"], constants, TensorProto.INT64)


def test_values_are_finite_also_where_their_sum_is_not() -> None:
    proto = model([node("Relu", "x", "y")], {"x": [4]}, ["y"])
    assert calibrate(proto, samples([3e38, 2e38, 3e38, 2e38]), ["y"])["y"].high == np.float32(3e38)


FAULTS = [
    (
        lambda: calibrate(log_model(), samples([1, 2, 3, 4], [1, -1, 1, 1]), ["l", "y"]),
        "calibration: sample 1: tensor 'l', the output of l_node (Log), holds NaN; "
        "no range covers it, mend the model or remove the sample",
    ),
    (
        lambda: calibrate(log_model(), samples([1, 0, 3, 4]), ["y", "l"]),
        "calibration: sample 0: tensor 'l', the output of l_node (Log), holds infinity; "
        "no range covers it, mend the model or remove the sample",
    ),
    (
        lambda: calibrate(
            model([node("Mul", "x c", "y")], {"x": [4]}, ["y"], {"c": np.array([1, np.inf, 1, 1], np.float32)}),
            samples([1, 1, 1, 1]),
            ["y"],
        ),
        "calibration: tensor 'y', the output of y_node (Mul), holds infinity, for a constant operand is not finite; "
        "mend the model",
    ),
    (lambda: calibrate(log_model(), [], ["y"]), "calibration data: holds 0 samples; calibration needs at least 1"),
    (
        lambda: calibrate(log_model(), samples([1, 1, 1, 1]), ["yy"]),
        "tensor 'yy': not in the model, so it cannot be calibrated; did you mean \"y\"?",
    ),
    (
        lambda: calibrate(log_model(), samples([1, 1, 1, 1]), ["y"], observer="entropy"),  # pyright: ignore[reportArgumentType]
        "observer 'entropy': no such observer; known: minmax, percentile, mse",
    ),
    (
        lambda: calibrate(log_model(), samples([1, 1, 1, 1]), ["y"], observer="mse"),
        "observer 'mse': searches what a machine can express, and no machine was named; give --hw",
    ),
    (
        lambda: calibrate(gather_model(), [{"x": np.array([1], np.int64)}], ["x"]),
        "tensor 'x': is int64; only float tensors are calibrated",
    ),
]


@pytest.mark.parametrize(("call", "text"), FAULTS)
def test_faults(call, text: str) -> None:
    with pytest.raises(CompileError) as caught:
        call()
    assert str(caught.value) == text


def test_a_sample_that_the_model_refuses() -> None:
    with pytest.raises(CompileError) as caught:
        calibrate(gather_model(), [{"x": np.array([7], np.int64)}], ["y"])
    text = str(caught.value)
    assert text.startswith("calibration: sample 0: onnxruntime cannot run the model on it: ")
    assert text.endswith("; mend the sample, or give data of the kind that the model was trained on") and "\n" not in text


def test_a_model_that_refuses_every_sample() -> None:
    nodes = [node("Add", "x hundred", "i"), node("Gather", "table i", "y")]
    constants = {"table": np.zeros((3, 2), np.float32), "hundred": np.array([100], np.int64)}
    with pytest.raises(CompileError) as caught:
        calibrate(model(nodes, {"x": [1]}, ["y"], constants, TensorProto.INT64), [{"x": np.array([1], np.int64)}], ["y"])
    text = str(caught.value)
    assert text.startswith("calibration: onnxruntime cannot run the model, whatever it is given: ") and "\n" not in text
    assert text.endswith("; mend the model")


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """20 tensors of 4 MB and 5 samples in a process of its own, with room for one group of tensors."""
    script = tmp_path / "measure.py"
    script.write_text(
        "import resource, sys\n"
        f"sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]\n"
        "import numpy as np\nfrom models import model, node\nfrom quant.calibrate import calibrate\n"
        "names = ['x'] + [f't{i}' for i in range(20)]\n"
        "nodes = [node('Neg', a, b) for a, b in zip(names, names[1:])]\n"
        "proto = model(nodes, {'x': [1 << 20]}, [names[-1]])\n"
        "data = ({'x': np.full(1 << 20, i, np.float32)} for i in range(5))\n"
        "calibrate(proto, iter([{'x': np.zeros(1 << 20, np.float32)}]), names, observer='percentile', held_bytes=8 << 20)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "calibrate(proto, data, names, observer='percentile', held_bytes=8 << 20)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    import subprocess
    import sys

    grown = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    assert int(grown) < 64 << 10  # KiB; all samples' tensors together would be 420 MiB
