"""Operations element by element and products of matrices in tiles are one operation, and leave the same bytes."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "bench"))
from mutate_programs import Subject, subjects_of  # type: ignore[import-not-found]

from simulator import DramRange, DramRangeKind
from tests.simulator.machine_programs import load, make, store
from tests.simulator.merging_cases import OUT, compare_mutants, compare_regions, move, require_merged, run_both_ways
from toolchain.api import BuildOptions, build
from toolchain.machine import Elementwise, ElementwiseKind, MachineOp, MatrixProduct, Table
from toolchain.runtime import Session, random_feeds
from toolchain.runtime.builtin_backends import Simulator

# two products of activations; a difference and a product whose second operand is broadcast; a function by itself
NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,128,64] x) => (float y) {
        q = MatMul(x, k)
        t = Transpose<perm=[0,2,1]>(x)
        s = MatMul(q, t)
        m = ReduceMax<axes=[2], keepdims=1>(s)
        d = Sub(s, m)
        e = Exp(d)
        v = MatMul(e, q)
        f = Mul(v, m)
        g = Sigmoid(f)
        y = Add(g, x)
    }"""
MACHINES = ("edge16", "ws8_pow2", "transformer64")
KINDS_OF_TILES = (Elementwise, MatrixProduct, Table)


pytestmark = pytest.mark.usefixtures("merge_always")


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> list[Subject]:
    proto, rng = onnx.parser.parse_model(NETWORK), np.random.default_rng(0)
    proto.graph.initializer.append(numpy_helper.from_array(rng.normal(size=(64, 64)).astype(np.float32), "k"))
    path = tmp_path_factory.mktemp("pointwise") / "m.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(proto), path)
    return [s for level in (0, 1) for s in subjects_of([path], list(MACHINES), level)]


def test_merged_tiles_leave_the_same_bytes(subjects: list[Subject]):
    require_merged(subjects)


def test_tiles_of_a_layer_are_one_operation(subjects: list[Subject]):
    subject = subjects[0]
    ((merged, _),) = compare_regions(subject.file(subject.program), 1)
    assert merged is not None
    pairs = zip(subject.program.ops, subject.program.layers, strict=True)
    layers = {(type(op), layer) for op, layer in pairs if isinstance(op, KINDS_OF_TILES)}
    steps = Counter(type(step.op) for step in merged.steps if isinstance(step.op, KINDS_OF_TILES))
    assert steps == Counter(kind for kind, _ in layers)
    assert all(step.merged for step in merged.steps)


def test_mutants_leave_the_bytes_of_their_operations(subjects: list[Subject]):
    assert compare_mutants(subjects, 11, 96) > 10


PARTS = [DramRange(DramRangeKind.INPUT, "x", 0, 256), DramRange(DramRangeKind.OUTPUT, "y", 256, 512)]
SCALE = {"multiplier": 1 << 30, "shift": 33, "clamp_low": -128, "clamp_high": 127}


def count_steps(ops: list[MachineOp], kind: type[MachineOp]) -> int:
    """Return how many operations of the kind the merged program has; it leaves the bytes of its operations."""
    merged, equal = run_both_ways([load(0, 0, 256), *ops], PARTS)
    assert equal
    return sum(isinstance(step.op, kind) for step in merged.steps)


def product(rows: int, right: int, at: int, **fields: Any) -> MatrixProduct:
    """4 rows of 8 bytes at 8 `rows`, by a matrix of 8 rows and 4 columns."""
    sizes = {"rows": 4, "inner": 8, "columns": 4, "batches": 1, "a_row_stride": 8, "b_row_stride": 4, "b_column_stride": 1}
    places = {"a_address": 8 * rows, "b_address": right, "output_address": OUT + 4 * at, "output_row_stride": 4}
    return make(MatrixProduct, **(sizes | places | {"emit": 1} | SCALE | fields))


STORES = [store(OUT, 256 + 64 * k, 64) for k in range(4)]
FOUR = [product(row, 128, row) for row in (0, 4, 8, 12)]


def test_products_with_one_right_operand_are_one():
    assert count_steps([*FOUR, *STORES], MatrixProduct) == 1


