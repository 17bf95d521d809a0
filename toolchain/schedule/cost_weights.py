"""By what plans of layers are compared."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.schedule.tile_buffers import LayerPlan


@dataclass(frozen=True)
class CostWeights:
    """What a cycle counts, one in which the busiest queue works, and a byte between DRAM and the chip."""

    cycle: float = 1.0
    busy: float = 0.0
    byte: float = 0.0

    def __call__(self, plan: LayerPlan) -> float:
        return self.cycle * plan.cycles + self.busy * plan.busy_cycles + self.byte * plan.moved_bytes


ALONE = CostWeights()  # with nothing before or behind it
AMID = CostWeights(0.5, 0.5)  # between neighbours that fill about half of the time in which its busiest queue has nothing to do
LEAST_MOVED = CostWeights(2.0**-44, 0.0, 1.0)  # by bytes, of equal ones by cycles
