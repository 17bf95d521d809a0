"""Which unit runs each work of a plan: greedy, each chain of works where it ends first.

A chain is the works that add to the same sums: accumulators are an array's own, so they stay together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from toolchain.schedule.cost import CostModel, Pipeline
from toolchain.schedule.places import View
from toolchain.schedule.staging import PlannedLayer
from toolchain.schedule.units import Clocks


def place_works(
    layers: Sequence[PlannedLayer], resident: Collection[str], views: Mapping[str, View], model: CostModel
) -> tuple[PlannedLayer, ...]:
    """The layers with the units of their works, where there is a choice. resident: tensors that lie in sram."""
    if not model.choice:
        return tuple(layers)
    clocks, made = Clocks(), dict[str, float]()  # made: when what lies in a root is there
    placed = []
    for planned in layers:
        layer = planned.layer
        ready = max((made.get(views[n].root, 0.0) for n in layer.activations), default=0.0)
        end = max(ready, clocks.dma)
        if planned.plan is not None:
            pipeline = Pipeline(layer, planned.plan.slots, planned.plan.units, resident, views, model, clocks, ready)
            pipeline.run([tuple(layer.tiled.nest(layer, planned.plan.tiling).works())])
            planned = replace(planned, units=tuple(pipeline.units))
            end = max(ready, clocks.latest((*planned.units, *pipeline.emitters.values())))
        root = views[layer.node.outputs[0]].root
        made[root] = max(made.get(root, 0.0), end)
        placed.append(planned)
    return tuple(placed)
