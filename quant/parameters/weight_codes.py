"""The codes that weights take."""

from __future__ import annotations

from quant.fixed_point.core.codes import CodeType


def weight_code_range(weight: CodeType) -> tuple[int, int]:
    """The codes that weights take: int8 leaves -128 out, so that a product of two codes never meets (-128)**2; int4 needs all
    of its 16."""
    return (-127, 127) if weight is CodeType.INT8 else weight.limits
