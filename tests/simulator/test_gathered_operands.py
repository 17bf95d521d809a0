"""Tiles whose operands lie in several arrays are one operation where all read the same values at the same places."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "bench"))
from mutate_programs import Subject, subjects_of  # type: ignore[import-not-found]

from simulator import DramRange, DramRangeKind
from simulator.merging.gathered_maps import GatheredMap, Reading, boxes_of_map
from simulator.merging.tiles import COLUMN, ROW, Evaluation, Operand, Tile
from simulator.merging.value_numbers import ARRAY_BITS
from tests.simulator.machine_programs import load, make, store
from tests.simulator.merging_cases import (
    COLUMN_BYTES,
    OUT,
    ROW_BYTES,
    compare_mutants,
    compare_regions,
    move,
    pool,
    require_merged,
    run_both_ways,
)
from toolchain.machine import Convolution, Depthwise, End, MachineOp, Pool, Table

# a sum in tiles, a map twice as large, and both side by side in one map; its halves are read again
NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,8,32,32] x) => (float y) {
        h = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, k)
        a = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(h)
        b = AveragePool<kernel_shape=[2,2], strides=[2,2]>(h)
        s = Mul(a, b)
        n = Conv<kernel_shape=[1,1]>(s, v)
        r = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(n, , scales)
        c = Concat<axis=1>(r, h)
        d = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(c, u)
        p = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(c)
        e = Conv<kernel_shape=[1,1]>(p, w)
        f = Add(d, e)
        y = Concat<axis=1>(f, r)
    }"""
MACHINES = ("edge16", "ethos_u55_256", "ws8_pow2", "nvdla_small")
TABLES = 4096


def write_network(folder: Path) -> Path:
    proto, rng = onnx.parser.parse_model(NETWORK), np.random.default_rng(0)
    shapes = {"k": (8, 8, 3, 3), "v": (8, 8, 1, 1), "u": (8, 16, 3, 3), "w": (8, 16, 1, 1)}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()} | {"scales": np.array([1, 1, 2, 2])}
    proto.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), n) for n, v in arrays.items())
    path = folder / "m.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(proto), path)
    return path


pytestmark = pytest.mark.usefixtures("merge_always")


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> list[Subject]:
    path = write_network(tmp_path_factory.mktemp("gathered"))
    return [s for level in (0, 1) for s in subjects_of([path], list(MACHINES), level)]


def test_gathered_operands_leave_the_same_bytes(subjects: list[Subject]):
    require_merged(subjects)


def test_tiles_of_a_layer_over_several_arrays_are_one_operation(subjects: list[Subject]):
    """edge16 at level 0 cuts each layer into several operations; those of the sum leave an array each."""
    subject = subjects[0]
    ((merged, _),) = compare_regions(subject.file(subject.program), 1)
    assert merged is not None
    kinds = (Convolution, Depthwise, Pool)
    layers = {layer for op, layer in zip(subject.program.ops, subject.program.layers) if isinstance(op, kinds)}
    steps = [step for step in merged.steps if isinstance(step.op, kinds)]
    assert len(steps) == len(layers) < sum(isinstance(op, kinds) for op in subject.program.ops)


def test_mutants_with_gathered_operands_leave_the_bytes_of_their_operations(subjects: list[Subject]):
    assert compare_mutants(subjects, 5, 128) > 20


def look_up(source: int, target: int, table: int = TABLES) -> Table:
    """A row of 4 pixels of 8 channels through a table."""
    strides = {
        f"{side}_{axis}_stride": n for side in ("input", "output") for axis, n in (("row", ROW_BYTES), ("column", COLUMN_BYTES))
    }
    return make(Table, height=1, width=4, channels=8, input_address=source, output_address=target, table_address=table, **strides)


PARTS = [
    DramRange(DramRangeKind.INPUT, "x", 0, 256),
    DramRange(DramRangeKind.OUTPUT, "y", 256, 512),
    DramRange(DramRangeKind.INPUT, "t", 512, 768),
]
LOADS = [load(0, 2048, 256), load(512, TABLES, 256)]
ROWS = [look_up(2048 + ROW_BYTES * k, ROW_BYTES * k) for k in range(4)]  # an array each


def count_pools(ops: list[MachineOp]) -> int:
    """Return how many pools the merged program has; it leaves the bytes of its operations."""
    merged, equal = run_both_ways(ops, PARTS, 768)
    assert equal
    return sum(isinstance(step.op, Pool) for step in merged.steps)


def test_rows_of_an_array_each_are_one_operation():
    ops = [*LOADS, *ROWS, pool(0, 2), pool(64, 2), store(OUT, 256, 128), store(OUT, 384, 128)]
    assert count_pools(ops) == 1


def test_windows_along_rows_are_no_rows_of_one_map():
    """A window goes along a row of what it reads, and the next row is no number of its steps away."""
    window = {"kernel_height": 4, "input_row_stride": COLUMN_BYTES, "input_width": 1, "output_width": 1}
    down = [pool(OUT + ROW_BYTES * k, 4, output_height=1, **window) for k in range(2)]
    stores = [*(store(2 * OUT + ROW_BYTES * k, 256 + 8 * k, 8) for k in range(2)), store(2048, 272, 240)]
    assert count_pools([*LOADS, pool(2048, 2, output_address=OUT), *down, *stores]) == 3


