"""Whether each operation of the array finds in the accumulators what it adds to."""

from __future__ import annotations

from toolchain.machine import MachineOp
from toolchain.machine.access import AccumulatorUse


class AccumulatorState:
    """What the accumulators of one array hold between its operations."""

    def __init__(self) -> None:
        self.held: AccumulatorUse | None = None

    def broken(self, op: MachineOp) -> str | None:
        """The reason why `op` cannot follow the operations before it on the array, or None."""
        sums = op.sums()
        if sums is None:
            return None
        held, self.held = self.held, None if sums.emit else sums
        if not sums.accumulate:
            return None
        if held is None:
            return "accumulate=1, but the operation before it on the array left no sums"
        if held.shape != sums.shape:
            return f"accumulate=1 with output shape {_by(sums.shape)}, but the accumulators hold {_by(held.shape)}"
        if held.dataflow != sums.dataflow:
            return f"accumulate=1 with dataflow={sums.dataflow}, but the accumulators hold sums of dataflow={held.dataflow}"
        return None


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(str(n) for n in shape)
