"""Test memories that arbitrate.

There are small cases by hand, and arbiters are compared with one that takes every cycle by itself.
The events of a program are compared with the recurrence where the order is the same.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from machine_programs import DMA0, DMA1, MAC, VECTOR, load, make, small_chip, store
from pipelines import pipeline, rescale
from test_monotone import random_machine, random_program

from simulator import Simulation, attribute_cycles, simulate
from simulator.arbitration import Arbiter, FirstCome, Request, RoundRobin
from simulator.contention import Contention
from simulator.program_order import program_order
from simulator.service_order import service_order
from simulator.trace_tracks import port_rates
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.machine import End, MachineOp, MatrixProduct, Signal, Wait, demands
from toolchain.machine.queues import OperationTiming
from toolchain.machine.timing_model import Record, make_timing_model, services

IMAGE = np.zeros(0x8000, np.uint8)
KINDS = ("fixed", "round_robin", "fcfs")


def run(chip: Chip, ops: list[MachineOp]) -> Simulation:
    return simulate(chip, ops, None, IMAGE, [(0, IMAGE.size)], values=False, check=False)


def kind(arbitration: str, **keys: Any) -> Chip:
    return small_chip(memories__dram__arbitration=arbitration, **keys)


def test_turns_of_a_burst_by_hand() -> None:
    """8 bytes a cycle, bursts of 64: turns of 8 cycles. 1,024 bytes of one channel and 256 of another, ready at cycle 1."""
    ops = [load(0, 0, 1024), load(1024, 1024, 256, 1), End()]
    result = run(kind("round_robin", memories__dram__burst_bytes=64), ops)
    # 32 cycles of the second, in the second, fourth, sixth and eighth turn; the first has what is left
    assert result.end.tolist()[:2] == [1 + 128 + 32, 1 + 64]
    assert run(kind("fcfs"), ops).end.tolist()[:2] == [1 + 128, 1 + 128 + 32]


def test_who_is_ready_first_is_served_first() -> None:
    """The first load is ready behind 40 products; the other channel's, behind it in the program, is not held up by it."""
    product = make(MatrixProduct, rows=4, inner=30, columns=8, emit=1, output_address=0x4000)
    ops = [product, Signal(MAC, 0), Wait(DMA0, 0), load(0, 0, 800), load(1024, 1024, 800, 1), End()]
    first = run(kind("fcfs"), ops)
    assert (first.end[3], first.end[4]) == (41 + 100 if first.end[4] < 41 else 201, 101)


def why_not_fair_shares(arbitration: str, sram_bytes: float) -> int:
    """docs/simulator.md: c loads for 100 cycles of arithmetic, b loads behind an operation on the SRAM."""
    ops = [
        load(0, 0, 100),
        Signal(DMA0, 0),
        rescale(0x1000, 0x2000, 192),
        Signal(VECTOR, 1),
        Wait(DMA1, 1),
        load(100, 0x100, 100, 1),
        Wait(MAC, 0),
        make(MatrixProduct, rows=1, inner=1, columns=1, emit=1, output_address=0x4000),
        End(),
    ]
    keys: dict[str, Any] = {f"memories__dram__{way}_bytes_per_cycle": 1.0 for way in ("read", "write")}
    keys |= {"memories__sram__read_bytes_per_cycle": sram_bytes, "engines__mac__timing": {"fold_cycles": 100}}
    return run(kind(arbitration, **keys), ops).cycles


def test_fair_shares_can_make_more_bandwidth_slower() -> None:
    slow, fast = ({k: why_not_fair_shares(k, rate) for k in KINDS} for rate in (2.0, 64.0))
    assert fast["round_robin"] > slow["round_robin"] + 50
    assert fast["fixed"] <= slow["fixed"]


class Plain:
    """Takes every cycle by itself. turn: cycles, 0: first come, first served."""

    def __init__(self, turn: int):
        self._turn = turn
        self._lines: dict[int, deque[list[int]]] = {}
        self._came: list[list[int]] = []
        self._unit, self._last, self._remaining = -1, -1, 0
        self.ends: dict[int, int] = {}

    def cycle(self, now: int, requests: list[Request]) -> None:
        for request in requests:
            self._lines.setdefault(request.unit, deque()).append([request.op, request.cycles])
            self._came.append([request.op, request.cycles])
        if self._turn:
            self._one_of_a_turn(now)
        elif self._came:
            self._serve(self._came, now)

    def _one_of_a_turn(self, now: int) -> None:
        if not self._remaining:
            waiting = sorted(unit for unit, line in self._lines.items() if line)
            if not waiting:
                return
            self._unit = next((unit for unit in waiting if unit > self._last), waiting[0])
            self._remaining, self._last = self._turn, self._unit
        line = self._lines[self._unit]
        op = line[0][0]
        self._serve(line, now)
        self._remaining = 0 if op in self.ends else self._remaining - 1

    def _serve(self, line: Any, now: int) -> None:
        line[0][1] -= 1
        if not line[0][1]:
            self.ends[line[0][0]] = now + 1
            del line[0]


