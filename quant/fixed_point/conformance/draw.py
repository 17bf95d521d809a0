"""Draws random codes, zero points and requantizations for one machine, from which the conformance kit's cases are made.

A case of `Drawn` is (name, operator, input arrays by name, parameters as JSON values).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.requant import Requant, make_requant
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.core.scale import ScaleForm
from quant.fixed_point.curves.norms import NormUnit
from quant.fixed_point.curves.softmax import SoftmaxUnit

Array = NDArray[Any]
# (name, op, inputs, parameters) of each case
Drawn = Iterator[tuple[str, str, dict[str, Array], dict[str, Any]]]
OPERATORS = (
    "requantize",
    "conv2d",
    "conv_transpose2d",
    "matmul",
    "add",
    "sub",
    "mul",
    "rescale",
    "prelu",
    "leaky_relu",
    "max_pool",
    "average_pool",
    "resize",
    "table",
    "softmax",
    "log_softmax",
    "layer_norm",
    "rms_norm",
)
# Operators whose requantizations round as another operation does, by the name it has in `Numerics.per_op`.
_ROUNDED_AS = {"conv2d": "convolution", "conv_transpose2d": "convolution", "matmul": "matrix_product"}
INT32 = (-(1 << 31), (1 << 31) - 1)


@dataclass(frozen=True)
class Contents:
    """A choice of what a kit has cases of. Raise FixedPointError for an unknown operator.

    `operators`: names among `OPERATORS`, all by default.
    `softmax`, `norm`: units apart from a machine's numerics; without a unit there are no cases of it.
    """

    operators: tuple[str, ...] = OPERATORS
    softmax: SoftmaxUnit | None = None
    norm: NormUnit | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.operators) - set(OPERATORS))
        if unknown:
            raise FixedPointError(f"vectors: operators names {', '.join(unknown)}; known are {', '.join(OPERATORS)}")


def requant_values(r: Requant) -> dict[str, Any]:
    """Return a Requant as JSON values."""
    return {
        "kind": r.kind,
        "multiplier": r.multiplier.tolist(),
        "shift": r.shift.tolist(),
        "rounding": r.rounding.value,
        "zero_point": r.zero_point,
        "low": r.low,
        "high": r.high,
        "wrap": r.wrap,
        "width_bits": r.width_bits,
    }


class CaseDraw:
    """A source of random inputs and parameters for one machine; equal seeds give equal draws.

    `n`: the machine's numerics. `rng`: the generator. `dtype`, `low`, `high`: of its activation codes.
    Raise FixedPointError for softmax with int4 activations.
    """

    def __init__(self, numerics: Numerics, contents: Contents, seed: int) -> None:
        if contents.softmax is not None and numerics.activation is CodeType.INT4:
            raise FixedPointError("vectors: softmax is of 8 or 16 bits, activation is int4; leave softmax out")
        self.n, self.contents, self.rng = numerics, contents, np.random.default_rng(seed)
        self.dtype, (self.low, self.high) = numerics.activation.dtype, numerics.activation.limits

    def codes(self, kind: CodeType, shape: tuple[int, ...], extreme: bool) -> Array:
        """Return codes of a type in this shape, over its whole range; `extreme`: the least and the largest alone."""
        if extreme:
            return self.rng.choice(np.array(kind.limits, kind.dtype), shape)
        return self.rng.integers(kind.low, kind.high + 1, shape).astype(kind.dtype)

    def rounding_of(self, op: str) -> Rounding:
        """Return the rounding of an operator of the kit."""
        return self.n.rounding_of(_ROUNDED_AS.get(op, op))

    def zero(self) -> int:
        """Return a zero point from all codes; 0 for symmetric activations."""
        return 0 if self.n.symmetric_activations else int(self.rng.integers(self.low, self.high + 1))

    def middle_zero(self) -> int:
        """Return a zero point from the middle half of the codes, so that both signs have some codes."""
        quarter = (self.high - self.low) // 4
        return 0 if self.n.symmetric_activations else int(self.rng.integers(self.low + quarter, self.high - quarter + 1))

    def grid(self, count: int) -> Array:
        """Return at most `count` codes from the least to the largest, evenly spread."""
        return np.unique(np.linspace(self.low, self.high, count).astype(self.dtype))

    def requant(
        self,
        op: str,
        real: float,
        channels: int = 1,
        *,
        relu: bool = False,
        wide: bool = False,
        rounding: Rounding | None = None,
        zero_point: int | None = None,
    ) -> Requant:
        """Return a Requant at 0.6 to 1.6 times `real`, moved into the machine's scale range where it lies outside.

        `op`: operator whose rounding it has, unless `rounding` is set.
        `channels`: number of scales where the machine has one for each channel.
        `relu`: its clamp begins at the zero point, which is moved into the lower quarter of the codes.
        `wide`: its output is int32 inside an operation, with zero point 0.
        `zero_point`: drawn where it is None.
        """
        spread = self.rng.uniform(0.6, 1.6, channels if self.n.weights_per_channel else 1)
        zero = 0 if wide else self.zero() if zero_point is None else zero_point
        if relu and not self.n.symmetric_activations:
            zero = self.low + (zero - self.low) // 4
        low, high = INT32 if wide else (max(self.low, zero) if relu else self.low, self.high)
        width = 4 if self.n.activation is CodeType.INT4 and not wide else None
        scale = clip_to_form(real * spread, self.n.scale)
        return make_requant(
            scale,
            self.n.scale,
            rounding or self.rounding_of(op),
            zero_point=zero,
            low=low,
            high=high,
            wrap=self.n.wraps,
            width_bits=width,
        )


def clip_to_form(real: Array, form: ScaleForm) -> Array:
    """Return real scales, clipped to those that the form expresses; any for float32."""
    if form.kind == "float32":
        return real
    top = 2.0**-form.shift_min * (1 if form.kind == "pow2" else (1 << form.multiplier_bits) - 1)
    return np.clip(real, 2.0**-form.shift_max, top)
