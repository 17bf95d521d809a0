"""How layers that run in turns cut their part of a stripe."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from math import lcm, prod
from typing import NamedTuple

from toolchain.hw.unit_map import Unit
from toolchain.machine import granule_of
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Box, Extent, TileTask, Tiling
from toolchain.schedule.cascade_candidates import TileChoice
from toolchain.schedule.cost import CostModel
from toolchain.schedule.stripes import LayerCall
from toolchain.schedule.tilings import Candidate, layer_units
from toolchain.schedule.unit_choice import chain_of, emit_at_zero, units_for

_TRIED = 6  # tilings of a layer
_BLOCKS = 16  # of constants that the SRAM holds at least, where tilings leave a choice


class _Cut(NamedTuple):
    """One way to cut a call. cycles: of its works alone. block_bytes: of its largest block of constants."""

    chosen: TileChoice
    cycles: int
    block_bytes: int


class StripeTilings:
    """Of the layers of one region; layers that are alike share them."""

    def __init__(
        self,
        layers: Sequence[Layer],
        model: CostModel,
        candidates: Sequence[tuple[object, Sequence[Candidate]]],
        sram_bytes: int,
    ):
        """candidates: of each layer, which are like it, and its tilings. sram_bytes: in which some blocks of constants lie."""
        self._layers, self._model, self._candidates, self._sram_bytes = layers, model, candidates, sram_bytes
        self._fastest: dict[Hashable, TileChoice | None] = {}
        self._kinds: dict[int, str] = {}
        self._in_blocks: dict[tuple[int, frozenset[str]], bool] = {}

    def unit_kind(self, index: int) -> str:
        """That runs the layer."""
        if index not in self._kinds:
            self._kinds[index] = layer_units(self._layers[index], self._candidates[index][1][0][1])[0].kind
        return self._kinds[index]

    def fastest(self, call: LayerCall, staged: bool) -> TileChoice | None:
        """That in which such a call takes least; with constants in blocks of which the SRAM holds some, where there are such.
        staged: its inputs are brought, so that they should be used for all channels before the next ones are."""
        layer, (alike, known) = self._layers[call.layer], self._candidates[call.layer]
        rows, (_, channels), columns = call.extent
        key = alike, rows[1], channels, columns and columns[1], padding(layer, rows)
        if key not in self._fastest:
            cuts = list(self._cuts(layer, call, known))
            self._fastest[key] = min(cuts, key=lambda cut: cut.cycles).chosen if cuts else None
        found = self._fastest[key]
        return found if found is None or not staged else found._replace(tiling=replace(found.tiling, rows_outer=True))

    @cached_property
    def block_step(self) -> int:
        """Blocks have a multiple of so many channels: whole granules, all columns of the arrays."""
        columns = [array.array.columns for array in self._model.chip.of_kind("mac_array")]
        return lcm(max(1, granule_of(self._model.chip)), max(columns, default=1))

    def in_blocks(self, index: int, kept: Collection[str]) -> bool:
        """Whether some channels of a layer are made without others, of the same channels of its inputs among these."""
        layer = self._layers[index]
        key = index, frozenset(kept).intersection(layer.activations)
        if key not in self._in_blocks:
            self._in_blocks[key] = self._makes_some(layer, self._candidates[index][1][0][1], key[1])
        return self._in_blocks[key]

    def _makes_some(self, layer: Layer, tiling: Tiling, kept: Collection[str]) -> bool:
        _, height, width, channels = layer.output.shape
        first, count = self.block_step, min(self.block_step, channels - self.block_step)
        if count <= 0:
            return False
        extent = Extent((0, height), (first, count))
        works = list(layer.tiled.nest(layer, tiling, extent).works())
        reads = (box for work in works for box in work.reads if box.tensor in kept)
        return all(_within(box, extent) for box in reads) and _makes(works, extent, width)

    def _cuts(self, layer: Layer, call: LayerCall, known: Sequence[Candidate]) -> Iterator[_Cut]:
        """The first that differ in this call and that a unit can run."""
        seen: set[Hashable] = set()
        least, found = self._sram_bytes, False
        for _, tiling in known:
            key = min(tiling.rows, call.extent.rows[1]), tiling.columns, tiling.channels, tiling.inner, tiling.variant
            if tiling.taps or key in seen:
                continue
            seen.add(key)
            cut = self._way(layer, call, tiling)
            if cut is None:
                continue
            least = min(least, cut.block_bytes)
            if cut.chosen.units and cut.block_bytes <= max(least, self._sram_bytes // _BLOCKS):
                found = True
                yield cut
            if len(seen) >= _TRIED and found:
                return

    def _way(self, layer: Layer, call: LayerCall, tiling: Tiling) -> _Cut | None:
        """None where it has no blocks of channels of all: of groups one by one."""
        works = list(layer.tiled.nest(layer, tiling, call.extent).works())
        if call.extent.channels[1] < layer.output.shape[3] and not _makes(works, call.extent, layer.output.shape[2]):
            return None
        units = units_for(emit_at_zero(works[0], layer), layer.chip)
        if len(units) > 1:
            units = self._model.able(layer, [works])
        block_bytes = max((b.size_bytes for w in works for b in w.blocks), default=0)
        return _Cut(TileChoice(tiling, units), self._shared_cycles(layer, works, units) if units else 0, block_bytes)

    def _shared_cycles(self, layer: Layer, works: Sequence[TileTask], units: Sequence[Unit]) -> int:
        """That the works take alone, where each chain goes to the unit that ends it first."""
        if len(units) == 1:
            return sum(self._model.runs(layer, w)[units[0]].wanted.alone_cycles for w in works)
        busy = dict.fromkeys(units, 0)
        left = iter(works)
        while own := chain_of(left):
            ends = {u: busy[u] + sum(self._model.runs(layer, w)[u].wanted.alone_cycles for w in own) for u in units}
            unit = min(ends, key=ends.__getitem__)
            busy[unit] = ends[unit]
        return max(busy.values())


def _within(box: Box, extent: Extent) -> bool:
    """Whether it has no other channels than these."""
    first, count = extent.channels
    return len(box.start) == 4 and box.start[3] >= first and box.start[3] + box.size[3] <= first + count


def _makes(works: Sequence[TileTask], extent: Extent, width: int) -> bool:
    """Whether they make all of it, and nothing else."""
    writes = [work.write for work in works if work.write is not None]
    return (
        all(_within(box, extent) for box in writes)
        and sum(prod(b.size) for b in writes) == extent.rows[1] * width * extent.channels[1]
    )


def padding(layer: Layer, span: tuple[int, int], axis: int = 1) -> Hashable:
    """How many rows (axis 1) or columns of each input are read for these of the output, and where padding lies."""
    windows = chain.from_iterable((layer.tiled.windows(layer, axis) or {}).values())
    needed = ((w, *w.needed(*span)) for w in windows)
    return tuple((w.meets(*span), w.offset(span[0], first), size) for w, first, size in needed)
