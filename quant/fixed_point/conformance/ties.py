"""Draws cases of sums and products in float32, many halfway between two codes, where the order of the steps shows alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from quant.fixed_point.conformance.draw import INT32, CaseDraw, Drawn, requant_values
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.requant import Requant, make_requant
from quant.fixed_point.core.rounding import Rounding

_CODES = 256, 64  # of the left operand: odd and even ones; of the right one
_ZERO_POINTS = 117, 131, 121  # of a, b and the output, counted from the least of 256 codes


def tie_cases(w: CaseDraw) -> Drawn:
    """Yield the cases of each operation that a machine makes in float32: a / 6 +- b / 3, and a b / 80."""
    za, zb, zero = (0 if w.n.symmetric_activations else w.low + (w.high - w.low) * z // 255 for z in _ZERO_POINTS)
    a, b = np.meshgrid(*(w.grid(count) for count in _CODES))
    pairs = {"a": np.ascontiguousarray(a), "b": np.ascontiguousarray(b)}
    zeros = {"a_zero_point": za, "b_zero_point": zb}
    for op in ("add", "sub", "mul"):
        if w.rounding_of(op) is not Rounding.FP32_RNE:
            continue
        if op == "mul":
            parameters: dict[str, Any] = {"requant": requant_values(_requant(w, 1 / 80, zero))}
        else:
            parameters = {
                "a_requant": requant_values(_requant(w, 1 / 6, None)),
                "b_requant": requant_values(_requant(w, 1 / 3, None)),
                "requant": requant_values(_requant(w, 1.0, zero)),
                "left_shift": 0,
            }
        yield f"{op}_ties", op, pairs, zeros | parameters


def _requant(w: CaseDraw, scale: float, zero_point: int | None) -> Requant:
    """Return a Requant of this scale.

    `zero_point`: None inside an operation.
    """
    inner = zero_point is None
    low, high = INT32 if inner else (w.low, w.high)
    width = 4 if w.n.activation is CodeType.INT4 and not inner else None
    limits: dict[str, Any] = {"low": low, "high": high, "wrap": w.n.wraps, "width_bits": width}
    return make_requant(scale, w.n.scale, Rounding.FP32_RNE, zero_point=zero_point or 0, **limits)