def test_products_with_another_right_operand_stay_apart():
    assert count_steps([*FOUR[:2], product(8, 160, 8), product(12, 160, 12), *STORES], MatrixProduct) == 2
    assert count_steps([*FOUR[:3], product(12, 128, 12, b_row_stride=1, b_column_stride=8), *STORES], MatrixProduct) == 2


def difference(row: int, right: int, **fields: Any) -> Elementwise:
    """A row of 4 pixels of 8 channels less one pixel, broadcast."""
    sizes = {"kind": ElementwiseKind.SUB, "height": 1, "width": 4, "channels": 8}
    left = {"a_address": 32 * row, "a_row_stride": 32, "a_column_stride": 8, "a_channel_stride": 1}
    output = {"output_address": OUT + 32 * row, "output_row_stride": 32, "output_column_stride": 8}
    scales = {f"{name}_{key}": value for name in "ab" for key, value in (("multiplier", 1 << 30), ("shift", 30))}
    scales |= {"output_multiplier": 1 << 30, "output_shift": 31, "clamp_low": -128, "clamp_high": 127}
    return make(Elementwise, **(sizes | left | {"b_address": right, "b_channel_stride": 1} | output | scales | fields))


def test_a_broadcast_operand_is_the_same_for_all_rows_or_moves_evenly():
    assert count_steps([*(difference(row, 128) for row in range(4)), *STORES], Elementwise) == 1
    assert count_steps([*(difference(row, 128 + 8 * row) for row in range(4)), *STORES], Elementwise) == 1
    uneven = [difference(row, 128 + 8 * (row * row % 5)) for row in range(4)]
    assert count_steps([*uneven, *STORES], Elementwise) > 1


def test_every_second_row_of_a_gathered_operand_is_the_next_row():
    """The map has pixels of which each half lies elsewhere; between the rows that are read are others."""
    pixels = {"count2": 24, "source_stride2": 4, "destination_stride2": 8}
    gather = [move(128 * k, 1024 + 4 * k, 4, **pixels) for k in range(2)]
    rows = [difference(row, 248, a_address=1024 + 64 * row) for row in range(3)]
    assert count_steps([*gather, *rows, *(store(OUT, 256 + 96 * k, 96) for k in range(2)), store(OUT, 448, 64)], Elementwise) == 1


def test_channels_of_a_broadcast_operand_are_one():
    rows = [difference(row, 128 + row, b_channel_stride=0) for row in range(4)]
    assert count_steps([*rows, *STORES], Elementwise) == 1
    swapped = {"a_channel_stride": 0, "b_channel_stride": 1, "b_row_stride": 32, "b_column_stride": 8}
    exchanges = [difference(row, 32 * row, a_address=128 + row, a_row_stride=0, a_column_stride=0, **swapped) for row in range(4)]
    assert count_steps([*exchanges, *STORES], Elementwise) == 1


def test_constants_in_the_image_are_read_where_a_run_needs_them(tmp_path: Path):
    """The sum's second operand is a map of constants; a convolution's weights are kept beside the image."""
    for body, reads in (("y = Add(h, c)", True), ("y = MaxPool<kernel_shape=[2,2]>(h)", False)):
        text = f"""<ir_version: 8, opset_import: ["" : 17]>
            g (float[1,8,64,64] x) => (float y) {{
                h = Conv<kernel_shape=[3,3]>(x, k)
                {body}
            }}"""
        proto, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
        arrays = {"k": (8, 8, 3, 3), "c": (1, 8, 62, 62)} if reads else {"k": (8, 8, 3, 3)}
        proto.graph.initializer.extend(
            numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in arrays.items()
        )
        path = tmp_path / "m.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(proto), path)
        built = build(path, BuildOptions("edge16", level=0))
        assert [merged.reads_constants for merged, _ in compare_regions(built.data, 1) if merged] == [reads]
        merging, plain = Session(built.data), Session(built.data, backend=Simulator(merges=False))
        for seed in range(3):
            feeds = random_feeds(merging.get_inputs(), seed)
            assert np.array_equal(merging.run(None, feeds)[0], plain.run(None, feeds)[0])
