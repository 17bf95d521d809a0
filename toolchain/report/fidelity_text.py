"""Describe how far a build's integers are from float, as tables and sentences from its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from toolchain.errors import format_count
from toolchain.report.merge_steps import and_more, group_rows
from toolchain.report.report_text import JUDGED_ON, RANDOM, cut, table


def fidelity_text(report: Mapping[str, Any], key: str, what: str) -> str:
    """The parts under `key`, of steps of a sequence the worst. Random inputs give figures, no verdict: they say nothing of the
    model's own data."""
    judged = report["judged_on"] != RANDOM
    count, all_of = report["judged_samples"], report["samples_to_judge"] if judged else None
    some = format_count(count, "sample") if all_of is None or all_of <= count else f"{count} of {format_count(all_of, 'sample')}"
    title = f"{what} against float, on {some} {JUDGED_ON[report['judged_on']]}:"
    parts = _worst_of_steps(report[key])
    verdicts = {v["part"]: "POOR" if v["poor"] else "see note" for v in report["poor_parts"]}
    rows = [row for part in parts for row in _rows(part, verdicts if judged else {})]
    return "" if not rows else f"{title}\n" + table(("tensor", "SQNR dB", "worst sample", "cosine", ""), rows, (1, 2, 3))


def _rows(part: Mapping[str, Any], verdicts: Mapping[str, str]) -> list[tuple[str, ...]]:
    """A row for the part, and one for each part of it of unlike size."""
    worst = "" if part["worst_sample_db"] is None else f"{part['worst_sample_db']:.1f}"
    first = (cut(part["name"], 60), format_decibels(part), worst, f"{part['cosine']:.6f}", verdicts.get(part["tensor_name"], ""))
    slices = [(f"  {cut(s['part'], 58)}", format_decibels(s), "", "", verdicts.get(s["part"], "")) for s in part["parts"]]
    return [first, *slices]


def spread_text(report: Mapping[str, Any]) -> str:
    """Return how far single samples are apart where some available samples were not judged; else an empty text."""
    levels, count, all_of = report["sample_sqnr_db"], report["judged_samples"], report["samples_to_judge"]
    if report["judged_on"] == RANDOM or all_of is None or all_of <= count or not report["outputs"]:
        return ""
    finite_levels = sorted(level for level in levels if level is not None)
    each = f"single samples have {finite_levels[0]:.1f} to {finite_levels[-1]:.1f} dB; " if len(finite_levels) > 1 else ""
    return f"{each}--min-sqnr DB judges all {all_of}"


def _worst_of_steps(parts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Parts of the steps of a sequence as the one that is farthest from float, whose name says how many there are."""
    groups = group_rows(parts, lambda part: part["steps_of"])
    worst = [min(group, key=_level) for group in groups]
    return [
        {**part, "tensor_name": part["name"], "name": part["name"] + and_more(len(group))} for part, group in zip(worst, groups)
    ]


def _level(part: Mapping[str, Any]) -> float:
    return math.inf if part["exact"] else -math.inf if part["sqnr_db"] is None else part["sqnr_db"]


def format_decibels(part: Mapping[str, Any]) -> str:
    value = part["sqnr_db"]
    return "exact" if part.get("exact") else "-inf" if value is None or math.isinf(value) else f"{value:.1f}"
