"""What the first line of a region's schedule says: which region it is, by which level, of one sample or of all."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.errors import CompileError
from toolchain.schedule.options import LEVELS
from toolchain.schedule.tree.faults import Faults
from toolchain.schedule.tree.nodes import RegionTree


def regions_given(schedule: Sequence[RegionTree], regions: Sequence[int]) -> dict[int, RegionTree]:
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


def level_given(tree: RegionTree, level: int, sampled: bool) -> int:
    """By whose options the region is planned. level: of the build. sampled: whether there is a program of one sample. Raises
    CompileError."""
    faults = Faults(tree)
    if tree.level >= len(LEVELS):
        faults.add(tree.line, f"level {tree.level}: must be from 0 to {len(LEVELS) - 1}")
    if tree.sample and not sampled:
        faults.add(
            tree.line,
            "sample: the region is not made sample by sample: control.repeat of the machine, and a batch of more than one",
        )
    faults.end()
    return level if tree.level < 0 else tree.level
