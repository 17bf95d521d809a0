"""Check that each operation of the array finds in the accumulators the sums that it adds to."""

from __future__ import annotations

from toolchain.machine import MachineOp
from toolchain.machine.access import AccumulatorUse


class AccumulatorState:
    """A record of the accumulator contents of one array between its operations."""

    def __init__(self) -> None:
        self.pending_sums: AccumulatorUse | None = None

    def broken(self, op: MachineOp) -> str | None:
        """The reason why `op` cannot follow the operations before it on the array, or None."""
        sums = op.sums()
        if sums is None:
            return None
        pending_sums, self.pending_sums = self.pending_sums, None if sums.emit else sums
        if not sums.accumulate:
            return None
        if pending_sums is None:
            return "accumulate=1, but the operation before it on the array left no sums"
        if pending_sums.shape != sums.shape:
            return f"accumulate=1 with output shape {_by(sums.shape)}, but the accumulators hold {_by(pending_sums.shape)}"
        if pending_sums.dataflow != sums.dataflow:
            return (
                f"accumulate=1 with dataflow={sums.dataflow}, but the accumulators hold sums of dataflow={pending_sums.dataflow}"
            )
        return None


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(str(n) for n in shape)
