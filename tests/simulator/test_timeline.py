"""Cycles: closed forms of small programs, and the conservation laws on random ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
from machine_programs import DMA0, VECTOR, functions, load, small_chip, store
from pipelines import pipeline, random_program, rescale

from simulator import Simulation, chrome_trace, simulate, write_trace
from simulator.occupancy import occupancy
from simulator.program_order import program_order
from toolchain.hw.chip import Chip
from toolchain.machine import Copy, End, MachineOp, Signal, Space, Wait, accesses, demand

IMAGE = np.zeros(0x8000, np.uint8)


def run(chip: Chip, ops: list[MachineOp], words: list[int] | None = None) -> Simulation:
    return simulate(chip, ops, words, IMAGE, [(0, IMAGE.size)], values=False, check=False)


def test_one_load():
    chip = small_chip(memories__dram__latency_cycles=100, memories__dram__burst_bytes=64, engines__dma__issue_cycles=3)
    result = run(chip, [load(0, 0, 1000), End()])
    # dispatch ends in cycle 1, issue 3, latency 100, 1024 bytes of bursts at 8 a cycle
    assert result.cycles == 1 + 3 + 100 + 128
    assert result.bound_by[0] == "dram"
    assert (result.dram_read_bytes, result.dram_read_burst_bytes) == (1000, 1024)
    assert result.busy_cycles == {"mac": 0, "vector": 0, "dma0": 231, "dma1": 0}
    assert result.sram_peak_bytes == 1000


def test_the_channel_limits_where_it_is_slower():
    result = run(small_chip(engines__dma__bytes_per_cycle=2.0), [load(0, 0, 1000), End()])
    assert (result.cycles, result.bound_by[0]) == (1 + 500, "compute")


def test_two_channels_share_the_memory():
    """Both channels could move 16 bytes a cycle each, but the memory gives 8 to both together."""
    ops = [load(0, 0, 1024), load(1024, 1024, 1024, 1), End()]
    assert run(small_chip(), ops).cycles == 1 + 256
    assert run(small_chip(memories__dram__read_bytes_per_cycle=32.0), ops).cycles == 1 + 64


def test_reads_and_writes_share_where_ports_are_shared():
    ops = [load(0, 0, 1024), store(2048, 1024, 1024, 1), End()]
    assert run(small_chip(), ops).cycles == 1 + 128
    assert run(small_chip(memories__dram__shared_ports=True), ops).cycles == 1 + 256


def test_pipeline_is_bound_by_its_slowest_stage():
    """100 tiles: the slowest stage runs without a gap once the pipeline is full."""
    tiles, tile = 100, 64
    ops = pipeline(tiles, tile)
    stage = {"load": 64 / 8, "compute": 4 + 64 / 8, "store": 64 / 8}
    result = run(small_chip(), ops)
    assert result.cycles == pytest.approx(tiles * stage["compute"] + stage["load"] + stage["store"], abs=2)
    slow = run(small_chip(memories__dram__read_bytes_per_cycle=2.0), ops)
    assert slow.cycles == pytest.approx(tiles * 32 + stage["compute"] + stage["store"], abs=2)
    shared = run(small_chip(memories__dram__shared_ports=True, engines__vector__functions=functions(startup=0)), ops)
    assert shared.cycles == pytest.approx(tiles * 16 + 8 + 8, abs=20)


def test_front_end():
    """Four operations of 10 words at 2 cycles a word: the last starts at 80."""
    chip = small_chip(isa__word_cycles=2.0)
    ops = [rescale(0, 64, 16), rescale(0, 64, 16), rescale(0, 64, 16), rescale(0, 64, 16), End()]
    result = run(chip, ops, [10, 10, 10, 10, 1])
    assert result.start.tolist() == [20, 40, 60, 80, 86]
    assert result.bound_by[:4] == ("dispatch",) * 4


def test_a_full_queue_stops_the_front_end():
    """Queue of 4: the seventh load finds room when the second ends; what comes behind it is dispatched a word later."""
    ops = [*[load(0, 0, 800) for _ in range(7)], rescale(0x1000, 0x1100, 16), End()]
    result = run(small_chip(isa__word_cycles=1.0), ops)
    assert (result.end[1], result.start[7]) == (201, 202)


def test_wait_is_bound_by_its_signal():
    ops = [load(0, 0, 800), Signal(DMA0, 0), Wait(VECTOR, 0), rescale(0, 0x1000, 16), End()]
    result = run(small_chip(), ops)
    assert result.end[2] == result.end[1] == 101
    assert result.bound_by[2] == "wait"
    assert result.start[3] == 101


def test_a_wait_may_stand_before_its_signal():
    """The program names the consumer first: times, checks and values go by what can run."""
    ops = [Wait(VECTOR, 0), rescale(0, 0x1000, 16), Signal(VECTOR, 1), load(0, 0, 800), Signal(DMA0, 0)]
    ops += [Wait(DMA0, 1), store(0x1000, 0x100, 16), End()]
    image = np.full(0x1000, 100, np.uint8)
    result = simulate(small_chip(), ops, None, image, [(0, image.size)])
    assert result.end[0] == result.end[4] == 101
    assert (result.start[1], result.start[6]) == (101, 107)
    assert result.dram[0x100:0x110].tolist() == [50] * 16


def laws(chip: Chip, ops: list[MachineOp], result: Simulation) -> None:
    """Check the laws of every run."""
    order = program_order(chip, ops)
    op_demands = [demand(op, chip) for op in ops]
    last = [0] * len(order.names)
    for i, engine in enumerate(order.engine):
        if engine < 0:
            continue
        assert result.start[i] >= last[engine], "an engine runs two at once"
        last[engine] = int(result.end[i])
        if not isinstance(ops[i], Signal | Wait):
            assert result.end[i] - result.start[i] >= op_demands[i].compute_cycles + op_demands[i].latency_cycles
    for wait, signal in order.signal_by_wait.items():
        assert result.end[wait] >= result.end[signal], "a Wait ends before its Signal"
    copies = [op for op in ops if isinstance(op, Copy)]
    assert result.dram_read_bytes == sum(op.inner_bytes for op in copies if op.source_space == 0)
    assert result.dram_write_bytes == sum(op.inner_bytes for op in copies if op.destination_space == 0)
    assert result.cycles == max(result.end)
    for bytes_, rate in (
        (result.dram_read_burst_bytes, chip.dram.read_bytes_per_cycle),
        (result.dram_write_burst_bytes, chip.dram.write_bytes_per_cycle),
        (result.sram_read_bytes, chip.sram.read_bytes_per_cycle),
        (result.sram_write_bytes, chip.sram.write_bytes_per_cycle),
    ):
        assert result.cycles >= bytes_ / rate, "a memory gave more than its bandwidth"


BASE = {
    "memories__dram__latency_cycles": 20,
    "memories__dram__burst_bytes": 32,
    "isa__word_cycles": 1.5,
    "memories__sram__read_bytes_per_cycle": 16.0,
    "memories__sram__write_bytes_per_cycle": 12.0,
}
FASTER = [
    {"memories__dram__read_bytes_per_cycle": 8.5},
    {"memories__dram__read_bytes_per_cycle": 13.0},
    {"memories__dram__write_bytes_per_cycle": 9.0},
    {"memories__dram__write_bytes_per_cycle": 100.0},
    {"memories__sram__read_bytes_per_cycle": 17.0},
    {"memories__sram__write_bytes_per_cycle": 14.0},
    {"memories__sram__write_bytes_per_cycle": 64.0},
    {"memories__dram__latency_cycles": 7},
    {"engines__dma__bytes_per_cycle": 20.0},
    {"isa__word_cycles": 1.25},
    {"engines__vector__functions": functions(startup=1)},
]


def test_laws_and_more_never_slows():
    """50 random programs, each on a base machine and on 11 that are faster in one thing, with and without shared ports."""
    rng = np.random.default_rng(7)
    compared = 0
    for case in range(50):
        ops = random_program(rng, int(rng.integers(5, 60))) if case % 3 else pipeline(int(rng.integers(2, 12)), 128)
        shared = {"memories__dram__shared_ports": bool(case % 2), "memories__sram__shared_ports": case % 5 == 0}
        try:
            before = run(small_chip(**BASE, **shared), ops)
        except Exception as deadlock:
            assert "deadlock" in str(deadlock)
            continue
        laws(small_chip(**BASE, **shared), ops, before)
        for change in FASTER:
            chip = small_chip(**(BASE | shared | change))
            after = run(chip, ops)
            assert after.cycles <= before.cycles, (case, change)
            assert (after.end <= before.end).all()
            compared += 1
    assert compared > 300


def test_times_do_not_depend_on_values_or_checks():
    chip = small_chip()
    plain = run(chip, pipeline(5))
    full = simulate(chip, pipeline(5), None, IMAGE, [(0, IMAGE.size)])
    assert np.array_equal(plain.start, full.start)
    assert plain.cycles == full.cycles


def test_progress_is_reported():
    steps: list[tuple[str, int, int]] = []
    simulate(small_chip(), pipeline(3), None, IMAGE, [(0, IMAGE.size)], progress=lambda *step: steps.append(step))
    assert {stage for stage, _, _ in steps} == {"check", "run"}


def test_trace(tmp_path):
    chip, ops = small_chip(), pipeline(3)
    result = run(chip, ops)
    trace = chrome_trace(chip, ops, result, labels=[f"layer {i}" for i in range(len(ops))])
    write_trace(tmp_path / "trace.json", trace)
    assert json.loads((tmp_path / "trace.json").read_text()) == json.loads(json.dumps(trace))
    tracks = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert tracks == {"mac", "vector", "dma0", "dma1"}
    boxes = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    copies = [e for e in boxes if e["cat"] == "copy"]
    assert len(copies) == 6
    assert sum(e["dur"] for e in copies) == result.busy_cycles["dma0"] + result.busy_cycles["dma1"]
    assert copies[0]["name"] == "layer 0"
    counter = [e["args"]["bytes"] for e in trace["traceEvents"] if e["name"] == "sram live bytes"]
    assert counter[-1] == 0
    assert max(counter) <= 4 * 64


def occupancy_byte_by_byte(chip: Chip, ops: list[MachineOp], result: Simulation) -> dict[int, int]:
    """Changes of the number of live bytes, by cycle."""
    values: dict[int, tuple[int, int]] = {}
    changes: dict[int, int] = {}

    def settle(born: int, read: int) -> None:
        if read > born:
            changes[born] = changes.get(born, 0) + 1
            changes[read] = changes.get(read, 0) - 1

    for i in np.argsort(result.start, kind="stable").tolist():
        for access in accesses(ops[i], chip):
            if access.space != Space.SRAM:
                continue
            view = np.arange(access.address, access.end)
            assert access.bytes == view.size, "the programs here are dense"
            for byte in view.tolist():
                if access.write:
                    settle(*values.get(byte, (0, 0)))
                    values[byte] = (int(result.start[i]), -1)
                else:
                    born, read = values[byte]
                    values[byte] = (born, max(read, int(result.end[i])))
    for life in values.values():
        settle(*life)
    return {cycle: change for cycle, change in changes.items() if change}


@pytest.mark.parametrize("tiles", [1, 4, 5])
def test_occupancy(tiles):
    """Against every byte by itself; the last load is never read, so it never counts."""
    ops = [*pipeline(tiles)[:-1], Signal(VECTOR, 9), Wait(DMA0, 9), load(0, 0, 64), End()]
    result = run(small_chip(), ops)
    cycles, live = occupancy(small_chip(), ops, result, Space.SRAM)
    changes = dict(zip(cycles.tolist(), np.diff(live, prepend=0).tolist()))
    assert {cycle: change for cycle, change in changes.items() if change} == occupancy_byte_by_byte(small_chip(), ops, result)
    assert live[-1] == 0
    assert live.max() >= 64
