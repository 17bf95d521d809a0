"""The states of a session between two runs, as the programs' DRAM holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolchain.codegen import State
from toolchain.ir.states import CircularState
from toolchain.runtime.builtin_backends import pack_codes, unpack_codes, zero_codes


@dataclass(frozen=True)
class StateValues:
    """A set of states that one run leaves and the next begins with. It is immutable, so that threads may share it.

    `parts`: uint8[port.size_bytes] of each part of each state, in the order of the session's parts.
    `ring_numbers`: of each ring, in the next run.
    """

    parts: tuple[np.ndarray, ...]
    ring_numbers: Mapping[str, int]

    def __post_init__(self) -> None:
        for part in self.parts:
            part.flags.writeable = False


def make_initial_states(parts: Sequence[State]) -> StateValues:
    """Return the states of a new session: zeros, and rings at their beginning."""
    zeros = tuple(pack_codes(zero_codes(state.port), state.port) for state in parts)
    return StateValues(zeros, {state.ring.number: 0 for state in parts if state.ring is not None})


def read_state(raw: np.ndarray, state: State, ring_numbers: Mapping[str, int]) -> np.ndarray:
    """Return a state's codes, as the chip has them in order.

    `raw`: the bytes of its port.
    `ring_numbers`: of each ring, in the run that begins with them.
    """
    port_codes, ring = unpack_codes(raw, state.port), state.ring
    return port_codes if ring is None else port_codes[_rows(ring, ring.window(ring_numbers[ring.number]))]


def write_state(raw: np.ndarray, state: State, codes: np.ndarray, ring_numbers: Mapping[str, int]) -> np.ndarray:
    """Return the bytes of a state's port that now hold these codes. Arguments as of `read_state`."""
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
