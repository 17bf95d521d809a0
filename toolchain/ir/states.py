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


class CircularState(NamedTuple):
    """Of a state whose oldest rows go with every run, and that stays where it lies: dimension `axis` of its tensor has `period`
    rows twice over, and the state is the `places` rows that end `period` rows behind the one that tensor `number` names. That is
    where a run puts its `rows` new ones, and again `period` rows behind; for the next run it is as much further, or 0 again where
    that is `period`."""

    axis: int
    places: int
    period: int
    rows: int
    number: str

    def window(self, first: int) -> slice:
        """The rows that are the state. first: the row that `number` names."""
        return slice(first + self.period - self.places, first + self.period)

    def behind(self, first: int) -> int:
        """The row that `number` names in the next run."""
        return (first + self.rows) % self.period


class ChipState(NamedTuple):
    """A state that the chip keeps. past, made: tensors of the chip, what a run reads and what it leaves in the same place; of the
    same type, scale and layout. pair: their names in the model; part: of it, None: all of it; ring: None: it is these tensors."""

    past: str
    made: str
    pair: StatePair
    part: StatePart | None = None
    ring: CircularState | None = None


def area_name(past: str, part: StatePart | None, rows: int) -> str:
    """What a state's area of DRAM is called: its input, of a part with its `rows`, as slices are written."""
    return past if part is None else f"{past}[{part.first}:{part.first + rows}]"
