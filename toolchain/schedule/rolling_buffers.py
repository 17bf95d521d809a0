"""What layers that run in turns do to the buffers between them: rows that are moved, and other channels or columns begun."""

from __future__ import annotations

from collections.abc import Mapping

from toolchain.ir.graph import TensorType
from toolchain.ops.kit.tile import Box
from toolchain.schedule.cost import CostModel
from toolchain.schedule.dependences import DependenceTracker
from toolchain.schedule.queues import PlannedQueues
from toolchain.schedule.stripes import BufferReset, BufferShift, shift_boxes


class RollingBufferUpdates:
    """On the queues of one machine. Like what is left of a tile, a shift waits for the loads of what follows it."""

    def __init__(self, model: CostModel, queues: PlannedQueues, touched: DependenceTracker):
        self._model, self._queues, self._touched = model, queues, touched
        self._store = model.chip.channels[-1].queue
        self._shift: tuple[BufferShift, Mapping[str, TensorType]] | None = None
        self._anew: list[BufferReset] = []

    def shift(self, shift: BufferShift, types: Mapping[str, TensorType]) -> None:
        """Behind everything asked for so far."""
        self._shift = shift, types

    def begin(self, anew: BufferReset, behind_tile: bool) -> None:
        """behind_tile: something is left of a tile, or else perhaps a shift."""
        self._anew.append(anew)
        if not behind_tile and self._shift is None:
            self.begun()

    def begun(self) -> None:
        """What came before is asked for."""
        for anew in self._anew:
            self._touched.begin(anew.root, anew.first)
        self._anew = []

    def touches(self, box: Box | None) -> bool:
        """Whether a load of the box reads what is still to be moved."""
        return box is not None and self._shift is not None and self._touched.root(box.tensor) == self._shift[0].root

    def finish(self) -> None:
        """Asks for what waits: rows to the beginning of their buffer, by the channel that stores."""
        if self._shift is None:
            return
        (shift, types), self._shift = self._shift, None
        for box in shift_boxes(shift, types):
            there = box._replace(start=(0, box.start[1] - shift.distance, *box.start[2:]))
            after = [*self._touched.makers(box, self._store), *self._touched.before(there, self._store)]
            number = self._queues.ask(self._store, self._model.shift(box, self._touched.view(box)), after)
            self._touched.use(box, number, self._store)
            self._touched.use(there, number, self._store)
            self._touched.moved(box, number, self._store)
        self._touched.move_rows(shift.root, shift.first)
        self.begun()
