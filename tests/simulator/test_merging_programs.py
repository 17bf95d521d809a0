"""Programs written by hand that a careless merging of tiles gets wrong: each leaves the bytes of its operations one by one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from simulator import DramRange, DramRangeKind, merge_program, prepare_program
from simulator.merging.box_copies import boxes_of_bytes
from simulator.merging.evaluation_checks import is_one_operation
from simulator.merging.tiles import COLUMN, ROW, Evaluation, Operand, Tile
from simulator.merging.value_numbers import ARRAY_BITS, ValueNumbers, fit_affine
from tests.simulator.machine_programs import load, make, small_chip, store
from tests.simulator.merging_cases import COLUMN_BYTES, OUT, PARTS, ROW_BYTES, in_order, move, pool, run_both_ways
from toolchain.hw.chip import Chip
from toolchain.machine import (
    Convolution,
    MachineOp,
    Pool,
    Space,
    Table,
    dispatch_program,
    pack_parameters,
    parameter_bytes,
)


@pytest.fixture(autouse=True)
def merge_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["simulator.merging.merge_program"], "_MOST_SINGLES", 1.0)


def pools_of_two_rows() -> list[MachineOp]:
    return [pool(0, 2), pool(64, 2), store(OUT, 256, 128), store(OUT, 384, 128)]


def test_every_row_is_the_same():
    repeated = move(0, 0, ROW_BYTES, source_space=Space.DRAM, count2=4, source_stride2=0, destination_stride2=ROW_BYTES)
    _, equal = run_both_ways([repeated, *pools_of_two_rows()])
    assert equal


@pytest.mark.parametrize("size_bytes", [ROW_BYTES, COLUMN_BYTES])
def test_rows_or_columns_lie_in_reverse(size_bytes: int):
    loads = [load(128 - size_bytes - at, at, size_bytes) for at in range(0, 128, size_bytes)]
    _, equal = run_both_ways([*loads, *pools_of_two_rows()])
    assert equal


def test_rows_that_lie_apart_are_one_operation_with_a_stride():
    """An operation of one row has no stride of its own. What reads such rows, one by one, has none either."""
    rows = [pool(64 * k, 1, output_address=OUT + 32 * k) for k in range(4)]
    copies = [pool(OUT + 32 * k, 1, output_address=1024 + 32 * k) for k in range(4)]
    merged, equal = run_both_ways([load(0, 0, 256), *rows, *copies, store(OUT, 256, 128), store(1024, 384, 128)])
    assert equal
    first, second = (step.op for step in merged.steps)
    assert isinstance(first, Pool)
    assert isinstance(second, Pool)
    assert (first.stride_height, first.output_height, second.stride_height, second.output_height) == (2, 4, 1, 4)


def test_an_addend_lies_in_reverse():
    chip = small_chip()
    weights = np.random.default_rng(0).integers(-8, 8, 64, np.int8)
    parameters = pack_parameters(np.zeros(8, np.int64), np.full(8, 1 << 30), np.array([34]), chip)
    block = parameters + weights.tobytes()
    parts = [*PARTS, DramRange(DramRangeKind.CONSTANT, "", 512, 512 + len(block))]
    fields = {f"add_{name}_multiplier": 1 << 30 for name in ("input", "addend", "output")}
    fields |= {
        "add_input_shift": 31,
        "add_addend_shift": 31,
        "add_output_shift": 31,
        "add_clamp_low": -128,
        "add_clamp_high": 127,
    }
    fields |= {
        "use_add": 1,
        "addend_row_stride": 32,
        "addend_column_stride": 8,
        "emit": 1,
        "input_channels": 8,
        "output_channels": 8,
    }
    fields |= {"parameter_address": 2048, "weight_address": 2048 + len(parameters)}

    def convolution(at: int) -> Convolution:
        window = {n: getattr(pool(at, 2), n) for n in Pool.parameters() if n in Convolution.parameters()}
        return make(Convolution, **(window | fields | {"addend_address": 1024 + at}))

    reverse = [load(96 - at, 1024 + at, ROW_BYTES) for at in range(0, 128, ROW_BYTES)]
    ops = [load(512, 2048, len(block)), load(128, 0, 128), *reverse, convolution(0), convolution(64)]
    stores = [store(OUT, 256, 128), store(OUT, 384, 128)]
    _, equal = run_both_ways([*ops, *stores], parts, 512 + len(block), chip, block)
    assert equal


def test_tiles_that_leave_a_hole_stay_apart():
    """The hole's element would be read behind the end of the DRAM."""
    parts = [DramRange(DramRangeKind.OUTPUT, "y", 0, 256), DramRange(DramRangeKind.INPUT, "x", 256, 376)]
    narrow = pool(96, 1, input_width=3, output_width=3)
    stores = [store(OUT, 0, 120), store(OUT, 120, 120), store(OUT, 240, 16)]
    merged, equal = run_both_ways([load(256, 0, 120), pool(0, 3), narrow, *stores], parts, 376)
    assert equal
    assert len(merged.steps) == 2


