"""What the operations of a program ask for, as columns: operations of one class on one unit are looked at together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.machine.columns import Column
from toolchain.machine.operation import MachineOp, alike, columns_of, demand
from toolchain.machine.traffic import Lost, Traffic

_MOVED = Traffic._fields[1:]


@dataclass(frozen=True)
class Demands:
    """`Demand` of each operation: int64[op]; bytes int64[space, op], spaces in the order of `chip.spaces`; lost int64[part, op],
    parts as in `Lost`."""

    compute_cycles: Column
    latency_cycles: Column
    macs: Column
    read_bytes: Column
    write_bytes: Column
    read_burst_bytes: Column
    write_burst_bytes: Column
    read_bank_cycles: Column
    write_bank_cycles: Column
    lost: Column

    def traffic(self, space: int) -> Traffic:
        """What all operations together move at one memory."""
        return Traffic(space, *(int(getattr(self, name)[space].sum()) for name in _MOVED))


def demands(ops: Sequence[MachineOp], chip: Chip) -> Demands:
    """Raises IndexError where an operation names a unit that the machine has not."""
    count, spaces = len(ops), len(chip.spaces)
    lost = np.zeros((len(Lost._fields), count), np.int64)
    found = Demands(*np.zeros((3, count), np.int64), *np.zeros((len(_MOVED), spaces, count), np.int64), lost=lost)
    for members in alike(ops).values():
        at = np.array(members)
        asked = demand(columns_of([ops[i] for i in members]), chip)
        found.compute_cycles[at] = asked.compute_cycles
        found.latency_cycles[at] = asked.latency_cycles
        found.macs[at] = asked.macs
        for part, cycles in enumerate(asked.lost):
            found.lost[part, at] = cycles
        for t in asked.traffic:
            for name in _MOVED:
                getattr(found, name)[t.space, at] = getattr(t, name)
    return found
