"""The summary of a build as HTML: which parts its table shows first."""

from __future__ import annotations

from typing import Any

from toolchain.report.build_summary import SummaryInput, summary_html


def part(name: str, sqnr_db: float | None, exact: bool = False) -> dict[str, Any]:
    return {"name": name, "sqnr_db": sqnr_db, "exact": exact, "cosine": 1.0}


def test_a_part_that_loses_all_is_the_poorest() -> None:
    outputs = [part("exact", None, exact=True), *(part(f"y{i}", 30.0 + i) for i in range(20)), part("lost", None)]
    host = {"nodes": 0, "islands": 0}
    figures = {"name": "n", "machine": "m", "layers": [], "host": host, "judged_samples": 1, "judged_on": "judge"}
    html = summary_html(SummaryInput({**figures, "outputs": outputs, "concats": []}, 1, (), ()))
    table = html[html.index("SQNR") :]
    assert table.index("output lost") < table.index("output y0") and "-inf dB" in table
    assert "output y18" in table and "output y19" not in table and "output exact" not in table
