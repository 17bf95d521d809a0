"""A run as a Chrome trace (opens in Perfetto and chrome://tracing): one track an engine, a counter of live bytes for each
memory on the chip.

One cycle is one microsecond of trace time, so the viewer's times read as cycles.
Format: Trace Event Format, Google, "X" (complete), "C" (counter) and "M" (metadata) events.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator.simulation import Simulation
from toolchain.errors import InternalError
from toolchain.hw.chip import Chip
from toolchain.machine import Access, MachineOp, Signal, Space, Table, Wait, accesses_at

_PROCESS = 1


def chrome_trace(chip: Chip, ops: Sequence[MachineOp], run: Simulation, labels: Sequence[str] | None = None) -> dict[str, Any]:
    """The trace of a run that was simulated with timing. ops: as dispatched. labels: a name of each, say its layer."""
    if len(run.start) != len(ops):
        raise InternalError(f"a trace of {len(ops)} operations needs a simulation with timing=True, has {len(run.start)} times")
    events: list[dict[str, Any]] = [_metadata("process_name", 0, chip.name)]
    events += [_metadata("thread_name", i + 1, name) for i, name in enumerate(run.engines)]
    for i, op in enumerate(ops):
        engine, start, end = int(run.engine[i]), int(run.start[i]), int(run.end[i])
        if engine < 0 or (isinstance(op, Signal | Wait) and end == start):
            continue
        label = labels[i] if labels is not None else op.NAME
        arguments: dict[str, Any] = {"op": run.flow.sources[i], "operation": op.NAME, "bound_by": run.bound_by[i]}
        if isinstance(op, Table) and op.function:
            arguments["function"] = op.function.name.lower()
        if run.flow.iterations[i]:
            arguments["iterations"] = [step + 1 for step, _ in run.flow.iterations[i]]
        if isinstance(op, Signal | Wait):
            label = f"{op.NAME} {op.semaphore}"
        events.append(
            {
                "ph": "X",
                "pid": _PROCESS,
                "tid": engine + 1,
                "ts": start,
                "dur": end - start,
                "name": label,
                "cat": op.NAME,
                "args": arguments,
            }
        )
    for code, space in enumerate(chip.spaces):
        if code == Space.DRAM or not run.peak_bytes[space.name]:
            continue
        name = f"{space.name} live bytes"
        for cycle, live in zip(*(column.tolist() for column in occupancy(chip, ops, run, code))):
            events.append({"ph": "C", "pid": _PROCESS, "tid": 0, "ts": cycle, "name": name, "args": {"bytes": live}})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"machine": chip.name, "unit": "1 us = 1 cycle"}}


def write_trace(path: str | Path, trace: dict[str, Any]) -> None:
    """One event a line: the file can be read and compared."""
    lines = ",\n".join(json.dumps(event, sort_keys=True) for event in trace["traceEvents"])
    rest = json.dumps({k: v for k, v in trace.items() if k != "traceEvents"}, sort_keys=True)
    Path(path).write_text(f'{{"traceEvents": [\n{lines}\n], {rest[1:]}\n', encoding="utf-8")


def _metadata(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": track, "name": kind, "args": {"name": name}}


def occupancy(chip: Chip, ops: Sequence[MachineOp], run: Simulation, space: int) -> tuple[np.ndarray, np.ndarray]:
    """(int64 cycles, int64 bytes): from each cycle on, the bytes of a memory that hold a value still to be read.

    A byte lives from the start of the operation that writes it to the end of the last that reads it before it is
    written again.
    """
    size, count = chip.spaces[space].memory.size, len(ops)
    # per byte, the operation that wrote it and the one that read it last, by their places in these orders
    begun, ended = np.argsort(run.start, kind="stable"), np.argsort(run.end, kind="stable")
    place = np.empty(count, np.int64)
    place[ended] = np.arange(count)
    born, last_read = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    lives: dict[int, int] = {}
    for when, i in enumerate(begun.tolist()):
        found = [a for a in accesses_at(ops, i, chip) if a.space == space and a.bytes]
        for access in found:
            reads = _of(last_read, access)
            if not access.write:
                np.maximum(reads, np.int32(place[i]), out=reads)
                continue
            _settle(_of(born, access), reads, count, lives)
            _of(born, access)[...] = when
            reads[...] = -1
    _settle(born, last_read, count, lives)
    return _summed(lives, run.start[begun], run.end[ended], count)


def _of(values: np.ndarray, access: Access) -> np.ndarray:
    """The int32 values of the bytes of an access."""
    shape = (*access.counts, access.inner_bytes)
    return np.ndarray(shape, np.int32, values, access.address * 4, tuple(s * 4 for s in (*access.strides, 1)))


def _settle(born: np.ndarray, last_read: np.ndarray, count: int, lives: dict[int, int]) -> None:
    """Books the bytes of values that nothing will read again, by writer and last reader (writer * count + reader)."""
    keys = np.where((born >= 0) & (last_read >= 0), born * np.int64(count) + last_read, -1).ravel()
    # neighbours mostly share a life: count runs, not bytes
    starts = np.concatenate(([0], np.flatnonzero(keys[1:] != keys[:-1]) + 1))
    lengths = np.diff(starts, append=keys.size)
    for key, length in zip(keys[starts].tolist(), lengths.tolist()):
        if key >= 0:
            lives[key] = lives.get(key, 0) + length


def _summed(lives: dict[int, int], start: np.ndarray, end: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Lives as (writer, reader) pairs to live bytes over time."""
    keys = np.array(sorted(lives), np.int64)
    sizes = np.array([lives[int(k)] for k in keys], np.int64)
    times = np.concatenate((start[keys // max(count, 1)], end[keys % max(count, 1)]))
    cycles, at = np.unique(times, return_inverse=True)
    change = np.zeros(cycles.size, np.int64)
    np.add.at(change, at, np.concatenate((sizes, -sizes)))
    return cycles, np.cumsum(change)
