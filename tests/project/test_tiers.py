"""Tests of the tiers: slow tests have a reason, the fast tier keeps its budget, and a change selects what imports it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.durations import DurationRecorder
from tests.support.tiers import (
    ROOT,
    choose_fast,
    find_function,
    find_touched_tests,
    is_fast,
    may_have_fast_tests,
    read_durations,
    read_tiers,
)


def test_recorded_tests_are_there() -> None:
    files = {name.partition("::")[0] for name in read_durations()}
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


def test_each_slow_test_has_a_reason() -> None:
    slow = {name for name, (_, longest_s) in read_durations().items() if longest_s > 10}
    assert read_tiers()["slow"].keys() == slow  # type: ignore[union-attr]


def test_the_fast_tier_keeps_its_budget() -> None:
    """Tests that are not recorded and first cases take about 70 seconds beside these, collecting and lint 16."""
    chosen = [name for name in read_durations() if is_fast(name)]
    assert chosen and sum(read_durations()[name][0] for name in chosen) <= 50


def test_the_chosen_and_left_out_tests_are_there() -> None:
    listed = [*read_tiers()["fast"], *read_tiers()["left_out"]]  # type: ignore[misc]
    texts = {name: (ROOT / name.partition("::")[0]).read_text() for name in listed}
    assert [name for name, text in texts.items() if f"def {find_function(name).partition('::')[2]}(" not in text] == []


def test_what_is_left_out_is_not_in_the_fast_tier() -> None:
    name = read_tiers()["left_out"][0]  # type: ignore[index]
    assert choose_fast([name, "tests/a.py::test_unrecorded"]) == [False, True] and not is_fast(name)


def test_files_without_a_fast_test_are_not_collected() -> None:
    files = {name.partition("::")[0] for name in read_durations()}
    left_out = {file for file in files if not may_have_fast_tests(ROOT / file)}
    assert "tests/readers/test_fuzz.py" in left_out and "tests/project/test_tiers.py" not in left_out
    assert not [name for name in read_durations() if is_fast(name) and name.partition("::")[0] in left_out]


@pytest.mark.parametrize(
    ("file", "touched", "untouched"),
    [
        ("quant/fixed_point/core/rounding.py", "tests/fixed_point/core/test_core_onnxruntime.py", "tests/memory/test_place.py"),
        ("toolchain/memory/place/greedy.py", "tests/memory/test_place.py", "tests/fixed_point/core/test_core_onnxruntime.py"),
        ("toolchain/api.py", "tests/passes/test_pipeline.py", "tests/memory/test_place.py"),
        ("tests/memory/test_place.py", "tests/memory/test_place.py", "tests/memory/test_order.py"),
        ("hw_configs/edge16.yaml", "", "tests/memory/test_place.py"),
    ],
)
def test_a_change_selects_what_imports_it(file: str, touched: str, untouched: str) -> None:
    tests = find_touched_tests([file])
    assert (not touched or touched in tests) and untouched not in tests


def test_long_tests_that_are_not_recorded_are_named() -> None:
    recorder, lines = DurationRecorder(None), list[str]()
    recorded = next(name for name, (total_s, _) in read_durations().items() if total_s > 2)
    recorder.seconds |= {"tests/a.py::new[1]": 0.7, "tests/a.py::new[2]": 0.8, "tests/a.py::short": 0.9, recorded: 3.0}
    recorder.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))  # type: ignore[arg-type]
    assert lines == ["tests/a.py::new took 1.5 CPU s: record it in tests/durations.json"]
