"""The tilings of a layer: which of them fits a budget of SRAM in the fewest cycles, and the least SRAM that will do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from toolchain.hw.units import Unit
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Tiling, Work
from toolchain.schedule.cost import CostModel, Pipeline, visits
from toolchain.schedule.places import View
from toolchain.schedule.staging import LayerPlan, Sizes, Slot, staging_bytes
from toolchain.schedule.units import emitted, speed, units_for

_ENOUGH_TILES = 4096
_ENOUGH_WORKS = 20_000  # works looked at for one layer, over all of its tilings
_LONGEST_PERIOD = 8  # works after which all units had a turn
_FEW, _FINER = 3, 4  # after so many tilings, those with so many times the tiles of the best are passed over


@dataclass
class _Known:
    """What is known of one tiling. single_bytes: with one slot a role; a lower bound until `sizes` is there."""

    single_bytes: int = 0
    sizes: Sizes | None = None
    costs: dict[int, LayerPlan] = field(default_factory=dict)  # by slots a ring


class LayerTilings:
    """The tilings of a layer whose `resident` operands are in SRAM; what is found out about one is remembered.

    Layers of equal signature share it: nothing in it but `layer` depends on which of them it is.
    """

    def __init__(self, layer: Layer, resident: Collection[str], views: Mapping[str, View], model: CostModel, depth: int):
        self._layer, self._resident, self._views, self._model, self._depth = layer, resident, views, model, depth
        self._align = layer.chip.sram.alignment_bytes
        self._known: dict[Tiling, _Known] = {}
        self._chosen: list[tuple[int, LayerPlan]] = []  # (budget, best)
        self._looked_at = 0

    def best(self, budget_bytes: int, most: int) -> LayerPlan | None:
        """The fewest cycles of the first `most` tilings that fit the budget; None where not one does."""
        for larger, plan in self._chosen:
            # The best of a larger budget that fits this one is the best of this one.
            if plan.staging_bytes <= budget_bytes <= larger:
                return plan
        best: LayerPlan | None = None
        tried, self._looked_at = 0, 0
        for tiles, tiling in self._candidates:
            if best is not None and tried >= _FEW and tiles > _FINER * best.works:
                continue
            plan = self.evaluate(tiling, budget_bytes)
            if plan is None:
                continue
            tried += 1
            if best is None or plan.cycles < best.cycles:
                best = plan
            if tried >= most or self._looked_at > _ENOUGH_WORKS:
                break
        if best is not None:
            self._chosen.append((budget_bytes, best))
        return best

    @cached_property
    def _candidates(self) -> list[tuple[int, Tiling]]:
        """With their tiles, fewest first; tilings of thousands only where nothing coarser exists."""
        counted = [(_tiles(self._layer, t), i, t) for i, t in enumerate(self._layer.node.op.tilings(self._layer))]
        counted.sort(key=lambda c: (c[0] > _ENOUGH_TILES, -c[2].inner, c[0], c[1]))
        return [(tiles, tiling) for tiles, _, tiling in counted]

    def evaluate(self, tiling: Tiling, budget_bytes: int) -> LayerPlan | None:
        """With as many slots as fit the budget, or fewer that are as fast; None when not even one does."""
        known = self._known.setdefault(tiling, _Known())
        if known.single_bytes > budget_bytes:
            return None
        visited: list[Sequence[Work] | int] = []
        if known.sizes is None and not self._measure(tiling, known, budget_bytes, visited):
            return None
        assert known.sizes is not None
        found: list[LayerPlan] = []
        for copies in self._depths:
            slots = known.sizes.slots(copies)
            size = staging_bytes(slots, self._align)
            if size > budget_bytes:
                continue
            if copies not in known.costs:
                pipeline = Pipeline(self._layer, slots, self._resident, self._views, self._model)
                cycles, works = pipeline.run(visited or list(self._visit(tiling)), self._period)
                known.costs[copies] = LayerPlan(tiling, slots, size, works, cycles)
            found.append(known.costs[copies])
            if copies <= self._depth:
                break
        return min(reversed(found), key=lambda plan: plan.cycles, default=None)

    @cached_property
    def _depths(self) -> tuple[int, ...]:
        """Slots a ring that are tried, most first: where several units take turns, as many for each of them."""
        units = len(self._units)
        return (*((units * self._depth,) if units > 1 else ()), *range(self._depth, 0, -1))

    @cached_property
    def _period(self) -> int:
        """Works after which every unit has had its turn; where they are very unequal, the slow ones may have none."""
        rates = [speed(unit) for unit in self._units]
        return min(_LONGEST_PERIOD, round(sum(rates) / min(rates)))

    @cached_property
    def _units(self) -> tuple[Unit, ...]:
        """That the layer's works may be shared out to."""
        nest = self._layer.node.op.nest(self._layer, self._candidates[0][1])
        return units_for(emitted(next(nest.works()), self._layer.chip), self._layer.chip)

    def _measure(self, tiling: Tiling, known: _Known, budget_bytes: int, visited: list[Sequence[Work] | int]) -> bool:
        """Finds the sizes of the tiling's slots and fills `visited`; False as soon as they are beyond the budget."""
        sizes = Sizes(self._layer.chip.activation_bytes)
        for works in self._visit(tiling):
            visited.append(works)
            if isinstance(works, int):
                continue
            self._looked_at += len(works)
            for work in works:
                sizes.add(work, self._resident)
            known.single_bytes = sizes.single_bytes
            if sizes.single_bytes > budget_bytes:
                return False
        known.sizes = sizes
        return True

    def _visit(self, tiling: Tiling) -> Iterator[Sequence[Work] | int]:
        """The works that stand for all, and how often what is repeated."""
        nest = self._layer.node.op.nest(self._layer, tiling)
        return (visit if isinstance(visit, int) else nest.body(visit) for visit in visits(nest.axes, self._period))


def _tiles(layer: Layer, tiling: Tiling) -> int:
    """How many tiles of rows, columns and channels the output falls into."""
    count = 1
    for total, size in zip((1, 1, 1, *layer.output.shape)[-3:], (tiling.rows, tiling.columns, tiling.channels)):
        count *= -(-total // max(1, size))
    return count


@dataclass(frozen=True)
class SmallestTile:
    """The slots with which a layer can run at all, and their bytes together."""

    slots: tuple[Slot, ...] = ()
    size_bytes: int = 0


def smallest_tile(layer: Layer, resident: Collection[str]) -> SmallestTile:
    """The least SRAM with which the layer can run at all: its smallest tiles, single slots."""
    least: SmallestTile | None = None
    for tiling in _last_of_each(layer.node.op.tilings(layer)):
        sizes, nest = Sizes(layer.chip.activation_bytes), layer.node.op.nest(layer, tiling)
        for point in visits(nest.axes):
            for work in nest.body(point) if not isinstance(point, int) else ():
                sizes.add(work, resident)
        slots = sizes.slots(1)
        size = staging_bytes(slots, layer.chip.sram.alignment_bytes)
        if least is None or size < least.size_bytes:
            least = SmallestTile(slots, size)
    return least or SmallestTile()


def _last_of_each(tilings: Iterable[Tiling]) -> list[Tiling]:
    """The smallest tile of each reduction and kernel cut: one of them stages least."""
    found: dict[tuple[int, int], Tiling] = {}
    for tiling in tilings:
        cut = (tiling.inner, tiling.taps)
        if cut not in found or tiling.volume < found[cut].volume:
            found[cut] = tiling
    return list(found.values())
