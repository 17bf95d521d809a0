"""Read and write the states of a session between two runs, in the form in which the programs' DRAM holds them.

A state may be a ring: a circular buffer whose first row moves on in each run (toolchain.ir.states).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolchain.codegen import State
from toolchain.ir.states import CircularState
from toolchain.runtime.builtin_backends import pack_codes, unpack_codes, zero_codes


@dataclass(frozen=True)
class StateValues:
    """The states that one run leaves and the next begins with. It is immutable, so that threads may share it.

    `parts`: uint8[port.size_bytes] of each part of each state, in the order of the session's parts. They become read-only.
    `ring_numbers`: by ring, its number in the next run, from which its first row follows.
    """

    parts: tuple[np.ndarray, ...]
    ring_numbers: Mapping[str, int]

    def __post_init__(self) -> None:
        for part in self.parts:
            part.flags.writeable = False


def make_initial_states(parts: Sequence[State]) -> StateValues:
    """Return the states of a new session: real zeros, and rings at their beginning."""
    zeros = tuple(pack_codes(zero_codes(state.port), state.port) for state in parts)
    return StateValues(zeros, {state.ring.number: 0 for state in parts if state.ring is not None})


def read_state(raw: np.ndarray, state: State, ring_numbers: Mapping[str, int]) -> np.ndarray:
    """Return a state's codes in the chip's shape, with the rows of a ring in their order.

    `raw`: the bytes of its port.
    `ring_numbers`: number of each ring in the run that begins with these bytes.
    """
    port_codes, ring = unpack_codes(raw, state.port), state.ring
    return port_codes if ring is None else port_codes[_rows(ring, ring.window(ring_numbers[ring.number]))]


def write_state(raw: np.ndarray, state: State, codes: np.ndarray, ring_numbers: Mapping[str, int]) -> np.ndarray:
    """Return new bytes of a state's port that hold these codes. The rows of a ring are written twice, as programs expect them.

    `raw`: the bytes of the port before. The other arguments are those of `read_state`.
    """
    ring = state.ring
    if ring is None:
        return pack_codes(codes, state.port)
    port_codes, window = unpack_codes(raw, state.port), ring.window(ring_numbers[ring.number])
    first = np.arange(int(window.start), int(window.stop)) % ring.period
    port_codes[_rows(ring, first)] = port_codes[_rows(ring, first + ring.period)] = codes
    return pack_codes(port_codes, state.port)


def _rows(ring: CircularState, rows: slice | np.ndarray) -> tuple[slice | np.ndarray, ...]:
    """Return the index of these rows in the ring's tensor."""
    return (*(slice(None),) * ring.axis, rows)
