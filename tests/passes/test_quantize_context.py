"""The finest of several types of codes."""

from __future__ import annotations

import pytest

from quant.fixed_point.core.codes import CodeType
from toolchain.passes.quantize_context import finest


def test_the_finest_type_has_most_bits_and_is_the_first_of_equal_ones() -> None:
    assert finest((CodeType.INT8, CodeType.INT16, CodeType.INT8)) is CodeType.INT16
    assert finest((CodeType.UINT8, CodeType.INT8)) is CodeType.UINT8
    with pytest.raises(ValueError, match="empty"):
        finest(())
