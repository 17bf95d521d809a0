"""The least bytes of DRAM for a size of memory: against an exhaustive search, and of networks whose figures are known."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench.make_mobilenet_chain import bodies
from scripts.onnx_builder import build_model
from tests.support.check_bounds import dram_bytes, require_bounds
from tests.support.machine_variants import with_keys
from toolchain.api import BuildOptions, build
from toolchain.ir.graph import Node, TensorType
from toolchain.isa import Machine, load_machine
from toolchain.ops.kit.operator import Layer
from toolchain.ops.tensor_scatter import PutRows, TakeRows
from toolchain.report.bounds.reload_bound import ChipCapacity, Edge, FlowStage, list_earlier_constants, min_reload_bytes
from toolchain.report.bounds.required_reads import reads_of
from toolchain.schedule.goals import CYCLES, Goal

Thing = tuple[str, int]  # constants or tensor of a stage


def _drawn(draw: random.Random) -> list[FlowStage]:
    """Up to five layers, each behind some of those before."""
    stages: list[FlowStage] = []
    for at in range(draw.randint(1, 5)):
        sources = draw.sample(range(at), min(at, draw.choice([1, 1, 2])))
        edges = tuple(Edge(s, draw.random() < 0.9, draw.random() < 0.6, draw.random() < 0.9) for s in sources)
        summed = draw.choice([0, 0, 3, 20])
        stages.append(FlowStage(draw.randint(0, 12), draw.randint(1, 12), edges, draw.random() < 0.9, summed))
    return stages


def _ways(stages: Sequence[FlowStage], first: int, target: int) -> list[frozenset[Thing]]:
    """Return the paths from constants that have been used to what a stage makes, through tensors of stages [first, target)."""

    def walk_back(at: int) -> Iterator[frozenset[Thing]]:
        for edge in stages[at].edges:
            if edge.even and edge.source >= first:
                thing: Thing = ("tensor", edge.source)
                if _is_used(stages, target, edge.source):
                    yield frozenset({thing, ("constants", edge.source)})
                yield from (way | {thing} for way in walk_back(edge.source))

    return list(walk_back(target))


def _is_used(stages: Sequence[FlowStage], target: int, source: int) -> bool:
    """Return whether one element of the target depends on all channels of a stage's tensor somewhere."""

    def mixed(at: int, all_channels: bool) -> bool:
        if at == source and all_channels:
            return True
        return any(mixed(e.source, e.mixes or (e.keeps and all_channels)) for e in stages[at].edges)

    return mixed(target, False)


def _least_cut(stages: Sequence[FlowStage], first: int, target: int) -> int:
    """Return the fewest bytes of all sets of constants and tensors that meet every path."""
    ways = _ways(stages, first, target)
    things = sorted(frozenset().union(*ways)) if ways else []
    sizes = {t: stages[t[1]].constant_bytes if t[0] == "constants" else stages[t[1]].tensor_bytes for t in things}
    cuts = (c for n in range(len(things) + 1) for c in combinations(things, n) if all(not way.isdisjoint(c) for way in ways))
    return min(sum(sizes[t] for t in cut) for cut in cuts)


def _search_reload(stages: Sequence[FlowStage], room: ChipCapacity) -> int:
    """The most over all choices of moments with ranges of stages apart, of the least over all cuts at each."""

    def again(first: int, target: int) -> int:
        stage = stages[target]
        if not stage.requires_all or not stage.edges:
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
        room = ChipCapacity(draw.randint(0, 14), draw.choice([0, 0, 1, 4]), draw.choice([1, 2]), draw.choice([float("inf"), 4.0]))
        bound = sum(min_reload_bytes(stages, room))
        assert bound == _search_reload(stages, room), (stages, room)
        some += bound > 0
    assert some > 30


