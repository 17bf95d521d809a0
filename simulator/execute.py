"""Runs operations by the files of `simulator.values`: VALUES in each says what computes which operation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from simulator import values
from simulator.values.context import Context
from toolchain.errors import InternalError
from toolchain.machine import MachineOp
from toolchain.tables import files_of, merged

Run = Callable[[Any, Context], None]


@cache
def computed() -> dict[type[MachineOp], Run]:
    """What computes each operation. Raises InternalError where two files compute one."""
    return merged(files_of(values), "VALUES", "computes")


def execute(op: MachineOp, context: Context) -> None:
    """Runs one operation. The program's checks have passed: addresses lie inside the memories."""
    run = computed().get(type(op))
    if run is None:
        raise InternalError(f"no file of simulator.values computes the operation {op.NAME}")
    run(op, context)
