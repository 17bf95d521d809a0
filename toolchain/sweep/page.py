"""Format a sweep as one HTML page that loads nothing: pictures, points, reports of the best, failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from toolchain.errors import format_count
from toolchain.sweep.metrics import Objective
from toolchain.sweep.pareto_picture import MOST_POINTS, describe_point, pareto_pictures, sample_rows
from toolchain.sweep.run_sweep import Row, SweepRun
from toolchain.sweep.store import Store

# So that a page stays below 20 MB: reports take 5 to 60 KB, rows of a table 400 bytes (docs/sweeps.md).
REPORT_CHARACTERS = 12_000_000  # of all reports (docs/sweeps.md)
MOST_FAILURES = 1000  # that are listed (docs/sweeps.md)
_STYLE = """body{font:14px/1.5 system-ui,sans-serif;margin:2em;color:#222}table{border-collapse:collapse;font-size:13px}
td,th{padding:3px 9px;text-align:left;border-bottom:1px solid #ddd}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
tr:target,details:target{background:#fff3c4}pre{overflow-x:auto;background:#f7f7f7;padding:1em;font-size:12px}
svg a{cursor:pointer}circle:hover{stroke:#000}.table{max-height:30em;overflow:auto}"""
# A click on a point goes to its row; a report opens when something leads to it.
_SCRIPT = """addEventListener("hashchange",open_target);addEventListener("load",open_target);
function open_target(){const e=document.getElementById(decodeURIComponent(location.hash.slice(1)));
if(e&&e.tagName==="DETAILS"){e.open=true;e.scrollIntoView()}}"""
_COLUMNS = ("cycles", "energy_pj", "sram_bytes", "dram_bytes", "sqnr_db")


def sweep_page(title: str, run: SweepRun, objectives: Sequence[Objective], store: Store) -> str:
    """Return the page as HTML. Names and reasons are escaped.

    Each network has a section: pictures of its objectives, its Pareto front with reports, and at most 2,000 other points.
    Reports that no longer fit into REPORT_CHARACTERS are left to the store. At most MOST_FAILURES failed builds end the page.
    """
    networks = list(dict.fromkeys(row.point.network for row in run.rows))
    reports = _Reports(store)
    sections = "".join(part for network in networks for part in _network_section(network, run, objectives, reports))
    failures = "".join(_failures(run.rows))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<script>{_SCRIPT}</script></head><body><h1>{escape(title)}</h1><p>{escape(summarize(run))}</p>"
        f"{sections}{failures}</body></html>\n"
    )


def summarize(run: SweepRun) -> str:
    """Return one line: how many points there are, and how many of each status."""
    counts = Counter(row.result.status for row in run.rows)
    parts = ", ".join(f"{count:,} {_STATUS_TEXTS[status]}" for status, count in sorted(counts.items()))
    return f"{format_count(len(run.rows), 'point')}: {parts}"


_STATUS_TEXTS = {
    "built": "built",
    "refused": "refused by the toolchain",
    "bug": "failed by a bug of the toolchain",
    "time": "out of time",
    "memory": "out of memory",
    "died": "died",
}


class _Reports:
    """The reports of a store, handed out until the page has as many characters as it may."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._remaining = REPORT_CHARACTERS

    def take(self, key: str) -> str | None:
        """Return a report, or None where the page is full."""
        report = self._store.read_report(key)
        self._remaining -= len(report)
        return report if self._remaining >= 0 else None


def _network_section(network: str, run: SweepRun, objectives: Sequence[Objective], reports: _Reports) -> Iterator[str]:
    """Yield the HTML of one network: pictures, front, other points, reports."""
    front = run.front(network, objectives)
    front_keys = {row.key for row in front}
    built_rows = [row for row in run.rows if row.point.network == network and row.result.status == "built"]
    others = [row for row in built_rows if row.key not in front_keys]
    yield f"<h2>{escape(network)}</h2>"
    if not front:
        names = ", ".join(objective.name for objective in objectives)
        yield f"<p>No build has all of the objectives {escape(names)}.</p>"
    yield from pareto_pictures(run, network, objectives).values()
    yield f"<h3>Pareto front: {format_count(len(front), 'point')}</h3>"
    yield _table(front, "r")
    yield f"<h3>{format_count(len(others), 'other point')}</h3>"
    yield _table(sample_rows(others, MOST_POINTS), None)
    yield "<p>Reports of these: npu-sweep SWEEP.yaml --report KEY, with a key of the table or its first characters.</p>"
    if front:
        yield "<h3>Reports of the Pareto front</h3>"
    yield from (_report(row, reports) for row in {row.key: row for row in front}.values())


def _table(rows: Sequence[Row], report_prefix: str | None) -> str:
    """Return an HTML table of points, equal builds once; empty without rows.

    `report_prefix`: keys link to the reports of this page, whose ids begin with it; None: these points have none.
    """
    if not rows:
        return ""
    head = "".join(f'<th class="n">{name}</th>' for name in _COLUMNS)
    lines: list[str] = []
    for row in {row.key: row for row in rows}.values():
        key = row.key[:16]
        shown_key = key if report_prefix is None else f'<a href="#{report_prefix}{key}">report</a> {key}'
        cells = "".join(f'<td class="n">{_number(row.result.metrics.get(name))}</td>' for name in _COLUMNS)
        lines.append(f'<tr id="{key}"><td>{escape(describe_point(row))}</td>{cells}<td>{shown_key}</td></tr>')
    return f'<div class="table"><table><tr><th>point</th>{head}<th>key</th></tr>{"".join(lines)}</table></div>'


def _number(value: float | int | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _report(row: Row, reports: _Reports) -> str:
    """Return the foldable report of a point, or a remark where the page is full."""
    text = reports.take(row.key)
    body = "<p>The page is full; the store has this report.</p>" if text is None else f"<pre>{escape(text)}</pre>"
    return f'<details id="r{row.key[:16]}"><summary>{escape(describe_point(row))}</summary>{body}</details>'


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a section of builds that failed, with their reasons; nothing where none failed."""
    failures = [row for row in rows if row.result.status != "built"]
    if not failures:
        return
    shown_rows = failures[:MOST_FAILURES]
    more = "" if len(shown_rows) == len(failures) else f", the first {len(shown_rows):,} here, all in the table"
    yield f"<h2>{format_count(len(failures), 'build')} failed{more}</h2>"
    lines = [
        f"<tr><td>{escape(row.point.network)}: {escape(describe_point(row))}</td>"
        f"<td>{_STATUS_TEXTS[row.result.status]}</td><td>{escape(row.result.reason)}</td><td>{row.key[:16]}</td></tr>"
        for row in shown_rows
    ]
    yield f"<table><tr><th>point</th><th>what</th><th>reason</th><th>key</th></tr>{''.join(lines)}</table>"
