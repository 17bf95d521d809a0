"""Describe a build in at most ten lines of text, or as HTML for a notebook with a picture of the cycles of each layer.

They are what a build of toolchain.api shows as its `repr` and in a notebook. The full report is report.build_text.
The text has at most _LINES lines of _LINE_CHARACTERS. The picture has the _BARS longest layers and one bar for the others.
The table has the _PARTS poorest outputs and operands of Concat (docs/python.md). Sizes in pixels are those of the column of
names (_NAME), the longest bar (_BAR) and the height of a row (_ROW).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from toolchain.errors import format_count, printable, printable_strings
from toolchain.report.build_text import format_decibels, get_level_db
from toolchain.report.merge_steps import merge_step_rows
from toolchain.report.report_text import JUDGED_ON, cut, format_seconds

_LINES = 10
_LINE_CHARACTERS = 160  # as cells of tables in docs/ have at most
_BARS = 30
_PARTS = 20
_NAME, _BAR, _ROW = 300, 380, 16
_STYLE = 'style="text-align:left;padding:1px 12px 1px 0"'


@dataclass(frozen=True)
class SummaryInput:
    """The parts of a build that a summary shows.

    `figures`: figures as in the JSON report; of a file of several entries they hold `entries`.
    `file_bytes`: size of the compiled file.
    `warnings`, `failures`: sentences; failures are those of the accuracy gate.
    """

    figures: Mapping[str, Any]
    file_bytes: int
    warnings: Sequence[str]
    failures: Sequence[str]


def summary_text(summary: SummaryInput) -> str:
    """Return at most ten lines of at most 160 characters: cycles, file, memory, longest layers, host, accuracy, failures,
    warnings.

    Of several entries each has a line, as many as fit. Of failures and warnings the first is shown.
    """
    figures = printable_strings(summary.figures)
    by_entry = figures.get("entries")
    lines = _lines(figures) if by_entry is None else _entry_lines(figures, by_entry)
    lines.insert(1, f"file: {format_count(summary.file_bytes, 'byte')}")
    for label, sentences in (("not accurate enough", summary.failures), ("warnings", summary.warnings)):
        if sentences:
            first = " ".join(printable(sentences[0].replace("\n", " ")).split())
            count = f", the first of {len(sentences)}" if len(sentences) > 1 else ""
            lines.append(f"{label}{count}: {first}")
    return "\n".join(_shorten(line) for line in lines[:_LINES])


def _shorten(line: str) -> str:
    return line if len(line) <= _LINE_CHARACTERS else line[: _LINE_CHARACTERS - 3] + "..."


def _entry_lines(figures: Mapping[str, Any], by_entry: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the lines on a file of several entries: a headline, and a line for each entry as far as they fit."""
    lines = [f"{figures['name']} on {figures['machine']}: {len(by_entry)} entries"]
    names = [*by_entry][: _LINES - 5]
    lines += [f"entry {name}: {_headline(by_entry[name])}; {_accuracy(by_entry[name])}" for name in names]
    return [*lines, f"and {len(by_entry) - len(names)} entries more"] if len(by_entry) > len(names) else lines


def _lines(figures: Mapping[str, Any]) -> list[str]:
    """Return the lines on one set of input shapes: headline, memory, longest layers, host, accuracy."""
    lines = [f"{figures['name']} on {figures['machine']}: {_headline(figures)}"]
    if figures["layers"]:
        moved = figures["dram_read_bytes"] + figures["dram_write_bytes"]
        lines.append(
            f"SRAM peak: {figures['sram_peak_bytes']:,} of {figures['sram_size_bytes']:,} bytes; DRAM traffic: {moved:,} bytes"
        )
        longest = sorted(merge_step_rows(figures["layers"], "name"), key=lambda layer: -layer["cycles"])[:3]
        lines.append("longest layers: " + ", ".join(f"{cut(layer['name'], 32)} {layer['cycles']:,} cycles" for layer in longest))
    on_host = figures["host"]
    if on_host["nodes"]:
        lines.append(f"on the host: {format_count(on_host['nodes'], 'node')} in {format_count(on_host['islands'], 'subgraph')}")
    return [*lines, _accuracy(figures)]


def _headline(figures: Mapping[str, Any]) -> str:
    """Return cycles, time, clock and MAC utilization as one clause."""
    if not figures["layers"]:
        return "nothing runs on the NPU"
    return (
        f"{figures['cycles']:,} cycles, {format_seconds(figures['seconds'])} at {figures['clock_hz'] / 1e6:g} MHz, "
        f"MAC utilization {100 * figures['mac_utilization']:.1f} %"
    )


