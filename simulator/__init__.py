"""Runs a machine's program: exact bits, cycles, and refusal of whatever would depend on timing."""

from simulator.attribution import COMPUTING, Attribution, Cause, Reason, Spans, attributed, by_reason
from simulator.occupancy import occupancy
from simulator.parts import DramPart, PartKind
from simulator.prepared import Observe, Prepared, measured, prepare, simulate
from simulator.simulation import Simulation
from simulator.trace import chrome_trace, write_trace
from simulator.unread import Unread

__all__ = [
    "COMPUTING",
    "Attribution",
    "Cause",
    "DramPart",
    "Observe",
    "PartKind",
    "Prepared",
    "Reason",
    "Simulation",
    "Spans",
    "Unread",
    "attributed",
    "by_reason",
    "chrome_trace",
    "measured",
    "occupancy",
    "prepare",
    "simulate",
    "write_trace",
]
