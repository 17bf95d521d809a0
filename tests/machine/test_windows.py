"""Rows that windows reach, against counting them; bytes that timing charges, against the accesses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
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
    assert rows_reached(output, kernel, stride, dilation, pad, size) == len(rows_read)


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
