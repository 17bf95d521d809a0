"""The least bytes of DRAM for a size of memory: against an exhaustive search, and of networks whose figures are known."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from scripts.bodies import bodies
from tests.bounded import dram_bytes, require_bounds
from tests.keyed import with_keys
from toolchain.api import BuildOptions, build
from toolchain.isa import Machine, load_machine
from toolchain.report.bounds.moments import Edge, Room, Stage, read_again_bytes, used_before
from toolchain.schedule.goals import CYCLES, Goal

Thing = tuple[str, int]  # constants or tensor of a stage


def _drawn(draw: random.Random) -> list[Stage]:
    """Up to five layers, each behind some of those before."""
    found: list[Stage] = []
    for at in range(draw.randint(1, 5)):
        sources = draw.sample(range(at), min(at, draw.choice([1, 1, 2])))
        edges = tuple(Edge(s, draw.random() < 0.9, draw.random() < 0.6, draw.random() < 0.9) for s in sources)
        summed = draw.choice([0, 0, 3, 20])
        found.append(Stage(draw.randint(0, 12), draw.randint(1, 12), edges, draw.random() < 0.9, summed))
    return found


def _ways(stages: Sequence[Stage], first: int, target: int) -> list[frozenset[Thing]]:
    """From constants that have been used to what a stage makes, through tensors of stages [first, target)."""

    def behind(at: int) -> Iterator[frozenset[Thing]]:
        for edge in stages[at].edges:
            if edge.even and edge.source >= first:
                own: Thing = ("tensor", edge.source)
                if _is_used(stages, target, edge.source):
                    yield frozenset({own, ("constants", edge.source)})
                yield from (way | {own} for way in behind(edge.source))

    return list(behind(target))


def _is_used(stages: Sequence[Stage], target: int, source: int) -> bool:
    """Whether one element of the target is made of all channels of a stage's tensor, somewhere."""

    def mixed(at: int, all_channels: bool) -> bool:
        if at == source and all_channels:
            return True
        return any(mixed(e.source, e.mixes or (e.keeps and all_channels)) for e in stages[at].edges)

    return mixed(target, False)


def _least_cut(stages: Sequence[Stage], first: int, target: int) -> int:
    """Of all sets of constants and tensors that every way meets, the fewest bytes."""
    ways = _ways(stages, first, target)
    things = sorted(frozenset().union(*ways)) if ways else []
    sizes = {t: stages[t[1]].constant_bytes if t[0] == "constants" else stages[t[1]].tensor_bytes for t in things}
    cuts = (c for n in range(len(things) + 1) for c in combinations(things, n) if all(not way.isdisjoint(c) for way in ways))
    return min(sum(sizes[t] for t in cut) for cut in cuts)


def _searched(stages: Sequence[Stage], room: Room) -> int:
    """The most over all choices of moments with ranges of stages apart, of the least over all cuts at each."""

    def again(first: int, target: int) -> int:
        stage = stages[target]
        if not stage.whole or not stage.edges:
            return 0
        cut = float(_least_cut(stages, first, target))
        if not stage.summed:
            return ceil(cut - room.sums * room.element_bytes - room.size_bytes - 1e-6)
        cut = min(cut, room.sum_bytes * stage.summed)
        return ceil(cut - room.sums * max(room.element_bytes, cut / stage.summed) - room.size_bytes - 1e-6)

    @cache
    def most(begin: int) -> int:
        ranges = ((f, t) for f in range(begin, len(stages)) for t in range(f + 1, len(stages)))
        return max((max(0, again(f, t)) + most(t) for f, t in ranges), default=0)

    return most(0)


@pytest.mark.parametrize("seed", range(4))
def test_bytes_that_come_again_are_those_of_an_exhaustive_search(seed: int) -> None:
    draw, some = random.Random(seed), 0
    for _ in range(250):
        stages = _drawn(draw)
        room = Room(draw.randint(0, 14), draw.choice([0, 0, 1, 4]), draw.choice([1, 2]), draw.choice([float("inf"), 4.0]))
        found = sum(read_again_bytes(stages, room))
        assert found == _searched(stages, room), (stages, room)
        some += found > 0
    assert some > 30


