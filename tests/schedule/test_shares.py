"""What is shared out between operands: SRAM between resident tensors and staging, loads between DMA channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from toolchain.api import BuildOptions, build
from toolchain.codegen import Region
from toolchain.codegen.lower import _LoadChannels
from toolchain.isa import load_machine
from toolchain.machine import Copy, Space
from toolchain.schedule.options import LEVELS, RegionInput
from toolchain.schedule.plan_cost import ALONE
from toolchain.schedule.region_planner import RegionPlanner

CLASSIFIER = Path(__file__).parents[2] / "examples" / "classifier" / "classifier.onnx"


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_share_of_the_sram_is_kept_for_staging(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    container = build(CLASSIFIER, BuildOptions("edge16", level=0)).container
    (region,) = container.segments
    assert isinstance(region, Region)
    names = {*region.nodes}
    nodes = [n for n in container.graph.nodes if n.name in names]
    ports = [p.tensor for p in region.inputs], [p.tensor for p in region.outputs]
    chip = container.machine.chip
    planner = RegionPlanner(RegionInput(container.graph, nodes, *ports, chip, LEVELS[2]))
    capacities: list[Sequence[int]] = []
    residents = planner.residents
    monkeypatch.setattr(
        planner, "residents", lambda resident, capacity: capacities.append(resident) or residents(resident, capacity)
    )
    least = [1000] * len(planner.layers)
    planner._try(least, share, ALONE)
    assert capacities[0] == [int(share * chip.sram.size)] * len(least)


def test_loads_go_to_the_channel_that_was_given_least_latency_counted() -> None:
    """A latency of 100 cycles and 16 bytes a cycle: a load of 1,600 bytes lasts as long as two of 16."""
    chip = load_machine("wide32_w4a16").chip
    dram = chip.dram.model_copy(update={"latency_cycles": 100})
    dma = chip.engines["dma"].model_copy(update={"channels": 3, "bytes_per_cycle": 16.0})
    chip = chip.model_copy(
        update={
            "memories": {**chip.memories, "dram": dram},
            "engines": {**chip.engines, "dma": dma},
            "sync": chip.sync.model_copy(update={"semaphores": 64}),
        }
    )
    assert len(chip.channels) == 3
    small = Copy(0, Space.DRAM, 0, Space.SRAM, 0, 16, 1, 1, 1, 0, 0, 0, 0, 0, 0)
    loads = [replace(small, inner_bytes=1600), small, small, small, replace(small, count2=100), small]
    assert [load.channel for load in _LoadChannels(chip).deal(loads)] == [0, 1, 1, 0, 1, 0]
