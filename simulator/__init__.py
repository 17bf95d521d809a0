"""Runs a machine's program: exact bits, cycles, and refusal of whatever would depend on timing."""

from simulator.simulation import Simulation, simulate
from simulator.trace import chrome_trace, sram_occupancy, write_trace

__all__ = ["Simulation", "chrome_trace", "simulate", "sram_occupancy", "write_trace"]
