"""Format the error report of `--error-report` as files: a text table, JSON, and one HTML page that needs nothing beside it.

Findings and rows come in the order of the report (report.error_report), the worst first. All levels are dB of signal over
noise. The text and the page write out the _FIRST worst findings. Sizes of the plot are in pixels: its
height, the space on its left (_MARGIN), and the widest bar (_BAR). Bars become narrower where all exceed _WIDEST.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape

from toolchain.errors import format_count, percent
from toolchain.report.diagnosis import CEILING_DB
from toolchain.report.error_report import ErrorReport
from toolchain.report.findings import LayerError
from toolchain.report.layer_types import types_text
from toolchain.report.merge_steps import and_more, group_rows
from toolchain.report.report_text import cut, table

_NOTHING = "nothing is lost: every layer makes of codes the codes that float makes of them, but for ties"
_FIRST = 10
_HEIGHT, _MARGIN, _BAR, _WIDEST = 260, 44, 12, 1800
_STYLE = """body{font:14px/1.5 system-ui,sans-serif;margin:2em;max-width:1200px;color:#222}
table{border-collapse:collapse;font-size:13px}td,th{padding:3px 9px;text-align:left;border-bottom:1px solid #ddd}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}li{margin:.5em 0}.key{font-size:12px}"""
_COLOURS = (
    ".alone{fill:#c0504d}.whole{stroke:#4f81bd;fill:none;stroke-width:1.5}.grid{stroke:#ddd}text{font:11px sans-serif;fill:#555}"
)


def report_files(report: ErrorReport, title: str, judged_on: str) -> dict[str, bytes]:
    """Return the contents of the error report's files by name: layers.txt, layers.json, layers.html. Nothing is written.

    The text and the page show the first ten findings, the JSON all.
    `title`: the model's name.
    `judged_on`: a text that says what the samples are.
    """
    head = f"{title}: error of each layer, on {format_count(report.samples, 'sample')} {judged_on}"
    figures = {"model": title, "judged_on": judged_on, **report.as_json()}
    return {
        "layers.txt": f"{head}\n\n{findings_text(report.findings[:_FIRST])}\n\n{rows_text(report.rows)}\n".encode(
            errors="backslashreplace"
        ),
        "layers.json": (json.dumps(figures, indent=1) + "\n").encode(),
        "layers.html": page(report, head).encode(errors="backslashreplace"),
    }


def finding_text(finding: Mapping[str, object] | LayerError) -> str:
    """Return a finding as one line: layer, tensor, cause, levels, why, tried remedy.

    `finding`: a finding, or its JSON, where a level of None is -inf: nothing of the tensor is left.
    """
    f = finding.as_json() if isinstance(finding, LayerError) else finding
    place = f"layer {f['layer']} ({f['op']})" if f["layer"] is not None else f"{f['tensor']} on its way into the NPU ({f['op']})"
    alone = "-inf" if f["alone_db"] is None else _level(f["alone_db"])
    at_output = f", {_level(f['effect_db'])} dB of the output" if f["effect_db"] is not None else ""
    ways = f"; {f['remedy']}" if f["remedy"] else ""
    return f"{place}, tensor {f['tensor']}: {f['cause']}, leaves {alone} dB alone{at_output}: {f['why']}{ways}"


def findings_text(findings: Sequence[LayerError]) -> str:
    """Return the findings as text, a line each, in their order; a sentence where there are none."""
    return "\n".join(finding_text(f) for f in findings) or _NOTHING


_HEADERS = (
    "layer",
    "operator",
    "tensor",
    "of output",
    "alone",
    "own",
    "weights",
    "activations",
    "accumulated",
    "clipped",
    "types",
    "cause",
)


def rows_text(rows: Sequence[LayerError]) -> str:
    """Return a table with a line for each layer, in the order of the rows. Of steps of a sequence only the first has one."""
    return table(_HEADERS, _lines(rows, 40), tuple(range(3, 10)))


def _lines(rows: Sequence[LayerError], width: int) -> list[tuple[str, ...]]:
    """Return the cells of each line. width: most characters of a tensor's name."""
    groups = group_rows(rows, lambda row: (row.op, row.name))
    return [_cells(group[0], width, len(group)) for group in groups]


def _cells(row: LayerError, width: int, count: int) -> tuple[str, ...]:
    """Return the cells of one line, under _HEADERS. count: number of steps of a sequence that the line stands for."""
    levels = (row.effect_db, row.alone_db, row.own_db, row.weights_db, row.activations_db, row.accumulated_db)
    clipped = percent(row.clipped_share) if row.clipped_share else ""
    name = row.layer if row.layer is not None else "-"
    return (
        cut(name + and_more(count), width + 12),
        row.op,
        cut(row.name, width),
        *map(_level, levels),
        clipped,
        types_text(row.types.as_json()),
        row.cause or "",
    )


def _level(value: object) -> str:
    """Return a level with one decimal; `exact` or `-inf` for an infinite one, `-` for none."""
    if not isinstance(value, float):
        return "-"
    return f"{value:.1f}" if math.isfinite(value) else "exact" if value > 0 else "-inf"


# --- the page


def page(report: ErrorReport, head: str) -> str:
    """Return the error report as an HTML page with the first findings, a plot and a table.

    Names of the model are escaped. The page loads nothing from elsewhere.

    `head`: its title.
    """
    rows = "".join(map(_row, _lines(report.rows, 200)))
    titles = "".join(f"<th{_number(i)}>{escape(h)}</th>" for i, h in enumerate(_HEADERS))
    items = "".join(f"<li>{escape(finding_text(f))}</li>" for f in report.findings[:_FIRST])
    body = f"<ol>{items}</ol>" if items else f"<p>{_NOTHING}</p>"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(head)}</title><style>{_STYLE}</style>'
        f"</head><body><h1>{escape(head)}</h1><h2>What to look at first</h2>{body}"
        f"<h2>From input to output</h2>{plot(report.rows)}"
        '<p class="key">Bars: signal over noise that each layer leaves by itself, fed with float\'s tensors. Line: what is left '
        "of the signal there in the integer network. Lower is worse.</p>"
        f"<h2>All layers, worst first (dB)</h2><table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>"
        "</body></html>\n"
    )


