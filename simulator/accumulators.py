"""Whether each operation of the array finds in the accumulators what it adds to."""

from __future__ import annotations

from toolchain.machine import MachineOp


class AccumulatorState:
    """What the accumulators of one array hold between its operations."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] | None = None

    def broken(self, op: MachineOp) -> str | None:
        """The reason why `op` cannot follow the operations before it on the array, or None."""
        sums = op.sums()
        if sums is None:
            return None
        held, shape = self.shape, sums.shape
        self.shape = None if sums.emit else shape
        if not sums.accumulate or held == shape:
            return None
        if held is None:
            return "accumulate=1, but the operation before it on the array left no sums"
        return f"accumulate=1 with output shape {_by(shape)}, but the accumulators hold {_by(held)}"


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(str(n) for n in shape)
