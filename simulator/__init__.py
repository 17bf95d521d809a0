"""Runs a machine's program: exact bits, cycles, and refusal of whatever would depend on timing."""

from simulator.parts import DramPart, PartKind
from simulator.simulation import Observe, Simulation, measured, simulate
from simulator.trace import chrome_trace, occupancy, write_trace
from simulator.unread import Unread

__all__ = [
    "DramPart",
    "Observe",
    "PartKind",
    "Simulation",
    "Unread",
    "chrome_trace",
    "measured",
    "occupancy",
    "simulate",
    "write_trace",
]