def test_a_row_that_no_window_reaches_lies_outside():
    """Rows 1 and 3 are read; row 0 would lie in front of the DRAM."""
    window = {"kernel_height": 2, "dilation_height": 2, "stride_height": 2, "pad_top": 1, "input_height": 4, "output_height": 2}
    stores = [store(OUT, 256 + at, 64) for at in range(0, 256, 64)]
    _, equal = run_both_ways([load(0, 32, ROW_BYTES), load(64, 96, ROW_BYTES), pool(0, 2, **window), *stores])
    assert equal


def make_convolution(chip: Chip) -> Convolution:
    """8 pixels of 8 channels at 0; parameters and weights at 1024."""
    fields = {"input_channels": 8, "input_row_stride": 64, "input_column_stride": 8, "input_height": 1, "input_width": 8}
    fields |= {"output_channels": 8, "output_row_stride": 64, "output_column_stride": 8, "output_height": 1, "output_width": 8}
    fields |= {"output_address": OUT, "emit": 1, "clamp_low": -128, "clamp_high": 127}
    return make(Convolution, weight_address=1024 + int(parameter_bytes(8, chip)), parameter_address=1024, **fields)


def test_constants_that_a_state_lies_over_differ_between_runs():
    chip = small_chip()
    parts = [
        DramRange(DramRangeKind.CONSTANT, "", 0, 256),
        DramRange(DramRangeKind.STATE, "s", 128, 256),
        DramRange(DramRangeKind.INPUT, "x", 256, 320),
        DramRange(DramRangeKind.OUTPUT, "y", 320, 384),
    ]
    op = make_convolution(chip)
    parameters = pack_parameters(np.zeros(8, np.int64), np.full(8, 1 << 30), np.array([36]), chip)
    flow = dispatch_program(chip, in_order([load(256, 0, 64), load(0, 1024, 256), op, store(OUT, 320, 64)], chip))
    prepared = prepare_program(chip, flow, None, 384, (), parts=parts, timing=False)
    rng = np.random.default_rng(2)
    image = rng.integers(0, 256, 384, np.uint8)
    image[: len(parameters)] = np.frombuffer(parameters, np.uint8)
    merged = merge_program(chip, flow, prepared.order.legal, parts, image)
    image[128:320] = rng.integers(0, 256, 192, np.uint8)
    expected = prepared.run(image).memory["dram"]
    assert merged is not None
    assert merged.run(image)
    assert np.array_equal(image, expected)


def test_wide_pixels_are_no_rows_and_columns():
    """Bytes 0, 25,537 of one pixel and 11,074 of the next are as far apart in numbers of 16 bits, and not in memory."""
    channels, first = 40_000, 39_999
    chip = small_chip(memories__sram__size=1 << 18, memories__dram__size=1 << 20)
    parts = [DramRange(DramRangeKind.INPUT, "x", 0, 2 * channels), DramRange(DramRangeKind.OUTPUT, "y", 1 << 17, (1 << 17) + 3)]
    strides = {f"{side}_{axis}_stride": n for side in ("input", "output") for axis, n in (("row", 80_000), ("column", 40_000))}
    op = pool(0, 1, output_address=100_000, input_width=2, output_width=2, channels=channels, **strides)
    gather = [move(100_000 + at, 200_000 + k, 1) for k, at in enumerate((first, channels, channels + 65_536 - first))]
    # a table reads three bytes side by side
    looked_up = make(
        Table, height=1, width=1, channels=3, input_address=200_000, output_address=200_016, table_address=200_064,
        input_row_stride=3, input_column_stride=3, output_row_stride=3, output_column_stride=3,
    )  # fmt: skip
    ops = [load(0, 0, 2 * channels), load(0, 200_064, 256), op, *gather, looked_up, store(200_016, 1 << 17, 3)]
    _, equal = run_both_ways(ops, parts, (1 << 17) + 3, chip)
    assert equal


