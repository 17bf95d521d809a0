"""Describe a cascade before its slots are chosen: its stripes, the tiling of each layer's part of a stripe, and its
constants.

`schedule.cascade` builds these candidates, chooses the slots of their tile buffers, and times them. A root is a tensor
with storage of its own. A chain is the tile tasks that add to the same sums, which stay on one unit.

Of a layer `_TRIED` tilings are tried. Where tilings leave a choice, the SRAM must hold `_BLOCKS` blocks of its constants.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from math import lcm, prod
from typing import NamedTuple

from toolchain.hw.unit_map import Unit
from toolchain.machine import Space, granule_of
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Box, Extent, TileTask, Tiling, spans
from toolchain.schedule.cost import CostModel
from toolchain.schedule.nodes import ALL, Ring
from toolchain.schedule.plan import PlannedCascade, VisitedStripes
from toolchain.schedule.stripes import UNCUT, LayerCall, Span, Stripes, Sweep
from toolchain.schedule.tile_buffers import Sizes
from toolchain.schedule.tilings import Candidate, layer_units
from toolchain.schedule.unit_choice import chain_of, emit_at_zero, units_for
from toolchain.schedule.views import View

_TRIED = 6  # tilings of a layer
_BLOCKS = 16  # of constants that the SRAM holds at least, where tilings leave a choice


def count_min_reads(
    layer: Layer, rows: Iterable[Span], tiles: Iterable[TileTask], chosen: TileChoice, inside: Collection[str]
) -> int | None:
    """Return the least bytes that a layer reads from outside the SRAM for one block of channels; None where it reads
    nothing there.

    `rows`: (start, count) of the output rows of each call. `tiles`: tile tasks of one of those calls. `inside`: tensors
    in SRAM.
    """
    channels: dict[tuple[int, str, str], set[Span]] = {}
    for tile in tiles:
        for i, box in enumerate(tile.reads):
            if box.tensor not in inside:
                channels.setdefault((i, box.tensor, box.role), set()).add((box.start[-1], box.size[-1]))
    if not channels:
        return None
    tiling, width = chosen.tiling, layer.output.shape[2]
    down = [part for start, count in rows for part in spans(count, tiling.rows, start)]
    across = spans(width, tiling.columns)
    return sum(
        _elements(layer, tensor, 1, down)
        * _elements(layer, tensor, 2, across)
        * _together(parts)
        * layer.types[tensor].item_bytes
        for (_, tensor, role), parts in channels.items()
        if all(unit.roles[role] == Space.SRAM for unit in chosen.units)
    )


def _elements(layer: Layer, tensor: str, axis: int, rows: Iterable[Span]) -> int:
    """Return how many rows (axis 1) or columns (axis 2) of a tensor these output rows need; shared ones count for each
    part.

    Where windows leave some out, the result is 1, a lower bound.
    """
    windows = (layer.tiled.windows(layer, axis) or {}).get(tensor, ())
    dense = (w for w in windows if (w.kernel - 1) * w.dilation + 1 >= w.stride)
    return min((sum(count for _, count in {w.get_input_span(*part) for part in rows}) for w in dense), default=1)


def _together(channels: Iterable[Span]) -> int:
    """Return the number of different channels in these ranges."""
    return len({at for start, count in channels for at in range(start, start + count)})


class _Cut(NamedTuple):
    """One way to tile a call. `cycles`: of its tiles alone. `block_bytes`: its largest constant block."""

    chosen: TileChoice
    cycles: int
    block_bytes: int


class StripeTilings:
    """The tilings of layers for their part of a stripe. Layers of equal signature share them."""

    def __init__(
        self,
        layers: Sequence[Layer],
        model: CostModel,
        candidates: Sequence[tuple[object, Sequence[Candidate]]],
        sram_bytes: int,
    ):
        """Take the layers with signature and tilings of each, as `RegionTilings.candidates` returns them.

        `sram_bytes`: the SRAM, of which a constant block should be a small part.
        """
        self._layers, self._model, self._candidates, self._sram_bytes = layers, model, candidates, sram_bytes
        self._fastest: dict[Hashable, TileChoice | None] = {}
        self._kinds: dict[int, str] = {}
        self._in_blocks: dict[tuple[int, frozenset[str]], bool] = {}

    def unit_kind(self, index: int) -> str:
        """Return the kind of unit that runs the layer."""
        if index not in self._kinds:
            self._kinds[index] = layer_units(self._layers[index], self._candidates[index][1][0][1])[0].kind
        return self._kinds[index]

    def fastest(self, call: LayerCall, staged: bool) -> TileChoice | None:
        """Return the tiling, and its units, in which a call takes the fewest cycles; None where no unit can run one.

        Tilings with small constant blocks are preferred. `staged`: inputs are loaded, so all output channels use them
        before the next.
        """
        layer, (signature, candidates) = self._layers[call.layer], self._candidates[call.layer]
        rows, (_, channels), columns = call.extent
        key = signature, rows[1], channels, columns and columns[1], window_key(layer, rows)
        if key not in self._fastest:
            cuts = list(self._cuts(layer, call, candidates))
            self._fastest[key] = min(cuts, key=lambda cut: cut.cycles).chosen if cuts else None
        choice = self._fastest[key]
        return choice if choice is None or not staged else choice._replace(tiling=replace(choice.tiling, rows_outer=True))

    @cached_property
    def block_step(self) -> int:
        """The number of channels of which blocks are multiples: whole channel granules and whole columns of the arrays."""
        columns = [array.array.columns for array in self._model.chip.of_kind("mac_array")]
        return lcm(max(1, granule_of(self._model.chip)), max(columns, default=1))

    def in_blocks(self, index: int, partial: Collection[str]) -> bool:
        """Return whether the layer computes a block of channels from the same channels of those inputs that are in
        `partial`.
        """
        layer = self._layers[index]
        key = index, frozenset(partial).intersection(layer.activations)
        if key not in self._in_blocks:
            self._in_blocks[key] = self._makes_some(layer, self._candidates[index][1][0][1], key[1])
        return self._in_blocks[key]

    def _makes_some(self, layer: Layer, tiling: Tiling, partial: Collection[str]) -> bool:
        """Return whether a block of channels in the middle reads only the same channels of `partial` inputs, and writes
        just itself.
        """
        _, height, width, channels = layer.output.shape
        first, count = self.block_step, min(self.block_step, channels - self.block_step)
        if count <= 0:
            return False
        extent = Extent((0, height), (first, count))
        tiles = list(layer.tiled.nest(layer, tiling, extent).iterate_tasks())
        reads = (box for tile in tiles for box in tile.reads if box.tensor in partial)
        return all(_within(box, extent) for box in reads) and _makes(tiles, extent, width)

    def _cuts(self, layer: Layer, call: LayerCall, candidates: Sequence[Candidate]) -> Iterator[_Cut]:
        """Yield the first tilings that differ for this call and that a unit can run."""
        keys: set[Hashable] = set()
        least, is_any = self._sram_bytes, False
        for _, tiling in candidates:
            key = min(tiling.rows, call.extent.rows[1]), tiling.columns, tiling.channels, tiling.inner, tiling.variant
            if tiling.taps or key in keys:
                continue
            keys.add(key)
            cut = self._way(layer, call, tiling)
            if cut is None:
                continue
            least = min(least, cut.block_bytes)
            if cut.chosen.units and cut.block_bytes <= max(least, self._sram_bytes // _BLOCKS):
                is_any = True
                yield cut
            if len(keys) >= _TRIED and is_any:
                return

    def _way(self, layer: Layer, call: LayerCall, tiling: Tiling) -> _Cut | None:
        """Return one way to tile a call; None where its tiles do not write exactly this block of channels."""
        tiles = list(layer.tiled.nest(layer, tiling, call.extent).iterate_tasks())
        if call.extent.channels[1] < layer.output.shape[3] and not _makes(tiles, call.extent, layer.output.shape[2]):
            return None
        units = units_for(emit_at_zero(tiles[0], layer), layer.chip)
        if len(units) > 1:
            units = self._model.list_capable_units(layer, [tiles])
        block_bytes = max((b.size_bytes for w in tiles for b in w.blocks), default=0)
        return _Cut(TileChoice(tiling, units), self._count_shared_cycles(layer, tiles, units) if units else 0, block_bytes)

    def _count_shared_cycles(self, layer: Layer, tiles: Sequence[TileTask], units: Sequence[Unit]) -> int:
        """Return the cycles of the tiles alone, each chain on the unit that ends it first."""
        if len(units) == 1:
            return sum(self._model.runs(layer, w)[units[0]].unit_cost.alone_cycles for w in tiles)
        busy = dict.fromkeys(units, 0)
        rest = iter(tiles)
        while tiles_of_chain := chain_of(rest):
            ends = {u: busy[u] + sum(self._model.runs(layer, w)[u].unit_cost.alone_cycles for w in tiles_of_chain) for u in units}
            unit = min(ends, key=ends.__getitem__)
            busy[unit] = ends[unit]
        return max(busy.values())


def _within(box: Box, extent: Extent) -> bool:
    """Return whether all channels of the box are in the extent."""
    first, count = extent.channels
    return len(box.start) == 4 and box.start[3] >= first and box.start[3] + box.size[3] <= first + count


def _makes(tiles: Sequence[TileTask], extent: Extent, width: int) -> bool:
    """Return whether the tiles write all of the extent and nothing else."""
    writes = [tile.write for tile in tiles if tile.write is not None]
    return (
        all(_within(box, extent) for box in writes)
        and sum(prod(b.size) for b in writes) == extent.rows[1] * width * extent.channels[1]
    )


def window_key(layer: Layer, span: tuple[int, int], axis: int = 1) -> Hashable:
    """Return a key of the input rows (axis 1) or columns (axis 2) that an output range reads, padding included.

    Calls with equal keys and sizes take the same time.
    """
    windows = chain.from_iterable((layer.tiled.windows(layer, axis) or {}).values())
    spans_read = ((w, *w.get_input_span(*span)) for w in windows)
    return tuple((w.meets(*span), w.offset(span[0], first), size) for w, first, size in spans_read)


class TileChoice(NamedTuple):
    """The tiling of a layer and the units that may run its tiles."""

    tiling: Tiling
    units: tuple[Unit, ...]


class CandidateKey(NamedTuple):
    """The key of a candidate: the arguments of `CascadePlanner.plan` that decide it.

    `double_buffered`: roots whose rolling buffer has room for one more stripe.
    """

    first: int
    end: int
    height: int
    resident: frozenset[str]
    double_buffered: frozenset[str]
    sweep: Sweep


class CandidateSeed(NamedTuple):
    """The part of a candidate that one call of each layer decides.

    `inner_roots`: tensors with rolling buffers and their roots. `chosen`: tiling and units of each layer.
    `least_bytes`: SRAM that it takes at least. `least_with_read`: the same where inputs from DRAM are loaded once for
    all blocks of channels. None: nothing is read, or there are no such blocks.
    """

    inner_roots: Mapping[str, str]
    chosen: Mapping[int, TileChoice]
    least_bytes: int
    least_with_read: int | None


class BufferCounts(NamedTuple):
    """The number of slots of tile buffers that are read and of those that are stored.

    `each_unit`: so many for each of the units. `stay`: what is read is loaded once for all blocks of channels, each
    item in a slot of its own.
    """

    reads: int
    stores: int
    each_unit: bool = False
    stay: bool = False


class ConstantBuffers:
    """The items that pass through a layer's tile buffers, collected tile by tile: constants apart from the others.

    `sizes`: the largest item of each buffer. `blocks`: constants by key of the buffer and first channel of the block.
    `read`: inputs that each block of channels reads again, by key of the buffer.
    """

    def __init__(self, layer: Layer, units: Sequence[Unit]):
        self._layer, self.sizes, self._units = layer, Sizes(layer, units), units
        self.blocks: dict[str, dict[int, dict[Hashable, int]]] = {}  # by role and first channel
        self.read: dict[str, dict[Hashable, int]] = {}  # by role: what each block of channels reads again

    def add(self, tile: TileTask, inside: Collection[str], channel: int) -> None:
        """Add the items of a tile. `inside`: tensors in SRAM. `channel`: first channel of its block of channels."""
        self.sizes.add(tile, inside)
        for i, block in enumerate(tile.blocks):
            self.blocks.setdefault(f"b{i}", {}).setdefault(channel, {}).setdefault(block.key, block.size_bytes)

    def add_read(self, tile: TileTask, inside: Collection[str]) -> None:
        """Add the inputs of a tile of the first block of channels."""
        for i, box in enumerate(tile.reads):
            if box.tensor not in inside:
                self.read.setdefault(f"r{i}", {}).setdefault(box, self._layer.box_bytes(box))

    @property
    def total_bytes(self) -> int:
        """The bytes of slots that hold all constants of the layer at once, by block of channels."""
        return sum(sum(self._list_resident_slots(role)) for role in self.blocks)

    def _list_resident_slots(self, role: str) -> tuple[int, ...]:
        """Return the sizes of slots in which all constants of a block of channels stay."""
        return self._own_slots(list(self.blocks[role].values()))

    def _own_slots(self, blocks: Sequence[Mapping[Hashable, int]]) -> tuple[int, ...]:
        """Return the sizes of slots, one for each item. They are equal where several units may take any item first."""
        if len(blocks) == 1 and len(self._units) == 1:
            return tuple(*(block.values() for block in blocks))
        return (max(size for block in blocks for size in block.values()),) * max(map(len, blocks))

    def slots(self, depth: BufferCounts, stay: bool) -> tuple[Ring, ...]:
        """Return the layer's tile buffers. `stay`: constants are loaded once, each into a slot of its own."""
        reads, stores = (self.sizes.slots(d, self._units, depth.each_unit) for d in (depth.reads, depth.stores))
        slots = (store if store.key == "w" else read for read, store in zip(reads, stores))
        sizes = {key: self._list_resident_slots(key) for key in self.blocks} if stay else {}
        if depth.stay:
            sizes |= {key: self._own_slots([items]) for key, items in self.read.items()}
        return tuple(self._resize_ring(ring, sizes[ring.key]) if ring.key in sizes else ring for ring in slots)

    def _resize_ring(self, ring: Ring, sizes: tuple[int, ...]) -> Ring:
        """Return the ring with slots of these sizes; its `slots` are `ALL` where each item has one of its own."""
        items = sum(map(len, self.blocks.get(ring.key, {}).values()))
        each = len(set(sizes)) > 1 or 1 < len(sizes) == items
        return replace(ring, sizes=sizes, slots=ALL if each else len(sizes))


