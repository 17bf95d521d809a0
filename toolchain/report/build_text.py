"""Format the figures of one build as the printed report: sections that a person reads, with an empty line between them.

Sections of accuracy, cycles by cause, traffic and energy are formatted here, the others in report.report_text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simulator import StallCause
from toolchain.errors import format_count, printable_strings
from toolchain.foundation.type_guards import is_mapping
from toolchain.report import report_text
from toolchain.report.layer_breakdown import CAUSES
from toolchain.report.merge_steps import and_more, group_rows
from toolchain.report.report_text import JUDGED_ON, RANDOM, cut, table

FAR_APART_DB = 1.0  # docs/accuracy.md: of the standard error


def build_text(figures: Mapping[str, Any], notes: Sequence[str], explain: bool = False, sizes: str = "") -> str:
    """Return the report of a build as text. Sections without content are left out; characters that a terminal cannot show are
    escaped.

    `figures`: those of `toolchain.api.Build`.
    `notes`: sentences on what was assumed, which stand at the end.
    `explain`: also list every node with engine, cost and reason.
    `sizes`: the table of a sweep over sizes of the SRAM, empty without one.
    """
    figures = printable_strings(figures)
    sections = [
        report_text.layers_text(figures),
        report_text.totals_text(figures),
        attribution_text(figures),
        traffic_text(figures),
        report_text.fallbacks_text(figures),
        report_text.host_segments_text(figures),
        sizes,
        report_text.repair_text(figures),
        fidelity_text(figures, "outputs", "outputs"),
        spread_text(figures),
        standard_error_text(figures),
        fidelity_text(figures, "concats", "concat operands"),
        report_text.worst_text(figures),
        report_text.score_text(figures),
        report_text.key_trials_text(figures) if explain else "",
        report_text.explain_text(figures) if explain else "",
        *(f"note: {note}" for note in printable_strings(notes)),
    ]
    return "\n\n".join(s for s in sections if s)


def fidelity_text(report: Mapping[str, Any], key: str, what: str) -> str:
    """Return a table of the parts under `key` of the report; empty without parts. Of the steps of a sequence only the worst is
    shown.

    A verdict is `POOR`, or `see note` for a part of low SQNR with a reason. Parts that were judged on random inputs get
    figures and no verdict, since these say nothing of the model's own data.

    `key`: `outputs` or `concats`.
    `what`: the parts, for the title.
    """
    judged = report["judged_on"] != RANDOM
    count, all_of = report["judged_samples"], report["samples_to_judge"] if judged else None
    some = format_count(count, "sample") if all_of is None or all_of <= count else f"{count} of {format_count(all_of, 'sample')}"
    title = f"{what} against float, on {some} {JUDGED_ON[report['judged_on']]}:"
    parts = _worst_of_steps(report[key])
    verdicts = {v["part"]: "POOR" if v["poor"] else "see note" for v in report["poor_parts"]}
    rows = [row for part in parts for row in _rows(part, verdicts if judged else {})]
    return "" if not rows else f"{title}\n" + table(("tensor", "SQNR dB", "worst sample", "cosine", ""), rows, (1, 2, 3))


def _rows(part: Mapping[str, Any], verdicts: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return a row for the part, and one for each of its slices. verdicts: text by the part's or the slice's name."""
    worst = "" if part["worst_sample_db"] is None else f"{part['worst_sample_db']:.1f}"
    first = (cut(part["name"], 60), format_decibels(part), worst, f"{part['cosine']:.6f}", verdicts.get(part["tensor_name"], ""))
    slices = [(f"  {cut(s['part'], 58)}", format_decibels(s), "", "", verdicts.get(s["part"], "")) for s in part["parts"]]
    return [first, *slices]


def spread_text(report: Mapping[str, Any]) -> str:
    """Return how far single samples are apart and which option judges all, where some samples were not judged; else an empty
    text."""
    levels, count, all_of = report["sample_sqnr_db"], report["judged_samples"], report["samples_to_judge"]
    if report["judged_on"] == RANDOM or all_of is None or all_of <= count or not report["outputs"]:
        return ""
    finite_levels = sorted(level for level in levels if level is not None)
    each = f"single samples have {finite_levels[0]:.1f} to {finite_levels[-1]:.1f} dB; " if len(finite_levels) > 1 else ""
    return f"{each}--min-sqnr DB judges all {all_of}"


