"""What layers by themselves and cascades cost at least, before they are planned."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from toolchain.ops.kit.tile import halvings, round_up
from toolchain.schedule.cascade import CascadePlanner
from toolchain.schedule.cost_weights import CostWeights
from toolchain.schedule.plan import Storage
from toolchain.schedule.stripes import Sweep

_WIDTHS = 3  # of blocks of columns

Roots = frozenset[str]


@dataclass(frozen=True)
class GroupingBounds:
    """What a region's layers touch. roots: of each layer; heights: rows of its output. layer_cycles: of a layer by itself with
    these roots in SRAM, in so many bytes of it; None where it does not fit. open: layers that run while some tensor is spilled,
    layer by layer. settled: roots that lie in SRAM then, and none of those layers touches."""

    storages: Mapping[str, Storage]
    ports: Collection[str]
    roots: Sequence[Roots]
    heights: Sequence[int]
    layer_cycles: Callable[[int, Roots, int, CostWeights], float | None]
    bytes_per_cycle: float
    alignment_bytes: int
    open: frozenset[int]
    settled: Roots

    def size_bytes(self, roots: Collection[str]) -> int:
        """In SRAM."""
        return sum(round_up(self.storages[r].size_bytes, self.alignment_bytes) for r in roots)

    def moved_bytes(self, first: int, end: int, inside: Roots) -> int:
        """Of what these layers touch and does not lie in SRAM, once."""
        return sum(self.storages[r].size_bytes for r in self.touched(first, end) - inside)

    def touched(self, first: int, end: int) -> Roots:
        """By these layers."""
        return frozenset().union(*self.roots[first:end])


class CascadeBounds:
    """Cycles that cascades of one region take at least, for so many bytes of SRAM; by: how plans are compared."""

    def __init__(self, cascades: CascadePlanner, bounds: GroupingBounds, usable: int, by: CostWeights):
        self._cascades, self._bounds, self._usable, self._by = cascades, bounds, usable, by
        self._least: dict[tuple[int, int, Roots], tuple[float, int, int] | None] = {}
        self._inside: dict[int, float | None] = {}
        self._columns: dict[tuple[int, int, Roots, int], Mapping[int, float]] = {}

    def cycles(self, first: int, end: int, own: Roots, room: int) -> float | None:
        """The cycles that a cascade takes at least: all that its layers compute, and all that it moves, constants that do not
        stay once more for each stripe. None where it keeps more than there is room for."""
        fixed = self._fixed(first, end, own)
        if fixed is None:
            return None
        cycles, moved, constants = fixed
        least = max(cycles, (moved + constants) / self._bounds.bytes_per_cycle)
        best: float | None = None
        total, blocks = self._bounds.heights[end - 1], self._cascades.blocks(first, end, own)
        for height in halvings(total)[1:]:
            free = room - self._cascades.rows_bytes(first, end, height, own)
            if free <= 0 and blocks and self._cascades.rows_bytes(first, end, height, own, sweep=Sweep(blocks[-1])) < room:
                return least
            if free > 0:
                again = max(0, constants - free) * (-(-total // height) - 1)
                found = max(cycles, (moved + constants + again) / self._bounds.bytes_per_cycle)
                if found <= least:
                    return least
                best = found if best is None else min(best, found)
        return min(self.in_columns(first, end, own, room).values(), default=None) if best is None else best

    def in_columns(self, first: int, end: int, own: Roots, room: int) -> Mapping[int, float]:
        """As `cycles`, of the widest blocks of columns of which stripes fit: constants that do not stay come once more for each
        stripe of each block."""
        key = first, end, own, room
        if key not in self._columns:
            self._columns[key] = self._found_in_columns(first, end, own, room)
        return self._columns[key]

    def _found_in_columns(self, first: int, end: int, own: Roots, room: int) -> Mapping[int, float]:
        fixed, found = self._fixed(first, end, own), dict[int, float]()
        if fixed is None:
            return found
        (_, moved, constants), total = fixed, self._bounds.heights[end - 1]
        for columns in self._cascades.columns(first, end, own):
            least = math.inf
            for height in halvings(total)[1:]:
                free = room - self._cascades.rows_bytes(first, end, height, own, sweep=Sweep(columns=columns))
                if free > 0:
                    stripes = self._cascades.blocks_of(end, columns) * -(-total // height)
                    again = max(0, constants - free) * (stripes - 1)
                    least = min(least, (moved + constants + again) / self._bounds.bytes_per_cycle)
            if least < math.inf:
                found[columns] = max(least, self._cycles_in_columns(first, end, columns))
            if len(found) == _WIDTHS:
                break
        return found

    def _cycles_in_columns(self, first: int, end: int, columns: int) -> float:
        """That these layers compute at least, with all in SRAM, in blocks of so many columns: what blocks share is made again."""
        found = (self._inside_cycles(i) or 0 for i in range(first, end))
        return sum(cycles * times for cycles, times in zip(found, self._cascades.made_again(first, end, columns)))

    def _inside_cycles(self, index: int) -> float | None:
        """Of a layer by itself, with all that it touches in SRAM."""
        if index not in self._inside:
            bounds = self._bounds
            self._inside[index] = bounds.layer_cycles(index, bounds.roots[index], self._usable, self._by)
        return self._inside[index]

    def _fixed(self, first: int, end: int, own: Roots) -> tuple[float, int, int] | None:
        """Of a cascade, whatever its stripes: cycles of its layers with all in SRAM, bytes of tensors that it moves, of
        constants; None where it keeps nothing."""
        key = first, end, own
        if key not in self._least:
            self._least[key] = self._found_fixed(first, end, own)
        return self._least[key]

    def _found_fixed(self, first: int, end: int, own: Roots) -> tuple[float, int, int] | None:
        bounds = self._bounds
        kept = set(self._cascades.kept(first, end, own).values())
        if not kept:
            return None
        total = 0.0
        for index in range(first, end):
            cycles = self._inside_cycles(index)
            if cycles is None:
                return None
            total += cycles
        moved = bounds.moved_bytes(first, end, own.union(kept))
        return total, moved, sum(self._cascades.constant_bytes(i) for i in range(first, end))
