"""What the first line of a region's schedule says: which region it is, by which level, of one sample or of all."""

from __future__ import annotations

from collections.abc import Sequence

from quant.suggestion import suggestion
from toolchain.errors import CompileError
from toolchain.schedule.options import LEVELS
from toolchain.schedule.tree.nodes import RegionTree
from toolchain.schedule.tree.parser import read_schedule
from toolchain.schedule.tree.schedule_faults import Faults
from toolchain.schedule.tree.text import quote_name


def read_schedules(file: str | None, entries: Sequence[str]) -> dict[str, tuple[RegionTree, ...]]:
    """What the file says, by entry, "" where the build has none. Raises CompileError, OSError naming the file."""
    found: dict[str, tuple[RegionTree, ...]] = {}
    told: list[str] = []
    for tree in () if file is None else read_schedule(file):
        faults = Faults(tree)
        if tree.entry and not entries:
            faults.add(tree.line, f"entry {quote_name(tree.entry)}: the build has no entries; leave it out, or give --entry")
        elif tree.entry not in entries and entries:
            there = ", ".join(map(quote_name, entries))
            faults.add(
                tree.line, f"entry {quote_name(tree.entry)}: there is none{suggestion(tree.entry, entries)}; entries are {there}"
            )
        told += faults.told()
        found[tree.entry] = (*found.get(tree.entry, ()), tree)
    if told:
        raise CompileError("\n".join(told))
    return found


def split_regions(schedule: Sequence[RegionTree], regions: Sequence[int]) -> dict[int, RegionTree]:
    """By region. regions: that there are. Raises CompileError: others."""
    told: list[str] = []
    for tree in schedule:
        if tree.region not in regions:
            there = ", ".join(map(str, regions))
            faults = Faults(tree)
            faults.add(
                tree.line,
                f"region {tree.region}: there is none; " + (f"regions are {there}" if there else "nothing runs on the chip"),
            )
            told += faults.told()
    if told:
        raise CompileError("\n".join(told))
    return {tree.region: tree for tree in schedule}


def resolve_level(tree: RegionTree, level: int, sampled: bool, sram_bytes: int) -> int:
    """By whose options the region is planned. level: of the build. sampled: whether there is a program of one sample. sram_bytes:
    that plans may have. Raises CompileError."""
    faults = Faults(tree)
    if tree.within > sram_bytes:
        faults.add(
            tree.line, f"within {tree.within:,}: plans have {sram_bytes:,} bytes of sram (memories.sram.size, --sram-budget)"
        )
    if tree.level >= len(LEVELS):
        faults.add(tree.line, f"level {tree.level}: must be from 0 to {len(LEVELS) - 1}")
    if tree.sample and not sampled:
        faults.add(
            tree.line,
            "sample: the region is not made sample by sample: control.repeat of the machine, and a batch of more than one",
        )
    faults.end()
    return level if tree.level < 0 else tree.level