def ends(arbiter: Arbiter, requests: list[Request]) -> dict[int, int]:
    """Return when each request is over."""
    end_by_op: dict[int, int] = {}
    comes = sorted({r.ready_cycle for r in requests})
    then = None
    while comes or then is not None:
        now = min(*comes[:1], *(() if then is None else (then,)), 1 << 40)
        for request in (r for r in requests if comes and comes[0] == now and r.ready_cycle == now):
            arbiter.ask(request)
        comes = [cycle for cycle in comes if cycle > now]
        end_by_op.update(dict.fromkeys(arbiter.over(now), now))
        then = arbiter.decide(now)
    return end_by_op


@pytest.mark.parametrize("turn", [0, 1, 3, 8])
def test_arbiters_serve_as_one_that_takes_every_cycle_by_itself(turn: int) -> None:
    rng = np.random.default_rng(turn)
    for _ in range(150):
        count = int(rng.integers(1, 14))
        ready = np.sort(rng.integers(0, int(rng.choice([5, 60, 200])), count)).tolist()
        requests = [Request(i, int(rng.integers(0, 4)), r, int(rng.integers(1, 40))) for i, r in enumerate(ready)]
        arbiter = RoundRobin(turn) if turn else FirstCome()
        plain = Plain(turn)
        for now in range(max(ready) + sum(r.cycles for r in requests)):
            plain.cycle(now, [r for r in requests if r.ready_cycle == now])
        assert ends(arbiter, requests) == plain.ends
        served = arbiter.served
        assert all(before.last <= after.first for before, after in pairwise(served))
        for r in requests:
            assert sum(s.last - s.first for s in served if s.op == r.op) == r.cycles


def test_events_are_the_recurrence_where_the_order_is_fixed() -> None:
    """Every time, cause and record of random programs."""
    compared = 0
    for case in range(80):
        rng = np.random.default_rng(case)
        ops, chip = random_program(rng), small_chip(**random_machine(rng))
        try:
            order = program_order(chip, ops)
        except ProgramError:
            continue
        op_demands = demands(ops, chip)
        after = [(order.signal_by_wait[i],) if i in order.signal_by_wait else () for i in range(len(order.legal))]
        columns = op_demands.latency_cycles.tolist(), op_demands.compute_cycles.tolist(), services(chip, op_demands)
        words = [chip.isa.word_cycles] * len(ops)
        timings = [OperationTiming(*row) for row in zip(order.engine, words, after, *columns)]
        sequence, plain, event = service_order(ops, order, op_demands), Record(), Record()
        expected, contention = make_timing_model(chip, plain), Contention(chip, event)
        expected.run(timings, sequence)
        contention.run(timings, sequence)
        assert (contention.start, contention.end, contention.ended_by) == (expected.start, expected.end, expected.ended_by)
        assert (event.read, event.dispatched, event.held_by) == (plain.read, plain.dispatched, plain.held_by)
        rows = [sorted(zip(*(record.served[i::4] for i in range(4)))) for record in (event, plain)]
        assert rows[0] == rows[1]
        compared += 1
    assert compared > 50


@pytest.mark.parametrize("arbitration", KINDS)
def test_cycles_have_causes_and_ports_their_bytes(arbitration: str) -> None:
    chip = kind(arbitration, memories__sram__arbitration=arbitration, memories__dram__burst_bytes=32)
    ops = pipeline(12, 256)
    result = run(chip, ops)
    causes = attribute_cycles(chip, result)
    assert causes is not None
    for counted in causes.totals().values():
        assert counted.sum() == result.cycles
    rates = [(cycle, rate) for name, cycle, rate in port_rates(chip, result) if name == "dram read"]
    moved_bytes = sum(rate * (after - cycle) for (cycle, rate), (after, _) in pairwise(rates))
    assert round(moved_bytes) == result.dram_read_burst_bytes


def test_repeated_runs_are_the_same() -> None:
    chip = kind("round_robin", memories__dram__shared_ports=True)
    ops = [*pipeline(9, 512)[:-1], store(0, 0x4000, 640), End()]
    assert run(chip, ops).end.tolist() == run(chip, ops).end.tolist()
