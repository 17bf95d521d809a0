"""What the front end does changes no bytes: it never comes this far (`toolchain.machine.flow`)."""

from __future__ import annotations

from simulator.values.context import Context
from toolchain.errors import InternalError
from toolchain.machine import Again, Block, Call, ControlOp, Repeat, Return, SetBase


def refused(op: ControlOp, context: Context) -> None:
    raise InternalError(f"{op.NAME} is the front end's; no engine runs it")


VALUES = dict.fromkeys((SetBase, Repeat, Again, Block, Call, Return), refused)
