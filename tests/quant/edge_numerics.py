"""The numbers of a common machine, which tests vary."""

from __future__ import annotations

from typing import Any

from toolchain.hw.chip import Numerics


def machine(**changes: Any) -> Numerics:
    """int8 by int8 with multipliers, and these sections of `numerics` changed."""
    base = {
        "activation": "int8",
        "weight": "int8",
        "scale": {"kind": "multiplier"},
        "rounding": "single_half_up",
        "table": {"entries": 256},
    }
    return Numerics.model_validate(base | changes)


EDGE = machine()
