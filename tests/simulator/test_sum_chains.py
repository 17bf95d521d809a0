"""Convolutions over parts of the input channels, which the accumulators add up, are one tile where they read what one would."""

from __future__ import annotations

import sys
from dataclasses import replace
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
from tests.simulator.machine_programs import load, make, small_chip, store
from tests.simulator.merging_cases import OUT, PARTS, compare_mutants, compare_regions, move, pool, require_merged, run_both_ways
from toolchain.hw.chip import Chip
from toolchain.machine import Convolution, Depthwise, MachineOp, pack_parameters

pytestmark = pytest.mark.usefixtures("merge_always")

CHIP = small_chip()
PARAMETERS = pack_parameters(np.arange(8) * 50, np.full(8, 1 << 30), np.array([36]), CHIP)
CONSTANTS = PARAMETERS + np.random.default_rng(0).integers(-128, 128, 8 * 9 * 8, np.int8).tobytes()
WEIGHTS = 2048 + len(PARAMETERS)  # in sram
BLOCK = 8 * 9 * 4  # bytes of weights for half of the input channels
BEGIN = load(512, 2048, len(CONSTANTS))


def part(at: int, channel: int, **fields: Any) -> Convolution:
    """A convolution of 3 x 3 of four channels from there on, of two rows at an address. The map has 8 rows, and 8 channels."""
    names = Convolution.parameters()
    window = {n: getattr(pool(at, 3), n) for n in type(pool(0, 1)).parameters() if n in names}
    rows = {"input_height": 3 if at in (0, 192) else 4, "output_height": 2, "pad_top": int(at == 0), "pad_left": 1}
    window |= rows | {"kernel_height": 3, "kernel_width": 3, "input_address": max(at - 32, 0) + channel}
    weights = {"weight_address": WEIGHTS + channel // 4 * BLOCK, "parameter_address": 2048}
    channels = {"input_channels": 4, "output_channels": 8, "input_zero_point": 3}
    return make(Convolution, **(window | weights | channels | fields))


def chain(at: int, **fields: Any) -> list[MachineOp]:
    """Both halves of the input channels; the fields are those of the second one."""
    return [part(at, 0), part(at, 4, **({"accumulate": 1, "emit": 1} | fields))]


TILES = range(0, 256, 64)


def count_convolutions(tiles: list[MachineOp], chip: Chip = CHIP) -> int:
    """Return how many convolutions the merged program of these tiles has; it leaves the bytes of its operations."""
    parts = [*PARTS, DramRange(DramRangeKind.CONSTANT, "", 512, 512 + len(CONSTANTS))]
    ops = [load(0, 0, 256), load(512, 2048, len(CONSTANTS)), *tiles, *(store(OUT + at, 256 + at, 64) for at in TILES)]
    merged, equal = run_both_ways(ops, parts, 512 + len(CONSTANTS), chip, CONSTANTS)
    assert equal
    return sum(isinstance(step.op, Convolution) for step in merged.steps)


def test_chains_of_a_layer_are_one_operation():
    assert count_convolutions([op for at in TILES for op in chain(at)]) == 1


def test_weights_come_after_each_other_to_one_place():
    """The first half's weights are gone when the second half is added."""
    halves = [load(512 + len(PARAMETERS) + k * BLOCK, WEIGHTS, BLOCK) for k in range(2)]
    tiles = [op for at in TILES for pair in zip(halves, chain(at, weight_address=WEIGHTS)) for op in pair]
    assert count_convolutions(tiles) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"input_zero_point": 4},
        {"pad_left": 0},
        {"input_height": 2},
    ],
)
def test_parts_with_other_windows_are_no_chain(fields: dict[str, int]):
    tiles = [op for at in TILES[:3] for op in chain(at)]
    assert count_convolutions([*tiles, *chain(192, **fields)]) == 3


def test_parts_that_lie_elsewhere_are_gathered():
    """The second half of the channels lies behind the map; in one tile, the first half takes its place."""
    halves = move(4, 256, 4, count2=32, source_stride2=8, destination_stride2=8)
    elsewhere = {at: 256 + max(at - 32, 0) for at in TILES}
    tiles = [op for at in TILES for op in chain(at, input_address=elsewhere[at])]
    assert count_convolutions([halves, *tiles]) == 1
    assert count_convolutions([halves, *tiles[:-1], part(192, 4, accumulate=1, emit=1, input_address=160)]) == 2


def test_parts_come_after_each_other_to_one_place():
    """The second half of the channels is written over the first. Even and odd rows are of an array each, and so gathered."""
    rows = [pool(32 * k, 1, output_address=1024 + 32 * k, clamp_low=k % 2 - 128) for k in range(8)]
    halves = [move(1024 + channel, 256, 4, count2=32, source_stride2=8, destination_stride2=8) for channel in (0, 4)]
    tiles: list[MachineOp] = list(rows)
    for at in TILES:
        for half, op in zip(halves, chain(at)):
            tiles += [half, replace(op, input_address=256 + max(at - 32, 0))]
    assert count_convolutions(tiles) == 1


def test_channels_that_were_written_over_are_no_part():
    """The second half of the channels of the last rows has other values than those that the other tiles read."""
    tiles = [op for at in TILES[:3] for op in chain(at)]
    first, second = chain(192)
    other = move(0, 228, 4, count2=4, source_stride2=8, destination_stride2=8)
    assert count_convolutions([*tiles, first, other, second]) == 3


def test_sums_of_another_operation_begin_no_chain():
    """Sums of a depthwise convolution come first; are left without being emitted; and are added in the middle."""
    tiles = [op for at in TILES[:3] for op in chain(at)]
    fields = {n: getattr(part(192, 0), n) for n in Depthwise.parameters() if n in Convolution.parameters()}
    depthwise = make(Depthwise, **(fields | {"channels": 8}))
    assert count_convolutions([*tiles, depthwise, *chain(192)[1:]]) == 2
    assert count_convolutions([*tiles, *chain(192)[:1], *chain(192)]) == 2
    middle = [part(192, 0), make(Depthwise, **(fields | {"channels": 8, "accumulate": 1})), *chain(192)[1:]]
    assert count_convolutions([*tiles, *middle]) == 3


NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,128,14,14] x) => (float y) {
        h = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, k)
        r = Relu(h)
        c = Concat<axis=1>(r, x)
        d = Conv<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(c, u)
        y = Add(d, d)
    }"""


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> list[Subject]:
    """Return programs in which the second convolution is a chain of two or three, over two arrays."""
    proto, rng = onnx.parser.parse_model(NETWORK), np.random.default_rng(0)
    for name, shape in {"k": (128, 128, 3, 3), "u": (16, 256, 3, 3)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    path = tmp_path_factory.mktemp("chains") / "m.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(proto), path)
    return subjects_of([path], ["edge16", "ethos_u55_256"], 2)


def test_chains_of_a_network_leave_the_same_bytes(subjects: list[Subject]):
    require_merged(subjects)
    for subject in subjects:
        assert any(isinstance(op, Convolution) and op.accumulate for op in subject.program.ops)
        ((merged, _),) = compare_regions(subject.file(subject.program), 1)
        assert merged is not None
        assert sum(isinstance(step.op, Convolution) for step in merged.steps) == 2


def test_mutants_of_chains_leave_the_bytes_of_their_operations(subjects: list[Subject]):
    assert compare_mutants(subjects, 11, 96) > 20
