"""The one recurrence of times: closed forms, and that it does not matter in how many parts a program is given."""

from __future__ import annotations

import random

import numpy as np
import pytest

from toolchain.hw import list_shipped_names, load_chip
from toolchain.machine import Copy, Demand, MachineOp, Signal, Space, demand, demands
from toolchain.machine.queues import OperationTiming
from toolchain.machine.registry import OPERATIONS
from toolchain.machine.timing_model import COMPUTED, SharedTasks, TimingModel, services


def make_timing(
    queue: int, cycles: int, *after: int, fetch: float = 0, latency: int = 0, ports: tuple[tuple[int, int], ...] = ()
) -> OperationTiming:
    return OperationTiming(queue, fetch, after, latency, cycles, ports)


def run(
    *ops: OperationTiming, issue: tuple[int, ...] = (0, 0), depths: tuple[int, ...] = (8, 8), order: list[int] | None = None
) -> TimingModel:
    model = TimingModel(issue, depths, 2)
    model.run(ops, order)
    return model


def test_a_queue_runs_one_after_another_and_queues_beside_each_other() -> None:
    timing = run(make_timing(0, 5), make_timing(1, 7), make_timing(0, 3))
    assert (timing.start, timing.end) == ([0, 0, 5], [5, 7, 8])
    assert timing.free == [8, 7]


def test_issue_latency_and_what_it_comes_after() -> None:
    """Issued in 2, waits until 30, latency 10, computes 4."""
    timing = run(make_timing(0, 30), make_timing(1, 4, 0, latency=10), issue=(0, 2))
    assert (timing.start[1], timing.end[1]) == (0, 44)
    assert run(make_timing(0, 1), make_timing(1, 4, 0, latency=10), issue=(0, 2)).end[1] == 16


def test_a_port_serves_one_after_another_and_names_what_ended_an_operation() -> None:
    timing = run(make_timing(0, 5, ports=((0, 20),)), make_timing(1, 5, ports=((0, 10),)), make_timing(1, 50, ports=((1, 3),)))
    assert (timing.end, timing.ended_by) == ([20, 30, 80], [0, 0, COMPUTED])


def test_ports_serve_in_the_order_of_the_sequence() -> None:
    ops = make_timing(0, 5, ports=((0, 20),)), make_timing(1, 5, ports=((0, 10),))
    assert run(*ops, order=[1, 0]).end == [30, 10]


def test_the_front_end_reads_in_order_and_stops_at_a_full_queue() -> None:
    """One operation runs and one waits; the third is dispatched when the first is over, and the fourth after it."""
    timing = run(*(make_timing(0, 100, fetch=1.5) for _ in range(3)), make_timing(1, 1, fetch=1.5), depths=(1, 1))
    assert timing.start == [2, 102, 202, 104]


def test_an_operation_may_take_several_entries_of_its_queue() -> None:
    """Check an operation that stands for a wait before it and a signal after it; the next one finds room when the first is
    over."""
    one = [make_timing(0, 100), make_timing(0, 100), make_timing(1, 1)]
    assert run(*one, depths=(2, 1)).start == [0, 100, 0]
    assert run(*(entry._replace(entries=3) for entry in one), depths=(2, 1)).start == [0, 100, 100]


def tiles(count: int, first: int = 0) -> list[OperationTiming]:
    """Loads on queue 0 through one slot, computes on queue 1."""
    timings: list[OperationTiming] = []
    for i in range(count):
        number = first + 2 * i
        slot = (number - 1,) if number else ()  # the compute that read it last
        timings += [make_timing(0, 7, *slot, fetch=1, ports=((0, 9),)), make_timing(1, 11, number, fetch=1)]
    return timings


def test_what_repeats_is_added_to_all_times() -> None:
    """Ten tiles, and four of which the last stands for seven; what comes behind them is the same."""
    complete, some = TimingModel((0, 0), (4, 4), 1), TimingModel((0, 0), (4, 4), 1)
    complete.run(tiles(10))
    some.run(tiles(3))
    mark = some.mark()
    some.run(tiles(1, 6))
    some.repeat(mark, 6)
    assert (some.free, some.end[-2:]) == (complete.free, complete.end[-2:])
    complete.run(tiles(3, 20))
    some.run(tiles(3, 8))
    assert (some.free, some.end[-6:]) == (complete.free, complete.end[-6:])


