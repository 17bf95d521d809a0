"""Stripes of layers in turns: what is read is there, in a buffer no larger than it says, and every row is made once."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolchain.ops.kit.tile import Box
from toolchain.ops.kit.window import Window, output_size
from toolchain.schedule.dependences import PartialBuffer
from toolchain.schedule.sampling import BEGIN, sample_kinds
from toolchain.schedule.stripes import (
    BufferReset,
    BufferShift,
    CascadeLayer,
    LayerCall,
    Step,
    Stripes,
    StripeShapes,
    Sweep,
    group_calls,
)


@st.composite
def chains(draw: Any) -> tuple[list[CascadeLayer], dict[str, str]]:
    """2 to 6 layers, each over the one before, some over an earlier tensor of as many rows too; all but the last are kept."""
    height = draw(st.integers(3, 40))
    parts, heights = [], {"x": height}
    for index in range(draw(st.integers(2, 6))):
        source = "x" if index == 0 else f"t{index - 1}"
        kernel, stride, dilation = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
        pads = draw(st.integers(0, kernel - 1)), draw(st.integers(0, kernel - 1))
        rows = output_size(heights[source], kernel, stride, dilation, pads)
        if rows < 1:
            kernel, stride, dilation, pads, rows = 1, 1, 1, (0, 0), heights[source]
        reads = {source: [Window(heights[source], kernel, stride, dilation, pads[0])]}
        same_height = [n for n, h in heights.items() if h == rows and n not in reads]
        if same_height and draw(st.booleans()):
            reads[draw(st.sampled_from(same_height))] = [Window(rows, 1, 1, 1, 0)]
        parts.append(CascadeLayer(index, f"t{index}", rows, 8, reads))
        heights[f"t{index}"] = rows
    return parts, {f"t{i}": f"t{i}" for i in range(len(parts) - 1)}


@settings(max_examples=300, deadline=None)
@given(case=chains(), height=st.integers(1, 8))
def test_what_is_read_is_there(case: tuple[list[CascadeLayer], dict[str, str]], height: int) -> None:
    parts, buffered = case
    stripes = StripeShapes(parts, buffered).of(height)
    assert stripes is not None
    _check(parts, buffered, stripes)


@given(case=chains(), height=st.integers(1, 8), channels=st.integers(1, 7))
def test_blocks_of_channels_go_through_all_stripes_one_by_one(
    case: tuple[list[CascadeLayer], dict[str, str]], height: int, channels: int
) -> None:
    parts, buffered = case
    stripes = StripeShapes(parts, buffered).of(height, sweep=Sweep(channels))
    assert stripes is not None
    blocks: list[tuple[tuple[int, int], list[Step]]] = []
    for step in chain.from_iterable(stripes.steps):
        if isinstance(step, BufferReset) and (not blocks or blocks[-1][0] != step.channels):
            blocks.append((step.channels, []))
        if not isinstance(step, BufferReset):
            assert (step.extent.channels if isinstance(step, LayerCall) else step.channels) == blocks[-1][0]
            blocks[-1][1].append(step)
    assert [block for block, _ in blocks] == [(at, min(channels, 8 - at)) for at in range(0, 8, channels)]
    for _, steps in blocks:
        _check(parts, buffered, Stripes((tuple(steps),), stripes.rows))


@given(case=chains(), height=st.integers(1, 8), columns=st.integers(1, 12))
def test_blocks_of_columns_make_what_they_need(
    case: tuple[list[CascadeLayer], dict[str, str]], height: int, columns: int
) -> None:
    """As wide as high, with the same windows."""
    parts, buffered = [replace(part, width=part.height, across=part.reads) for part in case[0]], case[1]
    stripes, last = StripeShapes(parts, buffered), parts[-1]
    assert stripes.in_columns(set(buffered)) == all(any(p.output in other.reads for other in parts) for p in parts[:-1])
    if not stripes.in_columns(set(buffered)):
        return
    in_blocks = stripes.of(height, sweep=Sweep(columns=columns))
    assert in_blocks is not None
    blocks: list[list[Step]] = []
    for steps in in_blocks.steps:
        blocks += [[]] if isinstance(steps[0], BufferReset) else []
        blocks[-1] += steps
    spans: list[tuple[int, int]] = []
    for block in blocks:
        buffer_columns = {step.root: step.columns or (0, 0) for step in block if isinstance(step, BufferReset)}
        calls = [step for step in block if isinstance(step, LayerCall)]
        spans += {call.extent.columns or (0, 0) for call in calls if call.layer == last.layer}
        assert all(step.columns == buffer_columns[step.root] for step in block if isinstance(step, BufferShift))
        for call in calls:
            for name, windows in parts[call.layer].reads.items():
                for window in windows if name in buffered else ():
                    (first, count), span = window.get_input_span(*(call.extent.columns or (0, 0))), buffer_columns[name]
                    assert span[0] <= first and first + count <= sum(span) and span[1] <= in_blocks.widths[name]
        alone = tuple(s for s in block if not isinstance(s, BufferReset))
        _check(parts, buffered, Stripes((alone,), in_blocks.rows))
    assert spans == [(at, min(columns, last.width - at)) for at in range(0, last.width, columns)]
    again = stripes.count_recomputed(columns)
    assert again[-1] == 1 and again == [
        sum(n for _, n in columns_of_part) / p.width for p, columns_of_part in zip(parts, _columns_by_block(parts, blocks))
    ]


@given(case=chains(), height=st.integers(1, 8), channels=st.integers(0, 7), columns=st.integers(0, 12))
def test_calls_in_the_middle_are_found_without_the_others(
    case: tuple[list[CascadeLayer], dict[str, str]], height: int, channels: int, columns: int
) -> None:
    parts, buffered = [replace(part, width=part.height, across=part.reads) for part in case[0]], case[1]
    stripes = StripeShapes(parts, buffered)
    columns = columns if stripes.in_columns(set(buffered)) and not channels else 0
    planned = stripes.of(height, sweep=Sweep(channels, columns))
    assert planned is not None
    calls = group_calls(planned)
    assert stripes.middle(height, planned.sweep) == [calls[i][len(calls[i]) // 2] for i in range(len(parts))]
    blocks = [len(calls[i]) // len(rows) for i, rows in enumerate(stripes.rows_made(height))]
    assert [rows * times for rows, times in zip(stripes.rows_made(height), blocks)] == [
        [call.extent.rows for call in calls[i]] for i in range(len(parts))
    ]


def _columns_by_block(parts: list[CascadeLayer], blocks: list[list[Step]]) -> list[list[tuple[int, int]]]:
    """Of each part, the columns that each block makes."""
    return [
        [
            next(s.extent.columns or (0, 0) for s in block if isinstance(s, LayerCall) and s.layer == part.layer)
            for block in blocks
        ]
        for part in parts
    ]


def test_columns_of_several_readers_are_those_of_all() -> None:
    """One reads two columns further to the left, and none of those on the right."""
    across = [
        {"x": [Window(12, 1, 1, 1, 0)]},
        {"t0": [Window(12, 1, 1, 1, 2)]},
        {n: [Window(12, 1, 1, 1, 0)] for n in ("t1", "t0")},
    ]
    parts = [CascadeLayer(i, f"t{i}", 12, 8, windows, 12, windows) for i, windows in enumerate(across)]
    stripes = StripeShapes(parts, {"t0": "t0", "t1": "t1"}).of(4, sweep=Sweep(columns=4))
    assert stripes is not None and stripes.widths == {"t0": 6, "t1": 4}
    second = [s for steps in stripes.steps for s in steps if isinstance(s, LayerCall) and s.layer == 0][3]
    assert second.extent.columns == (2, 6)


def test_what_lies_in_a_buffer_is_told_from_its_first_column() -> None:
    rows = PartialBuffer()
    rows.use(Box("t", (0, 0, 0, 0), (1, 1, 4, 8)), 7)
    rows.column = 32
    assert rows.before(Box("t", (0, 0, 36, 0), (1, 1, 4, 8))) == []
    assert rows.before(Box("t", (0, 0, 34, 0), (1, 1, 4, 8))) == [7]


def test_columns_need_that_nothing_is_made_for_others() -> None:
    parts, buffered = _chain(3, 3, 3)
    wide_parts = [replace(part, width=12, across=part.reads) for part in parts]
    assert StripeShapes(wide_parts, buffered).in_columns({"t0", "t1"})
    assert not StripeShapes(wide_parts, buffered).in_columns({"t0"})
    assert not StripeShapes(parts, buffered).in_columns({"t0", "t1"})
    assert not StripeShapes([*wide_parts[:2], replace(wide_parts[2], across={"t1": []})], buffered).in_columns({"t0", "t1"})


def _check(parts: list[CascadeLayer], buffered: dict[str, str], stripes: Stripes) -> None:
    rows_by_place: dict[str, dict[int, int]] = {root: {} for root in buffered.values()}  # by place in the buffer: the row
    tops, next_rows = dict.fromkeys(rows_by_place, 0), {part.output: 0 for part in parts}
    for step in chain.from_iterable(stripes.steps):
        if isinstance(step, BufferShift):
            rows = [step.first + i for _, count in step.tensors for i in range(count)]
            assert step.first - tops[step.root] == step.distance > 0
            assert all(rows_by_place[step.root].get(row - tops[step.root]) == row for row in rows)
            tops[step.root] = step.first
            rows_by_place[step.root] = {row - step.first: row for row in rows}
            continue
        assert isinstance(step, LayerCall)
        part, (first, count) = parts[step.layer], step.extent.rows
        for name, windows in part.reads.items():
            for window in windows if name in buffered else ():
                start, size = window.get_input_span(first, count)
                assert all(rows_by_place[name].get(row - tops[name]) == row for row in range(start, start + size))
        assert first == next_rows[part.output]
        next_rows[part.output] += count
        if part.output in buffered:
            for row in range(first, first + count):
                assert 0 <= row - tops[part.output] < stripes.rows[part.output]
                rows_by_place[part.output][row - tops[part.output]] = row
    assert next_rows == {part.output: part.height for part in parts}


def _chain(*kernels: int, height: int = 12) -> tuple[list[CascadeLayer], dict[str, str]]:
    parts = [
        CascadeLayer(i, f"t{i}", height, 8, {"x" if i == 0 else f"t{i - 1}": [Window(height, k, 1, 1, k // 2)]})
        for i, k in enumerate(kernels)
    ]
    return parts, {f"t{i}": f"t{i}" for i in range(len(parts) - 1)}


@pytest.mark.parametrize(("height", "rows"), [(1, {"t0": 3, "t1": 1}), (2, {"t0": 4, "t1": 2}), (4, {"t0": 6, "t1": 4})])
def test_buffers_hold_a_stripe_and_its_halo(height: int, rows: dict[str, int]) -> None:
    stripes = StripeShapes(*_chain(1, 3, 1)).of(height)
    assert stripes is not None and stripes.rows == rows


def test_halos_are_moved_row_by_row_where_they_would_lie_on_themselves() -> None:
    stripes = StripeShapes(*_chain(1, 3, height=6)).of(1)
    assert stripes is not None
    shifts = [s for s in chain.from_iterable(stripes.steps) if isinstance(s, BufferShift)]
    assert [(s.first, s.distance, s.tensors) for s in shifts][:2] == [(1, 1, (("t0", 2),)), (2, 1, (("t0", 2),))]


def test_rows_of_whole_tensors_are_no_stripes() -> None:
    parts, buffered = _chain(1, 1)
    unsplit = [parts[0], CascadeLayer(1, "t1", 12, 8, {"t0": []})]
    assert StripeShapes(unsplit, buffered).of(2) is None


def test_a_call_is_all_a_stripe_has_of_a_layer() -> None:
    stripes = StripeShapes(*_chain(3, 3, height=9)).of(3)
    assert stripes is not None
    assert [[s.extent.rows for s in steps if isinstance(s, LayerCall)] for steps in stripes.steps] == [
        [(0, 4), (0, 3)],
        [(4, 3), (3, 3)],
        [(7, 2), (6, 3)],
    ]


@given(st.lists(st.sampled_from("ab"), max_size=6), st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.integers(1, 30))
def test_representatives_stand_for_all(start: list[str], turn: list[str], times: int) -> None:
    kinds = [*start, *turn * times]
    count, marks, sampled = 0.0, [], 0
    for value, repeats in sample_kinds(kinds):
        if not repeats:
            assert kinds[value] is not None
            count, sampled = count + 1, sampled + 1
        elif value == BEGIN:
            marks.append(count)
        else:
            count += value * (count - marks.pop())
    assert count == len(kinds) and sampled <= len(start) + 3 * 8 + 3 * len(turn) + 8