def _number(column: int) -> str:
    return ' class="n"' if 3 <= column <= 9 else ""


def _row(cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<td{_number(i)}>{escape(c)}</td>" for i, c in enumerate(cells)) + "</tr>"


def plot(rows: Sequence[LayerError]) -> str:
    """Return an SVG with a bar for each layer in the network's order, its level alone, and a line of the accumulated level.

    A level is cut to 0 to 90 dB, so lower bars are worse.
    """
    ordered = sorted(rows, key=lambda r: r.position)
    bar = min(_BAR, max(1.5, _WIDEST / max(len(ordered), 1)))
    width = _MARGIN + bar * len(ordered) + 10
    most = 10 * math.ceil(max((_height(r.alone_db) for r in ordered), default=10.0) / 10) or 10
    scale = _HEIGHT / most
    parts = [
        f'<line class="grid" x1="{_MARGIN}" x2="{width:.0f}" y1="{_y(d, scale):.1f}" y2="{_y(d, scale):.1f}"/>'
        f'<text x="4" y="{_y(d, scale) + 4:.1f}">{d} dB</text>'
        for d in range(0, most + 1, 10)
    ]
    line = list[str]()
    for i, row in enumerate(ordered):
        x, level = _MARGIN + i * bar, _height(row.alone_db)
        tooltip = escape(f"{row.layer or row.name}: {_level(row.alone_db)} dB alone, {row.cause or ''}")
        parts.append(
            f'<rect class="alone" x="{x:.1f}" y="{_y(level, scale):.1f}" width="{max(bar - 1.5, 1):.1f}" '
            f'height="{level * scale:.1f}"><title>{tooltip}</title></rect>'
        )
        if row.accumulated_db is not None:
            line.append(f"{x + bar / 2:.1f},{_y(_height(row.accumulated_db), scale):.1f}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{_HEIGHT + 20}"><style>{_COLOURS}</style>'
        f"{''.join(parts)}"
        f'<polyline class="whole" points="{" ".join(line)}"/></svg>'
    )


def _y(level: float, scale: float) -> float:
    return 10 + _HEIGHT - level * scale


def _height(level: float) -> float:
    return min(max(level, 0.0), CEILING_DB)
