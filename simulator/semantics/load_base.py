"""Read the number from memory that the front end takes into a base register."""

from __future__ import annotations

from simulator.semantics.context import Context
from toolchain.machine import LoadBase


def load_base(op: LoadBase, context: Context) -> None:
    """Read a signed little-endian number into `state.number`, held within 0 and the operation's limit."""
    word = context.state.bytes_of(op.space, op.address, op.word_bytes).tobytes()
    context.state.number = min(max(int.from_bytes(word, "little", signed=True), 0), op.limit)


VALUES = {LoadBase: load_base}
