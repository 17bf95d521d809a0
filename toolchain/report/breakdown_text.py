"""Show where the cycles, the bytes and the energy of a network went, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator import StallCause
from toolchain.errors import format_count
from toolchain.report.layer_breakdown import CAUSES
from toolchain.report.report_text import table


def attribution_text(figures: Mapping[str, Any]) -> str:
    """Shares of all cycles, each unit's sum to 100 %; causes that no unit has are left out. Of signals, with the unit waited for
    longest. Empty where the causes are not known."""
    if not figures["attribution"] or not figures["cycles"]:
        return ""
    units: Mapping[str, Mapping[str, Any]] = figures["attribution"]
    memories = sorted({name for stalls in units.values() for name in stalls.get(StallCause.MEMORY, {})})
    columns = [
        (cause, name)
        for cause in StallCause
        for name in (memories if cause is StallCause.MEMORY else [""])
        if any(stalls.get(cause) for stalls in units.values())
    ]
    rows = [
        (unit, *(_share(stalls, cause, name, figures["cycles"]) for cause, name in columns)) for unit, stalls in units.items()
    ]
    heads = ("unit", *(name or CAUSES[cause] for cause, name in columns))
    return "% of cycles, by cause\n" + table(heads, rows, range(1, len(heads)))


def traffic_text(figures: Mapping[str, Any]) -> str:
    """Return what each memory moves, what the front end reads, and the energy of both where the machine states it.
    The text is empty where nothing runs on the chip.
    """
    if not figures["layers"]:
        return ""
    rows = [
        (name, *(f"{moved[kind]:,}" for kind in ("read_bytes", "write_bytes", "read_burst_bytes", "write_burst_bytes")))
        for name, moved in figures["traffic"].items()
    ]
    heads = ("memory", "bytes read", "written", "read in bursts", "written in bursts")
    summary = f"instructions read: {format_count(figures['program_bytes'], 'byte')}"
    energy = figures["energy_pj"]
    if energy is not None:
        parts = (("products", "macs"), ("memories on the chip", "on_chip"), ("DRAM", "dram"))
        shares = ", ".join(f"{what} {_part(energy[key], energy['total'])}" for what, key in parts)
        summary += f"\nenergy: {energy['total'] / 1e6:,.3f} uJ, {shares}"
    return f"{table(heads, rows, (1, 2, 3, 4))}\n{summary}"


def _part(value: float, total: float) -> str:
    return f"{100 * value / total:.1f} %" if total else "-"


def _share(stalls: Mapping[str, Any], cause: StallCause, name: str, cycles: int) -> str:
    cause_cycles = stalls.get(cause, 0)
    if cause is StallCause.SIGNAL and cause_cycles:
        return f"{100 * sum(cause_cycles.values()) / cycles:.1f} {max(cause_cycles, key=cause_cycles.__getitem__)}"
    stall_cycles = cause_cycles.get(name, 0) if isinstance(cause_cycles, Mapping) else cause_cycles
    return f"{100 * stall_cycles / cycles:.1f}" if stall_cycles else "-"
