"""Check that on a machine of several types each tensor of a quantized model keeps the file's width and scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.quantized.forms import script
from tests.quantized.test_forms import built_form, by_onnxruntime, db, outputs, small_network
from tests.semantics.machines import make_mixed_machine
from toolchain.api import Build, BuildOptions, build
from toolchain.isa import load_machine
from toolchain.runtime import Session

MACHINES = {"edge16_mixed": make_mixed_machine, "transformer64": lambda: load_machine("transformer64")}


def codes_of(built: Build) -> dict[str, tuple[str, float, int]]:
    """Type, scale and zero point by tensor."""
    types = built.container.graph.types
    return {n.partition("@")[0]: (t.dtype, t.quant.scale, t.quant.zero_point) for n, t in types.items() if t.quant is not None}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("form", ["ms_qdq_s16", "qdq_s16", "qdq_s16_w4", "ms_qdq_u16", "ms_qdq_w4"])
def test_wide_files_have_wide_codes(form: str, machine: str, tmp_path: Path) -> None:
    built, quantized, samples = built_form(form, tmp_path, MACHINES[machine]())
    assert built.figures["host"]["nodes"] == 0
    values = {i.name: numpy_helper.to_array(i) for i in quantized.graph.initializer}
    codes = codes_of(built)
    named = [n for n in codes if f"{n}_zero_point" in values]
    assert {"x", "a", "y"} <= set(named)
    wide = "int8" if form == "ms_qdq_w4" else "int16"
    for name in named:
        point = values[f"{name}_zero_point"]
        zero = int(point) - np.iinfo(point.dtype).min + np.iinfo(wide).min
        assert codes[name] == (wide, float(values[f"{name}_scale"]), zero), name
    assert db(by_onnxruntime(quantized, samples), outputs(built, samples)) >= (30 if wide == "int8" else 80)


def both(folder: Path) -> tuple[Path, list[dict[str, np.ndarray]]]:
    """The small network with its first half in 16 bits, its second in 8, and the shortcut's tensor read in both."""
    model, samples = small_network()
    wide, narrow = (script().quantize_form(model, samples, form) for form in ("qdq_s16", "qdq_s8_channel"))
    fine = {i.name: i for i in wide.graph.initializer if i.name.startswith(("x_", "r0_", "r1_")) and "quantized" not in i.name}
    for constant in narrow.graph.initializer:
        if constant.name in fine:
            constant.CopyFrom(fine[constant.name])
    values = {i.name: numpy_helper.to_array(i) for i in narrow.graph.initializer}
    for layer, x in (("0", "x"), ("1", "r0"), ("2", "r1")):  # biases are at the scale of what the layer reads
        scale = values[f"{x}_scale"] * values[f"w{layer}_scale"]
        bias = numpy_helper.to_array(next(i for i in model.graph.initializer if i.name == f"b{layer}"))
        for name, value in (
            (f"b{layer}_quantized_scale", scale),
            (f"b{layer}_quantized", np.rint(bias / scale).astype(np.int32)),
        ):
            next(i for i in narrow.graph.initializer if i.name == name).CopyFrom(numpy_helper.from_array(value, name))
    del narrow.graph.value_info[:]
    narrow.opset_import[0].version = 21
    narrow.ir_version = 10
    onnx.save(narrow, folder / "both.onnx")
    np.savez(folder / "data.npz", x=np.concatenate([s["x"] for s in samples]))
    return folder / "both.onnx", samples


@pytest.mark.parametrize("machine", MACHINES)
def test_both_widths_in_one_file(machine: str, tmp_path: Path) -> None:
    path, samples = both(tmp_path)
    built = build(path, BuildOptions(MACHINES[machine](), calibration=str(tmp_path / "data.npz")))
    assert built.figures["host"]["nodes"] == 0 and not any("cannot keep" in n for n in built.notes)
    types = {name: dtype for name, (dtype, *_) in codes_of(built).items()}
    assert types["x"] == types["r0"] == types["r1"] == "int16" and types["a"] == types["y"] == "int8"
    assert db(by_onnxruntime(onnx.load(path), samples), outputs(built, samples)) >= 35


def test_other_codes_are_had_for_the_asking(tmp_path: Path) -> None:
    """Then the file's scale says the range."""
    path, _ = both(tmp_path)
    options = BuildOptions(make_mixed_machine(), calibration=str(tmp_path / "data.npz"), types=("r1=int8", "a=int16"))
    plain, overridden = codes_of(build(path, BuildOptions(make_mixed_machine()))), codes_of(build(path, options))
    assert overridden["r1"][0] == "int8" and overridden["a"][0] == "int16" and overridden["x"] == plain["x"]
    assert overridden["r1"][1] == pytest.approx(257 * plain["r1"][1], rel=0.01)
    assert 257 * overridden["a"][1] == pytest.approx(plain["a"][1], rel=0.01)


def test_a_machine_of_powers_of_two_keeps_powers_of_two(tmp_path: Path) -> None:
    model, samples = small_network()
    quantized = script().quantize_form(model, samples, "tensorrt")
    for constant in quantized.graph.initializer:
        value = numpy_helper.to_array(constant)
        if constant.name.endswith("_scale") and value.size == 1:
            constant.CopyFrom(numpy_helper.from_array(np.exp2(np.ceil(np.log2(value))).astype(np.float32), constant.name))
    onnx.save(quantized, tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=np.concatenate([s["x"] for s in samples]))
    built = build(tmp_path / "m.onnx", BuildOptions("ws8_pow2", calibration=str(tmp_path / "data.npz")))
    assert not any("cannot keep" in n for n in built.notes)
    values = {i.name: numpy_helper.to_array(i) for i in quantized.graph.initializer}
    codes = codes_of(built)
    for name in ("x", "r0", "r1"):
        assert codes[name] == ("int8", float(values[f"{name}_scale"]), 0)


