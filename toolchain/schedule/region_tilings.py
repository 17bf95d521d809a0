"""The layers of one region by themselves: their tilings, which layers that are alike share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from toolchain.machine import Space
from toolchain.ops.kit.operator import Layer, TiledOp, tiling_key
from toolchain.ops.kit.tile import Tiling
from toolchain.schedule.cost import CostModel
from toolchain.schedule.cost_weights import CostWeights
from toolchain.schedule.options import Options
from toolchain.schedule.sampled_tiles import Visited
from toolchain.schedule.tile_buffers import LayerPlan, Room, fits
from toolchain.schedule.tilings import Candidate, LayerTilings, SmallestTile, candidates, smallest_tile
from toolchain.schedule.views import View

_FINER = 3  # tilings of more works that are looked at

Pin = Callable[[frozenset[str]], LayerPlan | None]  # from the layer's tensors that lie in SRAM


class RegionTilings:
    """Which layers are alike depends on what of their operands lies in SRAM."""

    def __init__(
        self,
        layers: Sequence[Layer],
        views: Mapping[str, View],
        model: CostModel,
        options: Options,
        pinned: Mapping[str, Pin] | None = None,
    ):
        """pinned: by name, layers whose plans are not open."""
        self._pinned = pinned or {}
        self._layers, self._views, self._model, self._options = layers, views, model, options
        self._sizes: Room = {space: model.chip.spaces[space].memory.size for space in model.chip.staging}
        self._candidates: dict[object, Sequence[Candidate]] = {}  # by signature where nothing is resident
        self._tilings: dict[object, LayerTilings] = {}  # by signature
        self._visited: dict[str, dict[Tiling, Visited]] = {}  # by layer

    @property
    def depth(self) -> int:
        """Slots of a ring, where there is room."""
        return 2 if self._options.double_buffer else 1

    def smallest_tiles(self) -> list[SmallestTile]:
        """With what each layer can run at all where nothing is resident; layers that are alike share it."""
        found: dict[object, SmallestTile] = {}
        tiles: list[SmallestTile] = []
        for layer in self._layers:
            signature = self._signature(layer, ())
            if signature not in found:
                found[signature] = smallest_tile(layer, ()) if isinstance(layer.node.op, TiledOp) else SmallestTile()
            tiles.append(found[signature])
        return tiles

    def candidates(self) -> list[tuple[object, Sequence[Candidate]]]:
        """Of each layer which are like it, and its tilings; movers have none."""
        return [(self._signature(la, ()), self._tilings_of(la) if isinstance(la.node.op, TiledOp) else ()) for la in self._layers]

    def best(self, layer: Layer, resident: Collection[str], sram_bytes: int, by: CostWeights) -> LayerPlan | None:
        """resident: tensors that lie in SRAM, of any layers. None where it does not fit so many bytes of the SRAM."""
        room = {**self._sizes, int(Space.SRAM): sram_bytes}
        pin = self._pinned.get(layer.node.name)
        if pin is not None:
            plan = pin(frozenset(n for n in (*layer.activations, *layer.node.outputs) if n in resident))
            return plan if plan is not None and fits(plan.staging_bytes, room) else None
        return self.tilings(layer, resident).best(room, self._options.tilings, by)

    def finer(self, index: int, plan: LayerPlan, resident: Collection[str], sram_bytes: int) -> Sequence[LayerPlan]:
        """With more works than a plan of the layer, in so many bytes of the SRAM; none where its plan is not open."""
        layer, room = self._layers[index], {**self._sizes, int(Space.SRAM): sram_bytes}
        if layer.node.name in self._pinned:
            return ()
        return self.tilings(layer, self._inside(layer, resident)).finer(plan, room, _FINER)

    def plan(self, index: int, resident: Collection[str], sram_bytes: int, by: CostWeights) -> LayerPlan | None:
        """With these roots in SRAM; None of movers too."""
        layer = self._layers[index]
        if not isinstance(layer.node.op, TiledOp):
            return None
        return self.best(layer, self._inside(layer, resident), sram_bytes, by)

    def cycles(self, index: int, resident: frozenset[str], sram_bytes: int, by: CostWeights) -> float | None:
        """Of a layer or mover with these roots in SRAM, with what the bytes that it moves count; None where it does not fit so
        many bytes of it."""
        layer = self._layers[index]
        if not isinstance(layer.node.op, TiledOp):
            inside = self._inside(layer, resident)
            moved = sum(layer.types[n].size_bytes for n in (*layer.activations, *layer.node.outputs) if n not in inside)
            return self._model.moves(layer, self._views, inside).alone_cycles + by.byte * moved
        plan = self.plan(index, resident, sram_bytes, by)
        return None if plan is None else by(plan)

    def tilings(self, layer: Layer, resident: Collection[str]) -> LayerTilings:
        """Those of the first layer like this one."""
        signature = self._signature(layer, resident)
        if signature not in self._tilings:
            own = frozenset(n for n in (*layer.activations, *layer.node.outputs) if n in resident)
            known, visited = self._tilings_of(layer), self._visited.setdefault(layer.node.name, {})
            self._tilings[signature] = LayerTilings(layer, own, self._views, self._model, self.depth, known, visited)
        return self._tilings[signature]

    def _tilings_of(self, layer: Layer) -> Sequence[Candidate]:
        alike = self._signature(layer, ())
        if alike not in self._candidates:
            self._candidates[alike] = candidates(layer)
        return self._candidates[alike]

    def _inside(self, layer: Layer, resident: Collection[str]) -> frozenset[str]:
        """The layer's tensors that lie in these roots."""
        return frozenset(n for n in (*layer.activations, *layer.node.outputs) if self._views[n].root in resident)

    def _signature(self, layer: Layer, resident: Collection[str]) -> object:
        """All that the cost of a layer's tilings depends on."""
        operands = tuple(
            (
                layer.types[n].shape,
                layer.types[n].dtype,
                n in layer.constants,
                n in resident,
                self._views[n].strides,
            )
            for n in (*layer.node.inputs, *layer.node.outputs)
            if n
        )
        return tiling_key(layer), operands
