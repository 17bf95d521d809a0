"""Tests of the slot counts that are tried for the tile buffers of a cascade."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from toolchain.schedule.cascade_candidates import BufferCounts, CascadeCandidate
from toolchain.schedule.stripes import UNCUT, Sweep

BLOCKS = Sweep(columns=8)


@pytest.mark.parametrize(
    ("most", "sweep", "units", "tried"),
    [
        (1, UNCUT, 1, [(1, 1)]),
        (3, UNCUT, 1, [(3, 3), (2, 2), (1, 1)]),
        (2, UNCUT, 2, [(2, 2, True), (2, 2), (1, 1)]),
        (2, BLOCKS, 1, [(2, 2), (1, 2), (2, 1), (1, 1)]),
        (1, BLOCKS, 1, [(1, 1)]),
    ],
)
@pytest.mark.parametrize("stay", [False, True])
def test_the_most_slots_are_tried_first_and_one_slot_last(
    most: int, sweep: Sweep, units: int, tried: list[tuple[Any, ...]], stay: bool
) -> None:
    stripes: Any = SimpleNamespace(sweep=sweep)
    chosen: Any = {0: SimpleNamespace(units=range(units))}
    visited: Any = None
    candidate = CascadeCandidate(range(2), 1, stripes, {}, 0, chosen, visited, {}, ())
    assert candidate.depths(most, stay) == [BufferCounts(*counts)._replace(stay=stay) for counts in tried]
