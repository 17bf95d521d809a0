"""Define states: tensors that one run of a network leaves to the next, such as caches of attention."""

from __future__ import annotations

from typing import NamedTuple


class StatePair(NamedTuple):
    """A state of the model: the input `past` that a run begins with, and the output `present` that is this input of the next
    run.
    """

    past: str
    present: str


class StatePart(NamedTuple):
    """A part of a state along its first dimension: it begins at row `first` of the `total_rows` of the whole state."""

    first: int
    total_rows: int


class CircularState(NamedTuple):
    """A circular buffer: a state that stays in place while its oldest rows are dropped in every run.

    Dimension `axis` of its tensor has `period` rows twice over.
    The state is the `places` rows that end `period` rows after the row that tensor `number` names.
    A run writes its `rows` new rows at that row, and again `period` rows after it.
    For the next run the number is larger by `rows`, or 0 again where that is `period`.
    """

    axis: int
    places: int
    period: int
    rows: int
    number: str

    def window(self, first: int) -> slice:
        """Return the rows of the buffer that are the state. `first`: the row that `number` names in this run."""
        return slice(first + self.period - self.places, first + self.period)

    def get_next_row(self, first: int) -> int:
        """Return the row that `number` names in the next run. `first`: the row of this run."""
        return (first + self.rows) % self.period


class ChipState(NamedTuple):
    """A state that the chip keeps.

    `past`, `present_tensor`: chip tensors that a run reads and leaves in the same place, of one type, scale and layout.
    `pair`: their names in the model.
    `part`: the part of that pair, None for all of it.
    `ring`: the circular buffer, None where the state is these tensors.
    """

    past: str
    present_tensor: str
    pair: StatePair
    part: StatePart | None = None
    ring: CircularState | None = None


def area_name(past: str, part: StatePart | None, rows: int) -> str:
    """Return the name of a state's DRAM area: `past`, and for a part `past[first:end]`. `rows`: how many rows the part has."""
    return past if part is None else f"{past}[{part.first}:{part.first + rows}]"
