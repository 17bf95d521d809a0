"""A run as a Chrome trace (opens in Perfetto and chrome://tracing): one track an engine, a counter of live sram bytes.

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
from toolchain.isa.accesses import accesses
from toolchain.isa.operations import MachineOp, Signal, Space, Wait

_PROCESS = 1


def chrome_trace(chip: Chip, ops: Sequence[MachineOp], run: Simulation, labels: Sequence[str] | None = None) -> dict[str, Any]:
    """The trace of a run that was simulated with timing. labels: a name of each operation, say its layer."""
    if len(run.start) != len(ops):
        raise InternalError(f"a trace of {len(ops)} operations needs a simulation with timing=True, has {len(run.start)} times")
    events: list[dict[str, Any]] = [_metadata("process_name", 0, chip.name)]
    events += [_metadata("thread_name", i + 1, name) for i, name in enumerate(run.engines)]
    for i, op in enumerate(ops):
        engine, start, end = int(run.engine[i]), int(run.start[i]), int(run.end[i])
        if engine < 0 or (isinstance(op, Signal | Wait) and end == start):
            continue
        label = labels[i] if labels is not None else op.NAME
        arguments: dict[str, Any] = {"op": i, "operation": op.NAME, "bound_by": run.bound_by[i]}
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
    for cycle, live in zip(*(column.tolist() for column in sram_occupancy(chip, ops, run))):
        events.append({"ph": "C", "pid": _PROCESS, "tid": 0, "ts": cycle, "name": "sram live bytes", "args": {"bytes": live}})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"machine": chip.name, "unit": "1 us = 1 cycle"}}


def write_trace(path: str | Path, trace: dict[str, Any]) -> None:
    """One event a line: the file can be read and compared."""
    lines = ",\n".join(json.dumps(event, sort_keys=True) for event in trace["traceEvents"])
    rest = json.dumps({k: v for k, v in trace.items() if k != "traceEvents"}, sort_keys=True)
    Path(path).write_text(f'{{"traceEvents": [\n{lines}\n], {rest[1:]}\n', encoding="utf-8")


def _metadata(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": track, "name": kind, "args": {"name": name}}


def sram_occupancy(chip: Chip, ops: Sequence[MachineOp], run: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """(int64 cycles, int64 bytes): from each cycle on, the bytes of sram that hold a value still to be read.

    A byte lives from the start of the operation that writes it to the end of the last that reads it before it is
    written again.
    """
    size = chip.memories.sram.size
    born, last_read = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    changes: dict[int, int] = {}
    for i in np.argsort(run.start, kind="stable").tolist():
        found = [a for a in accesses(ops[i], chip) if a.space == Space.SRAM and a.bytes]
        for access in (a for a in found if not a.write):
            _raise_to(last_read, access, int(run.end[i]))
        for access in (a for a in found if a.write):
            _settle(_of(born, access), _of(last_read, access), changes)
            _of(born, access)[...] = int(run.start[i])
            _of(last_read, access)[...] = -1
    _settle(born, last_read, changes)
    cycles = np.array(sorted(changes), np.int64)
    return cycles, np.cumsum([changes[int(c)] for c in cycles], dtype=np.int64)


def _of(values: np.ndarray, access: Any) -> np.ndarray:
    """int64 values of the bytes of an access."""
    shape = (*access.counts, access.inner_bytes)
    return np.ndarray(shape, np.int64, values, access.address * 8, tuple(s * 8 for s in (*access.strides, 1)))


def _raise_to(last_read: np.ndarray, access: Any, cycle: int) -> None:
    view = _of(last_read, access)
    np.maximum(view, cycle, out=view)


def _settle(born: np.ndarray, last_read: np.ndarray, changes: dict[int, int]) -> None:
    """Books the lives of values that nothing will read again."""
    lived = (last_read > born) & (born >= 0)
    if not lived.any():
        return
    pairs = np.stack((born[lived], last_read[lived]), axis=1)
    lives, counts = np.unique(pairs, axis=0, return_counts=True)
    for (first, last), count in zip(lives.tolist(), counts.tolist()):
        changes[first] = changes.get(first, 0) + count
        changes[last] = changes.get(last, 0) - count