def test_more_room_takes_no_more_and_what_is_read_is_what_was_used() -> None:
    chain = [FlowStage(40, 100, (Edge(at - 1, mixes=True),) if at else ()) for at in range(5)]
    sizes = [sum(min_reload_bytes(chain, ChipCapacity(room))) for room in range(0, 200, 10)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 40 * 4
    assert sizes[-1] == 0
    assert list_earlier_constants(chain, 3) == {0, 1, 2}
    assert list_earlier_constants([*chain[:2], replace(chain[2], edges=(Edge(1, mixes=False),))], 2) == {0}


def _machine(sram_bytes: int) -> Machine:
    base = load_machine("edge16")
    memories = base.chip.model_dump(mode="json")["memories"]
    memories["sram"]["size"] = sram_bytes
    return with_keys(base, memories=memories)


def _figures(model: onnx.ModelProto, machine: Machine, folder: Path, goal: Goal = CYCLES) -> Mapping[str, Any]:
    onnx.save(model, folder / "model.onnx")
    figures = build(folder / "model.onnx", BuildOptions(machine, goal=goal)).figures
    require_bounds(figures)
    return figures


@pytest.mark.parametrize(
    ("kib", "again"),
    [(64, 0), pytest.param(32, 0, marks=pytest.mark.exhaustive), pytest.param(8, 13_738, marks=pytest.mark.exhaustive)],
)
def test_two_bodies_move_each_byte_once_where_the_memory_holds_what_is_used_again(kib: int, again: int, tmp_path: Path) -> None:
    figures = _figures(bodies(), _machine(kib * 1024), tmp_path, Goal("traffic"))
    assert figures["dram_bound_bytes"] == 72_576 + again
    assert figures["bounds"]["dram"] == {"constants": 34_944, "inputs": 18_816, "outputs": 18_816, "again": again}
    by_layer = [layer["bounds"]["dram"] for layer in figures["layers"]]
    assert {name: sum(layer_bytes[name] for layer_bytes in by_layer) for name in by_layer[0]} == figures["bounds"]["dram"]
    if kib == 64:
        assert dram_bytes(figures) == 72_576


def _make_strided(kernel: int, pads: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 3, kernel, kernel)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[kernel] * 2, strides=[2, 2], pads=[pads] * 4)
    return build_model([node], {"x": [1, 3, 9, 8]}, {"y": None}, {"w": w}, opset=13)


@pytest.mark.parametrize(("kernel", "pads", "read"), [(1, 0, 5 * 4 * 3), (3, 1, 9 * 8 * 3), (2, 0, 8 * 8 * 3)])
def test_what_no_window_meets_need_not_come(kernel: int, pads: int, read: int, tmp_path: Path) -> None:
    figures = _figures(_make_strided(kernel, pads), _machine(65536), tmp_path)
    assert figures["bounds"]["dram"]["inputs"] == read


