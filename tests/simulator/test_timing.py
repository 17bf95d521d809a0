"""The closed forms of one operation, and DMA bursts counted byte by byte."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine_programs import int16_changes, load, make, small_chip

from toolchain.machine import (
    NO_DEMAND,
    Convolution,
    Copy,
    Depthwise,
    Elementwise,
    Fill,
    MatrixProduct,
    Pool,
    Signal,
    Space,
    columns_of,
    demand,
)
from toolchain.machine.units import array as units
from toolchain.machine.units.array import Operands, operand_reads
from toolchain.machine.units.dma import burst_bytes


def product_cycles(*arguments: Any, **named: Any) -> Any:
    return units.product_cycles(*arguments, **named).cycles


def depthwise_cycles(*arguments: Any, **named: Any) -> Any:
    return units.depthwise_cycles(*arguments, **named).cycles


def array(dataflow: str = "os", rows: int = 16, columns: int = 16, **changes):
    mac = {f"engines__mac__{key}": value for key, value in changes.items()}
    return small_chip(engines__mac__dataflow=dataflow, engines__mac__rows=rows, engines__mac__columns=columns, **mac).array


@pytest.mark.parametrize("dataflow", ["os", "ws", "is"])
def test_folds_that_overlap_pay_fill_and_drain_once(dataflow):
    p, k, m = 100, 50, 40
    plain, overlapped = array(dataflow, 8, 8), array(dataflow, 8, 8, folds_overlap=True)
    folds = {"os": 13 * 5, "ws": 7 * 5, "is": 7 * 13}[dataflow]
    stream, edge = {"os": (k, 14), "ws": (p, 22), "is": (m, 22)}[dataflow]
    assert product_cycles(plain, p, k, m, Operands(1.0)) == folds * (stream + edge)
    assert product_cycles(overlapped, p, k, m, Operands(1.0)) == folds * stream + edge


def test_weights_load_no_faster_than_a_row_a_cycle():
    """ws, overlapping folds, fewer pixels than rows: the next weights take `rows` cycles to load."""
    mac = array("ws", 16, 8, folds_overlap=True)
    assert product_cycles(mac, 4, 64, 8, Operands(1.0)) == 3 * 16 + 4 + 2 * 16 + 8 - 2


def test_depth_and_rate():
    assert product_cycles(array(depth=4), 16, 30, 16, Operands(1.0)) == 8 + 30
    assert product_cycles(array(depth=4), 16, 30, 16, Operands(0.5)) == 16 + 30
    assert product_cycles(array(depth=4), 16, 30, 16, Operands(2.0)) == 4 + 30


def test_depthwise_modes():
    """49 pixels, 9 taps, 40 channels on 16x16."""
    assert depthwise_cycles(array("os"), 49, 9, 40, Operands(1.0)) == 4 * 3 * (9 + 30)
    assert depthwise_cycles(array("ws"), 49, 9, 40, Operands(1.0)) == 9 * 3 * (49 + 46)
    assert depthwise_cycles(array("os", depthwise="column"), 49, 9, 40, Operands(1.0)) == 40 * 4 * (9 + 30)
    assert depthwise_cycles(array("ws", depthwise="column"), 49, 9, 40, Operands(1.0)) == 40 * 1 * (49 + 46)
    assert depthwise_cycles(array("is", depthwise="column"), 49, 9, 40, Operands(1.0)) == 40 * 4 * (1 + 46)
    overlapped = array("os", depthwise="diagonal", folds_overlap=True)
    assert depthwise_cycles(overlapped, 49, 9, 40, Operands(1.0)) == 4 * 3 * 9 + 30


def test_an_operation_may_name_another_dataflow_and_mode():
    """Operations on an array with several modes cost the same as where the array has that mode alone.

    This holds for one operation at a time and in columns.
    """
    mac = array("os", more_dataflows=("is", "ws"), depthwise="diagonal", more_depthwise=("column",))
    alone = [array(flow) for flow in mac.dataflows]
    assert [product_cycles(mac, 49, 90, 40, Operands(1.0), dataflow=i) for i in range(3)] == [
        product_cycles(one, 49, 90, 40, Operands(1.0)) for one in alone
    ]
    assert [operand_reads(mac, 490, 40, i) for i in range(3)] == [operand_reads(one, 490, 40) for one in alone]
    flows, modes = np.repeat([0, 1, 2], 2), np.tile([0, 1], 3)
    each = [
        depthwise_cycles(array(flow, depthwise=mode), 49, 9, 40, Operands(1.0))
        for flow in mac.dataflows
        for mode in mac.depthwise_modes
    ]
    assert [depthwise_cycles(mac, 49, 9, 40, Operands(1.0), *pair) for pair in zip(flows.tolist(), modes.tolist())] == each
    columns = np.full(6, 49), np.full(6, 9), np.full(6, 40)
    assert depthwise_cycles(mac, *columns, Operands(1.0), flows, modes).tolist() == each
    assert product_cycles(mac, *columns, Operands(1.0), dataflow=flows).tolist() == [
        product_cycles(alone[i], 49, 9, 40, Operands(1.0)) for i in flows
    ]


CONVOLUTION = make(
    Convolution,
    input_height=6,
    input_width=7,
    input_channels=5,
    kernel_height=3,
    kernel_width=3,
    output_height=4,
    output_width=5,
    output_channels=12,
    emit=1,
)


def test_convolution_bytes():
    chip = small_chip(memories__sram__latency_cycles=3, memories__sram__write_latency_cycles=2)
    d = demand(CONVOLUTION, chip)
    assert d.macs == 4 * 5 * 45 * 12
    assert d.compute_cycles == 5 * 2 * (45 + 4 + 8 - 2)
    # inputs once for each of 2 column folds; weights once, for the accumulators hold all pixels; parameters
    assert d.at(Space.SRAM).read_burst_bytes == 2 * 6 * 7 * 5 + 45 * 12 + 12 * 16
    assert d.at(Space.SRAM).write_burst_bytes == 4 * 5 * 12
    assert d.latency_cycles == 5
    silent = replace(CONVOLUTION, emit=0)
    sram_demand = demand(silent, chip).at(Space.SRAM)
    charges = (sram_demand.read_burst_bytes, sram_demand.write_burst_bytes, demand(silent, chip).latency_cycles)
    assert charges == (2 * 6 * 7 * 5 + 45 * 12, 0, 3)
    fused = replace(CONVOLUTION, use_add=1, use_table=1)
    assert demand(fused, chip).at(Space.SRAM).read_burst_bytes == d.at(Space.SRAM).read_burst_bytes + 4 * 5 * 12 + 256


def test_depthwise_and_int4_bytes():
    op = make(
        Depthwise, input_height=4, input_width=4, channels=5, kernel_height=3, kernel_width=3, output_height=2, output_width=2
    )
    chip = small_chip(numerics__weight="int4", **int16_changes())
    d = demand(op, chip)
    assert d.at(Space.SRAM).read_burst_bytes == 4 * 4 * 5 * 2 + 9 * 3
    assert d.macs == 4 * 9 * 5
    assert d.compute_cycles == 1 * 1 * (18 + 4 + 8 - 2)


def test_int16_matrix_product_takes_two_passes():
    op = make(MatrixProduct, rows=4, inner=10, columns=8, emit=1)
    assert demand(op, small_chip()).compute_cycles == 10 + 10
    assert demand(op, small_chip(**int16_changes())).compute_cycles == 40 + 10  # rate 0.5 of int16 by int8, halved


def test_vector():
    chip = small_chip()
    op = make(
        Pool,
        input_height=6,
        input_width=6,
        channels=3,
        kernel_height=2,
        kernel_width=3,
        stride_height=2,
        stride_width=3,
        output_height=3,
        output_width=2,
    )
    assert demand(op, chip)[:1] == (4 + 6 * math.ceil(18 / 8),)
    assert demand(op, chip).at(Space.SRAM).read_burst_bytes == 6 * 6 * 3
    broadcast = make(
        Elementwise,
        height=4,
        width=4,
        channels=8,
        a_row_stride=32,
        a_column_stride=8,
        a_channel_stride=1,
        b_channel_stride=1,
    )
    d = demand(broadcast, chip)
    assert (d.compute_cycles, d.at(Space.SRAM).read_burst_bytes, d.at(Space.SRAM).write_burst_bytes) == (4 + 16, 128 + 8, 128)


def test_passes_of_a_vector_function():
    """Three of a sum; a pool has one for each tap, but at least four."""
    rates = {"add": {"lanes": 8, "passes": 3}, "max_pool": {"lanes": 8, "passes": 4}}
    chip = small_chip(engines__vector__functions=rates)
    size = {"height": 4, "width": 4, "channels": 8}
    assert demand(make(Elementwise, **size), chip).compute_cycles == 4 + 3 * 16
    for kernel, passes in ((1, 4), (2, 4), (3, 9)):
        op = make(Pool, kernel_height=kernel, kernel_width=kernel, output_height=4, output_width=4, channels=8)
        assert demand(op, chip).compute_cycles == 4 + passes * 16
    ops = [make(Elementwise, **size), make(Elementwise, **size, kind=1)]
    assert demand(
        columns_of(ops), small_chip(engines__vector__functions={**rates, "sub": {"lanes": 8}})
    ).compute_cycles.tolist() == [
        52,
        20,
    ]


def test_copies():
    chip = small_chip(
        memories__dram__burst_bytes=64,
        memories__dram__latency_cycles=100,
        memories__dram__write_latency_cycles=30,
        memories__sram__write_latency_cycles=2,
    )
    d = demand(load(60, 0, 8), chip)
    assert (d.at(Space.DRAM).read_bytes, d.at(Space.DRAM).read_burst_bytes, d.at(Space.SRAM).write_burst_bytes) == (8, 128, 8)
    assert (d.compute_cycles, d.latency_cycles) == (1, 102)
    fill = make(Fill, destination_space=Space.DRAM, inner_elements=10, count2=3, destination_stride2=64, destination_address=0)
    d = demand(fill, chip)
    assert (d.at(Space.DRAM).write_bytes, d.at(Space.DRAM).write_burst_bytes, d.compute_cycles, d.latency_cycles) == (
        30,
        192,
        2,
        30,
    )


def test_signals_ask_for_nothing():
    assert demand(Signal(0, 0), small_chip()) == NO_DEMAND


def count_bytes(address: int, inner: int, counts, strides, burst: int) -> int:
    """Blocks touched by each run, run by run; runs that continue one another are one."""
    starts = [address]
    for n, stride in zip(counts, strides):
        starts = [s + i * stride for s in starts for i in range(n)]
    runs: list[list[int]] = []
    for s in starts:
        if runs and runs[-1][1] == s:
            runs[-1][1] += inner
        else:
            runs.append([s, s + inner])
    return burst * sum((last - 1) // burst - first // burst + 1 for first, last in runs)


def test_bursts_equal_a_count_run_by_run():
    rng = np.random.default_rng(1)
    for _ in range(1500):
        inner = int(rng.integers(1, 40))
        n = [int(v) for v in rng.integers(1, 6, 3)]
        s2 = inner + int(rng.integers(0, 2)) * int(rng.integers(0, 50))
        s1 = n[2] * s2 + int(rng.integers(0, 2)) * int(rng.integers(1, 50))
        s0 = n[1] * s1 + int(rng.integers(0, 2)) * int(rng.integers(1, 50))
        if n[2] > 1 and s2 > inner:
            # only a dense inside continues a run in the closed form; keep gaps visible outside too
            s1, s0 = s1 + inner, s0 + n[1] * inner + inner
        burst = int(rng.choice([1, 4, 16, 24, 64]))
        address = int(rng.integers(0, 200))
        byte_count = burst_bytes(address, inner, tuple(n), (s0, s1, s2), burst)
        assert byte_count == count_bytes(address, inner, n, (s0, s1, s2), burst), (address, inner, n, (s0, s1, s2), burst)


def test_a_matrix_is_turned_block_by_block():
    """The matrix has 20 rows of 20 bytes, 64 apart, in blocks of 16.

    A row is read in pieces of 16 and 4, a column written in the same.
    """
    shape = {"inner_bytes": 20, "count2": 20, "source_stride2": 64, "destination_stride2": 64, "transpose": 1}
    chip = small_chip(memories__dram__burst_bytes=64, engines__dma__transpose_block=16)
    for ends in ({"destination_space": Space.SRAM}, {"source_space": Space.SRAM}):
        op = make(Copy, **shape, **ends)
        d = demand(op, chip).at(Space.DRAM)
        assert (d.read_burst_bytes + d.write_burst_bytes, d.read_bytes + d.write_bytes) == (2 * 20 * 64, 400)
        complete = demand(op, small_chip(memories__dram__burst_bytes=64, engines__dma__transpose_block=20)).at(Space.DRAM)
        assert complete.read_burst_bytes + complete.write_burst_bytes == 20 * 64
        single = demand(op, small_chip(memories__dram__burst_bytes=64, engines__dma__transpose_block=1)).at(Space.DRAM)
        assert single.read_burst_bytes + single.write_burst_bytes == 400 * 64
        assert demand(op, chip).compute_cycles == 400 / 16


def test_turned_copies_beside_others_in_columns():
    chip = small_chip(memories__dram__burst_bytes=16)
    shape = {"inner_bytes": 6, "count2": 9, "source_stride2": 10, "destination_stride2": 11, "count_outer": 3}
    strides = {"source_stride_outer": 100, "destination_stride_outer": 120}
    ops = [make(Copy, **shape, **strides, transpose=turn, source_address=at) for turn in (0, 1) for at in (0, 5, 16)]
    for group in (ops, ops[:3], ops[3:]):
        column = columns_of(group)
        d, ranges = demand(column, chip), column.ranges(chip)
        for i, op in enumerate(group):
            alone = demand(op, chip)
            assert [np.broadcast_to(v, len(group))[i] for v in d.at(Space.DRAM)] == list(alone.at(Space.DRAM)), op
            assert [int(np.broadcast_to(a.end, len(group))[i]) for a in ranges] == [a.end for a in op.ranges(chip)]
            assert [int(np.broadcast_to(a.bytes, len(group))[i]) for a in ranges] == [a.bytes for a in op.ranges(chip)]


def test_products_one_after_another():
    """Three products take three times the folds; an operand that all share is read for each of them."""
    fields = {"rows": 4, "inner": 6, "columns": 8, "emit": 1, "a_batch_stride": 24, "output_batch_stride": 32}
    one, three = (demand(make(MatrixProduct, **fields, batches=n), small_chip()) for n in (1, 3))
    assert (three.compute_cycles, three.macs) == (3 * one.compute_cycles, 3 * one.macs)
    assert three.at(Space.SRAM).read_bytes == 3 * one.at(Space.SRAM).read_bytes
    overlapped = small_chip(engines__mac__folds_overlap=True)
    one, three = (demand(make(MatrixProduct, **fields, batches=n), overlapped) for n in (1, 3))
    assert three.compute_cycles == one.compute_cycles + 2 * 6  # fill and drain of 4 + 8 - 2 cycles once


def test_a_dense_copy_is_one_run():
    op = make(
        Copy,
        destination_space=Space.SRAM,
        inner_bytes=10,
        count0=2,
        count1=3,
        count2=4,
        source_stride0=120,
        source_stride1=40,
        source_stride2=10,
        destination_stride0=200,
        destination_stride1=60,
        destination_stride2=12,
    )
    chip = small_chip(memories__dram__burst_bytes=64, memories__sram__burst_bytes=4)
    d = demand(op, chip)
    assert (d.at(Space.DRAM).read_bytes, d.at(Space.DRAM).read_burst_bytes) == (240, 256)
    assert d.at(Space.SRAM).write_burst_bytes == count_bytes(0, 10, (2, 3, 4), (200, 60, 12), 4)
