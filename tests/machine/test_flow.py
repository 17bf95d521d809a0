"""Check the stream that a front end dispatches: repeats, base registers, blocks, the loop buffer, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.control_flow_machines import CONTROL, with_control
from toolchain import input_limits
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.isa import load_machine
from toolchain.machine import (
    BlockBegin,
    BlockEnd,
    Call,
    Copy,
    End,
    Fill,
    InstructionStream,
    LoadBase,
    MachineOp,
    Repeat,
    RepeatEnd,
    SetBase,
    Space,
    Table,
    accesses_at,
    dispatch,
    dispatch_program,
    find_unsupported,
    may_be_unsupported,
    op_number,
)


def lowest(operation: type[MachineOp], chip: Chip) -> Any:
    """The operation with the least value of each parameter."""
    return operation(**{p: max(operation.need(p, chip).low, 0) for p in operation.parameters()})


CHIP = with_control(load_machine("edge16")).chip


def fill(address: int, base: int = 0) -> Fill:
    return Fill(0, Space.SRAM, address, 8, 1, 1, 1, 0, 0, 0, 5, base)


def flowing(*ops: MachineOp, buffer_words: int = 0) -> InstructionStream:
    control = {**CONTROL, "repeat": {**CONTROL["repeat"], "buffer_words": buffer_words}}
    return dispatch_program(with_control(load_machine("edge16"), control=control).chip, ops)


def addresses(stream: InstructionStream) -> list[int]:
    return [op.destination_address for op in stream if isinstance(op, Fill)]


def test_a_program_without_control_is_itself():
    ops = (fill(0), fill(64, 1), End())
    stream = dispatch_program(CHIP, ops, (3, 2, 1))
    assert (tuple(stream), stream.words, [*stream.sources], stream.name(1)) == (ops, (3, 2, 1), [0, 1, 2], "op 1")
    assert dispatch_program(CHIP, stream) is stream
    assert op_number(ops, 1) == op_number(stream, 1) == "op 1"


def test_repeats_inside_one_another_step_their_addresses():
    body = (fill(0, 1), SetBase(1, 1, 16), RepeatEnd(), SetBase(1, 0, 256), RepeatEnd(), End())
    stream = flowing(Repeat(2), Repeat(3), *body)
    assert addresses(stream) == [0, 16, 32, 256, 272, 288]
    assert [stream.name(i) for i in (0, 4)] == [
        "op 2, iteration 1 of 2, iteration 1 of 3",
        "op 2, iteration 2 of 2, iteration 2 of 3",
    ]
    assert [stream.round(i) for i in range(7)] == [0, 0, 0, 1, 1, 1, 0]
    # Every iteration reads its words again: the step and the end of the inner repeat, at last those of both.
    assert [*stream.words] == [3, 3, 3, 3 + 3, 3, 3, 2 + 2 + 1]
    assert [*stream.sources] == [2] * 6 + [7]


def test_a_base_is_what_it_is_at_dispatch():
    copy = Copy(0, Space.DRAM, 1000, Space.SRAM, 64, 8, 1, 1, 1, 0, 0, 0, 0, 0, 0, 2, 1)
    stream = flowing(SetBase(1, 0, 32), SetBase(2, 1, -8), copy, SetBase(1, 0, 0), copy)
    assert [(op.source_address, op.destination_address) for op in stream if isinstance(op, Copy)] == [(1024, 96), (1024, 64)]


def test_what_the_host_has_set_is_there_at_the_start():
    stream = dispatch_program(CHIP, [fill(8, 1), SetBase(2, 1, 16), fill(0, 2), fill(4, 3), End()], bases={1: 1024})
    assert addresses(stream) == [1032, 1040, 4]
    alone = dispatch_program(CHIP, [fill(8, 1), End()], (2, 1), {1: 1024})
    assert (addresses(alone), [*alone.words]) == ([1032], [2, 1])


def test_operands_have_bases_where_the_machine_says_so():
    chip = with_control(load_machine("edge16"), control={"bases": 2, "operand_bases": True}).chip
    table = lowest(Table, chip)
    moved = replace(table, input_base=1, output_base=2)
    stream = dispatch_program(chip, [SetBase(1, 0, 64), SetBase(2, 0, 256), moved, End()])
    assert stream[0] == replace(moved, input_address=64, output_address=256)
    assert find_unsupported(moved, chip) is None
    assert find_unsupported(replace(table, input_base=3), chip) == "input_base=3, the machine has control.bases=2"
    assert find_unsupported(moved, CHIP) == "input_base=1, the machine has control.bases=3, and no control.operand_bases"
    assert may_be_unsupported([moved, replace(table, input_base=3)], chip).tolist() == [False, True]
    assert may_be_unsupported([moved], CHIP).tolist() == [True]


def test_an_operand_may_be_chosen_by_a_number_in_memory():
    """Check a choice from a table of functions by a number in DRAM."""
    control = {"bases": 2, "operand_bases": True, "indirect": {"max_index": 9}}
    chip = with_control(load_machine("edge16"), control=control).chip
    load, table = LoadBase(0, 1, 0, 512, 256, 3, Space.DRAM, 0, 1), replace(lowest(Table, chip), table_base=1)
    flow = dispatch_program(chip, [load, table, End()])
    lookups = [a for a in accesses_at(flow, 1, chip) if not a.exact]
    assert [(a.address, a.end, a.write) for a in lookups] == [(512, 512 + 4 * 256, False)]


def test_a_block_runs_where_it_is_met_and_at_each_call():
    block = (BlockBegin(1), fill(0, 1), fill(8, 1), BlockEnd())
    stream = flowing(*block, SetBase(1, 0, 64), Repeat(2), Call(1), SetBase(1, 1, 64), RepeatEnd(), fill(4), End())
    assert addresses(stream) == [0, 8, 64, 72, 128, 136, 4]
    assert [stream.name(i) for i in (1, 2, 5)] == [
        "op 2",
        "op 1, iteration 1 of 2, called by op 6",
        "op 2, iteration 2 of 2, called by op 6",
    ]


def test_a_loop_buffer_keeps_a_body_that_fits():
    body = (fill(0), fill(8), RepeatEnd())
    # What follows the first `again` waits for its word: that is read but once.
    assert [*flowing(Repeat(3), *body, End(), buffer_words=3).words] == [2, 1, 1, 0, 0, 0, 1]
    assert [*flowing(Repeat(3), *body, End(), buffer_words=2).words] == [2, 1, 2, 1, 2, 1, 2]


def test_a_loop_buffer_holds_the_outer_of_two_repeats_or_each_inner_one_anew():
    program = (Repeat(2), Repeat(2), fill(0), RepeatEnd(), RepeatEnd(), End())
    # The inner body is 2 words, the outer 4: 1 + 1 + 1 are read before the first fill.
    assert [*flowing(*program, buffer_words=4).words] == [3, 1, 1, 0, 1]
    assert [*flowing(*program, buffer_words=2).words] == [3, 1, 1 + 1 + 1, 1, 1 + 1]


def test_the_words_of_a_block_that_is_called_are_not_in_the_buffer():
    program = (BlockBegin(0), fill(0), BlockEnd(), Repeat(3), Call(0), RepeatEnd(), End())
    words = [*flowing(*program, buffer_words=64).words]
    assert words == [2, 1 + 1 + 1 + 1, 1 + 1 + 1, 1 + 1, 2]


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ([RepeatEnd(), End()], "op 0 again: ends no repeat"),
        ([BlockBegin(0), RepeatEnd(), End()], "op 1 again: ends no repeat; the innermost is a block"),
        ([BlockEnd(), End()], "op 0 return: ends no block"),
        ([Repeat(2), BlockEnd()], "op 1, iteration 1 of 2 return: ends no block; a repeat is open"),
        ([Repeat(2), fill(0), End()], "op 0: the repeat is not ended before the program is"),
        ([BlockBegin(1), fill(0), End()], "op 0: the block is not ended before the program is"),
        ([Repeat(101)], "op 0 repeat: count=101, must be 1 to 100 (control.repeat.max_count)"),
        ([Repeat(0)], "op 0 repeat: count=0, must be 1 to 100 (control.repeat.max_count)"),
        (
            [Repeat(2)] * 3,
            "op 2, iteration 1 of 2, iteration 1 of 2 repeat: more than control.repeat.depth=2 repeats inside one another",
        ),
        ([Call(0)], "op 0 call: block 0 was not met before"),
        ([Call(2)], "op 0 call: block=2, must be 0 to 1 (control.call.blocks)"),
        ([BlockBegin(0), Call(0)], "op 1 call: more than control.call.depth=2 blocks inside one another"),
        ([SetBase(0, 0, 4)], "op 0 set_base: base=0, must be 1 to 3 (control.bases)"),
        ([SetBase(1, 4, 4)], "op 0 set_base: source=4, must be 0 to 3 (control.bases)"),
    ],
)
def test_what_the_front_end_refuses(program: list[MachineOp], fault: str):
    with pytest.raises(ProgramError) as caught:
        flowing(*program)
    assert str(caught.value) == fault


def test_a_machine_without_control_has_none_of_it():
    chip = load_machine("edge16").chip
    for op, fault in (
        (Repeat(2), "repeat: the machine has no control.repeat"),
        (BlockBegin(0), "block: the machine has no control.call"),
        (SetBase(1, 0, 0), "set_base: base=1, must be 1 to 0 (control.bases)"),
    ):
        with pytest.raises(ProgramError) as caught:
            dispatch_program(chip, [op])
        assert str(caught.value) == f"op 0 {fault}"
    assert find_unsupported(fill(0, 1), chip) == "destination_base=1, the machine has control.bases=0"


def test_a_program_of_a_stranger_does_not_run_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "DISPATCHED_OPERATIONS", 1000)
    assert input_limits.DISPATCHED_OPERATIONS > 1 << 20
    with pytest.raises(ProgramError, match=r"^op \d again: the program runs more than 1,000 operations$"):
        flowing(Repeat(100), Repeat(100), RepeatEnd(), RepeatEnd(), End())
