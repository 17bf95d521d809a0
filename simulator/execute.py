"""Runs operations by the files of `simulator.values`: VALUES in each says what computes which operation."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

from simulator import values
from simulator.values.context import Context
from toolchain.errors import InternalError
from toolchain.machine import MachineOp

Run = Callable[[Any, Context], None]


@cache
def computed() -> dict[type[MachineOp], Run]:
    """What computes each operation. Raises InternalError where two files compute one."""
    found: dict[type[MachineOp], Run] = {}
    for info in pkgutil.iter_modules(values.__path__):
        module = importlib.import_module(f"{values.__name__}.{info.name}")
        for operation, run in getattr(module, "VALUES", {}).items():
            if operation in found:
                raise InternalError(f"{module.__name__}: another file computes {operation.NAME}")
            found[operation] = run
    return found


def execute(op: MachineOp, context: Context) -> None:
    """Runs one operation. The program's checks have passed: addresses lie inside the memories."""
    run = computed().get(type(op))
    if run is None:
        raise InternalError(f"no file of simulator.values computes the operation {op.NAME}")
    run(op, context)
