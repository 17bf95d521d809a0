"""Tensors of wide codes that arrays read: two products, of their upper and of their lower bits, and the sum of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from quant.fidelity import sqnr_db
from quant.fixed_point.core.codes import CodeType
from tests.semantics.case import Case
from tests.semantics.judge import in_float
from tests.semantics.machines import make_mixed_machine, make_power_of_two_machine, make_unsigned_machine
from toolchain.api import Build, BuildOptions, build
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Quant
from toolchain.isa import Machine, load_machine
from toolchain.ops.convolution.input_bit_slices import LOWER_RANGE_STEPS, plane_quants, supports_bit_slices
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
from toolchain.runtime import Session

SAMPLES = 24
FINE, WIDE = ("*=int16",), ("*=int32",)
CONV = "y = Conv<pads = [1, 1, 1, 1], group = {groups}>(x, w, b)"


def make_model(folder: Path, body: str, weights: tuple[int, ...], y: str, *, has_exact_weights: bool = True) -> Path:
    """Save a model with drawn weights and return its path.

    `has_exact_weights`: 8-bit codes hold the weights exactly, so that only the input has an error.
    """
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,6,6] x) => (float[{y}] y) {{ {body} }}'
    model, rng = parser.parse_model(text), np.random.default_rng(3)
    w = (
        rng.integers(-127, 128, weights).astype(np.float32)
        if has_exact_weights
        else rng.normal(0, 1, weights).astype(np.float32) ** 3
    )
    w.reshape(weights[0], -1)[:, 0] = 127 if has_exact_weights else 8
    constants = {"w": w, "b": rng.normal(0, 1, weights[0]).astype(np.float32)}
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items() if n in read)
    onnx.save(model, folder / "m.onnx")
    np.savez(folder / "d.npz", x=quiet_and_loud())
    return folder / "m.onnx"


def quiet_and_loud() -> np.ndarray:
    """float32[24, 1, 8, 6, 6], the quietest a ten-thousandth of the loudest."""
    rng = np.random.default_rng(4)
    size = np.geomspace(1e-4, 1, SAMPLES).reshape(-1, 1, 1, 1, 1)
    return (size * rng.normal(0, 1, (SAMPLES, 1, 8, 6, 6))).astype(np.float32)


def built(model: Path, machine: Machine, types: tuple[str, ...], level: int = 2) -> Build:
    data = str(model.parent / "d.npz")
    return build(model, BuildOptions(machine, calibration=data, types=types, level=level, repair="none"))


def outputs(built: Build, x: np.ndarray) -> np.ndarray:
    session = Session(built.data, backend="reference")
    return np.stack([np.asarray(session.run(["y"], {"x": one})[0]) for one in x])


def compute_expected(model: Path, x: np.ndarray) -> np.ndarray:
    return np.stack([run[0] for run in in_float(onnx.load(model), [{"x": one} for one in x])])


def decibels(model: Path, machine: Machine, types: tuple[str, ...], level: int = 2, times: float = 1.0) -> tuple[float, float]:
    """Return the SQNR in dB of all samples, and of the quiet half.

    `times`: loudness relative to calibration.
    """
    x = np.load(model.parent / "d.npz")["x"] * np.float32(times)
    real, got = compute_expected(model, x), outputs(built(model, machine, types, level), x)
    return sqnr_db(real, got), sqnr_db(real[: SAMPLES // 2], got[: SAMPLES // 2])


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("groups", [1, 8])
def test_arrays_read_all_bits_of_wide_codes(groups: int, level: int, tmp_path: Path) -> None:
    model = make_model(tmp_path, CONV.format(groups=groups), (8, 8 // groups, 3, 3), "1,8,6,6")
    machine = make_mixed_machine("int32")
    coarse, wide = (decibels(model, machine, types, level) for types in (FINE, WIDE))
    assert coarse[0] < 90 and coarse[1] < 55
    assert wide[0] > 120 and wide[1] > 85
    half = decibels(model, machine, (*WIDE, "x=int16"), level)  # what the input lost before
    assert half[1] < 60


@pytest.mark.usefixtures("no_room")
def test_a_narrow_output_is_rounded_once_more(tmp_path: Path) -> None:
    model = make_model(tmp_path, CONV.format(groups=1), (8, 8, 3, 3), "1,8,6,6")
    narrow, wide = (decibels(model, make_mixed_machine("int32"), types)[0] for types in (FINE, ("*=int16", "x=int32")))
    assert wide > narrow + 1


@pytest.mark.usefixtures("no_room")
def test_weights_in_planes_besides(tmp_path: Path) -> None:
    model = make_model(tmp_path, CONV.format(groups=1), (8, 8, 3, 3), "1,8,6,6", has_exact_weights=False)
    machine = make_mixed_machine("int32")
    assert decibels(model, machine, WIDE)[0] < 55
    assert decibels(model, machine, (*WIDE, "w=int16"))[0] > 80
    names = [n.name for n in built(model, machine, (*WIDE, "w=int16"), 0).container.graph.nodes]
    assert len([n for n in names if "Conv_0" in n]) >= 4  # three products and their sums


@pytest.mark.usefixtures("no_room")
def test_codes_of_eight_bits_have_planes_too(tmp_path: Path) -> None:
    """Two of them are 14 bits."""
    model = make_model(tmp_path, CONV.format(groups=1), (8, 8, 3, 3), "1,8,6,6")
    machine = make_unsigned_machine("int32")
    assert decibels(model, machine, ())[0] < 45
    assert decibels(model, machine, WIDE)[0] > 65


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize(("more", "least_db"), [(("int16", "int32"), 120), (("int32",), 60)])
def test_scales_of_powers_of_two_leave_the_spare_bits_free(more: tuple[str, ...], least_db: float, tmp_path: Path) -> None:
    """A finer scale takes them, and the upper plane then saturates: 24 and 6 dB."""
    model = make_model(tmp_path, CONV.format(groups=1), (8, 8, 3, 3), "1,8,6,6")
    assert decibels(model, make_power_of_two_machine(*more), WIDE)[0] > least_db


@pytest.mark.usefixtures("no_room")
def test_what_lies_beyond_the_range_that_was_seen_is_read_too(tmp_path: Path) -> None:
    model = make_model(tmp_path, CONV.format(groups=1), (8, 8, 3, 3), "1,8,6,6")
    assert decibels(model, make_mixed_machine("int32"), WIDE, times=8.0)[0] > 115


@pytest.mark.usefixtures("no_room")
def test_products_of_matrices_and_shapes_between(tmp_path: Path) -> None:
    body = "shape = Constant<value_ints = [1, 288]>() f = Reshape(x, shape) y = Gemm<transB = 1>(f, w, b)"
    model = make_model(tmp_path, body, (6, 288), "1,6")
    assert decibels(model, make_mixed_machine("int32"), WIDE)[1] > decibels(model, make_mixed_machine("int32"), FINE)[1] + 40


@pytest.mark.usefixtures("no_room")
def test_layers_behind_each_other(tmp_path: Path) -> None:
    """Check producers and consumers of a tensor in bit slices."""
    model = make_model(tmp_path, "c = Conv(x, w, b) r = Relu(c) y = Conv(r, w)", (8, 8, 1, 1), "1,8,6,6")
    assert decibels(model, make_mixed_machine("int32"), (*WIDE, "w=int16"))[1] > 80


def test_all_that_read_a_tensor_share_its_planes(tmp_path: Path) -> None:
    model = make_model(tmp_path, "p = Conv(x, w, b) q = Conv(x, w) y = Add(p, q)", (8, 8, 1, 1), "1,8,6,6")
    nodes = built(model, make_mixed_machine("int32"), ("x=int32",), 0).container.graph.nodes
    assert sum(isinstance(n.op, IntegerConvolution) for n in nodes) == 4
    assert sum(isinstance(n.op, IntegerBinary) and n.op.kind == "sub" for n in nodes) == 1


def test_a_machine_without_differences_reads_the_finest_narrow_codes(tmp_path: Path) -> None:
    model = make_model(tmp_path, CONV.format(groups=1), (8, 8, 3, 3), "1,8,6,6")
    machine = without("sub")
    nodes = built(model, machine, WIDE).figures["nodes"]
    assert [n["reason"] for n in nodes if "int16 codes of tensor x" in n["reason"]]
    assert sum(row["op"] == "Conv" for row in nodes) == 1
    assert decibels(model, machine, WIDE)[1] < 60


def without(function: str) -> Machine:
    return change_machine(lambda data: data["engines"]["vector"]["functions"].pop(function))


def change_machine(change: Callable[[dict[str, Any]], object]) -> Machine:
    base = make_mixed_machine("int32")
    data = json.loads(base.chip.model_dump_json())
    change(data)
    return replace(base, chip=Chip.model_validate_json(json.dumps(data)))


def test_what_wraps_has_no_planes() -> None:
    """Half a step above the last code of the upper one it would be the first."""
    assert supports_bit_slices(make_mixed_machine("int32").chip)
    assert not supports_bit_slices(change_machine(lambda data: data["numerics"].update(overflow="wrap")).chip)


@pytest.mark.usefixtures("no_room")
def test_lower_bits_of_one_sign_add_up(tmp_path: Path) -> None:
    model = make_model(tmp_path, "y = Conv(x, w)", (8, 8, 1, 1), "1,8,6,6")
    proto = onnx.load(model)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full((8, 8, 1, 1), 127, np.float32), "w"))
    onnx.save(proto, model)
    x = np.load(tmp_path / "d.npz")["x"]
    x = np.clip(x / np.abs(x).max(), -1, 1)
    np.savez(tmp_path / "d.npz", x=x)
    step = 2.0**16 / (2**27 - 1)  # of the upper plane, where 1 is the largest that was seen
    inputs = np.stack([np.full((1, 8, 6, 6), (k + 0.49) * step, np.float32) for k in range(1, 9)])
    got = outputs(built(model, make_mixed_machine("int32"), (*WIDE, "y=int16")), inputs)
    real = compute_expected(model, inputs)
    assert np.abs(got - real).max() < 2 * 127 * 8 / 32767  # steps of y


def test_repair_report_and_export_go_round_them(tmp_path: Path) -> None:
    model = make_model(tmp_path, CONV.format(groups=1), (8, 8, 3, 3), "1,8,6,6", has_exact_weights=False)
    options = BuildOptions(
        make_mixed_machine("int32"), str(tmp_path / "d.npz"), types=WIDE, repair="full", error_report=True, export_qdq=True
    )
    network_build = build(model, options)
    assert network_build.errors is not None and network_build.qdq is not None and network_build.data


@pytest.mark.parametrize(("wide", "narrow"), [("int32", "int16"), ("int32", "int8"), ("int32", "uint8")])
@pytest.mark.parametrize("rounding", [np.rint, np.floor, np.trunc])
def test_planes_hold_a_tensor_to_half_a_step_of_the_lower_one(wide: str, narrow: str, rounding: np.ufunc) -> None:
    of, to, x = CodeType(wide), CodeType(narrow), Quant(2.0**-20, 0)
    upper, lower = plane_quants(x, of, to)
    largest = of.high >> of.spare_bits
    codes = np.concatenate([np.random.default_rng(6).integers(-largest, largest + 1, 100_000), [-largest - 1, largest, 0]])
    first = np.clip(rounding(codes * x.scale / upper.scale) + upper.zero_point, *to.limits) - upper.zero_point
    remainder = (codes * x.scale - first * upper.scale) / lower.scale
    assert np.abs(remainder).max() * lower.scale <= LOWER_RANGE_STEPS * upper.scale
    second = np.rint(remainder) + lower.zero_point
    assert second.min() >= to.low and second.max() <= to.high
    assert lower.scale <= upper.scale * 2.0 ** (2 - to.bits) or lower.scale == 4 * x.scale


QUIET = Case(  # magnitudes of a spectrum, read by a product
    "quiet", "x 1,1,1,64; w 16,1,1,16; v 8,8,1,1",
    "s = Conv<strides = [1, 8]>(x, w) a = Constant<value_ints = [0]>() b = Constant<value_ints = [8]>() "
    "e = Constant<value_ints = [16]>() one = Constant<value_ints = [1]>() re = Slice(s, a, b, one) im = Slice(s, b, e, one) "
    "p = Mul(re, re) q = Mul(im, im) sum = Add(p, q) m = Sqrt(sum) z = Conv(m, v) "
    "low = Constant<value_float = -0.1>() high = Constant<value_float = 0.1>() y = Clip(z, low, high)",
)  # fmt: skip


def test_quiet_samples_beside_loud_ones(tmp_path: Path) -> None:
    """Check magnitudes of a thousandth of the largest, as in audio of 16 bits, where codes of 16 bits hold little."""
    onnx.save(QUIET.proto, tmp_path / "m.onnx")
    x = np.random.default_rng(5).normal(0, 1e-3, (32, 1, 1, 1, 64))
    x[:16] *= 250
    x = (np.rint(x * 32768).clip(-32768, 32767) / 32768).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x)
    real = compute_expected(tmp_path / "m.onnx", x[16:])
    types = ((*t, "w=int16", "v=int16") for t in (FINE, WIDE))
    near = [sqnr_db(real, outputs(built(tmp_path / "m.onnx", load_machine("transformer64"), t), x[16:])) for t in types]
    assert near[1] > 80 and near[1] > near[0] + 40, near
