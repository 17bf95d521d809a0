"""Check the table of a repair in the report."""

from __future__ import annotations

from toolchain.report.report_text import repair_text


def test_the_reason_of_a_step_stands_in_full() -> None:
    """A figure at the start of a long reason is not cut: 1.93 dB must not read as .93 dB."""
    why = "the outputs gain 1.93 dB over all samples, but the mean sample loses 1.08 dB"
    step = {"step": "rounding", "before_db": 0.0, "after_db": 1.93, "kept": False, "why": why}
    assert why in repair_text({"repair": {"effort": "fast", "held_out": 14, "steps": [step]}})
