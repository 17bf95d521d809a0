"""A memory planner with proofs: buffers and graphs of sizes in, plans and certificates out.

It knows nothing of networks or machines, and imports nothing of the rest of the toolchain. `place` gives addresses,
`order_operators` an order, `choose_residents` what stays in SRAM. Each answer carries its bound and whether it is proved.
`validate` checks plans that it did not make. `toolchain.schedule` and `toolchain.codegen.link` are the callers in a build.
"""

from toolchain.memory.buffer import Buffer, DoesNotFit, InvalidBuffers, Placement
from toolchain.memory.check import live_at_peak, validate
from toolchain.memory.io.csv_format import InvalidCsv, read_csv
from toolchain.memory.io.plot import draw
from toolchain.memory.order.graph import InvalidGraph, Operator
from toolchain.memory.order.order_search import Order, live_ranges, order_operators, peak_of_order
from toolchain.memory.order.rewrite import Rewritten, concat_by_view, drop_no_ops, split_by_view
from toolchain.memory.place.placement import place
from toolchain.memory.residency.choice import (
    InvalidTensors,
    Residency,
    ResidentTensor,
    Spilling,
    UsedTensor,
    choose_residents,
    choose_spills,
)
from toolchain.memory.residency.place_residents import PlacedResidents, place_residents

__all__ = [
    "Buffer",
    "DoesNotFit",
    "InvalidBuffers",
    "InvalidCsv",
    "InvalidGraph",
    "InvalidTensors",
    "Operator",
    "Order",
    "PlacedResidents",
    "Placement",
    "Residency",
    "ResidentTensor",
    "Rewritten",
    "Spilling",
    "UsedTensor",
    "choose_residents",
    "choose_spills",
    "concat_by_view",
    "draw",
    "drop_no_ops",
    "live_at_peak",
    "live_ranges",
    "order_operators",
    "peak_of_order",
    "place",
    "place_residents",
    "read_csv",
    "split_by_view",
    "validate",
]
