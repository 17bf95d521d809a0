"""What must be over before bytes of a memory are written again, as far as a plan foresees."""

from __future__ import annotations

from toolchain.machine import Space
from toolchain.schedule.areas import Area, Areas

ARRAY, DMA = 0, 1


def _tensor(areas: Areas, parts: list[tuple[int, int] | None]) -> None:
    """100 bytes that the array reads in these parts, by operations 1, 2, ..."""
    home = areas.add(Space.SRAM, 0, 100)
    home.use(0, DMA, (0, 100))
    for number, part in enumerate(parts, 1):
        home.use(number, ARRAY, part)


def _slot(areas: Areas, start: int) -> Area:
    return areas.add(Space.SRAM, start, 20)


def test_a_slot_waits_for_those_that_touched_its_own_bytes() -> None:
    areas = Areas()
    _tensor(areas, [(0, 50), (50, 100)])
    assert sorted(_slot(areas, 10).before()) == [0, 1]
    assert sorted(_slot(areas, 40).before()) == [0, 1, 2]


def test_where_some_stand_for_others_it_waits_for_the_last_of_all() -> None:
    areas = Areas()
    _tensor(areas, [(0, 50), None, (50, 100)])
    assert sorted(_slot(areas, 10).before()) == [0, 3]
