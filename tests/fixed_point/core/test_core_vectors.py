"""The conformance kit: self-contained files, the same bytes every time, exercised for machines of every kind."""

from __future__ import annotations

from pathlib import Path

import exact_requant as exact
import numpy as np
import pytest

from quant.fixed_point import FixedPointError, Rounding, ScaleForm
from quant.fixed_point.vector_cases import OPERATORS, MachineNumerics
from quant.fixed_point.vectors import make_vectors, read_vectors, replay, write_vectors

MACHINES = {
    "tflite": MachineNumerics(),
    "tosa": MachineNumerics(rounding=Rounding.SINGLE_HALF_UP, form=ScaleForm("multiplier", 31, 2, 62)),
    "onnx": MachineNumerics("uint8", form=ScaleForm("float32"), rounding=Rounding.FP32_RNE),
    "pow2": MachineNumerics(form=ScaleForm("pow2", shift_max=31), rounding=Rounding.POW2, per_channel=False, left_shift=0),
    "narrow": MachineNumerics(
        "int4", "int4", ScaleForm("multiplier", 8, 0, 31), Rounding.TRUNCATE, wrap=True, accumulator_bits=24
    ),
    "int16": MachineNumerics("int16", rounding=Rounding.REDUCED16, accumulator_bits=48, left_shift=15),
    "scale16": MachineNumerics("int16", form=ScaleForm("multiplier", 15), rounding=Rounding.SCALE16, accumulator_bits=48),
    "asymmetric": MachineNumerics("uint8", "uint8", rounding=Rounding.HALF_EVEN, per_op={"add": Rounding.HALF_AWAY}),
}


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_files_stand_for_themselves(name: str, tmp_path: Path) -> None:
    paths = write_vectors(tmp_path / "a", MACHINES[name])
    cases = read_vectors(tmp_path / "a")
    assert {c.op for c in cases} == set(OPERATORS)
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
    with pytest.raises(FixedPointError, match="vectors: op 'softmax'; known are requantize"):
        replay("softmax", {}, {})
