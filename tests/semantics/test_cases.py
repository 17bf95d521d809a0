"""Every operator and every rule means on the chip what the user's file means in onnxruntime."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.semantics import arithmetic, decompose_models, functions, logic_cases, movement, windows
from tests.semantics.judge import EXACT_DB, built_through, find_changed_outputs, in_float, judge_build
from tests.semantics.machines import int8_machine, int16_machine
from tests.semantics.recorder import Coverage, missing, record_coverage

CASES = {
    c.name: c
    for c in (*windows.CASES, *arithmetic.CASES, *movement.CASES, *functions.CASES, *decompose_models.CASES, *logic_cases.CASES)
}


@pytest.mark.parametrize("name", CASES)
def test_means_what_the_file_means(name: str) -> None:
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        fine = judge_build(case.proto, int16_machine(), case.samples, Path(folder))
        coarse = judge_build(case.proto, int8_machine(), case.samples, Path(folder))
        changed = find_changed_outputs(Path(folder) / "model.onnx", case.samples, in_float(case.proto, case.samples))
    for output in fine.outputs:
        assert output.sqnr_db >= case.least_db, output
    for output in coarse.outputs:
        assert output.sqnr_db >= min(output.rounded_db - case.below_db, EXACT_DB), output
    assert not changed


def test_names_are_unique_and_exceptions_have_causes() -> None:
    assert len(CASES) == sum(len(m.CASES) for m in (windows, arithmetic, movement, functions, decompose_models, logic_cases))
    assert not [c.name for c in CASES.values() if (c.least_db < 60 or c.below_db > 3) != bool(c.cause)]


def test_every_operator_and_every_rule_has_a_case() -> None:
    assert not missing({name: _find_coverage(name) for name in CASES})


def _find_coverage(name: str) -> Coverage:
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder, record_coverage() as coverage:
        return coverage | built_through(case.proto, int8_machine(), case.samples, Path(folder))
