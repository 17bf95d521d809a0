"""The text report of one build: the sections that a person reads, with an empty line between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolchain.errors import printable_strings
from toolchain.report import breakdown_text, fidelity_text, report_text


def build_text(figures: Mapping[str, Any], notes: Sequence[str], explain: bool = False, sizes: str = "") -> str:
    """Return the report of a build.

    `figures`: those of `toolchain.api.Build`.
    `explain`: also list every node with engine, cost and reason.
    `sizes`: the table of a sweep over sizes of the SRAM, where there is one.
    """
    figures = printable_strings(figures)
    sections = [
        report_text.layers_text(figures),
        report_text.totals_text(figures),
        breakdown_text.attribution_text(figures),
        breakdown_text.traffic_text(figures),
        report_text.fallbacks_text(figures),
        report_text.host_segments_text(figures),
        sizes,
        report_text.repair_text(figures),
        fidelity_text.fidelity_text(figures, "outputs", "outputs"),
        fidelity_text.spread_text(figures),
        fidelity_text.fidelity_text(figures, "concats", "concat operands"),
        report_text.worst_text(figures),
        report_text.score_text(figures),
        report_text.key_trials_text(figures) if explain else "",
        report_text.explain_text(figures) if explain else "",
        *(f"note: {note}" for note in printable_strings(notes)),
    ]
    return "\n\n".join(s for s in sections if s)
