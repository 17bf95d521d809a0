"""Format the results of npu-build: the text that it prints, the picture of `--sram-curve`, and the files of the error
report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from toolchain.errors import printable

if TYPE_CHECKING:
    from toolchain.api import Build, BuildOptions
    from toolchain.codegen import Container
    from toolchain.judging.sram_sweep import SramSweep


def report(built: Build, explain: bool, options: BuildOptions) -> str:
    """Return the text that npu-build prints. Of several entries each has a part under its name, and what they share stands
    last.

    `explain`: also list every node with engine, cost and reason.
    """
    from toolchain.foundation.entry_points import sharing_text

    if not built.entries:
        return _report(built, explain)
    parts = [f"== entry {name}: {printable(_shapes(one))}\n\n{_report(one, explain)}" for name, one in built.entries.items()]
    shared = [sharing_text(built.figures, options.parameters)] if len(parts) > 1 else []
    return "\n\n".join([*parts, *shared])


def _shapes(built: Build) -> str:
    return ", ".join(f"{t.name} {list(t.shape)}" for t in built.container.inputs)


def _report(built: Build, explain: bool) -> str:
    from toolchain.report.build_text import build_text

    return build_text(built.figures, built.notes, explain, _curve_text(built))


def _curve_text(built: Build) -> str:
    """Return the table of the sweep over sizes of the SRAM; empty without one."""
    from toolchain.judging.sram_sweep import HEADS, rows
    from toolchain.report.report_text import table

    if built.curve is None:
        return ""
    return "sizes of the SRAM:\n" + table(HEADS, list(rows(built.curve)), range(5))


def curve_picture(curve: SramSweep, container: Container) -> str:
    """Return the SVG of a sweep over sizes of the SRAM."""
    from toolchain.report.curve_picture import curve_svg

    points = curve.points
    sizes, cycles = [p.sram_bytes for p in points], [p.cycles for p in points]
    moved, least = [p.dram_bytes for p in points], [p.least_bytes for p in points]
    title = f"{container.name} on {container.machine.chip.name}: cycles and bytes of DRAM against the SRAM"
    return curve_svg(title, sizes, curve.own_bytes, cycles, moved, least)


def error_reports(model: str, built: Mapping[str, Build]) -> dict[str, bytes]:
    """Return the files of the error reports by name in the folder; those of an entry are in a folder of its name.

    `model`: the model's name; `built`: builds by entry, "" for the only one. Builds without an error report are left out.
    """
    from toolchain.report.error_page import report_files
    from toolchain.report.report_text import JUDGED_ON

    files: dict[str, bytes] = {}
    for entry, one in built.items():
        if one.errors is not None:
            title = f"{model}{f', entry {entry},' if entry else ''} on {one.container.machine.chip.name}"
            reports = report_files(one.errors, title, JUDGED_ON[one.figures["judged_on"]])
            files |= {f"{entry}/{name}" if entry else name: data for name, data in reports.items()}
    return files
