"""Tensors that last from one run of a network to the next."""

from __future__ import annotations

from typing import NamedTuple


class StatePair(NamedTuple):
    """Of the model: the input that a run begins with, and the output that is this input of the next run."""

    past: str
    present: str


class StatePart(NamedTuple):
    """Of a state, along its first dimension: from `first` on, of `whole`."""

    first: int
    whole: int


class Carried(NamedTuple):
    """A state that the chip keeps. past, made: tensors of the chip, what a run reads and what it leaves in the same place; of the
    same type, scale and layout. pair: their names in the model; part: of it, None: all of it."""

    past: str
    made: str
    pair: StatePair
    part: StatePart | None = None


def area_name(past: str, part: StatePart | None, rows: int) -> str:
    """What a state's area of DRAM is called: its input, of a part with its `rows`, as slices are written."""
    return past if part is None else f"{past}[{part.first}:{part.first + rows}]"
