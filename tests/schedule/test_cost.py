"""What the schedule takes transfers to cost: whole bursts, from where they begin."""

from __future__ import annotations

import pytest

from toolchain.hw import load_chip
from toolchain.hw.unit_map import DRAM, SRAM
from toolchain.ir.graph import TensorType
from toolchain.ops.kit.tile import Box
from toolchain.schedule.cost import CostModel
from toolchain.schedule.views import View


@pytest.mark.parametrize("name", ["edge16", "ethos_u55_256", "wide32_w4a16", "ws8_pow2"])
def test_transfers_of_whole_bursts_are_charged_for_their_bytes_alone(name: str) -> None:
    chip = load_chip(name)
    dram, model = chip.memories["dram"], CostModel(chip)
    size_bytes = 8 * dram.burst_bytes
    ((_, block),) = model.block(size_bytes, SRAM)
    rows, view = Box("x", (0, 0), (8, dram.burst_bytes)), View.own_storage("x", TensorType((8, 3 * dram.burst_bytes), "int8"))
    ((_, load),) = model.load(rows, view, DRAM, SRAM)
    read, written = (int(size_bytes / rate) for rate in (dram.read_bytes_per_cycle, dram.write_bytes_per_cycle))
    assert dict(block.services)[0] == dict(load.services)[0] == read
    assert max(cycles for _, cycles in model.store(rows, view).services) == written


@pytest.mark.parametrize(("quarters", "bursts"), [(2, 1), (3, 1.5), (4, 1), (5, 2), (6, 2)])
@pytest.mark.parametrize("name", ["edge16", "wide32_w4a16", "ws8_pow2"])
def test_blocks_of_channels_are_charged_the_bursts_that_they_touch_in_the_mean(name: str, quarters: int, bursts: float) -> None:
    """One behind the other in rows of bursts: of three quarters of one each, every other meets two."""
    chip = load_chip(name)
    dram, model = chip.memories["dram"], CostModel(chip)
    view, rows = View.own_storage("x", TensorType((8, 15 * dram.burst_bytes), "int8")), 8
    for block in (0, 1):
        size = quarters * dram.burst_bytes // 4
        box = Box("x", (0, block * size), (rows, size))
        ((_, load),) = model.load(box, view, DRAM, SRAM)
        moved = rows * bursts * dram.burst_bytes
        assert dict(load.services)[0] == moved / dram.read_bytes_per_cycle
        assert max(cycles for _, cycles in model.store(box, view).services) == moved / dram.write_bytes_per_cycle
