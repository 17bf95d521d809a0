"""Count the expected cycles of a network that is not built, for those who choose between several."""

from __future__ import annotations

from functools import partial

from quant.repair.choices import Quantization
from toolchain.compiler import compile_model
from toolchain.repair.network import CycleCounter, Network


def make_cycle_counter(level: int) -> CycleCounter:
    """Return a function that plans a quantized network at this level and returns its expected cycles. It raises CompileError."""
    return partial(_count_cycles, level)


def _count_cycles(level: int, network: Network, quantization: Quantization) -> int:
    plan = compile_model("trial", network.model, network.selection, network.machine, quantization, level)
    return plan.expected_cycles
