"""What must be over before bytes of a memory are written again, as far as a plan foresees."""

from __future__ import annotations

import random

import pytest

from toolchain.machine import Space
from toolchain.schedule.dependences import AccessRange, AccessRanges

ARRAY, DMA = 0, 1


def _tensor(areas: AccessRanges, parts: list[tuple[int, int] | None]) -> None:
    """100 bytes that the array reads in these parts, by operations 1, 2, ..."""
    home = areas.add(Space.SRAM, 0, 100)
    home.use(0, DMA, (0, 100))
    for number, part in enumerate(parts, 1):
        home.use(number, ARRAY, part)


def _slot(areas: AccessRanges, start: int) -> AccessRange:
    return areas.add(Space.SRAM, start, 20)


def test_a_slot_waits_for_those_that_touched_its_own_bytes() -> None:
    areas = AccessRanges()
    _tensor(areas, [(0, 50), (50, 100)])
    assert sorted(_slot(areas, 10).before()) == [0, 1]
    assert sorted(_slot(areas, 40).before()) == [0, 1, 2]


def test_where_some_stand_for_others_it_waits_for_the_last_of_all() -> None:
    areas = AccessRanges()
    _tensor(areas, [(0, 50), None, (50, 100)])
    assert sorted(_slot(areas, 10).before()) == [0, 3]


@pytest.mark.parametrize("drawn", range(20))
def test_areas_wait_for_all_that_have_a_byte_of_their_own(drawn: int) -> None:
    """Of 300 areas in two memories, each beside a list of those that no later one covers whole."""
    rng, areas = random.Random(drawn), AccessRanges()
    live_areas: list[AccessRange] = []
    for number in range(300):
        space, start, size = rng.choice((1, 2)), rng.randrange(4000), rng.choice((1, 16, 50, 700))
        area = areas.add(space, start, size)
        met = [a for a in live_areas if a.space == space and a.start < start + size and start < a.end]
        assert sorted(area.take_inherited()) == sorted(n for a in met for n in a.written)
        live_areas = [a for a in live_areas if a.space != space or a.start < start or a.end > start + size]
        area.write(number)
        live_areas.append(area)
