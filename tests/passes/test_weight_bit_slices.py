"""Weights of twice a machine's bits: two products, of their upper and their lower plane, and the sum of both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from quant.fixed_point.core.codes import CodeType
from quant.parameters import weight_quant
from scripts.onnx_builder import build_model
from tests.semantics.machines import int4_machine, int8_machine, make_mixed_machine
from tests.support.recurrent import recurrent
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError, ConfigError
from toolchain.ir.graph import Quant
from toolchain.isa import Machine, load_machine
from toolchain.ops.convolution.bit_slices import WeightSlicing, slice_weights, tolerate_error
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.runtime import Session

FINE = "*=int16"  # activations


def model(folder: Path, *, groups: int = 1, relu: bool = False) -> Path:
    """x -> Conv 3x3 -> (Relu) -> Reshape -> Gemm: y. Weights of a wide span, so that int8 has few codes for most."""
    rng = np.random.default_rng(5)
    arrays = {
        "conv.w": rng.normal(0, 1, (8, 8 // groups, 3, 3)) ** 3,
        "conv.b": rng.normal(0, 1, 8),
        "fc.w": rng.normal(0, 1, (6, 8 * 36)) ** 3,
        "fc.b": rng.normal(0, 1, 6),
        "shape": np.array([1, 8 * 36]),
    }
    constants = {n: v.astype(np.int64 if n == "shape" else np.float32) for n, v in arrays.items()}
    nodes = [
        helper.make_node("Conv", ["x", "conv.w", "conv.b"], ["c"], name="conv", pads=[1] * 4, group=groups),
        *([helper.make_node("Relu", ["c"], ["r"], name="relu")] if relu else []),
        helper.make_node("Reshape", ["r" if relu else "c", "shape"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "fc.w", "fc.b"], ["y"], name="fc", transB=1),
    ]
    path = folder / "net.onnx"
    onnx.save(build_model(nodes, {"x": [1, 8, 6, 6]}, {"y": [1, 6]}, constants), path)
    np.savez(folder / "calib.npz", x=rng.normal(0, 1, (24, 1, 8, 6, 6)).astype(np.float32))
    return path


def decibels(path: Path, machine: Machine, *types: str, parameters: str | None = None, level: int = 2) -> float:
    """Return the SQNR of y in dB over the samples, against float."""
    folder = path.parent
    plain = BuildOptions(machine, types=types, level=level)
    calibrated = replace(plain, calibration=str(folder / "calib.npz"), repair="none")
    built = build(path, replace(plain, parameters=parameters) if parameters else calibrated)
    x = np.load(folder / "calib.npz")["x"] / 2  # within what was seen
    return _decibels(path, built.data, x)


def _decibels(path: Path, data: bytes, x: np.ndarray) -> float:
    session, float_session = Session(data, backend="reference"), onnxruntime.InferenceSession(str(path))
    actual, expected = (np.stack([np.asarray(s.run(None, {"x": one})[0]) for one in x]) for s in (session, float_session))
    return 10 * float(np.log10(np.square(expected).sum() / np.square(actual - expected).sum()))


def layers(path: Path, machine: Machine, *types: str) -> list[str]:
    """Integer nodes with weights, nothing fused."""
    graph = build(path, BuildOptions(machine, types=types, level=0)).container.graph
    return [n.name for n in graph.nodes if isinstance(n.op, IntegerConvolution)]


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("groups", [1, 8])
def test_weights_in_two_planes_are_nearly_exact(tmp_path: Path, groups: int, relu: bool) -> None:
    path = model(tmp_path, groups=groups, relu=relu)
    assert decibels(path, make_mixed_machine(), FINE) < 40
    assert decibels(path, make_mixed_machine(), FINE, "*.w=int16") > 70
    assert decibels(path, make_mixed_machine(), FINE, "*.w=int16", level=0) > 70


def test_they_are_meant_by_their_own_names(tmp_path: Path) -> None:
    path = model(tmp_path)
    assert layers(path, make_mixed_machine(), FINE) == ["conv", "fc"]  # a pattern that activations have is of these
    assert layers(path, make_mixed_machine(), "conv=int16") == ["conv", "fc"]
    assert layers(path, make_mixed_machine(), "conv.w=int16") == ["conv.upper", "conv.lower", "fc"]
    assert layers(path, make_mixed_machine(), "*.w=int16", "fc.w=int8") == ["conv.upper", "conv.lower", "fc"]
    assert layers(path, int4_machine(), "fc.w=int8") == ["conv", "fc.upper", "fc.lower"]


@pytest.mark.usefixtures("no_room")
def test_int8_is_two_planes_of_int4(tmp_path: Path) -> None:
    path = model(tmp_path)
    machine = int4_machine()
    assert decibels(path, machine, "*.w=int8") > decibels(path, machine) + 5


def test_the_parameters_file_says_it_of_a_layer(tmp_path: Path) -> None:
    path = model(tmp_path)
    tensors = "".join(
        f"  {n}: {{low: {-r}, high: {r}, type: int16}}\n" for n, r in (("x", 5), ("c", 200), ("f", 200), ("y", 6000))
    )
    says = tmp_path / "p.yaml"
    says.write_text(f"version: 1\ntensors:\n{tensors}weights:\n  conv: {{type: int16}}\n  fc: {{type: int16}}\n")
    assert decibels(path, make_mixed_machine(), parameters=str(says)) > 70
    says.write_text(f"version: 1\ntensors:\n{tensors}weights:\n  conv: {{type: int32}}\n")
    with pytest.raises(
        ConfigError, match="int32 where the machine has int8, int4 weights, and int16 in two planes; give one of these"
    ):
        build(path, BuildOptions(make_mixed_machine(), parameters=str(says)))


def test_groups_and_planes_of_one_layer_are_refused(tmp_path: Path) -> None:
    path = model(tmp_path)
    says = tmp_path / "p.yaml"
    tensors = "".join(f"  {n}: {{low: -60, high: 60}}\n" for n in ("x", "c", "f", "y"))
    says.write_text(f"version: 1\ntensors:\n{tensors}weights:\n  fc: {{type: int16, scales: 32}}\n")
    with pytest.raises(CompileError, match="fc: groups of 32 and weights in two planes of int8; give it one of these"):
        build(path, BuildOptions("transformer64", parameters=str(says)))


def test_a_type_that_no_planes_make_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"--type conv\.w=int4: edge16_rounding_once has int8 activations"):
        build(model(tmp_path), BuildOptions(int8_machine(), types=("conv.w=int4",)))


def test_steps_of_a_sequence_share_them(tmp_path: Path) -> None:
    path = tmp_path / "lstm.onnx"
    onnx.save(recurrent("LSTM", length=4, batch=1), path)
    x = np.random.default_rng(2).normal(0, 1, (32, 4, 1, 12)).astype(np.float32)
    np.savez(tmp_path / "calib.npz", x=x)
    plain = BuildOptions("transformer64", calibration=str(tmp_path / "calib.npz"), repair="none")
    overrides = ((), ("W=int16", "R=int16"))
    levels_db = [_decibels(path, build(path, replace(plain, types=types)).data, x) for types in overrides]
    assert levels_db[1] > levels_db[0] + 10, levels_db


@pytest.mark.parametrize("kind", ["multiplier", "pow2"])
def test_planes_are_the_weights_to_a_step_of_the_lower_one(kind: str) -> None:
    numerics = int8_machine().chip.numerics
    if kind == "pow2":
        numerics = load_machine("ws8_pow2").chip.numerics
    w = np.random.default_rng(3).normal(0, 1, (5, 3, 3, 4))
    slices = slice_weights(w, np.ones(5), Quant(0.01, 3), numerics, "layer", WeightSlicing(numerics.weight, 2))
    (lower,) = slices.lower
    together = slices.upper.weight.dequantize() + lower.weight.dequantize()
    steps = lower.weight.scales.reshape(-1, 1, 1, 1)
    assert (np.abs(together - w) <= steps * (0.5 + 1e-9)).all()
    assert 60 <= np.abs(lower.weight.codes).max() <= 127 and (kind == "pow2" or np.abs(lower.weight.codes).max() > 100)
    assert not lower.codes.any() and slices.upper.codes.any()  # the bias is the upper one's
    alone = weight_quant(w, 0, numerics)
    assert np.abs(alone.dequantize() - w).max() > 50 * np.abs(together - w).max()
    if kind == "pow2":
        assert (np.frexp(lower.weight.scales)[0] == 0.5).all()


@pytest.mark.parametrize(("values", "count"), [(7, 1), (7 * 14, 2), (7 * 14**2, 3), (7 * 14**3, 4)])
def test_there_are_no_more_planes_than_the_weights_need(values: int, count: int) -> None:
    numerics = load_machine("wide32_w4a16").chip.numerics
    w = np.random.default_rng(4).integers(-values, values + 1, (3, 1, 1, 40)) / values
    w[..., 0] = 1
    tolerance = 0.4 / values
    slices = slice_weights(w, None, Quant(2.0**-15, 0), numerics, "layer", WeightSlicing(CodeType.INT4, 4, tolerance))
    assert 1 + len(slices.lower) == count
    together = sum(plane.weight.dequantize() for plane in (slices.upper, *slices.lower))
    assert np.abs(together - w).max() <= max(tolerance, 0.51 / values)


def test_the_upper_plane_reaches_as_far_as_the_lower_one_adds() -> None:
    """Further, and its codes are that much coarser: four times here, were all inputs at their ends, each with its worst sign."""
    rng, codes, x = np.random.default_rng(1), CodeType("int16"), Quant(2.0**-15, 0)
    numerics = make_mixed_machine().chip.numerics.of(codes)
    slices = slice_weights(rng.normal(0, 1, (16, 512)), None, x, numerics, "fc", WeightSlicing(numerics.weight, 2))
    lower, data = slices.lower[0].weight.dequantize(), rng.uniform(-1, 1, (512, 4000)) * (rng.random((512, 4000)) < 0.02)
    reach = slices.reach(0, x, codes, float(np.abs(slices.upper.weight.dequantize() @ data).max()))
    assert np.abs(lower @ data).max() < reach < np.abs(lower).sum(1).max() / 4


def test_wide_weights_are_types_of_twice_the_bits() -> None:
    assert dict(int8_machine().chip.numerics.wide_weights) == {CodeType.INT16: CodeType.INT8}
    assert dict(make_mixed_machine().chip.numerics.wide_weights) == {CodeType.INT16: CodeType.INT8}
    assert dict(int4_machine().chip.numerics.wide_weights) == {CodeType.INT8: CodeType.INT4}


def test_repair_report_and_export_go_round_them(tmp_path: Path) -> None:
    """Check that the codes are as near as possible; the exported ONNX file has the layer's weights as floats."""
    path = model(tmp_path, relu=True)
    plain = BuildOptions(make_mixed_machine(), calibration=str(tmp_path / "calib.npz"), types=(FINE, "conv.w=int16"))
    built = build(path, replace(plain, repair="fast", error_report=True, export_qdq=True))
    assert built.errors is not None and {row.name for row in built.errors.rows} >= {"r", "y"}
    assert built.qdq is not None
    constants = {t.name for t in onnx.load_from_string(built.qdq).graph.initializer}
    assert "fc/weights/codes" in constants and "conv.w" in constants


def test_the_largest_weight_decides_what_error_is_tolerated() -> None:
    assert tolerate_error(np.array([0.5, -2.0]), CodeType.INT16) == 2.0 / 65536
