"""Test the trace beside the operations: causes of idle cycles, arrows from signals to waits, bandwidth of ports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machine_programs import DMA0, VECTOR, load, small_chip
from pipelines import pipeline, random_program, rescale

from simulator import Simulation, chrome_trace, simulate, wrap_measured_run
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.machine import End, MachineOp, Signal, Wait

IMAGE = np.zeros(0x8000, np.uint8)
MACHINES = [
    {},
    {"memories__dram__latency_cycles": 20, "isa__word_cycles": 1.5, "engines__vector__issue_cycles": 2},
    {"engines__dma__issue_cycles": 1, "memories__dram__burst_bytes": 32, "memories__dram__shared_ports": True},
]
Event = dict[str, Any]


def trace_program(chip: Chip, ops: list[MachineOp]) -> tuple[Simulation, list[Event]]:
    done = simulate(chip, ops, None, IMAGE, [(0, IMAGE.size)], values=False, check=False)
    return done, chrome_trace(chip, ops, done)["traceEvents"]


@pytest.fixture(scope="module")
def runs() -> list[tuple[Chip, Simulation, list[Event]]]:
    traces, rng = [], np.random.default_rng(5)
    for case in range(24):
        chip = small_chip(**MACHINES[case % 3])
        try:
            traces.append((chip, *trace_program(chip, random_program(rng, 40) if case % 2 else pipeline(4, 128))))
        except ProgramError as deadlock:
            assert "deadlock" in str(deadlock)
    assert len(traces) > 15
    return traces


def slices(events: list[Event], idle: bool) -> list[Event]:
    return [e for e in events if e["ph"] == "X" and (e["cat"] == "idle") == idle]


def test_operations_and_gaps_are_all_cycles_of_each_unit(runs) -> None:
    for _, done, events in runs:
        for track in range(1, len(done.engines) + 1):
            busy = np.zeros(done.cycles, int)
            for e in slices(events, False):
                busy[e["ts"] : e["ts"] + e["dur"]] += e["tid"] == track
            idle = np.zeros(done.cycles, int)
            for e in slices(events, True):
                idle[e["ts"] : e["ts"] + e["dur"]] += e["tid"] == track
            assert busy.max() <= 1 and idle.max() <= 1
            assert (busy + idle >= 1).all()


def test_cycles_of_an_operation_by_cause_are_those_that_it_takes(runs) -> None:
    for _, _, events in runs:
        for e in slices(events, False):
            parts = [sum(n.values()) if isinstance(n, dict) else n for n in e["args"]["cycles"].values()]
            assert sum(parts) == e["dur"]


def test_idle_slices_say_their_cause() -> None:
    """One word of dispatch precedes 30 cycles of latency, 50 of bandwidth, 50 in which the channel moves; 12 of its
    own.
    """
    chip = small_chip(memories__dram__latency_cycles=30)
    ops = [load(0, 0, 800), Signal(DMA0, 0), Wait(VECTOR, 0), rescale(0, 0x1000, 64), End()]
    _, events = trace_program(chip, ops)
    idle = [(e["name"], e["dur"], e["args"]) for e in slices(events, True) if e["tid"] == VECTOR + 1]
    wait = {"op": 2, "operation": "wait"}
    assert idle == [
        ("nothing to do", 1, {"cause": "nothing"}),
        ("dram", 30, {"cause": "memory", "of": "dram", **wait}),
        ("signal of dma0", 50, {"cause": "signal", "of": "dma0", **wait}),
        ("dram", 50, {"cause": "memory", "of": "dram", **wait}),
    ]
    channel = next(e["args"] for e in slices(events, False) if e["tid"] == DMA0 + 1)
    assert channel["cycles"] == {"memory": {"dram": 80}, "useful": 50}


def test_arrows_lead_from_signals_to_the_waits_that_take_them(runs) -> None:
    drawn = 0
    for _, done, events in runs:
        begins = {e["id"]: e for e in events if e["ph"] == "s"}
        ends = {e["id"]: e for e in events if e["ph"] == "f"}
        assert begins.keys() == ends.keys()
        landed = set()
        for number, end in ends.items():
            begin = begins[number]
            assert begin["ts"] <= end["ts"] and begin["tid"] != end["tid"] and end["bp"] == "e"
            inside = [
                next(s for s in slices(events, False) if s["tid"] == e["tid"] and s["ts"] <= e["ts"] < s["ts"] + s["dur"])
                for e in (begin, end)
            ]
            wait = inside[1]["args"]["op"]
            signal = done.order.signal_by_wait[wait]
            assert done.engine[signal] + 1 == begin["tid"]
            assert inside[0]["args"]["op"] <= signal
            if done.end[signal] > done.start[signal]:
                assert inside[0]["args"]["op"] == signal
            landed.add(wait)
        took = {wait for wait in done.order.signal_by_wait if done.end[wait] > done.start[wait]}
        for wait in took - landed:  # nothing is drawn before the signal, nor is it
            signal = done.order.signal_by_wait[wait]
            before = np.flatnonzero(done.engine[: signal + 1] == done.engine[signal])
            assert (done.start[before] == done.end[before]).all()
        drawn += len(landed)
    assert drawn > 100


def test_port_counters_are_the_bytes_that_memories_are_charged(runs) -> None:
    for chip, done, events in runs:
        for space in chip.spaces:
            memory, traffic = space.memory, done.traffic[space.name]
            ports = {
                f"{space.name} read": (traffic.read_burst_bytes, memory.read_bytes_per_cycle),
                f"{space.name} write": (traffic.write_burst_bytes, memory.write_bytes_per_cycle),
            }
            if memory.shared_ports:
                both = traffic.read_burst_bytes + traffic.write_burst_bytes
                ports = {space.name: (both, max(memory.read_bytes_per_cycle, memory.write_bytes_per_cycle))}
            for port, (charged, rate) in ports.items():
                steps = [e for e in events if e["ph"] == "C" and e["name"] == f"{port} bytes a cycle"]
                times = [e["ts"] for e in steps]
                values = [e["args"]["bytes a cycle"] for e in steps]
                assert times == sorted(set(times))
                assert float(np.dot(values[:-1], np.diff(times))) == pytest.approx(charged) if steps else charged == 0
                assert max(values, default=0) <= rate and (values[-1:] or [0]) == [0]


def test_times_of_others_have_no_causes_but_arrows() -> None:
    chip, ops = small_chip(engines__dma__issue_cycles=1), pipeline(4)
    done, ours = trace_program(chip, ops)
    events = chrome_trace(chip, ops, wrap_measured_run(chip, ops, done.memory, done.start, done.end))["traceEvents"]
    assert not slices(events, True) and not [e for e in events if e["name"].endswith("bytes a cycle")]
    assert [e for e in events if e["ph"] in "sf"] == [e for e in ours if e["ph"] in "sf"] != []
    assert not any("cycles" in e["args"] for e in slices(events, False))