@pytest.mark.parametrize("backlog_cycles", [0, 25, 60])
def test_repeated_works_go_to_the_queue_that_is_free_first(backlog_cycles: int) -> None:
    """One of two queues is busy for longer before they share works of ten cycles: 2, and 9 more for which these stand."""
    one = TimingModel((0, 0), (4, 4), 0)
    one.run([make_timing(0, backlog_cycles)])
    mark = one.mark()
    one.run([make_timing(1, 10), make_timing(1 if backlog_cycles else 0, 10)])
    one.repeat(mark, 4.5, SharedTasks((0, 1), 2, 20, 1))
    assert sorted(one.free) == {0: [50, 60], 25: [60, 75], 60: [80, 90]}[backlog_cycles]


def test_a_queue_that_works_no_more_does_not_hide_what_repeats() -> None:
    """Queue 0 is busy for 1,000 cycles; beside it, the fourth of ten steps of queue 1 stands for six more."""
    some = TimingModel((0, 0), (99, 99), 0)
    some.run([make_timing(0, 1000), *(make_timing(1, 10) for _ in range(3))])
    mark = some.mark()
    some.run([make_timing(1, 10)])
    some.repeat(mark, 6)
    assert some.free == [1000, 100]


def test_a_queue_that_is_ahead_and_gains_less_is_caught_up_with() -> None:
    """Check a queue that starts ahead and is overtaken.
    Queue 0 has 100 cycles of work to begin with and 5 a step, queue 1 has 11 a step. After 40 steps queue 1 is over last.
    """

    def steps(count: int) -> list[OperationTiming]:
        return [make_timing(queue, cycles) for _ in range(count) for queue, cycles in ((0, 5), (1, 11))]

    complete, some = TimingModel((0, 0), (99, 99), 0), TimingModel((0, 0), (99, 99), 0)
    for recurrence in (complete, some):
        recurrence.run([make_timing(0, 100)])
    complete.run(steps(40))
    some.run(steps(2))
    mark = some.mark()
    some.run(steps(1))
    some.repeat(mark, 37, backlog=[0, *[0, 1] * 3])
    assert complete.free == [300, 440] and some.free[1] == 440 and 300 <= some.free[0] <= 440
    assert some.end[-1] == 440


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_parts_of_a_program_give_the_times_of_the_whole(parts: int) -> None:
    rng = random.Random(parts)
    ops = [
        make_timing(
            rng.randrange(3),
            rng.randrange(9),
            *rng.sample(range(i), min(i, 2)),
            fetch=1.25,
            latency=rng.randrange(3),
            ports=((i % 2, 4),),
        )
        for i in range(60)
    ]
    complete, pieces = TimingModel((0, 1, 2), (2, 3, 1), 2), TimingModel((0, 1, 2), (2, 3, 1), 2)
    complete.run(ops)
    for i in range(0, len(ops), parts):
        pieces.run(ops[i : i + parts])
    assert (complete.start, complete.end, complete.ended_by) == (pieces.start, pieces.end, pieces.ended_by)


def lone(operation: type[MachineOp], rng: random.Random) -> MachineOp:
    return operation(**{name: 0 if name == "unit" else rng.randrange(1, 9) for name in operation.parameters()})


def make_copy(address: int, size_bytes: int) -> Copy:
    """Return a copy from dram to sram."""
    names = (n for n in Copy.parameters() if n.startswith(("count", "source_stride", "destination_stride")))
    return Copy(0, Space.DRAM, address, Space.SRAM, 0, size_bytes, **dict.fromkeys(names, 1), source_base=0, destination_base=0)


@pytest.mark.parametrize("name", list_shipped_names())
def test_columns_of_a_program_are_the_demands_of_its_operations(name: str) -> None:
    chip, rng = load_chip(name), random.Random(3)
    kinds = [o for o in OPERATIONS.values() if o.ENGINE != "dma"]
    ops = [lone(rng.choice(kinds), rng) for _ in range(200)]
    assert any(op.ENGINE == "mac_array" for op in ops)
    ops.append(make_copy(0, 0))
    program_demands = demands(ops, chip)
    for i, one in enumerate(demand(op, chip) for op in ops):
        assert (program_demands.compute_cycles[i], program_demands.latency_cycles[i], program_demands.macs[i]) == one[:3]
        for space in range(len(chip.spaces)):
            moved_there = one.at(space)
            assert [getattr(program_demands, name)[space, i] for name in moved_there._fields[1:]] == [*moved_there[1:]]


def test_services_are_of_the_ports_that_move_bytes() -> None:
    """Check the services on edge16: dram has one port of 8 bytes a cycle for both, sram reads 64 and writes 32."""
    chip = load_chip("edge16")
    op_demands = demands([make_copy(0, 1024), Signal(0, 0)], chip)
    assert [*services(chip, op_demands)] == [((0, 128), (3, 32)), ()]
    assert demand(Signal(0, 0), chip) == Demand()
    assert np.array_equal(op_demands.macs, [0, 0])
