"""Every machine operation, bit for bit against plain loops, on machines of different arithmetic."""

from __future__ import annotations

import json

import numpy as np
import pytest
import random_operations
from machine_programs import accumulator_changes, around, int16_changes, make, random_bytes, small_chip
from plain_machine import run_plain
from random_operations import Draw

from simulator import simulate
from toolchain.hw import list_shipped_names, load_chip
from toolchain.hw.chip import Chip
from toolchain.machine import Convolution, MatrixProduct, find_unsupported

CHIPS = {
    "int8": small_chip(),
    "int4": small_chip(numerics__weight="int4", numerics__rounding="single_half_up", engines__mac__dataflow="ws"),
    "both_weights": small_chip(numerics__more_weights=("int4",)),
    "uint8": small_chip(numerics__activation="uint8"),
    "uint8_wrap": small_chip(numerics__activation="uint8", numerics__overflow="wrap", numerics__rounding="half_even"),
    "uint8_memory": small_chip(numerics__activation="uint8", **accumulator_changes()),
    "int16": small_chip(**int16_changes(), engines__mac__accumulators={"entries": 4096, "bits": 48}),
    "int16_int4": small_chip(**int16_changes(), numerics__weight="int4", numerics__rounding="half_away"),
    "narrow": small_chip(engines__mac__accumulators={"entries": 4096, "bits": 24}, numerics__rounding="half_even"),
    "memory": small_chip(**accumulator_changes()),
    "wide_memory": small_chip(**int16_changes(), **accumulator_changes(bits=40), numerics__per_op={"matrix_product": "floor"}),
    "narrow_memory": small_chip(**accumulator_changes(bits=24), numerics__rounding="half_even"),
    "entries": small_chip(layout__parameters={"bias_bits": 40, "multiplier_bits": 32, "shift_bits": 6}),
    "tiles": small_chip(layout__weight_tile=(4, 3)),
    "tiles_int4": small_chip(numerics__weight="int4", layout__weight_tile=(5, 3), layout__parameters={"bias_bits": 33}),
    "granules": small_chip(layout__feature_maps={"granule": 4}),
    "granules_int16": small_chip(
        **int16_changes(), engines__mac__accumulators={"entries": 4096, "bits": 48}, layout__feature_maps={"granule": 4}
    ),
    "granules_memory": small_chip(**accumulator_changes(), layout__feature_maps={"granule": 8, "order": "line"}),
    "wrap": small_chip(numerics__overflow="wrap", numerics__rounding="floor"),
    "pow2": small_chip(numerics__scale={"kind": "pow2"}, numerics__rounding="truncate"),
    "pow2_entries": small_chip(
        numerics__scale={"kind": "pow2", "shift_min": -31},
        numerics__rounding="truncate",
        layout__parameters={"bias_bits": 32, "multiplier_bits": 0, "shift_bits": 7},
    ),
    "per_op": small_chip(
        numerics__per_op={
            "convolution": "single_half_up",
            "matrix_product": "half_even",
            "average_pool": "half_away",
            "add": "floor",
            "sub": "truncate",
            "mul": "half_away",
            "rescale": "single_half_up",
            "prelu": "floor",
        }
    ),
}
KINDS = ("convolution", "depthwise", "accumulated", "matrix_product", "pool", "elementwise", "table", "moves")
KINDS += ("turned", "batched", "softmax")
CASES = 12


def queues(ops, machine):
    return [op.queue(machine) or 0 for op in ops]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chip", CHIPS)
def test_equals_plain_loops(chip, kind):
    machine = CHIPS[chip]
    for seed in range(CASES):
        draw = Draw(machine, 1000 * KINDS.index(kind) + seed)
        ops = getattr(random_operations, kind)(draw)
        size = draw.next + 64
        assert size <= machine.sram.size
        image = random_bytes(np.random.default_rng(seed), size)
        draw.fill_parameters(image)
        program = around(ops, queues(ops, machine), size)
        run = simulate(machine, program, None, image, [(0, size)])
        assert run.dram.tobytes() == run_plain(machine, program, image.tobytes()), (seed, ops)


def test_image_given_is_not_changed():
    machine, draw = CHIPS["int8"], Draw(CHIPS["int8"], 3)
    ops = random_operations.table(draw)
    image = random_bytes(np.random.default_rng(0), draw.next)
    before = image.copy()
    run = simulate(machine, around(ops, [1], image.size), None, image, [(0, image.size)])
    assert np.array_equal(image, before)
    assert not np.array_equal(run.dram, before)


@pytest.mark.parametrize("kind", ["matrix_product", "convolution"])
def test_narrow_accumulators_wrap_between_operations(kind):
    """300 products of -128 by -128, twice, in 24 bits: 9,830,400 wraps to -6,946,816."""
    product = {"rows": 1, "inner": 300, "columns": 1, "a_row_stride": 300, "b_row_stride": 1, "b_address": 300}
    product |= {"multiplier": 1 << 30, "shift": 30 + 17, "output_row_stride": 1}
    window = {"input_channels": 300, "output_channels": 1, "output_height": 1, "output_width": 1, "input_height": 1}
    window |= {"input_width": 1, "input_column_stride": 300, "input_row_stride": 300, "weight_address": 300}
    window |= {"parameter_address": 600, "output_row_stride": 1, "output_column_stride": 1}
    operation, fields = (MatrixProduct, product) if kind == "matrix_product" else (Convolution, window)
    fields |= {"output_address": 616, "clamp_low": -128, "clamp_high": 127}
    image = np.full(620, 0x80, np.uint8)
    image[600:616] = np.frombuffer(np.array([0], "<i8").tobytes() + np.array([1 << 30, 47], "<i4").tobytes(), np.uint8)
    ops = [make(operation, **fields), make(operation, **fields, accumulate=1, emit=1)]
    run = simulate(CHIPS["narrow"], around(ops, [0, 0], 620), None, image, [(0, 620)])
    assert run.dram[616:617].view(np.int8)[0] == round(-6_946_816 / (1 << 17)) == -53


def in_sram(chip: Chip) -> Chip:
    data = json.loads(chip.model_dump_json())
    data["memories"] = {name: memory for name, memory in data["memories"].items() if name in ("dram", "sram")}
    for engine in data["engines"].values():
        engine["memories"] = None if engine["kind"] == "dma" else {}
    return Chip.model_validate_json(json.dumps(data))


@pytest.mark.parametrize("name", list_shipped_names())
def test_shipped_machines(name):
    """The machines have their own numerics and their operations; those with buffers beside the sram run with
    everything in the sram.
    """
    machine, ran = in_sram(load_chip(name)), 0
    for kind in KINDS:
        for seed in range(4):
            draw = Draw(machine, 500 * KINDS.index(kind) + seed)
            ops = getattr(random_operations, kind)(draw)
            if any(find_unsupported(op, machine) for op in ops):
                continue
            size = draw.next + 64
            image = random_bytes(np.random.default_rng(seed), size)
            draw.fill_parameters(image)
            program = around(ops, queues(ops, machine), size)
            run = simulate(machine, program, None, image, [(0, size)])
            assert run.dram.tobytes() == run_plain(machine, program, image.tobytes()), (kind, seed)
            ran += 1
    assert ran >= 12
