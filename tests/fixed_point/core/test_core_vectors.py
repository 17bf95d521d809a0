"""The conformance kit: self-contained files, the same bytes every time, exercised for machines of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import exact_requant as exact
import numpy as np
import pytest

from quant.fixed_point import CurveTable, FixedPointError, NormUnit, Rounding, ScaleForm, SoftmaxUnit
from quant.fixed_point.kit.numerics import OPERATORS, MachineNumerics
from quant.fixed_point.kit.vectors import make_vectors, read_vectors, replay, write_vectors

NONLINEAR = {"softmax", "log_softmax", "layer_norm", "rms_norm"}
WIDE_CURVE = CurveTable(8, 20, 10)
MACHINES = {
    "tflite": MachineNumerics(softmax=SoftmaxUnit(), norm=NormUnit()),
    "tosa": MachineNumerics(rounding=Rounding.SINGLE_HALF_UP, form=ScaleForm("multiplier", 31, 2, 62)),
    "onnx": MachineNumerics("uint8", form=ScaleForm("float32"), rounding=Rounding.FP32_RNE),
    "pow2": MachineNumerics(form=ScaleForm("pow2", shift_max=31), rounding=Rounding.POW2, per_channel=False, left_shift=0),
    "narrow": MachineNumerics(
        "int4", "int4", ScaleForm("multiplier", 8, 0, 31), Rounding.TRUNCATE, wrap=True, accumulator_bits=24
    ),
    "int16": MachineNumerics(
        "int16",
        rounding=Rounding.REDUCED16,
        accumulator_bits=48,
        left_shift=15,
        interpolation="tflite",
        softmax=SoftmaxUnit(WIDE_CURVE, WIDE_CURVE, WIDE_CURVE, 18, 24),
        norm=NormUnit(CurveTable(10, 24, 12), 18),
    ),
    "int16_zero_points": MachineNumerics("int16", accumulator_bits=40, left_shift=14, symmetric=False),
    "scale16": MachineNumerics("int16", form=ScaleForm("multiplier", 15), rounding=Rounding.SCALE16, accumulator_bits=48),
    "asymmetric": MachineNumerics("uint8", "uint8", rounding=Rounding.HALF_EVEN, per_op={"add": Rounding.HALF_AWAY}),
}


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_files_stand_for_themselves(name: str, tmp_path: Path) -> None:
    paths = write_vectors(tmp_path / "a", MACHINES[name])
    cases = read_vectors(tmp_path / "a")
    assert {c.op for c in cases} == set(OPERATORS) - (set() if MACHINES[name].softmax else NONLINEAR)
    assert len(paths) == len(cases) + 1
    for case in cases:
        np.testing.assert_array_equal(replay(case.op, case.inputs, case.parameters), case.expected, err_msg=case.name)
    again = write_vectors(tmp_path / "b", MACHINES[name])
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in paths]
    assert sum(p.stat().st_size for p in paths) < 300_000


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_cases_tell_something(name: str) -> None:
    """Outputs take many values: few cases may drown in saturation."""
    for case in make_vectors(MACHINES[name]):
        many = 6 if MACHINES[name].activation == "int4" else 20
        if case.name.startswith(("requantize_smallest", "requantize_largest")) or "global" in case.name:
            continue
        least = 2 if case.name.endswith("_extreme") else min(many, case.expected.size // 4)
        assert len(np.unique(case.expected)) >= least, case.name


def test_requantize_cases_hold_ties() -> None:
    """A machine with another rounding fails the file."""
    for case in make_vectors(MACHINES["tflite"]):
        if case.op != "requantize" or case.name == "requantize_largest":
            continue
        other = case.parameters | {"requant": case.parameters["requant"] | {"rounding": "floor"}}
        assert (replay(case.op, case.inputs, other) != case.expected).any(), case.name


def test_expected_by_exact_arithmetic() -> None:
    case = next(c for c in make_vectors(MACHINES["tflite"]) if c.name == "requantize_per_channel")
    r = case.parameters["requant"]
    for column in range(16):
        m, s = r["multiplier"][column], r["shift"][column]
        want = [
            exact.finished(exact.scaled(int(x), m, s, Rounding.DOUBLE_ROUND), r["zero_point"], r["low"], r["high"])
            for x in case.inputs["acc"][:, column]
        ]
        assert case.expected[:, column].tolist() == want


def test_refusals() -> None:
    with pytest.raises(FixedPointError, match="vectors: activation='int5'; must be one of int4, int8, uint8, int16"):
        MachineNumerics("int5")
    with pytest.raises(FixedPointError, match="vectors: per_op names conv; known are requantize, conv2d"):
        MachineNumerics(per_op={"conv": Rounding.FLOOR})
    with pytest.raises(FixedPointError, match="vectors: operators names erf; known are requantize, conv2d"):
        MachineNumerics(operators=("erf",))
    with pytest.raises(FixedPointError, match="softmax is of 8 or 16 bits, activation is int4; leave softmax out"):
        MachineNumerics("int4", softmax=SoftmaxUnit())
    with pytest.raises(FixedPointError, match="vectors: op 'erf'; known are requantize"):
        replay("erf", {}, {})


def test_only_the_operators_asked_for() -> None:
    cases = make_vectors(MachineNumerics(operators=("table", "sub")))
    assert {c.op for c in cases} == {"table", "sub"}


def test_other_roundings_have_their_own_requantizations() -> None:
    numerics = MachineNumerics(per_op={"sub": Rounding.FLOOR, "mul": Rounding.HALF_EVEN}, operators=("requantize", "sub", "add"))
    roundings = {c.name: c.parameters["requant"]["rounding"] for c in make_vectors(numerics)}
    assert roundings["sub"] == "floor"
    assert roundings["add"] == roundings["requantize_relu"] == "double_round"
    assert roundings["requantize_half_even_per_channel"] == "half_even"
    assert roundings["requantize_floor_largest"] == "floor"


def test_random_tables_tell_the_addresses() -> None:
    """A lookup one entry, or one interpolation step, off fails the file."""
    for name in ("tflite", "int16"):
        case = next(c for c in make_vectors(MACHINES[name]) if c.name == "table_random")
        shifted = case.inputs | {"x": np.roll(case.inputs["x"], 1)}
        assert (replay(case.op, shifted, case.parameters) != case.expected).mean() > 0.9


def test_an_earlier_kit_is_replaced_whole(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    kit.mkdir()
    write_vectors(kit, MachineNumerics(operators=("table", "sub")))
    paths = write_vectors(kit, MachineNumerics(operators=("mul",)))
    assert sorted(p.name for p in kit.iterdir()) == sorted(p.name for p in paths) == ["index.json", "mul.npz"]
    assert [p.name for p in tmp_path.iterdir()] == ["kit"]


def test_nothing_is_left_of_a_kit_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = tmp_path / "kit"
    before = {p.name: p.read_bytes() for p in write_vectors(kit, MachineNumerics(operators=("mul",)))}
    monkeypatch.setattr("quant.fixed_point.kit.vectors.json.dumps", lambda *_, **__: 1 / 0)
    for target in (kit, tmp_path / "new"):
        with pytest.raises(ZeroDivisionError):
            write_vectors(target, MachineNumerics(operators=("sub",)))
    assert {p.name: p.read_bytes() for p in kit.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["kit"]


def test_other_files_are_never_replaced(tmp_path: Path) -> None:
    numerics = MachineNumerics(operators=("mul",))
    kit = tmp_path / "kit"
    write_vectors(kit, numerics)
    (kit / "notes.txt").write_text("mine")
    with pytest.raises(FixedPointError, match=r"kit: holds notes.txt, which is no part of a kit; give a new or an empty"):
        write_vectors(kit, numerics)
    with pytest.raises(FixedPointError, match=r"notes.txt: is a file; give the name of a directory"):
        write_vectors(kit / "notes.txt", numerics)
    with pytest.raises(FixedPointError, match=r"there is no directory .*none; make it first"):
        write_vectors(tmp_path / "none" / "kit", numerics)


def by_fractions(values: dict[str, Any], x: int) -> int:
    r = values
    scaled = exact.scaled(x, r["multiplier"][0], r["shift"][0], Rounding(r["rounding"]))
    return exact.finished(scaled, r["zero_point"], r["low"], r["high"])


@pytest.mark.parametrize("op", ["add", "sub", "mul", "prelu"])
def test_pairs_by_exact_arithmetic(op: str) -> None:
    case = next(c for c in make_vectors(MACHINES["tflite"]) if c.name == op)
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
