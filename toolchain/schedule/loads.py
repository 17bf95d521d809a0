"""What tiles bring: by which channel, and behind what."""

from __future__ import annotations

from collections.abc import Collection

from toolchain.hw.unit_map import Unit
from toolchain.machine import Space
from toolchain.ops.kit.tile import Box, ConstantBlock
from toolchain.schedule.access_ranges import AccessRange
from toolchain.schedule.cost import Brought, CostModel
from toolchain.schedule.dependences import DependenceTracker
from toolchain.schedule.queue_cost import QueueCost
from toolchain.schedule.queues import PlannedQueues
from toolchain.schedule.tile_pipeline import Piece


class Loads:
    """On the queues of one machine. resident: tensors that lie in SRAM."""

    def __init__(self, model: CostModel, queues: PlannedQueues, touched: DependenceTracker, resident: Collection[str]):
        self._model, self._queues, self._touched, self._resident = model, queues, touched, resident
        self._dealt = dict.fromkeys(model.chip.channels, 0)  # cycles of the loads that each was given

    def bring(self, item: Box | ConstantBlock, space: int) -> Brought:
        """What that asks of each channel that can."""
        if isinstance(item, ConstantBlock):
            return self._model.block(item.size_bytes, space)
        home = Space.SRAM if item.tensor in self._resident else Space.DRAM
        return self._model.load(item, self._touched.view(item), home, space)

    def load(self, slot: AccessRange, brought: Brought, box: Box | None) -> None:
        """box: of a tensor; None: a block."""
        channel, cost = self._channel(brought)
        after = slot.before()
        if box is not None:
            after += self._touched.makers(box, channel.queue)
        slot.write(self._queues.ask(channel.queue, cost, after))

    def fetch(self, piece: Piece) -> None:
        """Constants of layers behind."""
        for areas, size_bytes in piece:
            channel, cost = self._channel(self._model.block(size_bytes, areas[0].space))
            number = self._queues.ask(channel.queue, cost, [n for area in areas for n in area.inherited()])
            for area in areas:
                area.write(number)

    def _channel(self, brought: Brought) -> tuple[Unit, QueueCost]:
        """That which ends it first, by what it was given so far."""
        if len(brought) == 1:
            return brought[0]
        channel, cost = min(brought, key=lambda by: self._dealt[by[0]] + by[1].alone_cycles)
        self._dealt[channel] += cost.alone_cycles
        return channel, cost
