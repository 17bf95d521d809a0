"""Moves between tensors in granules as runs of strided bytes, against the places of their elements one by one."""

from __future__ import annotations

import math
from itertools import product

import pytest

from toolchain.hw.chip_sections import FeatureMaps
from toolchain.machine.tensors import make_strides
from toolchain.ops.kit.tile import Box, Loop, Move
from toolchain.ops.permutation import reshaping
from toolchain.schedule.copies import merge
from toolchain.schedule.lower_moves import MoveSide, runs_of, writes_whole_blocks
from toolchain.schedule.tile_buffers import box_strides

Shape = tuple[int, ...]
FORMS = {
    "dense": None,
    "surface": FeatureMaps(granule=4, order="surface"),
    "line": FeatureMaps(granule=4, order="line"),
    "wide": FeatureMaps(granule=8, order="surface"),
}


def one_by_one(move: Move, source: MoveSide, target: MoveSide) -> list[tuple[int, int]]:
    """(byte of the source, byte of the target) of each element."""
    places = []
    for steps in product(*(range(loop.count) for loop in move.loops)):
        ends = list(source.start), list(target.start)
        for k, loop in zip(steps, move.loops):
            if loop.source_dim >= 0:
                ends[0][loop.source_dim] += k * loop.source_step
            if loop.target_dim >= 0:
                ends[1][loop.target_dim] += k * loop.target_step
        places.append((source.strides.offset_bytes(ends[0]), target.strides.offset_bytes(ends[1])))
    return sorted(places)


def by_runs(move: Move, source: MoveSide, target: MoveSide) -> list[tuple[int, int]]:
    starts = source.strides.offset_bytes(source.start), target.strides.offset_bytes(target.start)
    places = []
    for run in runs_of(move, source, target):
        for steps in product(*(range(s.count) for s in run.loops)):
            a = starts[0] + run.source + sum(k * s.source for k, s in zip(steps, run.loops))
            places.append((a, starts[1] + run.target + sum(k * s.target for k, s in zip(steps, run.loops))))
    return sorted(places)


def check_runs(move: Move, before: Shape, after: Shape, form: str, other: str) -> None:
    """What fills last granules may be moved too, where both sides end with one."""
    source = MoveSide(make_strides(before, 1, FORMS[form]), before, move.source_start)
    target = MoveSide(make_strides(after, 1, FORMS[other]), after, move.target_start)
    want, by_run = one_by_one(move, source, target), by_runs(move, source, target)
    if writes_whole_blocks(move, source, target) and target.strides.maps is not None:
        assert set(want) <= set(by_run)
        assert len(by_run) == len(want) // move.loops[-1].count * -(-move.loops[-1].count // 4) * 4
    else:
        assert by_run == want


def box(shape: Shape, source: Shape = (0, 0, 0, 0), target: Shape = (0, 0, 0, 0)) -> Move:
    return Move(0, source, target, tuple(Loop(n, d, 1, d, 1) for d, n in enumerate(shape)))


MOVES = {
    "all": (box((1, 2, 3, 9)), (1, 2, 3, 9), (1, 2, 3, 9)),
    "behind others": (box((1, 2, 3, 9), target=(0, 0, 0, 5)), (1, 2, 3, 9), (1, 2, 3, 14)),
    "on a boundary": (box((1, 2, 3, 9), target=(0, 0, 0, 8)), (1, 2, 3, 9), (1, 2, 3, 17)),
    "before others": (box((1, 2, 3, 9)), (1, 2, 3, 9), (1, 2, 3, 14)),
    "a part": (box((1, 2, 2, 5), source=(0, 0, 1, 2)), (1, 2, 3, 9), (1, 2, 2, 5)),
    "every third": (
        Move(0, (0, 0, 0, 1), (0, 0, 0, 0), (Loop(2, 1, 1, 1, 1), Loop(3, 2, 1, 2, 1), Loop(4, 3, 3, 3, 1))),
        (1, 2, 3, 12),
        (1, 2, 3, 4),
    ),
    "turned": (
        Move(0, (0,) * 4, (0,) * 4, (Loop(2, 1, 1, 2, 1), Loop(6, 2, 1, 3, 1), Loop(9, 3, 1, 1, 1))),
        (1, 2, 6, 9),
        (1, 9, 2, 6),
    ),
    "repeated": (
        Move(0, (0,) * 4, (0,) * 4, (Loop(2, 1, 1, 1, 1), Loop(5, 3, 1, 3, 3), Loop(3, -1, 0, 3, 1))),
        (1, 2, 1, 5),
        (1, 2, 1, 15),
    ),
}


