"""Copy and fill: bytes from one place to another, and one value many times."""

from __future__ import annotations

import numpy as np

from simulator.values.context import Context
from toolchain.machine import Copy, Fill


def copy(op: Copy, context: Context) -> None:
    shape = (op.count0, op.count1, op.count2, op.inner_bytes)
    source_strides = (op.source_stride0, op.source_stride1, op.source_stride2, 1)
    strides = (op.destination_stride0, op.destination_stride1, op.destination_stride2, 1)
    memory = context.state.memory
    source = np.ndarray(shape, np.uint8, memory[op.source_space], op.source_address, source_strides)
    np.copyto(np.ndarray(shape, np.uint8, memory[op.destination_space], op.destination_address, strides), source)


def fill(op: Fill, context: Context) -> None:
    shape = (op.count0, op.count1, op.count2, op.inner_elements)
    strides = (op.destination_stride0, op.destination_stride1, op.destination_stride2, context.size)
    target = context.state.memory[op.destination_space]
    view = np.ndarray(shape, context.activation, target, op.destination_address, strides)
    view[...] = np.array(op.value).astype(context.activation)


VALUES = {Copy: copy, Fill: fill}