@dataclass
class CascadeCandidate:
    """A cascade without slots for its tile buffers.

    `layers`: indices in the region. `height`: rows of a stripe. `rings_bytes`: bytes of the rolling buffers. `views`:
    of tensors in rolling buffers. `inside`: tensors in SRAM. `visited`: the steps that are timed. `blocks`: what passes
    through the tile buffers of each layer. `planned`: timed cascades by their slots, added by the planner.
    """

    layers: range
    height: int
    stripes: Stripes
    views: Mapping[str, View]
    rings_bytes: int
    chosen: Mapping[int, TileChoice]
    visited: VisitedStripes
    blocks: Mapping[int, ConstantBuffers]
    inside: Collection[str]
    planned: dict[tuple[BufferCounts, int], PlannedCascade] = field(
        default_factory=dict[tuple[BufferCounts, int], PlannedCascade]
    )

    @cached_property
    def order(self) -> list[int]:
        """The layers, those of most constants first."""
        return sorted(self.layers, key=lambda i: -self.blocks[i].total_bytes)

    @property
    def is_shared(self) -> bool:
        """True where the tiles of some layer have a choice of units."""
        return any(len(chosen.units) > 1 for chosen in self.chosen.values())

    def depths(self, most: int, stay: bool) -> list[BufferCounts]:
        """Return the slot counts to try, the most first. `most`: slots of a buffer. `stay`: inputs are loaded once.

        With blocks, which are there for want of room, only inputs or only outputs may be double buffered.
        """
        shared = [BufferCounts(most, most, True)] if self.is_shared else []
        mixed = [BufferCounts(1, most), BufferCounts(most, 1)] if self.stripes.sweep != UNCUT and most > 1 else []
        every = [BufferCounts(depth, depth) for depth in range(most, 0, -1)]
        return [depth._replace(stay=stay) for depth in (*shared, *every[:1], *mixed, *every[1:])]

    def slots(self, depth: BufferCounts, streamed: int) -> dict[int, tuple[Ring, ...]]:
        """Return the tile buffers of each layer. The first `streamed` layers of `order` load their constants again for
        each stripe.
        """
        again = self.order[:streamed]
        return {i: self.blocks[i].slots(depth, i not in again) for i in self.layers}