@pytest.mark.parametrize(("form", "other"), [p for p in product(FORMS, FORMS) if "wide" not in p or "dense" in p])
@pytest.mark.parametrize("name", MOVES)
def test_a_move_moves_every_element(name: str, form: str, other: str) -> None:
    check_runs(*MOVES[name], form, other)


def test_boxes_are_few_runs() -> None:
    """One where granules meet granules; where they begin elsewhere, those of equal length together."""
    forms = FORMS["surface"], (1, 8, 8, 64)
    aligned = MoveSide(make_strides(forms[1], 1, forms[0]), forms[1], (0, 0, 0, 0))
    shifted = MoveSide(make_strides((1, 8, 8, 66), 1, forms[0]), (1, 8, 8, 66), (0, 0, 0, 2))
    assert len(runs_of(box(forms[1]), aligned, aligned)) == 1
    assert len(runs_of(box(forms[1]), aligned, shifted)) == 2


@pytest.mark.parametrize("form", ["surface", "line"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, 2, 3, 8), (1, 1, 6, 8)),
        ((2, 2, 3, 5), (1, 4, 3, 5)),
        ((1, 2, 3, 10), (1, 2, 6, 5)),
        ((1, 2, 2, 6), (1, 3, 2, 4)),
    ],
)
def test_a_reshape_between_maps_moves_every_element_in_its_order(form: str, before: Shape, after: Shape) -> None:
    maps = FORMS[form]
    want = sorted(
        (make_strides(before, 1, maps).offset_bytes(a), make_strides(after, 1, maps).offset_bytes(b))
        for a, b in zip(product(*map(range, before)), product(*map(range, after)))
    )
    places = []
    for move in reshaping(before, after, True, True):
        ends = (
            MoveSide(make_strides(before, 1, maps), before, move.source_start),
            MoveSide(make_strides(after, 1, maps), after, move.target_start),
        )
        places += by_runs(move, *ends)
    assert set(want) <= set(places)


@pytest.mark.parametrize("form", ["surface", "line"])
def test_a_reshape_to_a_matrix_and_back(form: str) -> None:
    map_shape, shape = (1, 2, 3, 9), (6, 9)
    maps, flat = make_strides(map_shape, 1, FORMS[form]), make_strides(shape, 1, None)
    want = sorted((maps.offset_bytes(a), i) for i, a in enumerate(product(*map(range, map_shape))))
    (out,), (back,) = reshaping(map_shape, shape, True, False), reshaping(shape, map_shape, False, True)
    sides = MoveSide(maps, map_shape, (0, 0, 0, 0)), MoveSide(flat, shape, (0, 0))
    assert by_runs(out, *sides) == want
    assert sorted((b, a) for a, b in by_runs(back, *sides[::-1])) == want


@pytest.mark.parametrize(
    ("form", "size", "loops"),
    [("surface", (1, 4, 5, 9), []), ("surface", (1, 2, 5, 9), [3]), ("line", (1, 2, 5, 9), []), ("line", (1, 2, 5, 4), [2])],
)
def test_boxes_are_copied_in_the_order_in_which_they_lie(form: str, size: Shape, loops: list[int]) -> None:
    """Of a map of [1, 4, 5, 9]: whole surfaces, or lines, are one run."""
    home, slot = make_strides((1, 4, 5, 9), 1, FORMS[form]), make_strides(size, 1, FORMS[form])
    merged, run_bytes = merge(box_strides(Box("x", (0, 0, 0, 0), size), home, slot), 1)
    assert [s.count for s in merged] == loops
    assert run_bytes * math.prod(loops) == size[1] * size[2] * -(-size[3] // 4) * 4
