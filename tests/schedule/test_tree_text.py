"""Schedules as text: what is printed is read back, and what is no schedule is refused with all its faults."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolchain.errors import CompileError
from toolchain.schedule.nodes import (
    ALL,
    Call,
    CascadeTree,
    LayerTree,
    Loop,
    OperandBuffer,
    RegionTree,
    Ring,
    Tensor,
    TensorAlloc,
)
from toolchain.schedule.parser import parse_schedule
from toolchain.schedule.text import print_schedule

names = st.text(max_size=12)  # of users: line ends, quotes, '#', anything
words = st.text(min_size=1, max_size=8)
counts = st.integers(1, 2000)


@st.composite
def layers(draw: Any) -> LayerTree:
    rings = draw(st.lists(st.tuples(st.sampled_from(["input", "constant", "output"]), st.integers(0, 9), words), max_size=4))
    allocs = [
        Ring(
            OperandBuffer(role, 0 if role == "output" else number),
            memory,
            draw(st.sampled_from([1, 2, 7, ALL])),
            draw(names),
        )
        for role, number, memory in rings
    ]
    loops = [Loop(axis, step, draw(names)) for axis, step in draw(st.lists(st.tuples(words, counts), max_size=3))]
    units, chosen = tuple(draw(st.lists(words, max_size=3))), [draw(st.sampled_from(["", "ws", "a b"])) for _ in "ab"]
    call = draw(st.sampled_from([Call(draw(names), units, *chosen), Call(draw(names), inline=True)]))
    return LayerTree(call, tuple(loops), tuple(allocs))


@st.composite
def regions(draw: Any) -> RegionTree:
    tensors = [
        TensorAlloc(Tensor(name, draw(st.integers(0, 40))), memory, note=draw(names))
        for name, memory in draw(st.lists(st.tuples(names, words), max_size=3))
    ]
    parts: list[LayerTree | CascadeTree] = []
    for _ in range(draw(st.integers(0, 4))):
        inside = tuple(draw(st.lists(layers(), min_size=1, max_size=3)))
        rows, blocks = Loop("rows", draw(counts)), Loop("channels", draw(counts))
        parts.append(draw(st.sampled_from([inside[0], CascadeTree((rows,), inside), CascadeTree((blocks, rows), inside)])))
    level, sample, entry, within = draw(st.integers(-1, 3)), draw(st.booleans()), draw(names), draw(st.integers(0, 9))
    return RegionTree(0, tuple(tensors), tuple(parts), level, sample, entry, within, note=draw(names))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(regions())
def test_what_is_printed_is_read_back(region: RegionTree) -> None:
    text = print_schedule([region])
    (parsed,) = parse_schedule(text, "given.sched")
    assert parsed == region
    assert (
        print_schedule([parsed]).splitlines() == [line.partition("  # ")[0].rstrip() for line in text.splitlines()] or "#" in text
    )


REFUSED = {
    "": "s: holds no region; a schedule begins with 'region 0', npu-build --dump-schedule writes one",
    "regoin 0": 's:1: regoin: must be one of region, alloc, layer, ring, fetch, for, call; did you mean "region"?',
    "region": (
        "s:1: ends where the number of a region is missing; it is written "
        'region NUMBER [entry "NAME"] [level NUMBER] [within NUMBER] [sample]'
    ),
    "region 0 fast": ('s:1: fast: too much; it is written region NUMBER [entry "NAME"] [level NUMBER] [within NUMBER] [sample]'),
    "region 0\nregion 0": "s:2: region 0: is there already, in line 1",
    "region 0\n  layer conv": 's:2: conv: the name of a layer stands in quotes: "conv"',
    'region 0\n  layer "c"': "s:2: layer: nothing is called in it; a layer's rings and loops end with 'call'",
    'region 0\n  layer "c"\n    for rows by 0\n      call': "s:3: step 0: must be a whole number from 1 on",
    'region 0\n  layer "c"\n    call\n    call': (
        "s:4: call: is one too many; a layer holds rings, then one loop in another, then a call"
    ),
    'region 0\n  layer "c"\n    ring output to sram\n    call': (
        "s:3: to stands where 'in' must; it is written "
        "ring input NUMBER | constant NUMBER | output in MEMORY [slots NUMBER | all]"
    ),
    'region 0\n  layer "c"\n    ring inptu 0 in sram\n    call': (
        's:3: ring inptu: must be input, constant or output; did you mean "input"?'
    ),
    'region 0\n  layer "c"\n      call\n    ring output in sram': (
        "s:4: stands 4 to the right, what is beside it 6\n"
        "s:4: ring: is one too many; a layer holds rings, then one loop in another, then a call"
    ),
    'region 0\n  layer "c"\n    call\n  alloc "t" in sram': "s:4: alloc: tensors stand in front of the layers of their region",
    'region 0\n\tlayer "c"': "s:2: begins with a tab; lines are indented by spaces",
    'region 0\n  layer "c': "s:2: \"c: is neither a name in quotes, nor a word, nor a comment behind '#'",
    "region 0\n  for rows by 2": "s:2: for: holds no layer; layers that take turns stand in it, further to the right",
    'layer "c"': "s:1: layer: does not stand here; a schedule holds regions",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text: str) -> None:
    with pytest.raises(CompileError) as fault:
        parse_schedule(text, "s")
    assert str(fault.value) == REFUSED[text]


def test_all_faults_are_told_at_once() -> None:
    text = 'region 0\n alloc x in sram\n layer "a"\n  for rows by many\n   call\n layer "b"\n  ring w in sram\n  call of\n'
    with pytest.raises(CompileError) as fault:
        parse_schedule(text, "s")
    assert [line.partition(": ")[0] for line in str(fault.value).splitlines()] == ["s:2", "s:4", "s:7", "s:8"]
