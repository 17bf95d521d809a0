"""Draw cycles and DRAM bytes against the size of the SRAM as one SVG, for the sweep of `--sram-curve`.

Sizes are pixels: of a panel, and of the space on its left (_MARGIN), above all panels (_TOP) and below each (_GAP). A `Series` is
(what it is, a value for each size, colour).
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log2

_WIDTH, _HEIGHT, _MARGIN, _TOP, _GAP = 760, 230, 90, 46, 70
_INK, _LINE, _LEAST = "#333", "#1f6fb4", "#b4571f"

Series = tuple[str, Sequence[float], str]


def curve_svg(
    title: str, sizes: Sequence[int], machine_size: int, cycles: Sequence[int], moved: Sequence[int], least: Sequence[int]
) -> str:
    """Return the picture of a sweep as SVG that loads nothing: a panel of cycles, below it one of bytes. Sizes are on a log
    scale.

    `sizes`: bytes of SRAM, rising.
    `machine_size`: the machine's own size, marked by a dashed line.
    `cycles`, `moved`, `least`: for each size the cycles, the DRAM bytes of the plan, and the least of any plan.
    """
    panels: list[tuple[str, list[Series]]] = [
        ("cycles", [("cycles", cycles, _LINE)]),
        ("bytes of DRAM", [("this plan", moved, _LINE), ("least of any schedule", least, _LEAST)]),
    ]
    height = _TOP + len(panels) * (_HEIGHT + _GAP)
    width = _MARGIN + _WIDTH + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{_MARGIN}" y="24" font-size="15" fill="{_INK}">{escape(title)}</text>',
    ]
    for index, (name, series) in enumerate(panels):
        out += _panel(_TOP + index * (_HEIGHT + _GAP), name, sizes, machine_size, series)
    return "\n".join([*out, "</svg>\n"])


def _panel(top: int, name: str, sizes: Sequence[int], machine_size: int, series: Sequence[Series]) -> list[str]:
    """Return the SVG elements of one panel whose upper edge is at `top`."""
    most = max(max(values) for _, values, _ in series) * 1.05 or 1.0
    low, high = log2(sizes[0]), log2(sizes[-1])

    def x_of(size: float) -> float:
        return _MARGIN + _WIDTH * ((log2(size) - low) / (high - low) if high > low else 0.5)

    def y_of(value: float) -> float:
        return top + _HEIGHT * (1 - value / most)

    out = [f'<rect x="{_MARGIN}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="#f7f7f7"/>']
    out.append(f'<text x="{_MARGIN}" y="{top - 6}" fill="{_INK}">{escape(name)}</text>')
    for part in range(5):
        value = most * part / 4
        out.append(f'<line x1="{_MARGIN}" y1="{y_of(value):.1f}" x2="{_MARGIN + _WIDTH}" y2="{y_of(value):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{_MARGIN - 6}" y="{y_of(value) + 4:.1f}" text-anchor="end" fill="{_INK}">{value:,.0f}</text>')
    for power in range(int(-(-low // 1)), int(high) + 1):
        x = x_of(2**power)
        out.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + _HEIGHT}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{x:.1f}" y="{top + _HEIGHT + 16}" text-anchor="middle" fill="{_INK}">{_size(2**power)}</text>')
    x = x_of(machine_size)
    out.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + _HEIGHT}" stroke="{_INK}" stroke-dasharray="4 3"/>')
    out.append(f'<text x="{x + 4:.1f}" y="{top + 14}" fill="{_INK}">this machine</text>')
    for row, (label, values, colour) in enumerate(series):
        points = " ".join(f"{x_of(size):.1f},{y_of(value):.1f}" for size, value in zip(sizes, values))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        for size, value in zip(sizes, values):
            note = escape(f"{size:,} bytes of SRAM: {value:,.0f} {label}")
            dot = f'cx="{x_of(size):.1f}" cy="{y_of(value):.1f}" r="3" fill="{colour}"'
            out.append(f"<circle {dot}><title>{note}</title></circle>")
        if len(series) > 1:
            place = f'x="{_MARGIN + _WIDTH - 8}" y="{top + 16 + 16 * row}" text-anchor="end"'
            out.append(f'<text {place} fill="{colour}">{escape(label)}</text>')
    return out


def _size(size_bytes: int) -> str:
    if size_bytes >= 1 << 20:
        return f"{size_bytes >> 20} MiB"
    return f"{size_bytes >> 10} KiB" if size_bytes >= 1 << 10 else f"{size_bytes} B"
