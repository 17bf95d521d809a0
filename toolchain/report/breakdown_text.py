"""Where the cycles, the bytes and the energy of a network went, as tables that a person can read."""

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
    memories = sorted({name for spent in units.values() for name in spent.get(StallCause.MEMORY, {})})
    columns = [
        (cause, name)
        for cause in StallCause
        for name in (memories if cause is StallCause.MEMORY else [""])
        if any(spent.get(cause) for spent in units.values())
    ]
    rows = [(unit, *(_share(spent, cause, name, figures["cycles"]) for cause, name in columns)) for unit, spent in units.items()]
    heads = ("unit", *(name or CAUSES[cause] for cause, name in columns))
    return "% of cycles, by cause\n" + table(heads, rows, range(1, len(heads)))


def traffic_text(figures: Mapping[str, Any]) -> str:
    """What each memory moves, what the front end reads, and the energy of both where the machine says what they take. Empty where
    nothing runs on the chip."""
    if not figures["layers"]:
        return ""
    rows = [
        (name, *(f"{moved[kind]:,}" for kind in ("read_bytes", "write_bytes", "read_burst_bytes", "write_burst_bytes")))
        for name, moved in figures["traffic"].items()
    ]
    heads = ("memory", "bytes read", "written", "read in bursts", "written in bursts")
    said = f"instructions read: {format_count(figures['program_bytes'], 'byte')}"
    energy = figures["energy_pj"]
    if energy is not None:
        parts = (("products", "macs"), ("memories on the chip", "on_chip"), ("DRAM", "dram"))
        shares = ", ".join(f"{what} {_part(energy[key], energy['total'])}" for what, key in parts)
        said += f"\nenergy: {energy['total'] / 1e6:,.3f} uJ, {shares}"
    return f"{table(heads, rows, (1, 2, 3, 4))}\n{said}"


def _part(value: float, whole: float) -> str:
    return f"{100 * value / whole:.1f} %" if whole else "-"


def _share(spent: Mapping[str, Any], cause: StallCause, name: str, cycles: int) -> str:
    found = spent.get(cause, 0)
    if cause is StallCause.SIGNAL and found:
        return f"{100 * sum(found.values()) / cycles:.1f} {max(found, key=found.__getitem__)}"
    taken = found.get(name, 0) if isinstance(found, Mapping) else found
    return f"{100 * taken / cycles:.1f}" if taken else "-"
