"""Define the metrics of a build that a sweep stores, and the objectives by which its points are compared.

`sram_bytes` is the most that a plan has in use, `sram_size_bytes` the size of the machine's SRAM. `macs_per_cycle` is the
machine's peak, and so a price that an objective minimizes; `mac_utilization`, from 0 to 1, is the share of it in use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolchain.errors import CompileError
from toolchain.hw import suggest

Metrics = Mapping[str, float | int | None]
METRICS = (
    "cycles",
    "latency_seconds",
    "energy_pj",
    "sram_bytes",
    "sram_size_bytes",
    "dram_bytes",
    "program_bytes",
    "file_bytes",
    "macs",
    "macs_per_cycle",
    "mac_utilization",
    "host_nodes",
    "sqnr_db",
)


@dataclass(frozen=True)
class Objective:
    """A metric to be minimized, or maximized.

    `name`: as `--objectives` takes it; `metric`: a name of METRICS; `unit`: for titles.
    """

    name: str
    metric: str
    unit: str
    is_maximized: bool = False

    @property
    def title(self) -> str:
        """Return the name, with its unit in brackets where the name does not tell it."""
        is_plain = self.name.endswith(self.unit) or self.unit in ("share", "s", "MACs a cycle", "dB")
        return self.name if is_plain else f"{self.name} ({self.unit})"

    def of(self, metrics: Metrics) -> float | None:
        """Return the value to be minimized (the negative of one to be maximized), or None where the build has none or NaN."""
        value = metrics.get(self.metric)
        if value is None or math.isnan(value):
            return None
        return -float(value) if self.is_maximized else float(value)


_OBJECTIVES = (
    Objective("cycles", "cycles", "cycles"),
    Objective("latency_seconds", "latency_seconds", "s"),
    Objective("energy", "energy_pj", "pJ"),
    Objective("sram_bytes", "sram_bytes", "bytes"),
    Objective("sram_size_bytes", "sram_size_bytes", "bytes"),
    Objective("dram_bytes", "dram_bytes", "bytes"),
    Objective("file_bytes", "file_bytes", "bytes"),
    Objective("macs_per_cycle", "macs_per_cycle", "MACs a cycle"),
    Objective("mac_utilization", "mac_utilization", "share", is_maximized=True),
    Objective("sqnr_db", "sqnr_db", "dB", is_maximized=True),
)
OBJECTIVES: Mapping[str, Objective] = {objective.name: objective for objective in _OBJECTIVES}
DEFAULT_OBJECTIVES = "cycles,energy,sram_bytes"


def find_objectives(names: str) -> tuple[Objective, ...]:
    """Return the objectives that a text lists with commas, in its order.

    Raise CompileError where there is no such objective, or one is given twice.
    """
    objectives: list[Objective] = []
    for name in (part.strip() for part in names.split(",")):
        if name not in OBJECTIVES:
            raise CompileError(f"objectives {names}: there is no objective {name!r}{suggest(name, OBJECTIVES)}")
        if OBJECTIVES[name] in objectives:
            raise CompileError(f"objectives {names}: {name} is given twice")
        objectives.append(OBJECTIVES[name])
    return tuple(objectives)


def collect_sweep_metrics(figures: Mapping[str, Any], file_bytes: int) -> dict[str, float | int | None]:
    """Return the metrics of a build of one set of shapes, by the names of METRICS; None for what is not known.

    `sqnr_db` is that of the worst output, and infinite where all are exact.

    `figures`: those of `toolchain.api.Build`. The SQNR means nothing and is None where they were judged on random inputs.
    `file_bytes`: size of the compiled file.
    """
    energy = figures["energy_pj"]
    is_real = figures["judged_on"] != "random inputs"
    return {
        "cycles": figures["cycles"],
        "latency_seconds": figures["seconds"],
        "energy_pj": None if energy is None else energy["total"],
        "sram_bytes": figures["sram_peak_bytes"],
        "sram_size_bytes": figures["sram_size_bytes"],
        "dram_bytes": figures["dram_read_bytes"] + figures["dram_write_bytes"],
        "program_bytes": figures["program_bytes"],
        "file_bytes": file_bytes,
        "macs": figures["macs"],
        "macs_per_cycle": figures["macs_per_cycle"],
        "mac_utilization": figures["mac_utilization"],
        "host_nodes": figures["host"]["nodes"],
        "sqnr_db": _least_sqnr(figures["outputs"]) if is_real else None,
    }


def _least_sqnr(outputs: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the SQNR of the worst output in dB; infinite where all are exact, None without outputs."""
    levels = [math.inf if output["exact"] else output["sqnr_db"] for output in outputs]
    return min((level for level in levels if level is not None), default=None)
