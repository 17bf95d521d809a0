"""The numbers of a common machine, which tests vary."""

from __future__ import annotations

from typing import Any

from quant.fixed_point import Numerics
from toolchain.hw.numerics import NumericsKeys, make_numerics


def machine(accumulator_bits: int = 32, **changes: Any) -> Numerics:
    """int8 by int8 with multipliers, and these sections of `numerics` changed."""
    base = {
        "activation": "int8",
        "weight": "int8",
        "scale": {"kind": "multiplier"},
        "rounding": "single_half_up",
        "table": {"entries": 256},
    }
    return make_numerics(NumericsKeys.model_validate(base | changes), accumulator_bits)


EDGE = machine()
