"""Compute the demands of all operations of a program at once, as columns; operations of one class and unit are handled
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.machine.columns import Column
from toolchain.machine.operation import MachineOp, OperationTable, columns_of_table, demand, tables_by_unit
from toolchain.machine.traffic import Lost, Traffic

_MOVED = Traffic._fields[1:]


@dataclass(frozen=True)
class Demands:
    """The `Demand` of each operation of a program, as int64[op].

    Bytes and bank cycles are int64[space, op], with memories in the order of `chip.spaces`; `lost` is int64[part, op],
    parts as in `Lost`.
    """

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
        """Return the traffic of all operations together at one memory."""
        return Traffic(space, *(int(getattr(self, name)[space].sum()) for name in _MOVED))


def demands(ops: Sequence[MachineOp], chip: Chip, tables: Sequence[OperationTable] | None = None) -> Demands:
    """Return the demands of operations as columns, in their order.

    `tables`: those of `tables_by_unit(ops)`, if they exist already. Raise IndexError where an operation names a unit
    that the machine lacks.
    """
    count, spaces = len(ops), len(chip.spaces)
    lost = np.zeros((len(Lost._fields), count), np.int64)
    columns = Demands(*np.zeros((3, count), np.int64), *np.zeros((len(_MOVED), spaces, count), np.int64), lost=lost)
    for table in tables_by_unit(ops) if tables is None else tables:
        at = np.array(table.indexes)
        group_demand = demand(columns_of_table(ops[table.indexes[0]], table.parameters), chip)
        columns.compute_cycles[at] = group_demand.compute_cycles
        columns.latency_cycles[at] = group_demand.latency_cycles
        columns.macs[at] = group_demand.macs
        for part, cycles in enumerate(group_demand.lost):
            columns.lost[part, at] = cycles
        for t in group_demand.traffic:
            for name in _MOVED:
                getattr(columns, name)[t.space, at] = getattr(t, name)
    return columns
