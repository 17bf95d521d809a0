"""A memory planner with proofs: buffers and graphs of sizes in, plans and certificates out.

Knows nothing of networks or machines. `place` gives addresses, `order_operators` an order, `choose_residents` what
stays in SRAM; each answer carries its bound and whether it is proved. `validate` checks plans it did not make.
"""

from toolchain.memory.buffer import Buffer, DoesNotFit, InvalidBuffers, Placement
from toolchain.memory.check import live_at_peak, validate
from toolchain.memory.draw import draw
from toolchain.memory.graph import InvalidGraph, Operator
from toolchain.memory.order import Order, live_ranges, order_operators, peak_of_order
from toolchain.memory.place import place
from toolchain.memory.residency import InvalidTensors, Residency, ResidentTensor, choose_residents

__all__ = [
    "Buffer",
    "DoesNotFit",
    "InvalidBuffers",
    "InvalidGraph",
    "InvalidTensors",
    "Operator",
    "Order",
    "Placement",
    "Residency",
    "ResidentTensor",
    "choose_residents",
    "draw",
    "live_at_peak",
    "live_ranges",
    "order_operators",
    "peak_of_order",
    "place",
    "validate",
]