def test_more_room_takes_no_more_and_what_is_read_is_what_was_used() -> None:
    chain = [Stage(40, 100, (Edge(at - 1, mixes=True),) if at else ()) for at in range(5)]
    sizes = [sum(read_again_bytes(chain, Room(room))) for room in range(0, 200, 10)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 40 * 4
    assert sizes[-1] == 0
    assert used_before(chain, 3) == {0, 1, 2}
    assert used_before([*chain[:2], replace(chain[2], edges=(Edge(1, mixes=False),))], 2) == {0}


def _machine(sram_bytes: int) -> Machine:
    base = load_machine("edge16")
    memories = base.chip.model_dump(mode="json")["memories"]
    memories["sram"]["size"] = sram_bytes
    return with_keys(base, memories=memories)


def _figures(model: onnx.ModelProto, machine: Machine, folder: Path, goal: Goal = CYCLES) -> Mapping[str, Any]:
    onnx.save(model, folder / "model.onnx")
    found = build(folder / "model.onnx", BuildOptions(machine, goal=goal)).figures
    require_bounds(found)
    return found


@pytest.mark.parametrize(
    ("kib", "again"),
    [(64, 0), pytest.param(32, 0, marks=pytest.mark.exhaustive), pytest.param(8, 13_738, marks=pytest.mark.exhaustive)],
)
def test_two_bodies_move_each_byte_once_where_the_memory_holds_what_is_used_again(kib: int, again: int, tmp_path: Path) -> None:
    figures = _figures(bodies(), _machine(kib * 1024), tmp_path, Goal("traffic"))
    assert figures["dram_bound_bytes"] == 72_576 + again
    assert figures["bounds"]["dram"] == {"constants": 34_944, "inputs": 18_816, "outputs": 18_816, "again": again}
    by_layer = [layer["bounds"]["dram"] for layer in figures["layers"]]
    assert {name: sum(own[name] for own in by_layer) for name in by_layer[0]} == figures["bounds"]["dram"]
    if kib == 64:
        assert dram_bytes(figures) == 72_576


def _strided(kernel: int, pads: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 3, kernel, kernel)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[kernel] * 2, strides=[2, 2], pads=[pads] * 4)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 9, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "strided", [x], [y], [numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize(("kernel", "pads", "read"), [(1, 0, 5 * 4 * 3), (3, 1, 9 * 8 * 3), (2, 0, 8 * 8 * 3)])
def test_what_no_window_meets_need_not_come(kernel: int, pads: int, read: int, tmp_path: Path) -> None:
    figures = _figures(_strided(kernel, pads), _machine(65536), tmp_path)
    assert figures["bounds"]["dram"]["inputs"] == read


def _sliced(*parts: tuple[list[int], list[int], list[int], list[int]]) -> onnx.ModelProto:
    """A convolution 3 -> 8 channels of 6x6, slices of which (starts, ends, axes, steps) are clamped, each an output."""
    rng = np.random.default_rng(0)
    constants = [numpy_helper.from_array(rng.standard_normal((8, 3, 1, 1)).astype(np.float32), "w")]
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"])]
    outputs = []
    for number, part in enumerate(parts):
        names = [f"{key}{number}" for key in ("starts", "ends", "axes", "steps")]
        constants += [numpy_helper.from_array(np.array(values, np.int64), name) for name, values in zip(names, part)]
        nodes += [
            helper.make_node("Slice", ["c", *names], [f"s{number}"]),
            helper.make_node("Tanh", [f"s{number}"], [f"y{number}"]),
        ]
        outputs.append(helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, None))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 6])
    graph = helper.make_graph(nodes, "sliced", [x], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize(
    ("parts", "channels", "pixels"),
    [
        ([([0], [5], [1], [1]), ([5], [8], [1], [1])], True, 36),
        ([([0], [5], [1], [1]), ([4], [8], [1], [1])], True, 0),  # one channel for both: all are known to be met, not how much
        ([([0], [5], [1], [1]), ([6], [8], [1], [1])], False, 0),
        ([([0], [8], [1], [2]), ([1], [8], [1], [2])], True, 36),
        ([([0, 0], [3, 8], [2, 1], [1, 1]), ([3, 0], [6, 8], [2, 1], [1, 1])], True, 36),
        ([([0, 0], [3, 5], [2, 1], [1, 1]), ([3, 5], [6, 8], [2, 1], [1, 1])], True, 0),
    ],
    ids=["halves", "overlap", "gap", "even and odd", "rows", "corners"],
)
def test_slices_need_what_they_cover_together(
    parts: list[tuple[list[int], list[int], list[int], list[int]]], channels: bool, pixels: int, tmp_path: Path
) -> None:
    figures = _figures(_sliced(*parts), _machine(65536), tmp_path)
    assert figures["bounds"]["dram"]["inputs"] == pixels * 3
    convolution = figures["layers"][0]["bounds"]["dram"]["constants"]
    assert convolution >= 24 if channels else convolution == 0


def test_an_input_that_is_an_output_under_another_shape_need_not_come(tmp_path: Path) -> None:
    strided = _strided(1, 0)
    strided.graph.node.append(helper.make_node("Flatten", ["x"], ["same"]))
    strided.graph.output.append(helper.make_tensor_value_info("same", TensorProto.FLOAT, None))
    figures = _figures(strided, _machine(65536), tmp_path)
    assert figures["bounds"]["dram"]["inputs"] == 5 * 4 * 3
    assert figures["dram_read_bytes"] + figures["dram_write_bytes"] >= figures["dram_bound_bytes"]
