"""The barrier at a body's end: nothing of an iteration runs beside anything of the next, whichever engine comes last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest

from simulator.hazards import Hazards
from simulator.program_order import program_order
from tests.support.control_flow_machines import with_control
from toolchain.codegen.dram_areas import BatchLoop, wrap_batch_loop
from toolchain.codegen.lower import PlacedOp
from toolchain.codegen.synchronise import synchronise
from toolchain.errors import ProgramError
from toolchain.isa import load_machine
from toolchain.machine import Access, Convolution, Copy, Elementwise, MachineOp, Signal, Space, Wait, dispatch_program

CHIP = with_control(load_machine("wide32_w4a16")).chip
QUEUES = [unit.queue for unit in CHIP.units]


def operation(queue: int) -> MachineOp:
    """One without meaning that runs on this queue."""
    kinds: dict[str, type[MachineOp]] = {"mac_array": Convolution, "vector": Elementwise, "dma": Copy}
    kind = kinds[CHIP.units[queue].kind]
    zero_operation = kind(*(0 for _ in kind.parameters()))
    return replace(zero_operation, channel=CHIP.units[queue].number) if isinstance(zero_operation, Copy) else zero_operation


def byte(at: int, count: int, write: bool) -> Access:
    return Access(Space.SRAM, at, (), (), count, write)


def check_two_iterations(program: Sequence[MachineOp], count: int) -> None:
    """Raise ProgramError where an operation of the second iteration may begin before the first iteration is over.
    The `count` operations of the first iteration write a byte each, and each of the second reads all of these bytes.
    """
    flow = dispatch_program(CHIP, program)
    order = program_order(CHIP, flow)
    hazards = Hazards(flow, order, CHIP.sync.max_count, len(CHIP.spaces))
    working = [i for i in order.legal if order.engine[i] >= 0 and not isinstance(flow[i], Signal | Wait)]
    first = set(sorted(working)[:count])
    assert len(working) == 2 * count
    for index in order.legal:
        hazards.begin(index)
        if isinstance(flow[index], Signal | Wait):
            hazards.synchronise(index)
        elif index in first:
            hazards.touch(index, byte(index, 1, True), index, index + 1)
        elif order.engine[index] >= 0:
            hazards.touch(index, byte(0, len(flow), False), 0, len(flow))


def repeat_ops(placed: Sequence[PlacedOp]) -> Sequence[MachineOp]:
    return synchronise(placed, CHIP, 0, BatchLoop(2, ())).ops


@pytest.mark.parametrize("queues", list(permutations(QUEUES)), ids=str)
def test_each_engine_hears_that_an_iteration_is_over(queues: tuple[int, ...]) -> None:
    """Operations that share nothing, each on a queue of its own; each queue comes last in some."""
    assert {CHIP.units[q].kind for q in queues} == {"mac_array", "vector", "dma"}
    check_two_iterations(repeat_ops([PlacedOp(operation(q), 0, ()) for q in queues]), len(queues))


@pytest.mark.parametrize("last", QUEUES)
def test_each_engine_hears_of_a_last_operation_that_waited_for_all(last: int) -> None:
    """The barrier's engine knows already that the others are over, which do not know that it is."""
    others = [q for q in QUEUES if q != last]
    writes = [PlacedOp(operation(q), 0, (byte(q, 1, True),)) for q in others]
    reading = PlacedOp(operation(last), 0, (byte(0, len(QUEUES), False),))
    check_two_iterations(repeat_ops([*writes, reading]), len(QUEUES))


def test_the_check_finds_iterations_without_a_barrier() -> None:
    ops = [operation(q) for q in QUEUES[:2]]
    with pytest.raises(ProgramError, match="nothing orders the two"):
        check_two_iterations(wrap_batch_loop(ops, [0, 0], BatchLoop(2, ()))[0], 2)