def place_tiles(*places: tuple[int, int, int]) -> Evaluation:
    """Tiles of 2 rows, 4 columns and 8 channels at these places."""

    def tile(y: int, x: int, c: int) -> Tile:
        number = (2 << ARRAY_BITS) + (1 << 12) * (ROW + COLUMN) + y * ROW + x * COLUMN + c
        return Tile(0, pool(0, 2), "kind", (Operand(number, (ROW, COLUMN, 1)),), (2, 4, 8), 1)

    evaluation = Evaluation(3, tile(*places[0]))
    for place in places:
        assert evaluation.add(tile(*place)) is not None
    return evaluation


@pytest.mark.parametrize(
    ("places", "is_one"),
    [
        ([(0, 0, 0)], True),
        ([(0, 0, 0), (2, 0, 0)], True),
        ([(0, 0, 0), (1, 0, 0)], True),  # the same row of two tiles
        ([(0, 0, 0), (3, 0, 0)], False),  # a row of none
        ([(0, 0, 0), (2, 0, 0), (0, 4, 0)], False),  # a corner of none
        ([(0, 0, 0), (0, 0, 8), (2, 0, 8)], False),  # channels of none
    ],
)
def test_every_element_is_one_of_a_tile(places: list[tuple[int, int, int]], is_one: bool):
    evaluation = place_tiles(*places)
    source = place_tiles(*((y, x, c) for y in range(0, 8, 2) for x in (0, 4) for c in (0, 8)))
    assert is_one_operation(evaluation, {2: source}) is is_one


def test_an_operand_lies_in_its_array():
    evaluation, small, large = place_tiles((0, 0, 0), (2, 0, 0)), place_tiles((0, 0, 0)), place_tiles((0, 0, 0), (2, 0, 0))
    assert is_one_operation(evaluation, {2: large})
    assert not is_one_operation(evaluation, {2: small})
    assert not is_one_operation(evaluation, {})


def test_bytes_of_two_arrays_side_by_side_are_two_boxes():
    """A map whose pixels have channels of both looks so."""
    pixels = np.arange(16, dtype=np.int64)[:, None]
    channels = np.concatenate(
        [(5 << ARRAY_BITS) + 8 * pixels + np.arange(8), (6 << ARRAY_BITS) + 4 * pixels + np.arange(4)], axis=1
    )
    boxes = boxes_of_bytes(np.arange(16 * 12), channels.ravel())
    shapes = [tuple((n, step) for n, step in zip(box.counts, box.steps) if n > 1) for box in boxes]
    assert shapes == [((16, 8), (8, 1)), ((16, 4), (4, 1))]


def test_later_runs_decode_no_constants():
    weighted = make_convolution(chip := small_chip())
    flow = dispatch_program(chip, in_order([load(256, 0, 64), load(0, 1024, 256), weighted, store(OUT, 320, 64)], chip))
    parts = [DramRange(kind, "", at, at + 64) for kind, at in ((DramRangeKind.INPUT, 256), (DramRangeKind.OUTPUT, 320))]
    prepared = prepare_program(chip, flow, None, 384, [(0, 256)], parts=parts, timing=False)
    image = np.zeros(384, np.uint8)
    image[:128] = np.frombuffer(pack_parameters(np.zeros(8, np.int64), np.full(8, 1 << 30), np.array([36]), chip), np.uint8)
    for _ in range(3):
        prepared.run(image)
    decoder = prepared.decoder
    assert decoder.weights.cache_info().misses == decoder.channel_requant.cache_info().misses == 1


def test_numbers_of_several_arrays_are_not_affine():
    """The first and the last are of one array, those between are not."""
    numbers = np.array([[5, 6], [4, 5]], np.int64) << ARRAY_BITS
    assert fit_affine(numbers) is None
    assert fit_affine(np.array([[5, 6], [7, 8]], np.int64) + (5 << ARRAY_BITS)) is not None


def test_large_memories_take_no_memory_until_they_are_written():
    before = resident_bytes()
    values = ValueNumbers((1 << 20, 1 << 26))
    values.write(1, 1 << 25, (64,), (1,), np.arange(1 << ARRAY_BITS, (1 << ARRAY_BITS) + 64))
    assert resident_bytes() - before < 1 << 27


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
