"""Run single operations by the files of `simulator.semantics`: VALUES in each says what computes which operation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from simulator import semantics
from simulator.semantics.context import Context
from toolchain.errors import InternalError
from toolchain.foundation.module_registry import files_of, merge_tables
from toolchain.machine import MachineOp

Run = Callable[[Any, Context], None]


@cache
def load_semantics() -> dict[type[MachineOp], Run]:
    """Return the function that computes each operation, by its class. It is called as (operation, context).

    The table is made once; plug-ins add their operations to it. Raise InternalError where two files compute one.
    """
    return merge_tables(files_of(semantics), "VALUES", "computes")


def execute(op: MachineOp, context: Context) -> None:
    """Run one operation: its outputs are written to the context's memories.

    The program's checks have passed: addresses lie inside the memories. Raise InternalError for an operation of no file.
    """
    run = load_semantics().get(type(op))
    if run is None:
        raise InternalError(f"no file of simulator.semantics computes the operation {op.NAME}")
    run(op, context)
