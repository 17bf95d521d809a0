"""Write a timed run as a Chrome trace: its regions one after the other, operations named by their layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from simulator import Simulation, chrome_trace
from toolchain.codegen import Container, Region
from toolchain.report.layer_breakdown import attribute_region, most_macs


def trace_json(container: Container, simulations: Sequence[Simulation | None]) -> bytes:
    """Return the trace as JSON, one event a line. Host subgraphs take no time in it.

    `simulations`: a run with times for each segment, in order; None for a host subgraph.
    """
    chip, most = container.machine.chip, most_macs(container)
    events: list[dict[str, Any]] = []
    start = 0
    rest: dict[str, Any] = {}
    for index, (segment, simulation) in enumerate(zip(container.segments, simulations)):
        if not isinstance(segment, Region) or simulation is None:
            continue
        flow = simulation.flow
        layers: list[int] = segment.layers_of(flow).tolist()
        labels = [segment.layers[i].name if i >= 0 else op.NAME for i, op in zip(layers, flow)]
        trace = chrome_trace(chip, flow, simulation, labels, attribute_region(chip, segment, simulation, most))
        rest = {k: v for k, v in trace.items() if k != "traceEvents"}
        later = [_place_event(e, index, start) for e in trace["traceEvents"]]
        events += [e for e in later if not (e["ph"] == "M" and e in events)]
        start += simulation.cycles
    lines = ",\n".join(json.dumps(event, sort_keys=True) for event in events)
    return f'{{"traceEvents": [\n{lines}\n], {json.dumps(rest, sort_keys=True)[1:]}\n'.encode()


def _place_event(event: dict[str, Any], segment: int, start: int) -> dict[str, Any]:
    """Return the event moved by the cycles of the regions before it, with the segment in its arguments and in an arrow's
    number."""
    if "ts" not in event:
        return event
    if "id" in event:
        return {**event, "ts": event["ts"] + start, "id": f"{segment}.{event['id']}"}
    event_args = {"args": {**event["args"], "segment": segment}} if event["ph"] == "X" else {}
    return {**event, "ts": event["ts"] + start, **event_args}