def standard_error_text(report: Mapping[str, Any]) -> str:
    """Return the outputs whose SQNR has a standard error above 1 dB, as other data may differ by twice as much; else an empty
    text."""
    if report["judged_on"] == RANDOM:
        return ""
    parts = [part for part in report["outputs"] if (part["standard_error_db"] or 0.0) > FAR_APART_DB]
    errors = ", ".join(f"{cut(part['name'], 60)} {part['standard_error_db']:.1f}" for part in parts)
    count = format_count(report["judged_samples"], "sample")
    return f"{count} judged, so SQNR has a standard error of dB: {errors}; --judge DATA judges on more" if parts else ""


def _worst_of_steps(parts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the parts, of the steps of a sequence the one farthest from float, whose name says how many there are."""
    groups = group_rows(parts, lambda part: part["steps_of"])
    worst = [min(group, key=get_level_db) for group in groups]
    return [
        {**part, "tensor_name": part["name"], "name": part["name"] + and_more(len(group))} for part, group in zip(worst, groups)
    ]


def get_level_db(part: Mapping[str, Any]) -> float:
    """Return the part's SQNR in dB: infinite where it is exact, -inf where nothing of it is left or it is not known."""
    return math.inf if part["exact"] else -math.inf if part["sqnr_db"] is None else part["sqnr_db"]


def format_decibels(part: Mapping[str, Any]) -> str:
    """Return the part's SQNR in dB with one decimal, `exact`, or `-inf` where it has none."""
    value = part["sqnr_db"]
    return "exact" if part.get("exact") else "-inf" if value is None or math.isinf(value) else f"{value:.1f}"


def attribution_text(figures: Mapping[str, Any]) -> str:
    """Return a table of each unit's cycles by cause, as shares of all cycles in percent; empty where the causes are not known.

    Each unit's shares sum to 100 %. Causes that no unit has are left out. A share of signals names the unit that is waited for
    longest.
    """
    if not figures["attribution"] or not figures["cycles"]:
        return ""
    units: Mapping[str, Mapping[str, Any]] = figures["attribution"]
    memories = sorted({name for stalls in units.values() for name in stalls.get(StallCause.MEMORY, {})})
    columns = [
        (cause, name)
        for cause in StallCause
        for name in (memories if cause is StallCause.MEMORY else [""])
        if any(stalls.get(cause) for stalls in units.values())
    ]
    rows = [
        (unit, *(_share(stalls, cause, name, figures["cycles"]) for cause, name in columns)) for unit, stalls in units.items()
    ]
    heads = ("unit", *(name or CAUSES[cause] for cause, name in columns))
    return "% of cycles, by cause\n" + table(heads, rows, range(1, len(heads)))


def traffic_text(figures: Mapping[str, Any]) -> str:
    """Return a table of the bytes that each memory moves, the bytes of instructions, and the energy where the machine states
    it.

    The text is empty where nothing runs on the chip.
    """
    if not figures["layers"]:
        return ""
    rows = [
        (name, *(f"{moved[kind]:,}" for kind in ("read_bytes", "write_bytes", "read_burst_bytes", "write_burst_bytes")))
        for name, moved in figures["traffic"].items()
    ]
    heads = ("memory", "bytes read", "written", "read in bursts", "written in bursts")
    summary = f"instructions read: {format_count(figures['program_bytes'], 'byte')}"
    energy = figures["energy_pj"]
    if energy is not None:
        parts = (("products", "macs"), ("memories on the chip", "on_chip"), ("DRAM", "dram"))
        shares = ", ".join(f"{what} {_part(energy[key], energy['total'])}" for what, key in parts)
        summary += f"\nenergy: {energy['total'] / 1e6:,.3f} uJ, {shares}"
    return f"{table(heads, rows, (1, 2, 3, 4))}\n{summary}"


def _part(value: float, total: float) -> str:
    """Return a share in percent as text, `-` of nothing."""
    return f"{100 * value / total:.1f} %" if total else "-"


def _share(stalls: Mapping[str, Any], cause: StallCause, name: str, cycles: int) -> str:
    """Return the share of a cause in percent as text, `-` without cycles. For signals the longest-awaited unit follows."""
    cause_cycles = stalls.get(cause, 0)
    if cause is StallCause.SIGNAL and cause_cycles:
        return f"{100 * sum(cause_cycles.values()) / cycles:.1f} {max(cause_cycles, key=cause_cycles.__getitem__)}"
    stall_cycles = cause_cycles.get(name, 0) if is_mapping(cause_cycles) else cause_cycles
    return f"{100 * stall_cycles / cycles:.1f}" if stall_cycles else "-"