def _accuracy(figures: Mapping[str, Any]) -> str:
    """Return the levels of the first three outputs as one line, with the samples that they are of."""
    judged_on = f"{format_count(figures['judged_samples'], 'sample')} {JUDGED_ON[figures['judged_on']]}"
    levels = ", ".join(f"{cut(part['name'], 32)} {_level(part)}" for part in figures["outputs"][:3])
    more = f" and {len(figures['outputs']) - 3} more" if len(figures["outputs"]) > 3 else ""
    return f"against float, on {judged_on}: {levels or 'no outputs'}{more}"


def _level(part: Mapping[str, Any]) -> str:
    text = format_decibels(part)
    return text if text == "exact" else f"{text} dB"


def summary_html(summary: SummaryInput) -> str:
    """Return HTML: the lines of `summary_text`, cycles by layer as SVG, the poorest parts with their dB, all failures and
    warnings.

    Names of the model are escaped, and nothing is loaded from elsewhere.
    """
    figures = printable_strings(summary.figures)
    sections = [f"<pre>{escape(summary_text(summary))}</pre>"]
    for name, of_entry in figures.get("entries", {"": figures}).items():
        sections += [f"<h4>entry {escape(name)}</h4>"] if name else []
        sections += [_layers_svg(of_entry["layers"]), _parts_table(of_entry)]
    for title, sentences in (("Not accurate enough", summary.failures), ("Warnings", summary.warnings)):
        if sentences:
            items = "".join(f"<li>{escape(printable(sentence))}</li>" for sentence in sentences)
            sections.append(f"<p><b>{title}</b></p><ul>{items}</ul>")
    return f"<div>{''.join(sections)}</div>"


def _layers_svg(layers: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG with a bar for each of the 30 longest layers in the network's order, and one for the others; empty without
    layers."""
    if not layers:
        return ""
    rows = [(layer["name"], layer["cycles"]) for layer in merge_step_rows(layers, "name")]
    shown = sorted(sorted(range(len(rows)), key=lambda i: -rows[i][1])[:_BARS])
    bars = [rows[i] for i in shown]
    if len(rows) > len(bars):
        rest = sum(cycles for _, cycles in rows) - sum(cycles for _, cycles in bars)
        bars.append((f"{len(rows) - len(bars)} other layers", rest))
    most, height = max(max(cycles for _, cycles in bars), 1), _ROW * len(bars) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_NAME + _BAR + 100}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><text x="0" y="12" font-size="12">cycles by layer</text>'
    ]
    for index, (name, cycles) in enumerate(bars):
        top = 20 + _ROW * index
        width = _BAR * max(cycles, 0) / most
        parts.append(
            f'<g><title>{escape(name)}: {cycles:,} cycles</title><text x="{_NAME - 6}" y="{top + 11}" text-anchor="end">'
            f'{escape(cut(name, 44))}</text><rect x="{_NAME}" y="{top + 2}" width="{width:.1f}" height="{_ROW - 4}" '
            f'fill="#4f81bd"/><text x="{_NAME + width + 4:.1f}" y="{top + 11}">{cycles:,}</text></g>'
        )
    return "".join([*parts, "</svg>"])


def _parts_table(figures: Mapping[str, Any]) -> str:
    """Return an HTML table of the 20 outputs and operands of Concat with the least dB."""
    parts = [("output", part) for part in figures["outputs"]] + [("concat operand", part) for part in figures["concats"]]
    parts.sort(key=lambda row: get_level_db(row[1]))
    rows = "".join(
        f"<tr><td {_STYLE}>{kind} {escape(cut(part['name'], 60))}</td><td {_STYLE}>{_level(part)}</td>"
        f"<td {_STYLE}>{part['cosine']:.6f}</td></tr>"
        for kind, part in parts[:_PARTS]
    )
    judged_on = escape(f"{format_count(figures['judged_samples'], 'sample')} {JUDGED_ON[figures['judged_on']]}")
    more = f"<p>and {format_count(len(parts) - _PARTS, 'part')} with more dB</p>" if len(parts) > _PARTS else ""
    head = f"<tr><th {_STYLE}>against float</th><th {_STYLE}>SQNR</th><th {_STYLE}>cosine</th></tr>"
    return f"<p>on {judged_on}:</p><table>{head}{rows}</table>{more}"
