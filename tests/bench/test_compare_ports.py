"""Check bench/compare_ports.py: units survive by default, and other networks stay as they are."""

from __future__ import annotations

from pathlib import Path

from bench.compare_ports import CASES, compare_case


def test_units_are_kept_and_a_classifier_stays(tmp_path: Path) -> None:
    units = compare_case(CASES["denormalization"], "edge16", 1, tmp_path)
    assert units.decibels[0] < 10 < 20 < units.decibels[1]
    plain = compare_case(CASES["classifier"], "edge16", 1, tmp_path)
    assert plain.decibels[0] == plain.decibels[1] and plain.cycles[0] == plain.cycles[1]
