"""Compute the cycles of a vector engine, by the rates of its functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import cast

import numpy as np

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.hw.engines import FunctionRate
from toolchain.hw.unit_map import Unit
from toolchain.machine.columns import IntOrColumn, by_type, ceil_div, is_column, least, most, where
from toolchain.machine.traffic import Demand, Lost, Traffic, latency_cycles

_MISSING = FunctionRate(lanes=1, startup=0)  # a program that uses what its machine lacks is refused before it is timed


def vector_demand(
    unit: Unit,
    chip: Chip,
    rate: tuple[IntOrColumn, IntOrColumn, IntOrColumn],
    elements: IntOrColumn,
    moved: tuple[Traffic, ...],
    passes: IntOrColumn = 1,
    roles: Sequence[str] = ("input",),
) -> Demand:
    """Return the demand of a vector operation: startup cycles, and ceil(elements / lanes) cycles for each pass.

    Startup and the unused lanes at the end of each pass are its lost cycles. The latency is that of the memories of `roles`.

    `rate`: (lanes, startup, passes) of `rate_of`. `moved`: its traffic. `passes`: those of the operation; those of its
    function count where they are more. `roles`: roles of its inputs.
    """
    lanes, startup, least_passes = rate
    passes = most(passes, least_passes)
    steps = passes * ceil_div(elements, lanes)
    lost = Lost(startup, steps - ceil_div(passes * elements, lanes))
    return Demand(startup + steps, latency_cycles(unit, chip, 1, roles), 0, moved, lost)


def rate_of(
    unit: Unit, chip: Chip, names: Sequence[str], kind: IntOrColumn = 0, otherwise: str = "", types: Sequence[IntOrColumn] = ()
) -> tuple[IntOrColumn, IntOrColumn, IntOrColumn]:
    """Return (lanes, startup cycles, passes) of the function names[kind]; of `otherwise` where the unit lacks it.

    A function that the machine lacks has one lane; programs with it are refused elsewhere. For a column of kinds the
    results are columns. `types`: numbers of the operands' types; the type of fewest lanes counts.
    """
    functions = cast(Mapping[str, FunctionRate], unit.vector.functions)
    rates = [*(functions.get(name, functions.get(otherwise, _MISSING)) for name in names), _MISSING]
    chosen = where((kind >= 0) & (kind < len(names)), kind, len(names))

    def of_each(values: Sequence[int]) -> IntOrColumn:
        return np.array(values, np.int64)[chosen] if is_column(chosen) else values[int(chosen)]

    def lanes(codes: CodeType) -> IntOrColumn:
        return of_each([r.lanes_of(codes) for r in rates])

    fewest = reduce(least, (by_type(number, chip.code_types, lanes) for number in types or (0,)))
    return fewest, of_each([r.startup for r in rates]), of_each([r.passes for r in rates])


def find_function_key(names: Collection[str], chip: Chip) -> str | None:
    """Return a text with the machine file's key by which it has one of these functions; None where it has none."""
    used = sorted({*names} & chip.functions)
    return f"{chip.key('vector')}.functions has {', '.join(used)}" if used else None
