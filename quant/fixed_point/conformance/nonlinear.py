"""Draws cases of the conformance kit for tables, softmax and norms; `cases` calls it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from quant.fixed_point.conformance.draw import Array, CaseDraw, Drawn, requant_values
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.curves.softmax import SoftmaxUnit
from quant.fixed_point.pointwise.tables import RealFunction, build_table8, build_table16


def nonlinear_cases(w: CaseDraw) -> Drawn:
    """Yield cases of tables always, of softmax and norms where `w.contents` has a unit for them."""
    yield from _table_cases(w)
    if w.contents.softmax is not None:
        yield from _softmax_cases(w, w.contents.softmax)
    if w.contents.norm is not None:
        yield from _norm_cases(w)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# (name, function, the largest magnitude of its input and of its output)
_FUNCTIONS: list[tuple[str, RealFunction, float, float]] = [
    ("sigmoid", _sigmoid, 8.0, 1.0),
    ("tanh", np.tanh, 4.0, 1.0),
    ("silu", lambda x: x * _sigmoid(x), 6.0, 6.0),
]


def _table_cases(w: CaseDraw) -> Drawn:
    """Yield cases of tables with every code; of 16 bits the ends, the middle and both sides of it of every segment.

    The table is an input.
    """
    wide = w.n.activation is CodeType.INT16
    form = {"interpolation": w.n.interpolation if wide else "none"}
    x = _segment_codes() if wide else np.arange(w.low, w.high + 1).astype(w.dtype)
    for name, f, reach, largest in _FUNCTIONS:
        steps = (w.high - w.low) / 2
        yield f"table_{name}", "table", {"x": x, "table": _table(w, f, reach / steps, largest / steps)}, form
    yield "table_random", "table", {"x": x, "table": _random_table(w)}, form


def _table(w: CaseDraw, f: RealFunction, input_scale: float, output_scale: float) -> Array:
    """Return a table of a function at these scales; 8-bit tables have random zero points."""
    if w.n.activation is CodeType.INT16:
        return build_table16(f, input_scale, output_scale, form=w.n.interpolation)
    x_zero, y_zero, signed = w.middle_zero(), w.middle_zero(), w.low < 0
    return build_table8(f, input_scale, x_zero, output_scale, y_zero, signed=signed, low=w.low, high=w.high)


def _random_table(w: CaseDraw) -> Array:
    """Return entries of no function, so that every wrong address shows.

    TOSA leaves 16-bit steps beyond int16 undefined, so they have half the range there.
    """
    if w.n.activation is not CodeType.INT16:
        return w.rng.integers(w.low, w.high + 1, 256).astype(w.dtype)
    halves = 1 if w.n.interpolation == "tflite" else 2
    return w.rng.integers(w.low // halves, w.high // halves + 1, 513).astype(w.dtype)


def _segment_codes() -> Array:
    """Return six int16 codes of each segment of a 16-bit table: its ends, the middle, and the codes beside these."""
    starts = np.arange(-32768, 32768, 128)[:, None]
    return (starts + np.array([0, 1, 63, 64, 65, 127])).reshape(-1).astype(np.int16)


def _rows(w: CaseDraw, n: int) -> Array:
    """Return 8 rows of n codes: random ones, a narrow band, all alike, two extremes, one peak."""
    rows = w.codes(w.n.activation, (8, n), False)
    rows[3] = rows[3] // 8
    rows[4] = w.high
    rows[5] = w.codes(w.n.activation, (n,), True)
    rows[6] = w.low
    rows[6, n // 3] = w.high
    return rows


def _softmax_cases(w: CaseDraw, unit: SoftmaxUnit) -> Drawn:
    """Yield cases of softmax and log softmax by a unit."""
    bits = 15 if w.n.activation is CodeType.INT16 else 8
    x = {"x": _rows(w, min(40, unit.max_elements))}
    scale = 16 / (w.high - w.low)
    zero = 0 if bits == 15 else w.low
    common: dict[str, Any] = {"input_scale": scale, "unit": asdict(unit)}
    yield "softmax", "softmax", x, common | {"output_scale": 2.0**-bits, "output_zero_point": zero}
    yield "log_softmax", "log_softmax", x, common | {"output_scale": scale, "output_zero_point": w.high}


def _norm_cases(w: CaseDraw) -> Drawn:
    """Yield cases of both norms by the unit of `w.contents`."""
    unit = w.contents.norm
    assert unit is not None
    n = 48
    values = asdict(unit) | {"rounding": unit.rounding.value}
    # gamma of up to 127 steps; outputs of three standard deviations fill the range
    real = (w.high - w.low) / (6 * 127 * (1 << unit.fraction_bits))
    for op in ("layer_norm", "rms_norm"):
        inputs = {
            "x": _rows(w, n),
            "gamma": w.rng.integers(40, 128, n).astype(np.int8),
            "beta": w.rng.integers(-60 << unit.fraction_bits, 60 << unit.fraction_bits, n),
        }
        parameters = {"input_scale": 4 / (w.high - w.low), "epsilon": 1e-5, "unit": values}
        if op == "rms_norm":
            parameters["x_zero_point"] = w.zero()
        yield op, op, inputs, parameters | {"requant": requant_values(w.requant(op, real))}
