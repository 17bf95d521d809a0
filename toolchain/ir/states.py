"""Tensors that last from one run of a network to the next."""

from __future__ import annotations

from typing import NamedTuple


class StatePair(NamedTuple):
    """Of the model: the input that a run begins with, and the output that is this input of the next run."""

    past: str
    present: str


class Carried(NamedTuple):
    """A state that the chip keeps. past, made: tensors of the chip, what a run reads and what it leaves in the same place; of the
    same type, scale and layout. pair: their names in the model."""

    past: str
    made: str
    pair: StatePair
