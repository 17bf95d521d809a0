"""Compute the bounds of regions and of the network as the report and its JSON have them: cycles and DRAM bytes that no plan
beats.

It joins the bounds of units (`unit_bounds`), of DRAM bytes (`dram`) and of layers that wait for others (`release_bound`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from toolchain.codegen import Container, Region
from toolchain.ops.kit.operator import Layer
from toolchain.report.bounds.dram import MinTraffic, min_traffic
from toolchain.report.bounds.release_bound import ReleaseBound, bound_releases
from toolchain.report.bounds.unit_bounds import (
    MinUnitUse,
    Uses,
    add_uses,
    dram_uses,
    load_channel,
    sum_uses,
    waiting_layers,
)
from toolchain.schedule.channel_blocks import find_blocked_tensors

NONE = "none"


@dataclass(frozen=True)
class RegionBounds:
    """The bounds of a region; lists are by node, in order.

    `names`: names of the nodes.
    `least`: least bytes of DRAM of each node.
    `uses`: least cycles of units, ports, DRAM and the front end, of each node.
    `capable_units`: queues of units by the names that `uses` has.
    `release`: least cycles of layers that wait for others, and the layer from which they are counted.
    """

    names: tuple[str, ...]
    least: MinTraffic
    uses: tuple[Uses, ...]
    capable_units: Mapping[str, frozenset[int]]
    release: ReleaseBound

    @property
    def total(self) -> dict[str, Any]:
        """Return the bound of the region as in the JSON report: the larger of what its units take and what its layers wait.

        Only in the latter case it has the key `behind`, the first layer of those.
        """
        figures, waited = cycles_of(sum_uses(self.uses, self.capable_units)), ceil(self.release.cycles - 1e-6)
        if waited <= figures["cycles"]:
            return figures
        first = self.names[self.release.layer]
        return {**figures, "cycles": waited, "by": f"{first} and what is behind it", "behind": first}

    def by_layer(self) -> dict[str, dict[str, Any]]:
        """Return the bounds of each node by itself as in the JSON report, by name."""
        return {name: self._layer(index) for index, name in enumerate(self.names)}

    def _layer(self, index: int) -> dict[str, Any]:
        parts = {
            "constants": self.least.constants[index],
            "inputs": self.least.inputs[index],
            "outputs": self.least.outputs[index],
            "again": self.least.again[index],
        }
        return {**cycles_of(self.uses[index]), "dram_bytes": sum(parts.values()), "dram": parts}


def region_bounds(container: Container, region: Region, uses: MinUnitUse) -> RegionBounds:
    """Return the bounds of a region.

    `uses`: calculator for the container's machine, which all regions share.
    """
    graph, chip = container.graph, container.machine.chip
    region_nodes = set(region.nodes)
    nodes = [node for node in graph.nodes if node.name in region_nodes]
    inputs, outputs = region.read, region.result_tensors
    maps = find_blocked_tensors(
        nodes, graph, {*inputs, *outputs}, chip, {n for s in region.states for n in (s.port.tensor, s.present_tensor)}
    )
    layers = [Layer(node, graph.types, graph.constants, chip, maps) for node in nodes]
    least = min_traffic(layers, inputs, outputs)
    computing = [uses.of(layer) for layer in layers]
    layer_uses = tuple(add_uses(one, dram_uses(chip, least, index)) for index, one in enumerate(computing))
    release = bound_releases(waiting_layers(layers, computing, uses.capable_units, least), load_channel(chip))
    return RegionBounds(tuple(node.name for node in nodes), least, layer_uses, uses.capable_units, release)


def network_bounds(regions: Sequence[RegionBounds]) -> dict[str, Any]:
    """Return the bounds of a network as JSON: the sums over its regions, which run one after another, and each region's."""
    parts = [region.total for region in regions]
    least = [region.least for region in regions]
    made_of = {name: sum(sum(getattr(one, name)) for one in least) for name in ("constants", "inputs", "outputs", "again")}
    return {
        "cycles": sum(part["cycles"] for part in parts),
        "dram_bytes": sum(made_of.values()),
        "dram": made_of,
        "regions": parts,
    }


def cycles_of(uses: Uses) -> dict[str, Any]:
    """Return cycles, the name that needs them, and all uses as in the JSON report, rounded up; NONE where there are none."""
    most = max(uses, key=lambda name: uses[name], default=NONE)
    rounded = {name: ceil(cycles - 1e-6) for name, cycles in uses.items() if cycles > 0}
    return {"cycles": rounded.get(most, 0), "by": most if most in rounded else NONE, "uses": rounded}
