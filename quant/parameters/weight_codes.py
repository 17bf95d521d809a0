"""Define the range of codes that weights take."""

from __future__ import annotations

from quant.fixed_point.core.codes import CodeType


def weight_code_range(weight: CodeType) -> tuple[int, int]:
    """Return the least and the largest code that weights take.

    int8 leaves -128 out, so that no product of two codes is (-128)**2. Other types take all of their codes.
    """
    return (-127, 127) if weight is CodeType.INT8 else weight.limits
