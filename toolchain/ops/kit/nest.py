"""Define the tile tasks of a layer as nested loops, so that a tiling can be costed without walking every tile.

A step of a loop has a kind. Tasks at steps of one kind read, write and compute in the same way, so the cost model looks at
one.
An example: the first and last rows of a padded image have kinds of their own, and all rows between them share one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby, product
from typing import Any

from toolchain.ops.kit.tile import TileTask, spans
from toolchain.ops.kit.window import Taps, Window

Span = tuple[int, int]


@dataclass(frozen=True)
class Axis:
    """One loop of a nest. `steps`: what the body gets, in order. `kinds`: the kind of each step."""

    steps: tuple[Any, ...]
    kinds: tuple[Hashable, ...]

    @cached_property
    def runs(self) -> tuple[Span, ...]:
        """(first, count) of each run of neighbouring steps of one kind, in order."""
        spans_with_counts: list[Span] = []
        start = 0
        for _, group in groupby(self.kinds):
            count = sum(1 for _ in group)
            spans_with_counts.append((start, count))
            start += count
        return tuple(spans_with_counts)

    @cached_property
    def distinct(self) -> tuple[Any, ...]:
        """The first step of each kind."""
        return tuple(dict(zip(reversed(self.kinds), reversed(self.steps))).values())


@dataclass(frozen=True)
class Nest:
    """The loops of a layer, outermost first, and the tile tasks at each point.

    `body`: takes a point, the step of every loop, and returns its tasks in order.
    """

    axes: tuple[Axis, ...]
    body: Callable[[tuple[Any, ...]], Sequence[TileTask]]

    def iterate_tasks(self) -> Iterator[TileTask]:
        """Yield the tasks of all points, in the order in which they run."""
        for point in product(*(axis.steps for axis in self.axes)):
            yield from self.body(point)

    def distinct(self) -> Iterator[TileTask]:
        """Yield the tasks at one point of each combination of kinds; all other tasks are like one of these."""
        for point in product(*(axis.distinct for axis in self.axes)):
            yield from self.body(point)


@lru_cache(maxsize=4096)
def uniform_axis(count: int) -> Axis:
    """Return a loop over 0, 1, ... count - 1, all of one kind."""
    return Axis(tuple(range(count)), (0,) * count)


@lru_cache(maxsize=4096)
def cut_axis(total: int, tile: int, first: int = 0) -> Axis:
    """Return a loop over [first, first + total) in (start, size) pieces of at most `tile`; pieces of equal size are of one
    kind.
    """
    steps = tuple(spans(total, tile, first))
    return Axis(steps, tuple(size for _, size in steps))


@lru_cache(maxsize=4096)
def reduction_axis(total: int, tile: int) -> Axis:
    """Return a loop like `cut_axis` over a reduction; the first and the last piece have kinds of their own."""
    steps = tuple(spans(total, tile))
    return Axis(steps, tuple((size, start == 0, start + size == total) for start, size in steps))


@lru_cache(maxsize=4096)
def window_axis(window: Window, steps: tuple[Span, ...], taps: tuple[Taps, ...] = ()) -> Axis:
    """Return a loop over output spans of a sliding window. Two spans are of one kind if they read and pad equally many
    elements.

    `steps`: (start, size) of the spans. `taps`: parts of the kernel, for each of which that has to hold too.
    """
    parts = tuple(window.part(t) for t in taps)
    return Axis(steps, tuple(_window_kind(window, parts, step) for step in steps))


def _window_kind(window: Window, parts: Iterable[Window], step: Span) -> Hashable:
    """Return the kind of an output span: its size, the input elements that it reads, and its padding, for each part of the
    kernel.
    """
    first, size = window.get_input_span(*step)
    kind: list[Hashable] = [step[1], size, window.offset(step[0], first)]
    for part in parts:
        part_first, own_size = part.get_input_span(*step)
        kind += [part.meets(*step), own_size, part.offset(step[0], part_first), part.offset(step[0], first)]
    return tuple(kind)
