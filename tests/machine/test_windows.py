"""Rows that windows reach, against counting them; bytes that timing charges, against the accesses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolchain.isa import load_machine
from toolchain.machine import Convolution, Space, accesses, demand, parameter_bytes
from toolchain.machine.registry import OPERATIONS
from toolchain.machine.window_rows import rows_reached, taps_met, window_reach

CHIP = load_machine("edge16").chip
CASES = settings(max_examples=500, deadline=None, derandomize=True, database=None)
SMALL = st.integers(1, 6)


@CASES
@given(st.integers(1, 12), SMALL, SMALL, SMALL, st.integers(0, 7), st.integers(1, 40))
def test_rows_are_those_that_some_window_sees(output: int, kernel: int, stride: int, dilation: int, pad: int, size: int) -> None:
    rows_read = {y * stride + k * dilation - pad for y in range(output) for k in range(kernel)} & set(range(size))
    reaches = window_reach(output, kernel, stride, dilation, pad, size)
    rows = [r.first + i * r.step + j for r in reaches for i in range(r.count) for j in range(r.length)]
    dense = dilation == 1 and kernel >= stride
    assert sorted(rows) == sorted(rows_read), reaches
    assert not dense or len(reaches) <= 1
    assert len(reaches) <= min(output, kernel) + 1  # padding may cut the first run in two
    assert rows_reached(output, kernel, stride, dilation, pad, size) == len(rows_read)


@pytest.mark.parametrize(
    "axis",
    [(257, 257, 2, 2, 0, 2000), (40000, 2, 3, 1, 1, 119_000), (16384, 6, 10, 4, 9, 170_000), (300, 300, 301, 307, 50, 180_000)],
)
def test_rows_of_many_windows_are_those_that_some_window_sees(axis: tuple[int, ...]) -> None:
    output, kernel, stride, dilation, pad, size = axis
    rows_seen = np.unique(np.add.outer(np.arange(output) * stride, np.arange(kernel) * dilation) - pad)
    reaches = window_reach(*axis)
    rows = [np.add.outer(r.first + np.arange(r.count) * r.step, np.arange(r.length)).ravel() for r in reaches]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), rows_seen[(rows_seen >= 0) & (rows_seen < size)])


def test_few_reads_cover_windows_with_holes() -> None:
    """Check 100 x 100 windows that lie 5 apart, with 2 x 2 taps that lie 2 apart: each tap is one read."""
    window = {f"{name}_{axis}": n for name, n in (("kernel", 2), ("stride", 5), ("dilation", 2)) for axis in ("height", "width")}
    sizes = {"input_height": 498, "input_width": 498, "output_height": 100, "output_width": 100}
    touched = accesses(convolution(**window, **sizes, output_address=1 << 20), CHIP)
    inputs = sorted((a.address, a.counts, a.strides) for a in touched if not a.write and len(a.counts) == 2)
    assert inputs == [(at, (100, 100), (5 * 128, 5 * 16)) for at in (0, 2 * 16, 2 * 128, 2 * 128 + 2 * 16)]


@settings(CASES, max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 9), SMALL, SMALL, SMALL, st.integers(0, 7), st.integers(0, 40)), min_size=1, max_size=8))
def test_taps_are_those_that_meet_the_input(axes: list[tuple[int, ...]]) -> None:
    counts = taps_met(*np.array(axes, np.int64).T)
    for at, (output, kernel, stride, dilation, pad, size) in enumerate(axes):
        met = [k for y in range(output) for k in range(kernel) if 0 <= y * stride + k * dilation - pad < size]
        assert (counts[0][at], counts[1][at]) == taps_met(*axes[at]) == (len(met), sum(met))


def convolution(**changes: int) -> Convolution:
    fields = dict.fromkeys(Convolution.parameters(), 0)
    fields |= {name: 1 for name in fields if name.startswith(("kernel", "stride", "dilation"))}
    op = OPERATIONS["convolution"](**fields)
    assert isinstance(op, Convolution)
    sizes = {"input_height": 8, "input_width": 8, "output_height": 8, "output_width": 8, "input_channels": 16}
    strides = {"input_row_stride": 128, "input_column_stride": 16, "output_channels": 16, "emit": 1}
    strides |= {"output_row_stride": 128, "output_column_stride": 16, "output_address": 4096}
    return replace(op, **sizes | strides | changes)


def test_a_strided_pointwise_convolution_is_charged_for_what_it_reads() -> None:
    """Check every second row and column of 8 x 8 positions of 16 channels: a quarter."""
    half = {"stride_height": 2, "stride_width": 2, "output_height": 4, "output_width": 4}
    parameters = parameter_bytes(16, CHIP) + 16 * 16  # and weights
    complete, quarter = demand(convolution(), CHIP), demand(convolution(**half), CHIP)
    assert complete.at(Space.SRAM).read_burst_bytes == 8 * 8 * 16 + parameters
    assert quarter.at(Space.SRAM).read_burst_bytes == 4 * 4 * 16 + parameters
    read = accesses(convolution(**half), CHIP)[0]
    assert (read.counts, read.strides, read.inner_bytes) == ((4, 4), (256, 32), 16)


@CASES
@given(st.data())
def test_timing_charges_the_input_bytes_of_the_accesses(data: st.DataObject) -> None:
    def drawn(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    changes = {f"{name}_{axis}": drawn(1, 4) for name in ("kernel", "stride", "dilation") for axis in ("height", "width")}
    changes |= {"pad_top": drawn(0, 3), "pad_left": drawn(0, 3), "output_height": drawn(1, 5), "output_width": drawn(1, 5)}
    op = convolution(**changes)
    inputs = [a for a in accesses(op, CHIP) if not a.write and a.address < 4096 and a.inner_bytes == 16 and len(a.counts) >= 2]
    weights = 16 * 16 * op.kernel_height * op.kernel_width
    charged = demand(op, CHIP).at(Space.SRAM).read_burst_bytes - weights - parameter_bytes(16, CHIP)
    assert sum(a.bytes for a in inputs) == charged