@pytest.mark.parametrize("form", ["tensorrt", "pytorch", "dynamic", "blocked"])
def test_what_the_file_leaves_in_float_has_the_finest_codes(form: str, tmp_path: Path) -> None:
    built, quantized, samples = built_form(form, tmp_path, make_mixed_machine(), static_ranges=form == "dynamic")
    assert any(n.startswith("int16 codes for ") for n in built.notes)
    assert built.figures["host"]["nodes"] == 0
    assert db(by_onnxruntime(quantized, samples), outputs(built, samples)) >= 45
    types = {name: dtype for name, (dtype, *_) in codes_of(built).items()}
    assert types["g" if form == "pytorch" else "y"] == "int16"
    if form == "tensorrt":  # the shortcut's sum reads what is not rounded, the convolution what is
        assert types["r0"] == "int16" and types["r0_DequantizeLinear_Output"] == types["x"] == "int8"
    if form == "dynamic":  # the file says eight bits of what products read
        assert types["x"] == types["r0"] == types["r1"] == "int8"
    narrow = build(
        tmp_path / f"{form}.onnx",
        BuildOptions(
            make_mixed_machine(),
            calibration=str(tmp_path / "calib.npz"),
            types=("*=int8",),
            static_ranges=form == "dynamic",
        ),
    )
    assert {dtype for dtype, *_ in codes_of(narrow).values()} == {"int8"}


def test_what_is_left_in_float_does_not_end_where_calibration_does(tmp_path: Path) -> None:
    _, quantized, samples = built_form("tensorrt", tmp_path, make_mixed_machine())
    loud = [{"x": 3 * s["x"]} for s in samples]
    built = build(tmp_path / "tensorrt.onnx", BuildOptions(make_mixed_machine(), calibration=str(tmp_path / "calib.npz")))
    assert db(by_onnxruntime(quantized, loud), outputs(built, loud)) >= 40


def test_room_holds_what_was_seen(tmp_path: Path) -> None:
    """Of a function whose values all lie above zero and end soon."""
    text = """(float[1,32] x) => (float[1,32] q, float[1,32] y) <float s = {0.001}, int8 z = {0}, float h = {0.5}> {
        t = Sigmoid(x) c = QuantizeLinear(t, s, z) q = DequantizeLinear(c, s, z) y = Mul(t, h) }"""
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}'), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=np.linspace(1, 2, 64, dtype=np.float32).reshape(2, 1, 32))
    built = build(tmp_path / "m.onnx", BuildOptions("transformer64", calibration=str(tmp_path / "data.npz")))
    assert codes_of(built)["t"][1] == pytest.approx(1 / 65535, rel=0.01)


def test_an_asked_type_ends_where_the_file_does(tmp_path: Path) -> None:
    """The Softplus gives up to 8 where the file's codes end at 1.8; its table is read as far as four times the input goes."""
    text = """(float[1,32] x) => (float[1,32] t, float[1,32] y) <float s = {0.0078740157}, uint8 z = {28}, float h = {2}> {
        t = Mul(x, h) a = Softplus(x) c = QuantizeLinear(a, s, z) y = DequantizeLinear(c, s, z) }"""
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}'), tmp_path / "m.onnx")
    x = np.linspace(-1.5, 2, 64, dtype=np.float32).reshape(2, 1, 32)
    np.savez(tmp_path / "data.npz", x=x)
    built = build(tmp_path / "m.onnx", BuildOptions("transformer64", calibration=str(tmp_path / "data.npz"), types=("y=int16",)))
    assert codes_of(built)["y"][:2] == ("int16", pytest.approx(255 / 127 / 65535, rel=0.01))
    (y,) = Session(built.data).run(["y"], {"x": x[1]})
    assert np.asarray(y).max() == pytest.approx(227 / 127, abs=1e-3)


def test_what_is_left_in_float_ends_where_its_function_does(tmp_path: Path) -> None:
    """A Tanh gives nothing beyond 1, whatever its input does, which has four times what calibration saw."""
    text = """(float[1,32] x) => (float[1,32] q, float[1,32] y)
        <float s = {0.1}, int8 z = {0}, float k = {20}, float h = {0.5}> {
        a = Mul(x, k) t = Tanh(a) c = QuantizeLinear(t, s, z) q = DequantizeLinear(c, s, z) y = Mul(t, h) }"""
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}'), tmp_path / "m.onnx")
    x = np.linspace(-1.5, 2, 64, dtype=np.float32).reshape(2, 1, 32)
    np.savez(tmp_path / "data.npz", x=x)
    built = build(tmp_path / "m.onnx", BuildOptions("transformer64", calibration=str(tmp_path / "data.npz")))
    codes = codes_of(built)
    assert codes["t"][1] == pytest.approx(1 / 32767, rel=0.01)
    (y,) = Session(built.data).run(["y"], {"x": x[0]})
    assert db(np.tanh(20 * x[0]) / 2, np.asarray(y)) >= 65
