"""The figures of a manual. Each draws itself as text, for Markdown, and as SVG, for the HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

UNIT = 46  # of SVG: the width of a cell of a strip
HEIGHT = 26
CELL = 22  # of SVG: a side of a cell of a grid
STYLE = 'font-family="monospace" font-size="11"'
FILL, SHADE, PAD = "#ffffff", "#dbe7f5", "#eeeeee"


class Figure(Protocol):
    """A figure: `text` returns it as plain text, `svg` as an HTML figure with its caption."""

    def text(self) -> str: ...

    def svg(self) -> str: ...


@dataclass(frozen=True)
class Strip:
    """A strip of bytes or bits, as they lie one after the other. `unit`: what a cell is, such as byte.

    `cells`: a label for each. `groups`: numbers of cells that are shaded together. `first`: number of the first cell.
    """

    caption: str
    unit: str
    cells: tuple[str, ...]
    groups: tuple[int, ...] = ()
    per_row: int = 16
    first: int = 0

    def _rows(self) -> list[tuple[int, tuple[str, ...]]]:
        """Return (number of its first cell, its cells) of each row."""
        starts = range(0, len(self.cells), self.per_row)
        return [(self.first + at, self.cells[at : at + self.per_row]) for at in starts]

    def text(self) -> str:
        width = max(map(len, self.cells)) + 1
        lines = [self.caption]
        head = len(f"{self.unit} {self.first + len(self.cells)}")
        for number, cells in self._rows():
            lines.append(f"{f'{self.unit} {number}':{head}} | " + " ".join(f"{c:{width}}" for c in cells).rstrip())
        return "\n".join(lines)

    def svg(self) -> str:
        shades = _shades(self.groups, len(self.cells))
        unit = max(UNIT, 8 + 7 * max(map(len, self.cells)))
        parts: list[str] = []
        rows = self._rows()
        for row, (number, cells) in enumerate(rows):
            y = 16 + row * (HEIGHT + 20)
            for at, cell in enumerate(cells):
                shade = shades[number - self.first + at]
                parts.append(_box(at * unit, y + 12, unit, HEIGHT, cell, shade))
                parts.append(f'<text x="{at * unit + 2}" y="{y + 8}" fill="#666" {STYLE}>{number + at}</text>')
        width = unit * min(self.per_row, len(self.cells)) + 2
        return _svg(self.caption, width, 16 + len(rows) * (HEIGHT + 20), parts)


@dataclass(frozen=True)
class Fields:
    """Fields of a word, by bits: (name, high, low), the highest first."""

    caption: str
    fields: tuple[tuple[str, int, int], ...]

    def text(self) -> str:
        return "\n".join(
            [self.caption, *(f"  {f'{high}:{low}' if high != low else f'{high}':>7}  {n}" for n, high, low in self.fields)]
        )

    def svg(self) -> str:
        at, parts = 0, list[str]()
        for name, high, low in self.fields:
            width = max(UNIT, 12 + 7 * len(name))
            parts.append(_box(at, 24, width, HEIGHT, name, FILL if name else PAD))
            parts.append(f'<text x="{at + 2}" y="18" fill="#666" {STYLE}>{high}{f":{low}" if high != low else ""}</text>')
            at += width
        return _svg(self.caption, at + 2, 54, parts)


@dataclass(frozen=True)
class WindowFigure:
    """A feature map with its padding, and the elements that one window sees.

    `size`, `pads` (top, left), `kernel`, `stride`, `dilation`: (rows, columns). `at`: the output's (row, column).
    """

    caption: str
    size: tuple[int, int]
    pads: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    at: tuple[int, int]

    def _cells(self) -> list[list[str]]:
        """Return what stands in each cell of rows -pad to size, and one beyond."""
        window_elements = {
            tuple(self.at[a] * self.stride[a] + k[a] * self.dilation[a] - self.pads[a] for a in (0, 1))
            for k in ((y, x) for y in range(self.kernel[0]) for x in range(self.kernel[1]))
        }
        rows: list[list[str]] = []
        for y in range(-self.pads[0], self.size[0] + 1):
            row: list[str] = []
            for x in range(-self.pads[1], self.size[1] + 1):
                inside = 0 <= y < self.size[0] and 0 <= x < self.size[1]
                row.append(("W" if (y, x) in window_elements else "x") if inside else ("w" if (y, x) in window_elements else "."))
            rows.append(row)
        return rows

    def text(self) -> str:
        lines = [self.caption, "x: element of the input, .: padding, W: element that the window sees, w: padding that it sees"]
        return "\n".join([*lines, *("    " + " ".join(row) for row in self._cells())])

    def svg(self) -> str:
        parts: list[str] = []
        for y, row in enumerate(self._cells()):
            for x, cell in enumerate(row):
                shade = {"x": FILL, ".": PAD, "W": SHADE, "w": "#c9d3df"}[cell]
                parts.append(_box(x * CELL, y * CELL, CELL, CELL, "", shade))
        rows = self._cells()
        return _svg(
            f"{self.caption} Grey: padding; blue: what the window sees.", len(rows[0]) * CELL + 2, len(rows) * CELL + 2, parts
        )


@dataclass(frozen=True)
class ChainFigure:
    """Steps, with an arrow from each to the next."""

    caption: str
    steps: tuple[str, ...]

    def text(self) -> str:
        return f"{self.caption}\n  " + " -> ".join(self.steps)

    def svg(self) -> str:
        at, parts = 0, list[str]()
        for number, step in enumerate(self.steps):
            width = 16 + 7 * len(step)
            if number:
                parts += [_line(at, 13, at + 22, 13), f'<path d="M{at + 22} 13l-7 -4v8z" fill="#889"/>']
                at += 22
            parts.append(_box(at, 0, width, HEIGHT, step, FILL if number % 2 else SHADE))
            at += width
        return _svg(self.caption, at, HEIGHT + 2, parts)


@dataclass(frozen=True)
class BlocksFigure:
    """The parts of a machine: units with their queues, and the memories that each reaches.

    `units`: (name, text, indices of memories that it reaches).
    """

    caption: str
    units: tuple[tuple[str, str, tuple[int, ...]], ...]  # name, what stands beside it, memories
    memories: tuple[str, ...]

    def text(self) -> str:
        lines = [self.caption, "front end: instruction words, one after another"]
        width = max(len(name) for name, _, _ in self.units)
        for name, summary, reached in self.units:
            lines.append(f"  -> {name:{width}}  {summary}  <-> {', '.join(self.memories[i] for i in reached)}")
        return "\n".join(lines)

    def svg(self) -> str:
        wide, gap = 230, 44
        parts = [_box(0, 8, 120, len(self.units) * gap - 10, "front end", SHADE)]
        for row, (name, summary, reached) in enumerate(self.units):
            y = 8 + row * gap
            parts += [_line(120, y + 17, 160, y + 17), _box(160, y, wide, 34, f"{name}: {summary}", FILL)]
            for memory in reached:
                parts.append(_line(160 + wide, y + 17, 500, 25 + memory * gap))
        parts += [_box(500, 8 + i * gap, 130, 34, name, PAD) for i, name in enumerate(self.memories)]
        return _svg(self.caption, 640, 8 + gap * max(len(self.units), len(self.memories)), parts)


def _shades(groups: Sequence[int], cells: int) -> list[str]:
    """Return the fill of each cell: groups are shaded in turn."""
    shades = [FILL if i % 2 else SHADE for i, size in enumerate(groups) for _ in range(size)]
    return (shades + [FILL] * cells)[:cells]


def _box(x: int, y: int, width: int, height: int, label: str, fill: str) -> str:
    """Return an SVG rectangle with a label in its middle."""
    middle = f'x="{x + width / 2:g}" y="{y + height / 2 + 4:g}" text-anchor="middle"'
    text = f"<text {middle} {STYLE}>{escape(label)}</text>" if label else ""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" stroke="#667"/>{text}'


def _line(x1: int, y1: int, x2: int, y2: int) -> str:
    """Return an SVG line."""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#889"/>'


def _svg(caption: str, width: float, height: float, parts: Sequence[str]) -> str:
    """Return an HTML figure of SVG parts, with its caption."""
    box = f'viewBox="-1 -1 {width + 2:g} {height + 2:g}" width="{width + 2:g}" height="{height + 2:g}"'
    label = escape(caption, quote=True)
    picture = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {box}>{"".join(parts)}</svg>'
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"
