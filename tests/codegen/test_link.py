"""Linking: how many bytes of DRAM a network may need."""

from __future__ import annotations

import pytest

from toolchain.codegen import DramTooSmall, require_dram
from toolchain.errors import CompileError
from toolchain.input_limits import DRAM_BYTES
from toolchain.isa import load_machine


@pytest.mark.parametrize("machine", ["ws8_pow2", "transformer64"])
def test_a_network_may_fill_the_dram(machine: str) -> None:
    """The machine's DRAM bounds it, or the simulator's where that has fewer bytes."""
    chip = load_machine(machine).chip
    most = min(chip.dram.size, DRAM_BYTES)
    require_dram(most, chip)
    with pytest.raises(CompileError) as caught:
        require_dram(most + 1, chip)
    assert isinstance(caught.value, DramTooSmall) == (chip.dram.size < DRAM_BYTES)
