"""Run a machine's program: exact bits, cycles, and refusal of whatever would depend on timing.

`simulate` does all at once; `prepare_program` checks and times once, for many runs. Both refuse by ProgramError.
The backend `simulator` of `toolchain.runtime` and the build's own check are the callers. Names are imported on first use.
"""

from typing import TYPE_CHECKING

from toolchain.foundation.module_registry import export_lazily

if TYPE_CHECKING:
    from simulator.cycle_breakdown import COMPUTING, Attribution, Spans, StallCause, StallReason, attribute_cycles, by_reason
    from simulator.dead_stores import DeadStore
    from simulator.dram_ranges import DramRange, DramRangeKind
    from simulator.merging import MergedProgram, merge_program
    from simulator.prepared_program import Observe, PreparedProgram, prepare_program, simulate, wrap_measured_run
    from simulator.simulation import Simulation
    from simulator.trace import chrome_trace, write_trace

__all__ = [
    "COMPUTING",
    "Attribution",
    "DeadStore",
    "DramRange",
    "DramRangeKind",
    "MergedProgram",
    "Observe",
    "PreparedProgram",
    "Simulation",
    "Spans",
    "StallCause",
    "StallReason",
    "attribute_cycles",
    "by_reason",
    "chrome_trace",
    "merge_program",
    "prepare_program",
    "simulate",
    "wrap_measured_run",
    "write_trace",
]

__getattr__ = export_lazily(
    __name__,
    {
        "cycle_breakdown": ("COMPUTING", "Attribution", "Spans", "StallCause", "StallReason", "attribute_cycles", "by_reason"),
        "dead_stores": ("DeadStore",),
        "dram_ranges": ("DramRange", "DramRangeKind"),
        "merging": ("MergedProgram", "merge_program"),
        "prepared_program": ("Observe", "PreparedProgram", "prepare_program", "simulate", "wrap_measured_run"),
        "simulation": ("Simulation",),
        "trace": ("chrome_trace", "write_trace"),
    },
)
