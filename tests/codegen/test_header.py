"""The header of `model.npu`: constants against the DRAM that the region says it has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from toolchain.codegen.header import _constant_faults


@pytest.mark.parametrize(
    ("size", "faults"), [(96, []), (97, ["segment 0: constants of 97 bytes at 0xa0 lie outside the 256 of its DRAM"])]
)
def test_constants_end_where_the_dram_ends_at_the_latest(size: int, faults: list[str]) -> None:
    region = SimpleNamespace(constants=[(160, 0)], dram_bytes=256)
    assert list(_constant_faults(region, [(0, size)], "segment 0")) == faults  # type: ignore[arg-type]
