"""Charge the front end's instruction reads to the memory that holds the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.machine.demand_columns import Demands
from toolchain.machine.timing_model import read_rate


def word_cycles(chip: Chip, word_bytes: int) -> float:
    """Return the cycles that the front end takes for a word: its own, and no less than the memory's port takes."""
    space = chip.program_space
    if space is None:
        return chip.isa.word_cycles
    return max(chip.isa.word_cycles, word_bytes / read_rate(chip.spaces[space].memory))


def with_program(chip: Chip, op_demands: Demands, words: Sequence[int], word_bytes: int) -> Demands:
    """Return demands that also charge the port of the program's memory with the program's bytes.

    The words of an operation are read with it where the port serves it, else with the next one that the port
    serves.
    Words after the last served operation are read with that one.
    `words`: words of each operation, by dispatch.
    The same demands come back where the front end reads no memory, or `word_bytes` is 0.
    """
    space = chip.program_space
    if space is None or not word_bytes:
        return op_demands
    charged = op_demands.read_burst_bytes.copy()
    served = charged[space] > 0
    if chip.spaces[space].memory.shared_ports:
        served |= op_demands.write_burst_bytes[space] > 0
    at = np.flatnonzero(served)
    if at.size:
        read = np.cumsum(np.array(words, np.int64)) * word_bytes
        ends = read[at]
        ends[-1] = read[-1]
        charged[space, at] += np.diff(ends, prepend=0)
    return replace(op_demands, read_burst_bytes=charged)