def _make_sliced(*parts: tuple[list[int], list[int], list[int], list[int]]) -> onnx.ModelProto:
    """A convolution 3 -> 8 channels of 6x6, slices of which (starts, ends, axes, steps) are clamped, each an output."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.standard_normal((8, 3, 1, 1)).astype(np.float32)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"])]
    for number, part in enumerate(parts):
        names = [f"{key}{number}" for key in ("starts", "ends", "axes", "steps")]
        constants |= {name: np.array(values, np.int64) for name, values in zip(names, part)}
        nodes += [
            helper.make_node("Slice", ["c", *names], [f"s{number}"]),
            helper.make_node("Tanh", [f"s{number}"], [f"y{number}"]),
        ]
    return build_model(nodes, {"x": [1, 3, 6, 6]}, {f"y{n}": None for n in range(len(parts))}, constants, opset=13)


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
    figures = _figures(_make_sliced(*parts), _machine(65536), tmp_path)
    assert figures["bounds"]["dram"]["inputs"] == pixels * 3
    convolution = figures["layers"][0]["bounds"]["dram"]["constants"]
    assert convolution >= 24 if channels else convolution == 0


def test_an_input_that_is_an_output_under_another_shape_need_not_come(tmp_path: Path) -> None:
    strided = _make_strided(1, 0)
    strided.graph.node.append(helper.make_node("Flatten", ["x"], ["same"]))
    strided.graph.output.append(helper.make_tensor_value_info("same", TensorProto.FLOAT, None))
    figures = _figures(strided, _machine(65536), tmp_path)
    assert figures["bounds"]["dram"]["inputs"] == 5 * 4 * 3
    assert figures["dram_read_bytes"] + figures["dram_write_bytes"] >= figures["dram_bound_bytes"]


def _rows_met(op: PutRows | TakeRows, shapes: Sequence[tuple[int, ...]], number: int) -> list[np.ndarray]:
    """Return for each tensor in front of the number which of its elements are in the operator's result."""
    names = np.split(np.arange(sum(map(prod, shapes))), np.cumsum([prod(shape) for shape in shapes])[:-1])
    tensors = [elements.reshape(shape) for elements, shape in zip(names, shapes)]
    result = op.reference([*tensors, np.array([number])])
    return [np.isin(tensor, result) for tensor in tensors]


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_are_put_and_taken_are_read_as_their_reference_reads_them(seed: int) -> None:
    """Against every number of a run: the fewest elements of any, and channels that each number meets."""
    draw, chip = random.Random(seed), load_machine("transformer64").chip
    for _ in range(60):
        shape = tuple(draw.randint(1, 5) for _ in range(draw.randint(1, 4)))
        axis = draw.randrange(len(shape))
        count = draw.randint(1, shape[axis])
        rows = (*shape[:axis], count, *shape[axis + 1 :])
        if draw.random() < 0.5:
            op, shapes = PutRows(axis, draw.random() < 0.5, draw.randint(0, shape[axis] - count)), [shape, rows]
            output_shape = shape
        else:
            op, shapes, output_shape = TakeRows(axis, 0, count, shape[axis] - count, rows), [shape], rows
        names = ["x", "z"][: len(shapes)]
        types = {n: TensorType(s, "int8") for n, s in zip((*names, "y"), (*shapes, output_shape))} | {
            "number": TensorType((1,), "int8")
        }
        reads = reads_of(Layer(Node("n", op, (*names, "number"), ("y",)), types, {}, chip))
        met = [_rows_met(op, shapes, number) for number in range(shape[axis])]
        for at, name in enumerate(names):
            assert reads[name].elements <= min(int(one[at].sum()) for one in met), (op, shapes)
            assert not reads[name].channels or all(one[at].reshape(-1, shapes[at][-1]).any(0).all() for one in met), (op, shapes)
        if isinstance(op, PutRows) and not op.again:
            assert reads["x"].elements == prod(shape) - prod(rows) and reads["z"].elements == prod(rows)


CACHED = """<ir_version: 11, opset_import: ["" : 24]>
step (float[1,1,16] x, int64[1] place, float[1,1,32,16] past_key) => (float[1,1,1,32] y, float[1,1,32,16] present_key)
<int64[4] rows = {1, 1, 1, 16}> {
  k = MatMul(x, w)
  q = MatMul(x, u)
  key = Reshape(k, rows)
  query = Reshape(q, rows)
  present_key = TensorScatter<axis = -2>(past_key, key, place)
  turned = Transpose<perm = [0, 1, 3, 2]>(present_key)
  y = MatMul(query, turned)
}"""


def test_a_cache_that_is_read_comes_and_what_makes_its_new_row(tmp_path: Path) -> None:
    model, rng = onnx.parser.parse_model(CACHED), np.random.default_rng(0)
    weights = {n: numpy_helper.from_array(rng.normal(size=(16, 16)).astype(np.float32), n) for n in ("w", "u")}
    model.graph.initializer.extend(weights.values())
    onnx.save(model, tmp_path / "model.onnx")
    machine = load_machine("transformer64")
    figures = build(tmp_path / "model.onnx", BuildOptions(machine, states=("past_key=present_key",))).figures
    require_bounds(figures)
    bounds = figures["bounds"]["dram"]
    assert bounds["inputs"] == 16 + (32 - 1) * 16  # the number is no operand
    assert bounds["constants"] >= 2 * 16 * 16
