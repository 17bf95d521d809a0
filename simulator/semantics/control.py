"""Front-end operations change no bytes and never reach this table (`toolchain.machine.dispatch`)."""

from __future__ import annotations

from simulator.semantics.context import Context
from toolchain.errors import InternalError
from toolchain.machine import BlockBegin, BlockEnd, Call, ControlOp, Repeat, RepeatEnd, SetBase


def reject_control_op(op: ControlOp, context: Context) -> None:
    """Raise InternalError: a front-end operation has come to an engine."""
    raise InternalError(f"{op.NAME} is the front end's; no engine runs it")


VALUES = dict.fromkeys((SetBase, Repeat, RepeatEnd, BlockBegin, Call, BlockEnd), reject_control_op)
