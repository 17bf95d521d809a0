"""The cases of every operation of a machine: what the files of the folder `draws` have, run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from toolchain.errors import InternalError
from toolchain.hw import Chip
from toolchain.isa import Machine
from toolchain.machine import MachineOp
from toolchain.module_registry import files_of, merge_tables
from toolchain.plugin import get_plugins
from toolchain.vectors import draws
from toolchain.vectors.case import Draw, InstructionCase, run_case

Cases = Callable[[type[MachineOp], Chip], Iterator[tuple[str, Draw]]]  # (name, draw) of an operation on a chip


def load_draws() -> dict[type[MachineOp], Cases]:
    """Return what draws the cases of each operation, those of plug-ins too.

    Raise InternalError where two files draw one operation.
    """
    of_plugins = {op: cases for loaded in get_plugins().values() for op, cases in loaded.plugin.draws.items()}
    return {**_load_files(), **of_plugins}


@cache
def _load_files() -> dict[type[MachineOp], Cases]:
    return merge_tables(files_of(draws), "CASES", "draws the operation")


def instruction_cases(machine: Machine) -> Iterator[InstructionCase]:
    """Yield the cases of each operation of the machine's instruction table, in its order.

    Raise InternalError for an operation without cases.
    """
    for name, plan in machine.isa.plans.items():
        drawn = load_draws().get(plan.operation)
        if drawn is None:
            raise InternalError(f"no file of toolchain.vectors.draws draws the operation {name}")
        for case_name, draw in drawn(plan.operation, machine.chip):
            case = run_case(machine, name, case_name, draw)
            if case is not None:
                yield case
