"""Define a residual sum that is fused behind a convolution or a product: its bits, and its fields in instructions.

It computes exactly what the elementwise addition would, but its first operand never leaves the array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from quant.fixed_point.core.requant import Requant
from quant.fixed_point.pointwise.elementwise import add
from toolchain.machine import ADDEND
from toolchain.ops.kit.requants import pair
from toolchain.ops.kit.tile import BoxLocation

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Residual:
    """The quantization of the sum of the array's result q and an addend r, both codes.

    Here a, b and out are `q_requant`, `r_requant` and `out_requant`. Zero point and clamp are those of `out_requant`. The sum
    is:

        y = clamp(out(a((q - q_zero_point) << left_shift) + b((r - r_zero_point) << left_shift)) + zero point)
    """

    q_zero_point: int
    r_zero_point: int
    left_shift: int
    q_requant: Requant
    r_requant: Requant
    out_requant: Requant

    def add(self, q: Array, r: Array) -> Array:
        """Return the codes of the sum of codes `q` and `r`."""
        return add(
            q,
            r,
            self.q_requant,
            self.r_requant,
            self.out_requant,
            a_zero_point=self.q_zero_point,
            b_zero_point=self.r_zero_point,
            left_shift=self.left_shift,
            dtype=self.out_requant.dtype,
        )


def residual_fields(residual: Residual, site: BoxLocation, number: int) -> dict[str, int]:
    """Return the operation's fields for the addend (machine.WithAddend).

    `site`: where the addend lies. `number`: of the type of its codes.
    """
    q, r, out = pair(residual.q_requant), pair(residual.r_requant), pair(residual.out_requant)
    return {
        "use_add": 1,
        "addend_address": site.address,
        "addend_row_stride": site.strides[1],
        "addend_column_stride": site.strides[2],
        "addend_surface_stride": site.strides.surface_bytes,
        "add_input_zero_point": residual.q_zero_point,
        "add_addend_zero_point": residual.r_zero_point,
        "add_output_zero_point": residual.out_requant.zero_point,
        "add_left_shift": residual.left_shift,
        "add_input_multiplier": q[0],
        "add_input_shift": q[1],
        "add_addend_multiplier": r[0],
        "add_addend_shift": r[1],
        "add_output_multiplier": out[0],
        "add_output_shift": out[1],
        "add_clamp_low": residual.out_requant.low,
        "add_clamp_high": residual.out_requant.high,
        "addend_type": number,
    }


def no_residual_fields() -> dict[str, int]:
    """Return the same fields, all 0, for an operation without an addend."""
    return dict.fromkeys(ADDEND, 0)
