"""Copy and fill: bytes from one place to another, and one value many times."""

from __future__ import annotations

import numpy as np

from simulator.semantics.context import Context
from toolchain.machine import Copy, Fill


def copy(op: Copy, context: Context) -> None:
    """Copy a box of bytes. With `transpose` its inmost two dimensions change places, element by element."""
    kind = context.kind(op.element_type) if op.transpose else np.dtype(np.uint8)
    size = kind.itemsize
    shape = (op.count_outer, op.count0, op.count1, op.count2, op.inner_bytes // size)
    source_strides = (op.source_stride_outer, op.source_stride0, op.source_stride1, op.source_stride2, size)
    last = (size, op.destination_stride2) if op.transpose else (op.destination_stride2, size)
    strides = (op.destination_stride_outer, op.destination_stride0, op.destination_stride1, *last)
    memory = context.state.memory
    source = np.ndarray(shape, kind, memory[op.source_space], op.source_address, source_strides)
    np.copyto(np.ndarray(shape, kind, memory[op.destination_space], op.destination_address, strides), source)


def fill(op: Fill, context: Context) -> None:
    """Write one value to a box of elements."""
    shape = (op.count_outer, op.count0, op.count1, op.count2, op.inner_elements)
    kind, outer = context.kind(op.element_type), (op.destination_stride_outer, op.destination_stride0)
    strides = (*outer, op.destination_stride1, op.destination_stride2, kind.itemsize)
    target = context.state.memory[op.destination_space]
    view = np.ndarray(shape, kind, target, op.destination_address, strides)
    view[...] = np.array(op.value).astype(kind)


VALUES = {Copy: copy, Fill: fill}
