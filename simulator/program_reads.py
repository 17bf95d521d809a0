"""What the front end's reading takes of the memory that the program lies in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.machine.demand_columns import Demands
from toolchain.machine.timing_model import read_rate


def word_cycles(chip: Chip, word_bytes: int) -> float:
    """Of a word: what the front end takes, and no less than the memory's port."""
    space = chip.program_space
    if space is None:
        return chip.isa.word_cycles
    return max(chip.isa.word_cycles, word_bytes / read_rate(chip.spaces[space].memory))


def with_program(chip: Chip, wanted: Demands, words: Sequence[int], word_bytes: int) -> Demands:
    """Demands that charge the port of the program's memory with its bytes, too. words: of each operation, by dispatch.

    The words of an operation are read with it where the port serves it, else with the next one that the port serves; those
    behind the last with that.
    """
    space = chip.program_space
    if space is None or not word_bytes:
        return wanted
    charged = wanted.read_burst_bytes.copy()
    served = charged[space] > 0
    if chip.spaces[space].memory.shared_ports:
        served |= wanted.write_burst_bytes[space] > 0
    at = np.flatnonzero(served)
    if at.size:
        read = np.cumsum(np.array(words, np.int64)) * word_bytes
        ends = read[at]
        ends[-1] = read[-1]
        charged[space, at] += np.diff(ends, prepend=0)
    return replace(wanted, read_burst_bytes=charged)
