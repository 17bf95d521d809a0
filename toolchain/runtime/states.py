"""What is kept from run to run, in a program's DRAM."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from toolchain.codegen import State
from toolchain.ir.states import Ring
from toolchain.runtime.builtin import read_port, write_port


def read_state(dram: np.ndarray, state: State, numbers: Mapping[str, int]) -> np.ndarray:
    """Its codes, as the chip has them in order. numbers: of rings, in the next run."""
    whole, ring = read_port(dram, state.port), state.ring
    return whole if ring is None else whole[_rows(ring, ring.window(numbers[ring.number]))]


def write_state(dram: np.ndarray, state: State, codes: np.ndarray, numbers: Mapping[str, int]) -> None:
    """The next run begins with these. numbers: as of `read_state`."""
    ring = state.ring
    if ring is None:
        return write_port(dram, state.port, codes)
    whole, window = read_port(dram, state.port), ring.window(numbers[ring.number])
    first = np.arange(window.start, window.stop) % ring.period
    whole[_rows(ring, first)] = whole[_rows(ring, first + ring.period)] = codes
    return write_port(dram, state.port, whole)


def _rows(ring: Ring, rows: slice | np.ndarray) -> tuple[slice | np.ndarray, ...]:
    """As an index of the ring's tensor."""
    return (*(slice(None),) * ring.axis, rows)
