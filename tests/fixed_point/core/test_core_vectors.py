"""The conformance kit: self-contained files, the same bytes every time, exercised for machines of every kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import exact_requant as exact
import numpy as np
import pytest

from quant.fixed_point import (
    CodeType,
    Contents,
    CurveTable,
    FixedPointError,
    NormUnit,
    Numerics,
    Rounding,
    ScaleForm,
    SoftmaxUnit,
)
from quant.fixed_point.conformance.draw import OPERATORS
from quant.fixed_point.conformance.vectors import make_vectors, read_vectors, replay, write_vectors

NONLINEAR = {"softmax", "log_softmax", "layer_norm", "rms_norm"}
WIDE_CURVE = CurveTable(8, 20, 10)
INT8, INT16 = Numerics(), Numerics(activation=CodeType.INT16, symmetric_activations=True)
UINT8 = Numerics(activation=CodeType.UINT8)
MACHINES = {
    "tflite": INT8,
    "tosa": replace(INT8, rounding=Rounding.SINGLE_HALF_UP, scale=ScaleForm("multiplier", 31, 2, 62)),
    "onnx": replace(UINT8, scale=ScaleForm("float32"), rounding=Rounding.FP32_RNE),
    "pow2": replace(
        INT8, scale=ScaleForm("pow2", shift_max=31), rounding=Rounding.POW2, weights_per_channel=False, add_left_shift=0
    ),
    "narrow": Numerics(
        CodeType.INT4,
        CodeType.INT4,
        scale=ScaleForm("multiplier", 8, 0, 31),
        rounding=Rounding.TRUNCATE,
        overflow="wrap",
        accumulator_bits=24,
    ),
    "int16": replace(INT16, rounding=Rounding.REDUCED16, accumulator_bits=48, add_left_shift=15, interpolation="tflite"),
    "int16_zero_points": replace(INT16, symmetric_activations=False, accumulator_bits=40, add_left_shift=14),
    "scale16": replace(INT16, scale=ScaleForm("multiplier", 15), rounding=Rounding.SCALE16, accumulator_bits=48),
    "asymmetric": replace(UINT8, weight=CodeType.UINT8, rounding=Rounding.HALF_EVEN, per_op={"add": Rounding.HALF_AWAY}),
}
UNITS = {
    "tflite": Contents(softmax=SoftmaxUnit(), norm=NormUnit()),
    "int16": Contents(softmax=SoftmaxUnit(WIDE_CURVE, WIDE_CURVE, WIDE_CURVE, 18, 24), norm=NormUnit(CurveTable(10, 24, 12), 18)),
}


def contents(name: str) -> Contents:
    return UNITS.get(name, Contents())


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_files_stand_for_themselves(name: str, tmp_path: Path) -> None:
    paths = write_vectors(tmp_path / "a", MACHINES[name], contents(name))
    cases = read_vectors(tmp_path / "a")
    assert {c.op for c in cases} == set(OPERATORS) - (set() if name in UNITS else NONLINEAR)
    assert len(paths) == len(cases) + 1
    for case in cases:
        np.testing.assert_array_equal(replay(case.op, case.inputs, case.parameters), case.expected, err_msg=case.name)
    again = write_vectors(tmp_path / "b", MACHINES[name], contents(name))
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in paths]
    assert sum(p.stat().st_size for p in paths) < 300_000


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_cases_tell_something(name: str) -> None:
    """Outputs take many values: few cases may drown in saturation."""
    for case in make_vectors(MACHINES[name], contents(name)):
        many = 6 if MACHINES[name].activation == "int4" else 20
        if case.name.startswith(("requantize_smallest", "requantize_largest")) or "global" in case.name:
            continue
        least = 2 if case.name.endswith("_extreme") else min(many, case.expected.size // 4)
        assert len(np.unique(case.expected)) >= least, case.name


def test_requantize_cases_hold_ties() -> None:
    """A machine with another rounding fails the file."""
    for case in make_vectors(INT8):
        if case.op != "requantize" or case.name == "requantize_largest":
            continue
        other = case.parameters | {"requant": case.parameters["requant"] | {"rounding": "floor"}}
        assert (replay(case.op, case.inputs, other) != case.expected).any(), case.name


def test_expected_by_exact_arithmetic() -> None:
    case = next(c for c in make_vectors(INT8) if c.name == "requantize_per_channel")
    r = case.parameters["requant"]
    for column in range(16):
        m, s = r["multiplier"][column], r["shift"][column]
        want = [
            exact.finish_exactly(exact.scale_exactly(int(x), m, s, Rounding.DOUBLE_ROUND), r["zero_point"], r["low"], r["high"])
            for x in case.inputs["acc"][:, column]
        ]
        assert case.expected[:, column].tolist() == want


def test_refusals() -> None:
    with pytest.raises(FixedPointError, match="numerics: activation='int5'; must be one of int4, int8, uint8, int16"):
        Numerics("int5")  # type: ignore[arg-type]
    with pytest.raises(FixedPointError, match="numerics: weight='int16'; must be one of int4, int8, uint8"):
        Numerics(weight=CodeType.INT16)
    with pytest.raises(FixedPointError, match="numerics: per_op names conv; known are convolution, matrix_product"):
        Numerics(per_op={"conv": Rounding.FLOOR})
    with pytest.raises(FixedPointError, match="vectors: operators names erf; known are requantize, conv2d"):
        Contents(operators=("erf",))
    with pytest.raises(FixedPointError, match="softmax is of 8 or 16 bits, activation is int4; leave softmax out"):
        make_vectors(MACHINES["narrow"], Contents(softmax=SoftmaxUnit()))
    with pytest.raises(FixedPointError, match="vectors: op 'erf'; known are requantize"):
        replay("erf", {}, {})


def test_only_the_operators_asked_for() -> None:
    cases = make_vectors(INT8, Contents(("table", "sub")))
    assert {c.op for c in cases} == {"table", "sub"}


def test_other_roundings_have_their_own_requantizations() -> None:
    numerics = replace(INT8, per_op={"sub": Rounding.FLOOR, "mul": Rounding.HALF_EVEN})
    cases = make_vectors(numerics, Contents(("requantize", "sub", "add")))
    roundings = {c.name: c.parameters["requant"]["rounding"] for c in cases}
    assert roundings["sub"] == "floor"
    assert roundings["add"] == roundings["requantize_relu"] == "double_round"
    assert roundings["requantize_half_even_per_channel"] == "half_even"
    assert roundings["requantize_floor_largest"] == "floor"


def test_whatever_a_machine_requantizes_overflows_in_its_way() -> None:
    """The operands of sums, which go to int32, as the results."""
    for name, wraps in (("narrow", True), ("tflite", False)):
        cases = make_vectors(MACHINES[name], Contents(("add", "sub", "conv2d")))
        requants = [p for c in cases for key, p in c.parameters.items() if key.endswith("requant")]
        assert len(requants) > 6 and {r["wrap"] for r in requants} == {wraps}


def test_random_tables_tell_the_addresses() -> None:
    """A lookup one entry, or one interpolation step, off fails the file."""
    for name in ("tflite", "int16"):
        case = next(c for c in make_vectors(MACHINES[name]) if c.name == "table_random")
        shifted = case.inputs | {"x": np.roll(case.inputs["x"], 1)}
        assert (replay(case.op, shifted, case.parameters) != case.expected).mean() > 0.9


def test_an_earlier_kit_is_replaced_whole(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    kit.mkdir()
    write_vectors(kit, INT8, Contents(("table", "sub")))
    paths = write_vectors(kit, INT8, Contents(("mul",)))
    assert sorted(p.name for p in kit.iterdir()) == sorted(p.name for p in paths) == ["index.json", "mul.npz"]
    assert [p.name for p in tmp_path.iterdir()] == ["kit"]


def test_nothing_is_left_of_a_kit_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = tmp_path / "kit"
    before = {p.name: p.read_bytes() for p in write_vectors(kit, INT8, Contents(("mul",)))}
    monkeypatch.setattr("quant.fixed_point.conformance.vectors.json.dumps", lambda *_, **__: 1 / 0)
    for target in (kit, tmp_path / "new"):
        with pytest.raises(ZeroDivisionError):
            write_vectors(target, INT8, Contents(("sub",)))
    assert {p.name: p.read_bytes() for p in kit.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["kit"]


def test_other_files_are_never_replaced(tmp_path: Path) -> None:
    products = Contents(("mul",))
    kit = tmp_path / "kit"
    write_vectors(kit, INT8, products)
    (kit / "notes.txt").write_text("mine")
    with pytest.raises(FixedPointError, match=r"kit: holds notes.txt, which is no part of a kit; give a new or an empty"):
        write_vectors(kit, INT8, products)
    with pytest.raises(FixedPointError, match=r"notes.txt: is a file; give the name of a directory"):
        write_vectors(kit / "notes.txt", INT8, products)
    with pytest.raises(FixedPointError, match=r"there is no directory .*none; make it first"):
        write_vectors(tmp_path / "none" / "kit", INT8, products)


def by_fractions(values: dict[str, Any], x: int) -> int:
    r = values
    scaled = exact.scale_exactly(x, r["multiplier"][0], r["shift"][0], Rounding(r["rounding"]))
    return exact.finish_exactly(scaled, r["zero_point"], r["low"], r["high"])


@pytest.mark.parametrize("op", ["add", "sub", "mul", "prelu"])
def test_pairs_by_exact_arithmetic(op: str) -> None:
    case = next(c for c in make_vectors(INT8) if c.name == op)
    p, inputs = case.parameters, list(case.inputs.values())
    zeros = [p[k] for k in sorted(p) if k.endswith("_zero_point")]
    if op == "prelu":
        zeros.reverse()  # alpha's name comes before x's
    for a, b, want in zip(*(v.reshape(-1)[::7].tolist() for v in (*inputs, case.expected)), strict=True):
        a, b = a - zeros[0], b - zeros[1]
        if op == "mul":
            got = by_fractions(p["requant"], a * b)
        elif op == "prelu":
            got = by_fractions(p["positive"], a) if a >= 0 else by_fractions(p["negative"], a * b)
        else:
            left, right = (by_fractions(p[k], v << 20) for k, v in (("a_requant", a), ("b_requant", b)))
            got = by_fractions(p["requant"], left + right if op == "add" else left - right)
        assert got == want, (a, b)


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_ties_in_float32_tell_the_order_of_its_steps(op: str, tmp_path: Path) -> None:
    """Rounding the exact sum or product once gives other codes, and so does a sum with its operands exchanged."""
    write_vectors(tmp_path / "kit", MACHINES["onnx"])
    (case,) = (c for c in read_vectors(tmp_path / "kit") if c.name == f"{op}_ties")
    p, (a, b) = case.parameters, (case.inputs["a"], case.inputs["b"])
    left, right, y = a.astype(np.float64) - p["a_zero_point"], b.astype(np.float64) - p["b_zero_point"], p["requant"]
    real = left * right / 80 if op == "mul" else left / 6 + (-right if op == "sub" else right) / 3
    exact_codes = np.clip(np.rint(real) + y["zero_point"], y["low"], y["high"])
    assert np.abs(case.expected - exact_codes).max() == 1
    assert (case.expected != exact_codes).sum() > 100
    if op == "add":
        swapped = {"a_requant": p["b_requant"], "b_requant": p["a_requant"]}
        swapped |= {"a_zero_point": p["b_zero_point"], "b_zero_point": p["a_zero_point"]}
        assert (replay("add", {"a": b, "b": a}, p | swapped) != case.expected).sum() > 10
