"""Plan cascades: neighbouring layers that take turns, a stripe of rows each (`schedule.stripes`), timed as a whole.

`schedule.layer_grouping` asks for the cascade of some layers in so many bytes of SRAM. Here it gets tilings, rolling
buffers, tile buffers and cycles, but no addresses. A root is a tensor with storage of its own. "Resident" roots lie in
SRAM as a whole; tensors that only the cascade touches have rolling buffers instead. Of layers that equal earlier ones
in all but names (`schedule.equal_windows`) the cascade of those is returned; `CascadePlanner.give_names` makes it theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from toolchain.machine import Space
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import TileTask, Tiling, halvings, round_up
from toolchain.schedule.cascade_candidates import (
    CandidateKey,
    CandidateSeed,
    CascadeCandidate,
    ConstantBuffers,
    StripeTilings,
    TileChoice,
    count_min_reads,
    window_key,
)
from toolchain.schedule.cost import CostModel
from toolchain.schedule.equal_windows import EqualWindows, Window
from toolchain.schedule.in_place import InPlace
from toolchain.schedule.nodes import CHANNELS, COLUMNS, ROWS, Loop, Ring
from toolchain.schedule.plan import PlannedCascade, Storage, TiledLayer, VisitedStripes
from toolchain.schedule.plan_cost import count_cascade_bytes
from toolchain.schedule.plan_timer import PlanTimer
from toolchain.schedule.sampling import count_tiles, flatten_tiles, sample_kinds
from toolchain.schedule.stripes import (
    UNCUT,
    BufferReset,
    BufferShift,
    CascadeLayer,
    LayerCall,
    Step,
    Stripes,
    StripeShapes,
    Sweep,
    can_be_cut,
)
from toolchain.schedule.tile_buffers import Room, Sizes, fits, staging_bytes
from toolchain.schedule.tile_pipeline import LayerPipeline
from toolchain.schedule.tilings import Candidate
from toolchain.schedule.views import View


class CascadePlanner:
    """The planner of cascades in one region. Layers are named by index; `first` and `end` mean layers first .. end - 1.

    `double_buffered` names roots whose rolling buffer has room for one more stripe. Results are remembered.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        views: Mapping[str, View],
        storages: Mapping[str, Storage],
        ports: Collection[str],
        in_place: InPlace,
        model: CostModel,
        depth: int,
        candidates: Sequence[tuple[object, Sequence[Candidate]]],
        sram_bytes: int,
    ):
        """Take the region's layers with their views and live ranges.

        `ports`: roots of the region's inputs and outputs. `depth`: most slots of a tile buffer. `candidates`: signature
        and tilings of each layer. `sram_bytes`: the SRAM; constant blocks are chosen small beside it.
        """
        self._layers, self._views, self._storages, self._ports = layers, views, storages, ports
        self._in_place, self._model, self._chip, self._depth = in_place, model, model.chip, depth
        self._tilings = StripeTilings(layers, model, candidates, sram_bytes)
        signatures = [signature for signature, _ in candidates]
        self._windows = EqualWindows(layers, signatures, views, lambda first, end: self.map_inner_roots(first, end, ()).values())
        self._started: dict[CandidateKey, CandidateSeed | None] = {}
        self._drafts: dict[CandidateKey, CascadeCandidate | None] = {}
        self._rings: dict[CandidateKey, int] = {}
        self._overwritable: dict[tuple[int, int, int, str], bool] = {}
        self._tiles_of_calls: dict[
            tuple[LayerCall, Tiling], tuple[int, Sequence[TileTask]]
        ] = {}  # of parts of layers, with the layer's number
        self._parts: dict[int, CascadeLayer] = {}
        self._stripes: dict[tuple[int, int], StripeShapes] = {}
        self._between: dict[tuple[int, int], dict[str, str]] = {}
        self._cuttable: dict[str, bool] = {}
        self._row_bytes: dict[tuple[str, int, int, int], int] = {}  # of so many rows of a root, channels and columns
        self._tensors: dict[str, list[str]] = {}
        for name, view in views.items():
            self._tensors.setdefault(view.root, []).append(name)

    def can_be_cut(self, index: int) -> bool:
        """Return whether the rows of the layer's output can be computed in stripes."""
        return can_be_cut(self._layers[index])

    def map_inner_roots(self, first: int, end: int, resident: Collection[str]) -> Mapping[str, str]:
        """Return the tensors that only these layers touch and that may have a rolling buffer, each with its root.

        Tensors in resident roots are left out.
        """
        key = first, end
        if key not in self._between:
            self._between[key] = self._find_between(first, end)
        between = self._between[key]
        return {name: root for name, root in between.items() if root not in resident} if resident else between

    def _find_between(self, first: int, end: int) -> dict[str, str]:
        """Return the tensors that only these layers touch and that can have a rolling buffer, with their roots."""
        between: dict[str, str] = {}
        for layer in self._layers[first:end]:
            for name in (*layer.activations, *layer.node.outputs):
                root = self._views[name].root
                storage = self._storages[root]
                if first <= storage.start and storage.end <= end and root not in self._ports and self._has_rows(root):
                    between[name] = root
        return between

    def _has_rows(self, root: str) -> bool:
        """Return whether the latest rows of all tensors in the root can be kept without the others."""
        if root not in self._cuttable:
            self._cuttable[root] = self._can_be_kept_in_part(root)
        return self._cuttable[root]

    def _can_be_kept_in_part(self, root: str) -> bool:
        """Return whether all tensors in the root have the same rows, at the same distances, so that rows can be dropped
        together.
        """
        view, kind = self._views[root], self._layers[0].types
        if len(kind[root].shape) != 4 or kind[root].shape[0] != 1:
            return False
        if view.strides.maps is not None and view.strides.maps.order == "surface" and len(self._tensors[root]) > 1:
            return False
        height, line = kind[root].shape[1], view.strides[1]
        return all(
            len(kind[n].shape) == 4
            and kind[n].shape[1] == height
            and self._views[n].strides[1] == line
            and self._views[n].offset_bytes < line
            for n in self._tensors[root]
        )

    def in_place(self, first: int, end: int, resident: Collection[str]) -> list[str]:
        """Return those of the resident roots that these layers may overwrite with outputs that are resident too."""
        roots: list[str] = []
        for index, root in self._in_place.within(first, end, resident):
            key = first, end, index, root
            if key not in self._overwritable:
                stripes = self._stripes_of(first, end).of(1, roots=()) if end > first + 1 else None
                self._overwritable[key] = stripes is None or self._in_place.leaves_nothing(stripes, index, root)
            roots += [root] if self._overwritable[key] else []
        return roots

    def blocks(self, first: int, end: int, resident: frozenset[str]) -> tuple[int, ...]:
        """Return the sizes of channel blocks in which all these layers can run block by block, the largest first.

        It is empty where their outputs differ in channels, or one needs channels of another block.
        """
        partial = self.map_inner_roots(first, end, resident)
        channels = {self._layers[i].output.shape[3] for i in range(first, end)}
        possible = len(channels) == 1 and self._alone(partial)
        if not possible or not all(self._tilings.in_blocks(i, partial) for i in range(first, end)):
            return ()
        return tuple(halvings(min(channels), self._tilings.block_step))[1:]

    def columns(self, first: int, end: int, resident: frozenset[str]) -> tuple[int, ...]:
        """Return the widths of column blocks of the last output in which these layers can run block by block, widest
        first.

        Each is about twice the next one. It is empty where they cannot.
        """
        partial = self.map_inner_roots(first, end, resident)
        if not self._alone(partial) or not self._stripes_of(first, end).in_columns(set(partial.values())):
            return ()
        return tuple(halvings(self._layers[end - 1].output.shape[2])[1::2])

    def blocks_of(self, end: int, columns: int) -> int:
        """Return the number of blocks of so many columns in the output of the last layer."""
        return -(-self._layers[end - 1].output.shape[2] // columns)

    def count_recomputed(self, first: int, end: int, columns: int) -> list[float]:
        """Return the mean number of times that each layer computes a column, in blocks of so many columns of the last
        output.
        """
        return self._stripes_of(first, end).count_recomputed(columns)

    def _alone(self, partial: Mapping[str, str]) -> bool:
        """Return whether each of these tensors is the only one in its root."""
        return all(len(self._tensors[root]) == 1 for root in partial.values())

    def constant_bytes(self, index: int) -> int:
        """Return the bytes of a layer's weights, a lower bound of its constants."""
        layer = self._layers[index]
        arrays = (layer.constants[n] for n in layer.node.inputs[1:2] if n in layer.constants)
        bits = self._chip.numerics.weight.bits
        return sum(array.size * bits // 8 for array in arrays)

    def _between_kinds(self, first: int, end: int, resident: frozenset[str]) -> frozenset[str]:
        """Return the roots that units of one kind write and those of another read.

        With room for one more stripe there, both work at once.
        """
        kinds: dict[str, set[str]] = {}
        partial = self.map_inner_roots(first, end, resident)
        for index in range(first, end):
            layer = self._layers[index]
            for name in (*layer.activations, *layer.node.outputs):
                if name in partial:
                    kinds.setdefault(partial[name], set()).add(self._tilings.unit_kind(index))
        return frozenset(root for root, units in kinds.items() if len(units) > 1)

    def rows_bytes(self, first: int, end: int, height: int, resident: frozenset[str], sweep: Sweep = UNCUT) -> int:
        """Return the bytes of all rolling buffers; more than the SRAM has where a layer needs all of another's output."""
        return self._measure_rings(self._make_key(first, end, height, resident, sweep))

    def _make_key(self, first: int, end: int, height: int, resident: frozenset[str], sweep: Sweep) -> CandidateKey:
        """Return the key of a cascade of these layers, which is that of equal layers. No root in it is double buffered."""
        window = self._windows.find_first(Window(first, end, resident))
        return CandidateKey(window.first, window.end, height, window.resident, frozenset(), sweep)

    def _measure_rings(self, key: CandidateKey) -> int:
        """Return what `rows_bytes` does, with room for one more stripe in double-buffered roots."""
        if key not in self._rings:
            stripes = self._stripes_of(key.first, key.end)
            inner_roots = self.map_inner_roots(key.first, key.end, key.resident).values()
            rows = stripes.rows(key.height, key.double_buffered, inner_roots)
            size_bytes = None if rows is None else self._rings_bytes(rows, key.first, key.sweep, stripes.widths(key.sweep, rows))
            self._rings[key] = self._chip.sram.size + 1 if size_bytes is None else size_bytes
        return self._rings[key]

    def plan(
        self, first: int, end: int, height: int, resident: frozenset[str], room: Room, sweep: Sweep = UNCUT, stay: bool = False
    ) -> PlannedCascade | None:
        """Return the timed cascade with the most slots that fit `room`, of these layers or of equal ones; None where none
        does.

        `height`: rows of the last output in a stripe. `resident`: roots that lie in SRAM as a whole. `room`: bytes by
        memory, for rolling and tile buffers. `stay`: inputs from DRAM are loaded once for all blocks of channels.
        """
        key = self._make_key(first, end, height, resident, sweep)
        between = self._between_kinds(key.first, key.end, key.resident)
        for double_buffered in dict.fromkeys((between, frozenset[str]())):
            cascade = self._plan(key._replace(double_buffered=double_buffered), room, stay)
            if cascade is not None:
                return cascade
        return None

    def could_fit(self, first: int, end: int, height: int, resident: frozenset[str], room: Room, sweep: Sweep = UNCUT) -> bool:
        """Return false where not even one call of each layer fits `room`; true does not promise a plan."""
        return self._find_seed(self._make_key(first, end, height, resident, sweep), room) is not None

    def give_names(self, cascade: PlannedCascade, first: int, resident: frozenset[str]) -> PlannedCascade:
        """Return the cascade of the layers from index `first` on, of which `plan` returned that of equal layers.

        `resident`: roots that lie in SRAM as a whole.
        """
        if cascade.first == first:
            return cascade
        old, new = cascade.indices, range(first, first + len(cascade.layers))
        roots, planned = self._windows.map_roots(old, new), dict(zip(new, cascade.layers, strict=True))
        height = next(loop.step for loop in cascade.loops if loop.axis == ROWS)
        rows = {roots[root]: count for root, count in cascade.stripes.rows.items()}
        chosen = {index: TileChoice(tiled.tiling, tiled.units) for index, tiled in planned.items()}
        draft = self.make_candidate(new, height, rows, resident, chosen, cascade.stripes.sweep)
        layers = tuple(tiled.as_layer(self._layers[index]) for index, tiled in planned.items())
        return self._make_cascade(draft, layers, cascade.moved_bytes)

    def _find_seed(self, key: CandidateKey, room: Room) -> CandidateSeed | None:
        """Return the seed of a candidate, or None where its least bytes exceed the SRAM of `room`."""
        if self._measure_rings(key) > room[Space.SRAM]:
            return None
        if key not in self._started:
            self._started[key] = self._make_seed(key)
        start = self._started[key]
        return None if start is None or start.least_bytes > room[Space.SRAM] else start

    def _plan(self, key: CandidateKey, room: Room, stay: bool) -> PlannedCascade | None:
        """Return the timed cascade of a key with the most slots that fit; None where none does."""
        start = self._find_seed(key, room)
        if start is None or (stay and (start.least_with_read is None or start.least_with_read > room[Space.SRAM])):
            return None
        if key not in self._drafts:
            self._drafts[key] = self._find_candidate(key, start)
        draft = self._drafts[key]
        if draft is None:
            return None
        for depth in draft.depths(self._depth, stay):
            for streamed in range(key.end - key.first + 1):
                slots = draft.slots(depth, streamed)
                ring_bytes = staging_bytes(chain.from_iterable(slots.values()), self._chip)
                if fits({**ring_bytes, int(Space.SRAM): ring_bytes.get(Space.SRAM, 0) + draft.rings_bytes}, room):
                    if (depth, streamed) not in draft.planned:
                        draft.planned[depth, streamed] = self.time_candidate(draft, slots)
                    return draft.planned[depth, streamed]
        return None

    def _find_candidate(self, key: CandidateKey, start: CandidateSeed) -> CascadeCandidate | None:
        """Return the candidate with those units that can run all tiles of their layer; None where a layer has no such
        unit.
        """
        stripes = self._stripes_of(key.first, key.end).of(key.height, key.double_buffered, key.sweep, start.inner_roots.values())
        assert stripes is not None
        chosen, visited = dict(start.chosen), self._sample_stripes(stripes, start.chosen)
        several = {index for index, one in chosen.items() if len(one.units) > 1}
        for index, tiles in flatten_tiles(visited) if several else ():
            if index in several:
                capable = self._model.list_capable_units(self._layers[index], [tiles])
                chosen[index] = chosen[index]._replace(units=tuple(u for u in chosen[index].units if u in capable))
        if not all(one.units for one in chosen.values()):
            return None
        return self._build_candidate(
            range(key.first, key.end), key.height, stripes, start.inner_roots, key.resident, chosen, visited
        )

    def time_candidate(self, draft: CascadeCandidate, slots: Mapping[int, tuple[Ring, ...]]) -> PlannedCascade:
        """Return the cascade of a candidate with these tile buffers for each layer, timed alone."""
        walk = PlanTimer(self._model, {**self._views, **draft.views}, draft.inside)
        stages = {i: LayerPipeline.of(self._layers[i], slots[i], c.units, None) for i, c in draft.chosen.items()}
        walk.cascade(stages, draft.visited)
        counts, layers = count_tiles(draft.visited), dict[int, TiledLayer]()
        for i in draft.layers:
            tiling, units = draft.chosen[i]
            times = (walk.finish(), walk.busy_cycles) if i == draft.layers[-1] else (0, 0.0)
            layers[i] = TiledLayer.of(self._layers[i], tiling, slots[i], units, counts[i], times)
        moved_bytes = count_cascade_bytes(layers, draft.visited, draft.inside)
        return self._make_cascade(draft, tuple(layers.values()), moved_bytes)

    def _make_cascade(self, draft: CascadeCandidate, layers: tuple[TiledLayer, ...], moved_bytes: int) -> PlannedCascade:
        """Return the cascade of a candidate. `layers`: its plans of layers, the last one with the cycles of all."""
        return PlannedCascade(
            self._loops(draft),
            layers=layers,
            first=draft.layers.start,
            stripes=draft.stripes,
            visited=draft.visited,
            views=draft.views,
            inside=draft.inside,
            moved_bytes=moved_bytes,
        )

    def _loops(self, draft: CascadeCandidate) -> tuple[Loop, ...]:
        """Return the loops of a cascade: over blocks, where it has such, and over rows."""
        channels, columns = draft.stripes.sweep
        _, height, width, depth = self._layers[draft.layers[-1]].output.shape
        loops = ((COLUMNS, columns, width), (CHANNELS, channels, depth), (ROWS, draft.height, height))
        return tuple(Loop(axis, step, size=size) for axis, step, size in loops if step)

    def _make_seed(self, key: CandidateKey) -> CandidateSeed | None:
        """Return what the middle call of each layer decides; None where a layer has no tiling for its call."""
        first, end, height, resident, _, sweep = key
        partial = self.map_inner_roots(first, end, resident)
        stripes = self._stripes_of(first, end)
        calls = stripes.middle(height, sweep)
        chosen: dict[int, TileChoice] = {}
        for call in calls:
            names = self._layers[call.layer].activations
            staged = sweep.channels > 0 and any(n not in partial and self._views[n].root not in resident for n in names)
            tiling = self._tilings.fastest(call, staged)
            if tiling is None:
                return None
            chosen[call.layer] = tiling
        inside = {n for n, v in self._views.items() if v.root in resident}.union(partial)
        kept_bytes = least = self._measure_rings(key)
        read: list[int] = []
        for call, rows in zip(calls, stripes.rows_made(height)):
            layer, choice, (_, tiles) = self._layers[call.layer], chosen[call.layer], self._of_call(call, chosen)
            sizes = Sizes(layer, choice.units)
            for tile in tiles:
                sizes.add(tile, inside)
            least += staging_bytes(sizes.slots(1, choice.units), self._chip).get(Space.SRAM, 0)
            outside = count_min_reads(layer, rows, tiles, choice, inside) if sweep.channels else None
            read += [] if outside is None else [outside]
        return CandidateSeed(partial, chosen, least, kept_bytes + sum(read) if read else None)

    def _build_candidate(
        self,
        layers: range,
        height: int,
        stripes: Stripes,
        partial: Mapping[str, str],
        resident: Collection[str],
        chosen: Mapping[int, TileChoice],
        visited: VisitedStripes,
    ) -> CascadeCandidate:
        """Return a candidate with views, buffers' contents and timed steps. `partial`: tensors with rolling buffers and
        their roots.
        """
        types = self._layers[layers.start].types
        views = {
            n: self._views[n].with_rows(stripes.rows[root], types[n].shape, stripes.sweep.channels, stripes.widths.get(root, 0))
            for n, root in partial.items()
        }
        inside = {n for n, v in self._views.items() if v.root in resident}.union(partial)
        blocks = {i: ConstantBuffers(self._layers[i], chosen[i].units) for i in layers}
        channel = 0
        for step in chain.from_iterable(steps for steps in visited if not isinstance(steps, int)):
            if isinstance(step, BufferReset):
                channel = step.channels[0]
            elif not isinstance(step, BufferShift):
                for tile in step[1]:
                    blocks[step[0]].add(tile, inside, channel)
        for index, tiles in self._first_block(stripes, chosen):
            for tile in tiles:
                blocks[index].add_read(tile, inside)
        rings_bytes = self._rings_bytes(stripes.rows, layers.start, stripes.sweep, stripes.widths)
        return CascadeCandidate(layers, height, stripes, views, rings_bytes, chosen, visited, blocks, inside)

    def least_rows(self, layers: range, height: int, roots: Collection[str]) -> Mapping[str, int] | None:
        """Return the fewest rows of these roots that stripes of that height need; None where a layer needs all of
        another's output.
        """
        return self._stripes_of(layers.start, layers.stop).rows(height, roots=roots)

    def make_candidate(
        self,
        layers: range,
        height: int,
        rows: Mapping[str, int],
        resident: Collection[str],
        chosen: Mapping[int, TileChoice],
        sweep: Sweep = UNCUT,
    ) -> CascadeCandidate:
        """Return the candidate that a schedule prescribes, whether or not it fits.

        `height`: rows of the last output in a stripe. `rows`: rows of each root between the layers that is a rolling
        buffer, at least those of `least_rows`. `resident`: roots that lie in SRAM as a whole. `chosen`: tiling and
        units of each layer.
        """
        partial = self._select_between(layers, rows)
        stripes = self._stripes_of(layers.start, layers.stop).fix_rows(height, rows, sweep)
        return self._build_candidate(layers, height, stripes, partial, resident, chosen, self._sample_stripes(stripes, chosen))

    def _select_between(self, layers: range, roots: Collection[str]) -> dict[str, str]:
        """Return the tensors between these layers whose root is among `roots`, with the root."""
        return {n: r for n, r in self.map_inner_roots(layers.start, layers.stop, ()).items() if r in roots}

    def _stripes_of(self, first: int, end: int) -> StripeShapes:
        """Return the stripe shapes of these layers, with a rolling buffer for every root that allows it."""
        if (first, end) not in self._stripes:
            self._stripes[first, end] = StripeShapes(
                [self._part(i) for i in range(first, end)], self.map_inner_roots(first, end, ())
            )
        return self._stripes[first, end]

    def _part(self, index: int) -> CascadeLayer:
        """Return the layer as the stripes see it: sizes of its output, and how rows and columns are made."""
        if index not in self._parts:
            self._parts[index] = self._make_part(index)
        return self._parts[index]

    def _make_part(self, index: int) -> CascadeLayer:
        layer = self._layers[index]
        windows = layer.tiled.windows(layer, 1)
        assert windows is not None
        _, height, width, channels = layer.output.shape
        return CascadeLayer(index, layer.node.outputs[0], height, channels, windows, width, layer.tiled.windows(layer, 2))

    def _rings_bytes(self, rows: Mapping[str, int], first: int, sweep: Sweep, widths: Mapping[str, int]) -> int:
        """Return the bytes of rolling buffers with so many rows, and so many columns where `widths` says so."""
        total, types = 0, self._layers[first].types
        for root, count in rows.items():
            key = root, count, sweep.channels, widths.get(root, 0)
            if key not in self._row_bytes:
                view = replace(self._views[root], rows=count, channels=sweep.channels, columns=key[-1])
                self._row_bytes[key] = round_up(view.count_stored_bytes(types[root].shape), self._chip.sram.alignment_bytes)
            total += self._row_bytes[key]
        return total

    def _of_call(self, call: LayerCall, chosen: Mapping[int, TileChoice]) -> tuple[int, Sequence[TileTask]]:
        """Return (index of the layer, its tile tasks) of a call."""
        layer, tiling = self._layers[call.layer], chosen[call.layer].tiling
        if (call, tiling) not in self._tiles_of_calls:
            self._tiles_of_calls[call, tiling] = call.layer, list(layer.tiled.nest(layer, tiling, call.extent).iterate_tasks())
        return self._tiles_of_calls[call, tiling]

    def _first_block(self, stripes: Stripes, chosen: Mapping[int, TileChoice]) -> Iterator[tuple[int, Sequence[TileTask]]]:
        """Yield the tile tasks of the first block of channels; nothing where there are no such blocks."""
        calls = (step for step in chain.from_iterable(stripes.steps) if isinstance(step, LayerCall))
        if stripes.sweep.channels:
            yield from (self._of_call(call, chosen) for call in calls if call.extent.channels[0] == 0)

    def _sample_stripes(self, stripes: Stripes, chosen: Mapping[int, TileChoice]) -> VisitedStripes:
        """Return the steps of the stripes that are timed for all, with marks of what repeats."""
        kinds = [tuple(self._kind(step) for step in steps) for steps in stripes.steps]
        begins = [at for at, steps in enumerate(stripes.steps) if at == 0 or isinstance(steps[0], BufferReset)]
        blocks = [range(at, end) for at, end in zip(begins, [*begins[1:], len(kinds)])]
        visited: list[Sequence[tuple[int, Sequence[TileTask]] | BufferShift | BufferReset] | int] = []
        for block, repeats_block in sample_kinds([tuple(kinds[at] for at in block) for block in blocks]):
            if repeats_block:
                visited.append(block)
                continue
            stripes_of_block = blocks[block]
            for index, repeats in sample_kinds([kinds[at] for at in stripes_of_block]):
                steps = () if repeats else stripes.steps[stripes_of_block[index]]
                visited.append(index if repeats else [self._of_call(s, chosen) if isinstance(s, LayerCall) else s for s in steps])
        return visited

    def _kind(self, step: Step) -> Hashable:
        """Return a key that is equal for steps that take the same time."""
        if isinstance(step, BufferShift):
            return step.root, step.tensors, step.distance, step.channels, step.columns and step.columns[1]
        if isinstance(step, BufferReset):
            return step.root, step.channels, step.columns and step.columns[1]
        (rows, channels, columns), layer = step.extent, self._layers[step.layer]
        across = None if columns is None else (columns[1], window_key(layer, columns, 2))
        return step.layer, rows[1], channels, across, window_key(layer, rows)