def test_another_value_at_the_same_place_is_no_part():
    """Row 1 is written over between two windows of two rows, by a value made before both."""
    window = {"kernel_height": 2, "input_height": 2, "output_height": 1}
    first, second = pool(0, 1, **window), pool(ROW_BYTES, 1, **window)
    after = [store(OUT, 256, 64), *(store(OUT, 320 + 64 * k, 64) for k in range(3))]
    prepared = [*LOADS, *ROWS, look_up(2048 + 7 * ROW_BYTES, 256)]
    assert count_pools([*prepared, first, second, *after]) == 1
    assert count_pools([*prepared, first, move(256, ROW_BYTES, ROW_BYTES), second, *after]) == 2


def test_values_made_of_an_operation_are_no_part_of_its_operand():
    """Rows 2 and 3 are made of what the first tile leaves."""
    later = [look_up(OUT + ROW_BYTES * k, 64 + ROW_BYTES * k) for k in range(2)]
    stores = [store(OUT, 256, 128), store(OUT, 384, 128)]
    assert count_pools([*LOADS, *ROWS[:2], pool(0, 2), *later, pool(64, 2), *stores]) == 2


def test_a_tile_that_is_refused_leaves_the_distance_of_rows():
    """The second tile would be the next row, but reads a value of the evaluation's own array."""
    operand = Operand(1, (ROW, COLUMN, 1), True)
    evaluation = Evaluation(6, Tile(0, End(), "kind", (operand,), (1, 3, 4), 1))
    assert evaluation.add(evaluation.first, {0: [reading(0, 4, 1)]}) is not None
    below = replace(evaluation.first, operands=(replace(operand, number=operand.number + 4 * ROW),))
    assert evaluation.add(below, {0: [reading(0, 6, 1)]}) is None
    assert evaluation.first.operands == (operand,)


def reading(first: int, array: int, rows: int = 2) -> Reading:
    numbers = (array << ARRAY_BITS) + np.arange(rows * 12, dtype=np.int64).reshape(rows, 3, 4)
    return Reading(np.arange(first, first + rows), np.array([0, 2, 4]), numbers)


def test_a_map_grows_on_all_sides():
    gathered = GatheredMap()
    for first, at in ((0, (4, 4, 8)), (1, (5, 0, 0)), (-3, (0, 9, 4)), (0, (4, 4, 8))):
        assert gathered.fits(reading(first, 5), at, 6)
        gathered.add(reading(first, 5), at)
    part = gathered.cut((3, 3, 7), (4, 7, 6))
    assert np.array_equal(part[1:3, 1:7:2, 1:5], reading(0, 5).numbers)
    assert np.count_nonzero(part) == 24
    assert not gathered.cut((100, 0, 0), (2, 2, 2)).any()


def test_a_map_refuses_other_values_and_later_ones():
    gathered = GatheredMap()
    gathered.add(reading(0, 5), (0, 0, 0))
    assert gathered.fits(reading(0, 5), (0, 0, 0), 6)
    assert not gathered.fits(reading(1, 5), (0, 0, 0), 6)
    assert not gathered.fits(reading(8, 6), (0, 0, 0), 6)
    assert not gathered.fits(reading(8, 0), (0, 0, 0), 6)
    assert np.count_nonzero(gathered.cut((0, 0, 0), (10, 10, 10))) == 24


def test_a_tile_that_is_refused_adds_none_of_its_readings():
    """The second operand is in order and the first part of the first; the second part reads other values than the first tile."""
    operands = tuple(Operand(1, (ROW, COLUMN, 1), True, name) for name in ("input", "addend"))
    evaluation = Evaluation(6, Tile(0, End(), "kind", operands, (2, 3, 4), 1))
    assert evaluation.add(evaluation.first, {1: [reading(0, 4)], 0: [reading(0, 5)]}) is not None
    below = replace(evaluation.first, operands=tuple(replace(o, number=o.number + 2 * ROW) for o in operands))
    assert evaluation.add(below, {1: [reading(0, 4)], 0: [reading(0, 5), reading(-1, 5)]}) is None
    assert [np.count_nonzero(gathered.numbers) for gathered in evaluation.maps.values()] == [24, 24]
    assert evaluation.add(below, {1: [reading(0, 3)], 0: [reading(0, 3)]}) is not None


def test_boxes_of_a_map_cover_its_values():
    numbers = np.zeros((4, 4, 3), np.int64)
    numbers[1:, :, :2] = (5 << ARRAY_BITS) + np.arange(24).reshape(3, 4, 2)
    covered = np.zeros(numbers.size, np.int64)
    for box in boxes_of_map(numbers):
        for index in np.ndindex(box.counts):
            covered[box.address + np.dot(index, box.strides)] = box.number + np.dot(index, box.steps)
    assert np.array_equal(covered, numbers.ravel())
