"""Draw the points of a sweep over two objectives, with their Pareto front, as SVG that loads nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import combinations

from toolchain.sweep.metrics import Objective
from toolchain.sweep.run_sweep import Row, SweepRun, find_front

MOST_POINTS = 2000  # of one picture beside the front: 160 bytes each, so that a page stays below 20 MB (docs/sweeps.md)
_WIDTH, _HEIGHT, _MARGIN, _TOP = 620, 380, 100, 44
Place = Callable[[float], float]  # from a value to pixels
_INK, _POINT, _FRONT = "#333", "#9db8d2", "#b4571f"


def pareto_pictures(run: SweepRun, network: str, objectives: Sequence[Objective]) -> dict[str, str]:
    """Return a picture of each pair of objectives, by a name such as `cycles-energy`. Points link to '#KEY' of their builds.

    The dark points are the front of all objectives; the line joins those that are best in the two of the picture. At most
    MOST_POINTS others are drawn, and no build without both objectives.
    """
    front = run.front(network, objectives)
    rows = [row for row in run.rows if row.point.network == network]
    return {
        f"{x.name}-{y.name}": _picture(f"{network}: {y.name} against {x.name}", x, y, rows, front)
        for x, y in combinations(objectives, 2)
    }


def sample_rows(rows: Sequence[Row], most: int) -> Sequence[Row]:
    """Return at most so many rows, evenly spread over the list and in its order."""
    step = math.ceil(len(rows) / most) if rows else 1
    return rows[::step]


def describe_point(row: Row) -> str:
    """Return the machine, the values of its keys, and the options in one line. Of keys that are joined by commas only the first
    is named."""
    values = [f"{key.partition(',')[0]}={value}" for key, value in (*row.point.keys, *row.point.options)]
    return ", ".join([row.point.machine, *values])


def _picture(title: str, x: Objective, y: Objective, rows: Sequence[Row], front: Sequence[Row]) -> str:
    """Return the SVG of one pair of objectives. rows: all of the network; front: those on the front of all objectives."""
    drawable = [row for row in rows if row.objectives((x, y)) is not None]
    front_keys = {row.key for row in front}
    others = [row for row in drawable if row.key not in front_keys]
    drawn_others, on_front = sample_rows(others, MOST_POINTS), [row for row in drawable if row.key in front_keys]
    width, height = _MARGIN + _WIDTH + 30, _TOP + _HEIGHT + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{_MARGIN}" y="22" font-size="15" fill="{_INK}">{escape(title)}</text>',
        f'<text x="{_MARGIN}" y="38" fill="{_INK}">{_legend(len(on_front), len(drawn_others), len(others))}</text>',
        f'<rect x="{_MARGIN}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="#f7f7f7"/>',
    ]
    if drawable:
        shown_rows = [*drawn_others, *on_front]
        x_of = _scale([_value(row, x) for row in shown_rows], _MARGIN, _MARGIN + _WIDTH)
        y_of = _scale([_value(row, y) for row in shown_rows], _TOP + _HEIGHT, _TOP)
        parts += _axes(x, y, [_value(row, x) for row in shown_rows], [_value(row, y) for row in shown_rows], x_of, y_of)
        parts += [_point(row, x, y, x_of, y_of, _POINT, 3) for row in drawn_others]
        parts.append(_front_line(on_front, x, y, x_of, y_of))
        parts += [_point(row, x, y, x_of, y_of, _FRONT, 4.5) for row in on_front]
    return "\n".join([*parts, "</svg>\n"])


def _legend(front: int, drawn: int, others: int) -> str:
    of = "" if drawn == others else f" of {others:,}"
    return f"{front:,} on the Pareto front of all objectives (dark), {drawn:,}{of} others"


def _value(row: Row, objective: Objective) -> float:
    """Return the metric of an objective with its own sign; 0 where the build lacks it."""
    return float(row.result.metrics[objective.metric] or 0.0)


def _scale(values: Sequence[float], start: float, end: float) -> Place:
    """Return a function from values to pixels: logarithmic where all finite values are positive, linear otherwise.

    Infinity is placed at `end`.
    """
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    bend = math.log if min(finite) > 0 else float
    low, high = bend(min(finite)), bend(max(finite))
    pad = (high - low) * 0.05 or 1.0
    low, high = low - pad, high + pad

    def place(value: float) -> float:
        bent = high if math.isinf(value) else bend(value)
        return start + (end - start) * (bent - low) / (high - low)

    return place


def _axes(
    x: Objective,
    y: Objective,
    x_values: Sequence[float],
    y_values: Sequence[float],
    x_of: Place,
    y_of: Place,
) -> list[str]:
    """Return the titles of both axes, and lines at round values between the extremes."""
    bottom = _TOP + _HEIGHT
    parts = [
        f'<text x="{_MARGIN + _WIDTH / 2}" y="{bottom + 40}" text-anchor="middle" fill="{_INK}">{_axis_title(x)}</text>',
        f'<text transform="translate(16 {_TOP + _HEIGHT / 2}) rotate(-90)" text-anchor="middle" fill="{_INK}">'
        f"{_axis_title(y)}</text>",
    ]
    for value in _ticks(x_values):
        at = f"{x_of(value):.1f}"
        parts.append(f'<line x1="{at}" y1="{_TOP}" x2="{at}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{at}" y="{bottom + 16}" text-anchor="middle" fill="{_INK}">{_short(value)}</text>')
    for value in _ticks(y_values):
        at = f"{y_of(value):.1f}"
        parts.append(f'<line x1="{_MARGIN}" y1="{at}" x2="{_MARGIN + _WIDTH}" y2="{at}" stroke="#ddd"/>')
        parts.append(f'<text x="{_MARGIN - 6}" y="{at}" dy="4" text-anchor="end" fill="{_INK}">{_short(value)}</text>')
    return parts


def _axis_title(objective: Objective) -> str:
    return objective.name if objective.unit in objective.name else f"{objective.name} ({objective.unit})"


def _short(value: float) -> str:
    """Return a number of three digits: 71,100 as '71.1 k'."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {letter}"
    return f"{value:.3g}"


def _ticks(values: Sequence[float]) -> list[float]:
    """Return at most five values between the least and the largest, evenly spaced on the axis."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    if low == high:
        return [low]
    if low > 0:
        return [float(f"{low * (high / low) ** (part / 4):.3g}") for part in range(5)]
    return [float(f"{low + (high - low) * part / 4:.3g}") for part in range(5)]


def _front_line(rows: Sequence[Row], x: Objective, y: Objective, x_of: Place, y_of: Place) -> str:
    """Return the line through the points that are best in these two objectives alone."""
    values = [pair for row in rows if (pair := row.objectives((x, y))) is not None]
    best = sorted((rows[index] for index in find_front(values)), key=lambda row: _value(row, x))
    points = " ".join(f"{x_of(_value(row, x)):.1f},{y_of(_value(row, y)):.1f}" for row in best)
    return f'<polyline points="{points}" fill="none" stroke="{_FRONT}" stroke-width="1.4"/>'


def _point(
    row: Row,
    x: Objective,
    y: Objective,
    x_of: Place,
    y_of: Place,
    colour: str,
    radius: float,
) -> str:
    at = f'cx="{x_of(_value(row, x)):.1f}" cy="{y_of(_value(row, y)):.1f}"'
    text = f"{describe_point(row)}: {_value(row, x):,.6g} {x.unit}, {_value(row, y):,.6g} {y.unit}"
    circle = f'<circle {at} r="{radius}" fill="{colour}"><title>{escape(text)}</title></circle>'
    return f'<a href="#{row.key[:16]}">{circle}</a>'
