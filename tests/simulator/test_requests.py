"""Test the cost of requests and runs in DMA channels, and how several operations in flight hide it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machine_programs import DMA0, DMA1, MAC, load, make, small_chip, store
from test_attribution import laws
from test_monotone import random_machine, random_program

from simulator import Simulation, attribute_cycles, by_reason, simulate
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.machine import Copy, End, Fill, MachineOp, MatrixProduct, Signal, Space, Wait, demand, demands
from toolchain.machine.units.dma import TransferSide, move_demand
from toolchain.schedule.queues import sum_queue_cost

IMAGE = np.zeros(0x8000, np.uint8)


def run(chip: Chip, ops: list[MachineOp]) -> Simulation:
    return simulate(chip, ops, None, IMAGE, [(0, IMAGE.size)], values=False, check=False)


def channel(**keys: Any) -> Chip:
    """Issue 3 cycles, requests 5, latency 100; 16 bytes a cycle, which the memory gives."""
    rates = {f"memories__{name}__{way}_bytes_per_cycle": 16.0 for name in ("dram", "sram") for way in ("read", "write")}
    channel_keys = {f"engines__dma__{key}": value for key, value in {"issue_cycles": 3, "request_cycles": 5, **keys}.items()}
    return small_chip(memories__dram__latency_cycles=100, **rates, **channel_keys)


def test_one_load_by_hand() -> None:
    """Read by the front end in cycle 1, issue 3, request 5, latency 100, 160 bytes in 10 cycles and 4 for the one run."""
    chip = channel(run_cycles=4)
    result = run(chip, [load(0, 0, 160), End()])
    assert result.cycles == 1 + 3 + 5 + 100 + 14
    causes = attribute_cycles(chip, result)
    assert causes is not None
    cycles_by_cause = by_reason(chip, causes.totals()["dma0"][0])
    assert cycles_by_cause == {"nothing": 1, "dispatch": 3, "requests": 5 + 4, "memory": {"dram": 100}, "useful": 10}


def rows(inner: int, count: int, source: int = 0, target: int = 0, **fields: int) -> Copy:
    """count runs of `inner` bytes; source, target: their strides, 0: without gaps."""
    places = {"source_space": Space.DRAM, "destination_space": Space.SRAM, "inner_bytes": inner, "count2": count}
    return make(Copy, **places, source_stride2=source or inner, destination_stride2=target or inner, **fields)


@pytest.mark.parametrize(
    ("op", "runs"),
    [
        (rows(16, 10), 1),
        (rows(16, 10, source=20), 10),
        (rows(16, 10, target=64), 10),  # the end that has more
        (rows(16, 10, source=20, count1=3, source_stride1=200, destination_stride1=160), 30),
        (rows(16, 10, count1=3, source_stride1=200, destination_stride1=160), 3),
        (rows(20, 20, source=64, target=64, transpose=1), 20 * 5),  # pieces of 4 elements both ways, in blocks of 4
        (make(Fill, destination_space=Space.DRAM, inner_elements=10, count2=3, destination_stride2=64), 3),
    ],
)
def test_each_contiguous_run_costs(op: MachineOp, runs: int) -> None:
    free, paid = demand(op, channel(run_cycles=0)), demand(op, channel(run_cycles=7))
    assert paid.compute_cycles - free.compute_cycles == paid.lost.request_cycles == 7 * runs
    assert (paid.traffic, paid.latency_cycles, free.lost.request_cycles) == (free.traffic, free.latency_cycles, 0)
    together = demands([op, load(0, 0, 32), op], channel(run_cycles=7))
    assert together.compute_cycles[[0, 2]].tolist() == [paid.compute_cycles] * 2


@pytest.mark.parametrize(("room", "cycles"), [(16, 160 * 100 // 16), (1000, 16), (1001, 16), (900, 18), ("unlimited", 14)])
def test_what_is_read_has_room_for_so_many_bytes(room: int | str, cycles: int) -> None:
    """160 bytes of a memory that answers after 100 cycles; 10 cycles to move them and 4 for the one run, if that is more."""
    chip = channel(run_cycles=4, in_flight_bytes=room)
    op = load(0, 0, 160)
    op_demand = demand(op, chip)
    assert (op_demand.compute_cycles, op_demand.lost.request_cycles) == (cycles, cycles - 10)
    assert demands([op, store(0, 0, 160)], chip).compute_cycles.tolist() == [cycles, 14]  # the SRAM answers at once
    assert run(chip, [op, End()]).cycles == 1 + 3 + 5 + 100 + cycles


def test_latencies_of_two_in_flight_overlap() -> None:
    """The second load is issued when the first is, in cycle 4, asks in 7 and would have its bytes from 112 on.

    The first has the channel until 119.
    """
    ops = [load(0, 0, 160), load(160, 160, 160), load(320, 320, 160), End()]
    one, two, three = (run(channel(run_cycles=0, outstanding=n), ops) for n in (1, 2, 3))
    assert one.end.tolist()[:3] == [119, 237, 355]  # each 3 + 5 + 100 + 10
    assert two.end.tolist()[:3] == [119, 129, 119 + 118]  # the third is taken up when the first is over
    assert three.end.tolist()[:3] == [119, 129, 139]
    assert two.start.tolist()[:3] == [1, 119, 129]
    assert two.busy_cycles["dma0"] == 236


def test_signals_come_behind_all_that_is_in_flight_and_waits_hold_up_what_is_behind_them() -> None:
    product = make(MatrixProduct, rows=4, inner=90, columns=8, emit=1, output_address=0x4000)
    ops = [load(0, 0, 160), Signal(DMA0, 0), Wait(MAC, 0), product, Signal(MAC, 1), Wait(DMA0, 1), load(160, 160, 160), End()]
    result = run(channel(run_cycles=0, outstanding=8), ops)
    assert result.end[1] == 119  # issued while the load is in flight
    assert result.end[5] == result.end[4]
    assert result.end[6] == result.end[4] + 3 + 5 + 100 + 10


def test_a_load_of_what_is_being_stored_waits_for_it() -> None:
    chip = channel(run_cycles=0, outstanding=4)
    same = run(chip, [store(0, 0, 160), load(0, 320, 160), End()])
    other = run(chip, [store(0, 0, 160), load(480, 320, 160), End()])
    assert other.end.tolist()[:2] == [1 + 3 + 5 + 10, 4 + 3 + 5 + 100 + 10]
    assert same.end.tolist()[:2] == [19, 19 + 5 + 100 + 10]  # issued before
    between = run(chip, [store(0, 0, 160), load(480, 480, 16), load(150, 320, 16), End()])
    assert between.end[2] == 19 + 5 + 100 + 1


def test_entries_of_a_queue_hold_what_is_in_flight() -> None:
    ops = [*(load(160 * i, 160 * i, 160) for i in range(9)), End()]
    few, many = (run(channel(run_cycles=0, outstanding=8, queue_depth=n), ops) for n in (1, 16))
    assert many.end[7] == 119 + 7 * 10
    assert few.end[2] == 119 + 118  # room for one beside the one that is over first


def test_every_cycle_has_a_cause_whatever_is_in_flight() -> None:
    compared = 0
    for case in range(60):
        rng = np.random.default_rng(1000 + case)
        ops, keys = random_program(rng), random_machine(rng) | {"engines__dma__outstanding": int(rng.choice([2, 3, 8]))}
        keys |= {"engines__mac__timing": "ideal", "engines__dma__runs": "packed", "engines__dma__run_cycles": 0}
        keys["engines__dma__in_flight_bytes"] = "unlimited"
        chip = small_chip(**keys)
        try:
            result = run(chip, ops)
        except ProgramError:
            continue
        laws(chip, result)
        compared += 1
    assert compared > 40


def test_the_cost_model_hides_the_same_waits() -> None:
    """Ten loads of one layer, as they are costed and as they run on an idle machine."""
    loads = [load(160 * i, 160 * i, 160) for i in range(10)]
    for outstanding in (1, 2, 4, 64):
        chip = channel(run_cycles=0, outstanding=outstanding, issue_cycles=0, queue_depth=64)
        simulated = run(chip, [*loads, End()]).cycles - 1
        assert sum_queue_cost(loads, chip).alone_cycles == pytest.approx(simulated, rel=0.12), outstanding


def test_a_wait_of_a_channel_between_others() -> None:
    """Two channels that wait for one another in turn end, and in order."""
    ops: list[MachineOp] = []
    for i in range(6):
        a, b = (DMA0, DMA1) if i % 2 else (DMA1, DMA0)
        ops += [load(160 * i, 160 * i, 160, a - DMA0), Signal(a, i % 2), Wait(b, i % 2)]
    result = run(channel(outstanding=4, run_cycles=1), [*ops, End()])
    assert sorted(result.end[0::3].tolist()[:6]) == result.end[0::3].tolist()[:6]


@pytest.mark.parametrize(("piece_bytes", "runs"), [(0, 3), (16, 3), (4, 3 * 3), (5, 3 * 2), (10, 3)])
def test_each_piece_of_a_run_and_its_rest_is_paid(piece_bytes: int, runs: int) -> None:
    """Three runs of 10 bytes, 64 apart, in pieces of 4 bytes are two whole pieces and 2 bytes each."""
    chip = channel(run_cycles=7)
    unit = next(unit for unit in chip.units if unit.kind == "dma")
    side = TransferSide(Space.DRAM, 0, 10, (3,), (64,)).in_pieces(piece_bytes)
    target = TransferSide(Space.SRAM, 0, 30, (), ())
    assert move_demand(unit, chip, None, side).lost.request_cycles == 7 * runs
    assert move_demand(unit, chip, side, target).lost.request_cycles >= 7 * runs
