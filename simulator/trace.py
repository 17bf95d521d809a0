"""Write a run as a Chrome trace, which opens in Perfetto and chrome://tracing.

Each engine has a track with its operations and the causes of the gaps between them.
Arrows lead from signals to waits. Counters show live bytes of on-chip memories and the bandwidth of ports.
One cycle is one microsecond of trace time, so the viewer's times read as cycles.
Format: Trace Event Format, Google, "X" (complete), "C" (counter), "s" and "f" (flow) and "M" (metadata)
events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from simulator.cycle_breakdown import Attribution, attribute_cycles
from simulator.occupancy import occupancy
from simulator.simulation import Simulation
from simulator.trace_tracks import gaps, make_signal_arrows, port_rates, sum_stalls_by_operation
from toolchain.errors import InternalError
from toolchain.hw.chip import Chip
from toolchain.machine import MachineOp, Signal, Space, Table, Wait

_PROCESS = 1
Event = dict[str, Any]


def chrome_trace(
    chip: Chip,
    ops: Sequence[MachineOp],
    run: Simulation,
    labels: Sequence[str] | None = None,
    causes: Attribution | None = None,
) -> dict[str, Any]:
    """Return the trace of a run that was simulated with timing, as the JSON object of the format.

    `ops`: as dispatched, one for each time of the run; otherwise InternalError.
    `labels`: a name of each operation, such as its layer; None: the operation's kind.
    `causes`: cycle breakdown of the run (None: `attribute_cycles` computes it, and without one the trace has no gaps).
    """
    if len(run.start) != len(ops):
        raise InternalError(f"a trace of {len(ops)} operations needs a simulation with timing=True, has {len(run.start)} times")
    causes = attribute_cycles(chip, run) if causes is None else causes
    events: list[Event] = [_metadata("process_name", 0, chip.name)]
    events += [_metadata("thread_name", i + 1, name) for i, name in enumerate(run.engines)]
    events += _operations(ops, run, labels, causes)
    if causes is not None:
        events += (
            _slice(g.queue, g.first, g.last, g.title, "idle", {**_place(run, g.op), **g.details}) for g in gaps(run, causes)
        )
    for number, (since, until) in enumerate(make_signal_arrows(run)):
        events.append(_arrow("s", since.queue, since.cycle, number))
        events.append({**_arrow("f", until.queue, until.cycle, number), "bp": "e"})
    for code, space in enumerate(chip.spaces):
        if code != Space.DRAM and run.peak_bytes[space.name]:
            live = zip(*(column.tolist() for column in occupancy(chip, ops, run, code)))
            events += (_counter(cycle, f"{space.name} live bytes", "bytes", size) for cycle, size in live)
    for port, cycle, rate in port_rates(chip, run):
        events.append(_counter(cycle, f"{port} bytes a cycle", "bytes a cycle", rate))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"machine": chip.name, "unit": "1 us = 1 cycle"}}


def write_trace(path: str | Path, trace: dict[str, Any]) -> None:
    """Write a trace, one event a line, so that the file can be read and compared. Raise OSError."""
    lines = ",\n".join(json.dumps(event, sort_keys=True) for event in trace["traceEvents"])
    rest = json.dumps({k: v for k, v in trace.items() if k != "traceEvents"}, sort_keys=True)
    Path(path).write_text(f'{{"traceEvents": [\n{lines}\n], {rest[1:]}\n', encoding="utf-8", newline="\n")


def _operations(
    ops: Sequence[MachineOp], run: Simulation, labels: Sequence[str] | None, causes: Attribution | None
) -> Iterator[Event]:
    """Yield an event for each operation. Signals and waits that took no time are left out."""
    stalls_by_op = {} if causes is None else sum_stalls_by_operation(run, causes)
    for i, op in enumerate(ops):
        engine, start, end = int(run.engine[i]), int(run.start[i]), int(run.end[i])
        if engine < 0 or (isinstance(op, Signal | Wait) and end == start):
            continue
        label = labels[i] if labels is not None else op.NAME
        event_args: Event = {**_place(run, i), "bound_by": run.bound_by[i]}
        if isinstance(op, Table) and op.function:
            event_args["function"] = op.function.name.lower()
        if run.flow.iterations[i]:
            event_args["iterations"] = [step + 1 for step, _ in run.flow.iterations[i]]
        if i in stalls_by_op:
            event_args["cycles"] = stalls_by_op[i]
        if isinstance(op, Signal | Wait):
            label = f"{op.NAME} {op.semaphore}"
        yield _slice(engine, start, end, label, op.NAME, event_args)


def _place(run: Simulation, op: int) -> Event:
    """Return the event arguments that name an operation of the program; empty for -1, none."""
    return {} if op < 0 else {"op": run.flow.sources[op], "operation": run.flow[op].NAME}


def _slice(queue: int, first: int, last: int, name: str, category: str, event_args: Event) -> Event:
    place = {"ph": "X", "pid": _PROCESS, "tid": queue + 1, "ts": first, "dur": last - first}
    return {**place, "name": name, "cat": category, "args": event_args}


def _arrow(phase: str, queue: int, cycle: int, number: int) -> Event:
    return {"ph": phase, "pid": _PROCESS, "tid": queue + 1, "ts": cycle, "id": number, "name": "signal", "cat": "semaphore"}


def _counter(cycle: int, name: str, unit: str, value: float) -> Event:
    return {"ph": "C", "pid": _PROCESS, "tid": 0, "ts": cycle, "name": name, "args": {unit: value}}


def _metadata(kind: str, track: int, name: str) -> Event:
    return {"ph": "M", "pid": _PROCESS, "tid": track, "name": kind, "args": {"name": name}}
