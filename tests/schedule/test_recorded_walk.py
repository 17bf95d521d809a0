"""A walk that goes on from where a plan differs takes the cycles of a walk over all of it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import pytest

from bench.make_mobilenet_chain import bodies
from tests.support.accumulator_machines import emitting
from toolchain.api import BuildOptions, build
from toolchain.codegen import Region
from toolchain.isa import Machine, load_machine
from toolchain.machine import Space
from toolchain.schedule.options import LEVELS, RegionInput
from toolchain.schedule.plan import PlannedRegion, TiledLayer, replace_layers
from toolchain.schedule.plan_walk import RecordedWalk
from toolchain.schedule.queues import FutureKey, PlannedQueues, QueueCost
from toolchain.schedule.region_planner import RegionPlanner

MACHINES = {
    "edge16": lambda: load_machine("edge16"),
    "ethos_u55_256": lambda: load_machine("ethos_u55_256"),
    "accumulators in a memory": lambda: emitting(load_machine("edge16")),
}


@cache
def planner_of(name: str) -> RegionPlanner:
    """The planner of a chain of seven MobileNet bodies in 14 KiB."""
    machine = MACHINES[name]()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "bodies.onnx"
        onnx.save(bodies(7, 12, 16, 64), path)
        container = build(path, BuildOptions(Machine(machine.chip.with_sram(14 * 1024), machine.isa), level=0)).container
    (region,) = container.segments
    assert isinstance(region, Region)
    nodes = [node for node in container.graph.nodes if node.name in {*region.nodes}]
    ports = [p.tensor for p in region.inputs], [p.tensor for p in region.outputs]
    return RegionPlanner(RegionInput(container.graph, nodes, *ports, container.machine.chip, LEVELS[2]))


def draw_change(planner: RegionPlanner, plan: PlannedRegion, rng: random.Random) -> PlannedRegion:
    """The plan with another tiling of a layer, or with buffers at other addresses, where they may overlap any."""
    layers = list(plan.layers)
    first = rng.randrange(len(layers))
    for index in rng.sample(range(first, min(first + 4, len(layers))), rng.randrange(2)):
        old, room = layers[index], {**planner.sizes, int(Space.SRAM): planner.size // 2}
        inside = [name for name in (*old.layer.activations, *old.layer.node.outputs) if name in plan.residents]
        _, tiling = rng.choice(planner.layerwise._tilings_of(old.layer))
        tiled = planner.layerwise.tilings(old.layer, inside).evaluate(tiling, room)
        layers[index] = old if tiled is None or not isinstance(old, TiledLayer) else tiled.as_layer(old.layer)
    placed = planner.place(replace_layers(plan.parts, layers), plan.resident, searched=False)
    if placed is None:
        return plan
    addresses = dict(placed.placements[Space.SRAM].addresses)
    slots = [name for name in sorted(addresses) if name.startswith(f"{first}:")]
    for name in rng.sample(slots, min(len(slots), rng.randrange(3))) + rng.sample(sorted(addresses), rng.randrange(4) == 0):
        addresses[name] = rng.randrange(0, planner.size // 2, 16)
    sram = replace(placed.placements[Space.SRAM], addresses=addresses)
    return replace(placed, placements={**placed.placements, Space.SRAM: sram})


def compare(machine: str, seed: int, count: int) -> Counter[str]:
    """Time drawn changes of a plan twice; how many were equal, and how many walks ended before the last layer."""
    planner, rng, results = planner_of(machine), random.Random(seed), Counter[str]()
    best = planner._layer_by_layer()[0]
    recorded = RecordedWalk(best, planner.model, planner.costs._some)
    get_delay = recorded._get_delay

    def count_ends(at: int) -> int | None:
        delay = get_delay(at)
        results["ended"] += delay is not None
        return delay

    recorded._get_delay = count_ends  # type: ignore[method-assign]
    for number in range(count):
        plan = draw_change(planner, recorded.plan, rng)
        results["equal" if recorded.cycles_of(plan) == planner.costs.cycles(plan) else "different"] += 1
        if number % 10 == 9:
            recorded.move_to(plan if number % 40 != 39 else best)
    return results


@pytest.mark.parametrize("machine", MACHINES)
def test_walks_of_drawn_changes_are_those_from_scratch(machine: str) -> None:
    results = compare(machine, 0, 70)
    assert results["equal"] == 70
    assert results["ended"] > 20


def key_of(cycles: int, numbers: list[int]) -> object:
    """The key behind one operation of the array, where some range waits for these."""
    queues = PlannedQueues(load_machine("edge16").chip, looks_ahead=False)
    queues.ask(0, QueueCost(1, 0, cycles, (), cycles), [])
    key = FutureKey(queues, [0, 1, 2])
    key.add("slot", numbers)
    return key.key()


def test_keys_tell_what_an_operation_takes_and_whether_anything_waits_for_it() -> None:
    keys = [key_of(100, []), key_of(200, []), key_of(100, [0]), key_of(200, [0])]
    assert all((a == b) == (i == j) for i, a in enumerate(keys) for j, b in enumerate(keys))
