"""The least cycles of layers that wait for others, against all schedules of small networks, and on networks whose figures are
known."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from tests.support.check_bounds import require_bounds
from tests.support.machine_variants import with_keys
from toolchain.api import BuildOptions, build
from toolchain.isa import load_machine
from toolchain.ops.kit.window import Window
from toolchain.report.bounds.first_use import count_met
from toolchain.report.bounds.release_bound import LoadChannel, WaitingLayers, bound_releases
from toolchain.report.figure_types import RegionBound


@dataclass(frozen=True)
class Product:
    """A cycle of one unit: a constant of a layer times the elements before it. sources: layers that have ended before."""

    unit: int
    constant: int
    sources: frozenset[int]
    layer: int


@dataclass(frozen=True)
class SmallNetwork:
    """A network of layers that each need all of some layers before; constants of one byte each, a cycle to load each."""

    products: tuple[Product, ...]
    constants: tuple[tuple[int, ...], ...]
    ended: tuple[frozenset[int], ...]
    units: tuple[int, ...]

    def waiting(self) -> WaitingLayers:
        count = len(self.units)
        ended = [np.isin(np.arange(count), list(sources)) for sources in self.ended]
        cycles = np.array(
            [[sum(p.layer == k and p.unit == unit for p in self.products) for unit in (0, 1)] for k in range(count)]
        )
        sizes = np.array([len(constants) for constants in self.constants])
        return WaitingLayers(ended, cycles, sizes, np.zeros(count))


def _drawn(draw: random.Random) -> SmallNetwork:
    """Two to four layers of up to three constants each, with up to three products of each; a layer waits for some before it."""
    ended: list[frozenset[int]] = []
    for at in range(draw.randint(2, 4)):
        direct = draw.sample(range(at), min(at, draw.choice([0, 1, 1, 2])))
        ended.append(frozenset(direct).union(*(ended[source] for source in direct)))
    units = tuple(draw.choice([0, 0, 1]) for _ in ended)
    names = iter(range(100))
    constants = tuple(tuple(next(names) for _ in range(draw.choice([0, 1, 2, 3]))) for _ in ended)
    pixels = [draw.choice([1, 1, 3]) for _ in ended]
    products = tuple(Product(units[k], c, ended[k], k) for k in range(len(ended)) for c in constants[k] for _ in range(pixels[k]))
    return SmallNetwork(products, constants, tuple(ended), units)


def _least_cycles(network: SmallNetwork, room: int) -> int:
    """Return the fewest cycles of all schedules: each cycle one byte comes, and each unit makes a product of what is there."""
    everything = (1 << len(network.products)) - 1
    states, cycles = {(0, frozenset[int]())}, 0
    while all(done != everything for done, _ in states):
        states, cycles = {after for state in states for after in _next_states(network, room, *state)}, cycles + 1
    return cycles


def _next_states(network: SmallNetwork, room: int, done: int, resident: frozenset[int]) -> Iterator[tuple[int, frozenset[int]]]:
    ready: list[dict[int, int]] = [{}, {}]  # by constant: products of one constant are alike
    for at, one in enumerate(network.products):
        waits = any(not done >> k & 1 for k, other in enumerate(network.products) if other.layer in one.sources)
        if not done >> at & 1 and not waits and one.constant in resident:
            ready[one.unit].setdefault(one.constant, 1 << at)
    for first, second in product(*(choices.values() or [0] for choices in ready)):  # an idle cycle gains nothing
        after = done | first | second
        pending = {one.constant for k, one in enumerate(network.products) if not after >> k & 1}
        loaded = resident & pending
        if pending <= loaded:
            yield after, loaded
        for constant in pending - loaded:
            if len(loaded) < room:
                yield after, loaded | {constant}
            else:
                yield after, loaded
                yield from ((after, loaded - {other} | {constant}) for other in loaded)


def test_no_schedule_of_a_small_network_takes_fewer_cycles() -> None:
    draw, equal, beyond = random.Random(0), 0, 0
    for _ in range(80):
        network, room = _drawn(draw), draw.randint(1, 2)
        if len(network.products) > 10:
            continue
        bound = bound_releases(network.waiting(), LoadChannel(room, np.ones(1), np.ones(1))).cycles
        least = _least_cycles(network, room)
        assert bound <= least, (network, room)
        equal += bound == least - 1  # the first byte comes before anything begins
        loads = sum(map(len, network.constants))
        beyond += bound > max(loads, *(sum(p.unit == unit for p in network.products) for unit in (0, 1)))
    assert (equal, beyond) == (39, 6)  # beyond what units and loads take by themselves


def test_constants_that_the_chip_cannot_hold_come_behind_what_must_end_before() -> None:
    """Ten cycles end before a layer of 30 bytes may begin, of which 12 may lie on the chip by then."""
    layers = WaitingLayers(
        [np.zeros(2, bool), np.array([True, False])], np.array([[10.0], [1.0]]), np.array([0, 30]), np.array([0, 8])
    )
    assert bound_releases(layers, LoadChannel(12, np.array([0.5]), np.array([0.0]))) == (10 + 18 / 2, 1)
    assert bound_releases(layers, LoadChannel(12, np.array([0.5]), np.array([0.5]))) == (10 + 26 / 2, 1)
    assert bound_releases(layers, LoadChannel(40, np.array([0.5]), np.array([0.0]))) == (11, 0)


@pytest.mark.parametrize("seed", range(3))
def test_any_outputs_meet_as_many_inputs(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        kernel, dilation = draw.randint(1, 4), draw.choice([1, 1, 2])
        window = Window(draw.randint(3, 9), kernel, draw.randint(1, 3), dilation, draw.randint(0, kernel - 1))
        outputs = draw.randint(1, 7)
        count = draw.randint(1, outputs)
        met = window.elements(outputs)
        each = [len(set(met[s : s + count].ravel().tolist()) - {-1}) for s in range(outputs - count + 1)]
        assert count_met(window, outputs, count, True) <= min(each)
        assert window.dilation > 1 or window.stride > kernel or count_met(window, outputs, count, True) == min(each)


def _save_pooled(folder: Path, channels: int) -> Path:
    """A convolution over 32 x 32, a global pool, and a fully connected layer of 64 x channels."""
    rng = np.random.default_rng(0)
    nodes: Sequence[onnx.NodeProto] = [
        helper.make_node("Conv", ["x", "v"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w"], ["b"], "second"),
        helper.make_node("GlobalAveragePool", ["b"], ["p"], "pool"),
        helper.make_node("Conv", ["p", "u"], ["y"], "last"),
    ]
    shapes = {"v": (64, 16, 3, 3), "w": (64, 64, 1, 1), "u": (channels, 64, 1, 1)}
    weights = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    onnx.save(build_model(nodes, {"x": [1, 16, 32, 32]}, {"y": None}, weights), folder / "model.onnx")
    return folder / "model.onnx"


def test_weights_behind_a_global_pool_come_after_the_layers_in_front_of_it(tmp_path: Path) -> None:
    """The last layer's first product needs a channel of the pool, and so all of the first layer."""
    base = load_machine("edge16")
    memories = base.chip.model_dump(mode="json")["memories"]
    memories["sram"]["size"], memories["dram"]["read_bytes_per_cycle"], memories["dram"]["write_bytes_per_cycle"] = 32_768, 2, 2
    figures = build(_save_pooled(tmp_path, 4096), BuildOptions(with_keys(base, memories=memories))).figures
    require_bounds(figures)
    (region,) = figures["bounds"]["regions"]
    uses = {layer["name"]: layer["bounds"]["uses"]["mac"] for layer in figures["layers"] if layer["name"] != "pool"}
    entries = figures["layers"][-1]["bounds"]["dram"]["constants"] - 4096 * 64
    late = (4096 * 64 + entries + 4096 - 32_768) / 2  # bytes that 32 KiB do not hold and outputs, at two a cycle
    assert region["cycles"] == figures["bounds"]["cycles"] == uses["first"] + late
    assert region["behind"] == "last" and region["by"] == "last and what is behind it"
    assert region["cycles"] > max(region["uses"].values())
    assert region.keys() == RegionBound.__annotations__.keys()
