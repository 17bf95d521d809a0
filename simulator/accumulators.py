"""Check that each operation of an array finds in its accumulators the sums that it adds to.

The program's check (`check_program`) has one record for each array that keeps its sums to itself.
"""

from __future__ import annotations

from toolchain.machine import MachineOp
from toolchain.machine.access import AccumulatorUse


class AccumulatorState:
    """A record of what one array's accumulators hold behind the operations seen so far.

    `pending_sums`: shape and dataflow of the sums that wait to be added to; None: none do.
    """

    def __init__(self) -> None:
        self.pending_sums: AccumulatorUse | None = None

    def broken(self, op: MachineOp) -> str | None:
        """Record `op`, the array's next operation. Return why it cannot follow those before it, or None where it can.

        Operations that make no sums change nothing.
        """
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
    """Return a shape as text, such as 8x8x16."""
    return "x".join(str(n) for n in shape)
