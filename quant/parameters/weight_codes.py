"""Defines which codes of a type quantized weights use."""

from __future__ import annotations

from quant.fixed_point.core.codes import CodeType


def weight_code_range(weight: CodeType) -> tuple[int, int]:
    """Return the least and the largest code that weights of this type use, both inclusive.

    The code -128 of int8 is left out, so that no product of two codes is its square. Other types take all of their codes.
    """
    return (-127, 127) if weight is CodeType.INT8 else weight.limits
