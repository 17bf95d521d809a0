"""The arithmetic of one machine as the conformance kit needs it, and what its cases are drawn with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.errors import FixedPointError
from quant.fixed_point.core.requant import Requant, make_requant
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.core.scale import ScaleForm
from quant.fixed_point.curves.norms import NormUnit
from quant.fixed_point.curves.softmax import SoftmaxUnit
from quant.fixed_point.pointwise.tables import TableForm

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
_CODES = {"int4": (np.int8, -8, 7), "int8": (np.int8, -128, 127), "uint8": (np.uint8, 0, 255)}
_CODES |= {"int16": (np.int16, -32768, 32767)}
_INT32 = (-(1 << 31), (1 << 31) - 1)


@dataclass(frozen=True)
class MachineNumerics:
    """The arithmetic of a machine, in plain values.

    activation: 'int4', 'int8', 'uint8' or 'int16'; weight: 'int4', 'int8' or 'uint8'; rounding for the machine, per_op
    where an operator differs; wrap: overflow wraps instead of saturating; left_shift: bits that ADD and SUB shift their
    operands by before they meet (0: none). symmetric: zero points are 0 (None: with int16 only). interpolation: of
    16-bit tables. softmax, norm: the machine's units; without one there are no cases of it. operators: what cases there
    are of, all by default.
    """

    activation: str = "int8"
    weight: str = "int8"
    form: ScaleForm = field(default_factory=ScaleForm)
    rounding: Rounding = Rounding.DOUBLE_ROUND
    per_op: Mapping[str, Rounding] = field(default_factory=dict)
    per_channel: bool = True
    wrap: bool = False
    accumulator_bits: int = 32
    left_shift: int = 20
    symmetric: bool | None = None
    interpolation: TableForm = "tosa"
    softmax: SoftmaxUnit | None = None
    norm: NormUnit | None = None
    operators: tuple[str, ...] = OPERATORS

    def __post_init__(self) -> None:
        for name, known in (
            ("activation", tuple(_CODES)),
            ("weight", ("int4", "int8", "uint8")),
            ("interpolation", ("tosa", "tflite")),
        ):
            if getattr(self, name) not in known:
                raise FixedPointError(f"vectors: {name}={getattr(self, name)!r}; must be one of {', '.join(known)}")
        for name in ("per_op", "operators"):
            unknown = sorted(set(getattr(self, name)) - set(OPERATORS))
            if unknown:
                raise FixedPointError(f"vectors: {name} names {', '.join(unknown)}; known are {', '.join(OPERATORS)}")
        if self.softmax is not None and self.activation == "int4":
            raise FixedPointError("vectors: softmax is of 8 or 16 bits, activation is int4; leave softmax out")


def requant_values(r: Requant) -> dict[str, Any]:
    """r as JSON values."""
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
    """Draws inputs and parameters for one machine."""

    def __init__(self, numerics: MachineNumerics, seed: int) -> None:
        self.n, self.rng = numerics, np.random.default_rng(seed)
        self.dtype, self.low, self.high = _CODES[numerics.activation]
        self.symmetric = numerics.activation == "int16" if numerics.symmetric is None else numerics.symmetric

    def codes(self, kind: str, shape: tuple[int, ...], extreme: bool) -> Array:
        dtype, low, high = _CODES[kind]
        if extreme:
            return self.rng.choice(np.array([low, high], dtype), shape)
        return self.rng.integers(low, high + 1, shape).astype(dtype)

    def zero(self) -> int:
        return 0 if self.symmetric else int(self.rng.integers(self.low, self.high + 1))

    def middle_zero(self) -> int:
        """Of the middle half of the codes, so that both signs have some."""
        quarter = (self.high - self.low) // 4
        return 0 if self.symmetric else int(self.rng.integers(self.low + quarter, self.high - quarter + 1))

    def grid(self, count: int) -> Array:
        """At most `count` codes from the least to the largest, evenly spread."""
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
        """A Requant about `real`, moved into the machine's scale range where it lies outside.

        rounding: op's where it is None; zero_point: drawn where it is None.
        """
        spread = self.rng.uniform(0.6, 1.6, channels if self.n.per_channel else 1)
        zero = 0 if wide else self.zero() if zero_point is None else zero_point
        if relu and not self.symmetric:
            zero = self.low + (zero - self.low) // 4
        low, high = _INT32 if wide else (max(self.low, zero) if relu else self.low, self.high)
        width = 4 if self.n.activation == "int4" and not wide else None
        scale = into_range(real * spread, self.n.form)
        return make_requant(
            scale,
            self.n.form,
            rounding or self.n.per_op.get(op, self.n.rounding),
            zero_point=zero,
            low=low,
            high=high,
            wrap=self.n.wrap and not wide,
            width_bits=width,
        )


def into_range(real: Array, form: ScaleForm) -> Array:
    """real, clipped to the scales that form expresses."""
    if form.kind == "float32":
        return real
    top = 2.0**-form.shift_min * (1 if form.kind == "pow2" else (1 << form.multiplier_bits) - 1)
    return np.clip(real, 2.0**-form.shift_max, top)
