"""Draw plans: time to the right, addresses upwards, for a person to see why buffers do not fit."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from toolchain.memory.buffer import Buffer, Placement
from toolchain.memory.check import live_at_peak

WIDTH, HEIGHT, MARGIN = 1200, 700, 60


def draw(buffers: Iterable[Buffer], placement: Placement, capacity_bytes: int | None = None) -> str:
    """Return the picture of a plan as SVG text. Buffers of no bytes are left out.

    Each buffer is a box whose tooltip has its numbers. The step with most live bytes is a dashed vertical line. Of the
    horizontal ones the peak is grey, its lower bound blue and dashed, and the capacity red.
    `placement`: has an address for each of these buffers. `capacity_bytes`: None: no such line.
    """
    buffers = [b for b in buffers if b.size_bytes]
    first = min((b.start for b in buffers), default=0)
    steps = max((b.end for b in buffers), default=1) - first
    top = max(placement.peak_bytes, placement.bound_bytes, capacity_bytes or 0, 1)
    x_scale, y_scale = WIDTH / max(steps, 1), HEIGHT / top

    def x_of(step: int) -> float:
        return MARGIN + (step - first) * x_scale

    def y_of(address: int) -> float:
        return MARGIN + HEIGHT - address * y_scale

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 2 * MARGIN}" height="{HEIGHT + 2 * MARGIN}" '
        'font-family="sans-serif" font-size="11">',
        f'<text x="{MARGIN}" y="24" font-size="15">{escape(_title(placement, capacity_bytes))}</text>',
        f'<rect x="{MARGIN}" y="{MARGIN}" width="{WIDTH}" height="{HEIGHT}" fill="#f7f7f7"/>',
    ]
    for n, b in enumerate(buffers):
        at = placement.addresses[b.name]
        x, y = x_of(b.start), y_of(at + b.size_bytes)
        w, h = (b.end - b.start) * x_scale, b.size_bytes * y_scale
        box = f'x="{x:.2f}" y="{y:.2f}" width="{w:.2f}" height="{h:.2f}"'
        note = f"{b.name}: steps [{b.start}, {b.end}), bytes [{at}, {at + b.size_bytes}), {b.size_bytes} bytes"
        style = f'fill="hsl({n * 137 % 360},55%,70%)" stroke="#444" stroke-width="0.4"'
        out.append(f"<rect {box} {style}><title>{escape(note)}</title></rect>")
        if w > 7 * len(b.name) and h > 12:
            out.append(f'<text x="{x + 3:.2f}" y="{y + h / 2 + 4:.2f}">{escape(b.name)}</text>')
    step = live_at_peak(buffers)[0]
    out.append(_line(x_of(step), y_of(0), x_of(step), y_of(top), "#000", "4 3"))
    levels = [(placement.peak_bytes, "peak", "#444"), (placement.bound_bytes, "bound", "#08c")]
    if capacity_bytes is not None:
        levels.append((capacity_bytes, "capacity", "#d00"))
    for level, name, colour in levels:
        out.append(_line(MARGIN, y_of(level), MARGIN + WIDTH, y_of(level), colour, "6 3" if name == "bound" else ""))
        out.append(f'<text x="{MARGIN + WIDTH + 4}" y="{y_of(level) + 4:.2f}" fill="{colour}">{name}</text>')
    out.append(f'<text x="{MARGIN}" y="{MARGIN + HEIGHT + 20}">step {first}</text>')
    out.append(f'<text x="{MARGIN + WIDTH - 60}" y="{MARGIN + HEIGHT + 20}">step {first + steps}</text>')
    return "\n".join([*out, "</svg>\n"])


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str) -> str:
    """Return a line of SVG. `dashes`: lengths of dash and gap, "" for a solid line."""
    return (
        f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{colour}" stroke-dasharray="{dashes or "none"}"/>'
    )


def _title(placement: Placement, capacity_bytes: int | None) -> str:
    """Return the peak, its bound and how sure it is, in one line."""
    proof = "proved optimal" if placement.proved else f"at most {placement.gap:.2%} above the optimum"
    limit = "" if capacity_bytes is None else f", capacity {capacity_bytes}"
    return f"peak {placement.peak_bytes} bytes, bound {placement.bound_bytes} ({proof}){limit}"
