"""Every fault of arrays that take weights in groups: one line each, with file, line, path, value and way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine_files import assert_one_fault, write_changed

from toolchain.hw import load_chip

MAC, NUMERICS = "    kind: mac_array\n", "numerics:\n"
OTHER = "  small: {kind: mac_array, rows: 4, columns: 4, dataflow: os, types: [TYPES], groups: {GROUPS}, ACCUMULATORS}\n"
OTHER = OTHER.replace("TYPES", "{activation: int8, weight: int8}").replace("ACCUMULATORS", "accumulators: {entries: 64}")


def groups(content: str) -> tuple[str, str]:
    return MAC, f"{MAC}    groups: {{{content}}}\n"


def second(content: str, more: str = "") -> tuple[str, str]:
    small = OTHER.replace("GROUPS", content).replace("kind: mac_array,", f"kind: mac_array, {more}")
    return "  vector:\n", f"{small}  vector:\n"


GROUPS_KEY, MEMORIES = "    groups:", "engines:\n"
# what is replaced by what, where the fault stands, the fault
CASES = {
    "a size of no multiple": (
        [groups("sizes: [40]")],
        GROUPS_KEY,
        "engines.mac.groups.sizes[0]: must be a multiple of 16, got 40",
    ),
    "a size too large": ([groups("sizes: [512]")], GROUPS_KEY, "engines.mac.groups.sizes[0]: must be at most 256, got 512"),
    "no size": ([groups("sizes: []")], GROUPS_KEY, "engines.mac.groups.sizes: must have at least 1 entries, got 0"),
    "a size given twice": ([groups("sizes: [32, 64, 32]")], GROUPS_KEY, "engines.mac.groups.sizes[2]: 32 is given twice"),
    "scales too narrow": (
        [groups("sizes: [32], scale_bits: 3")],
        GROUPS_KEY,
        "engines.mac.groups.scale_bits: must be at least 4, got 3",
    ),
    "minima too narrow": (
        [groups("sizes: [32], minimum_bits: 7")],
        GROUPS_KEY,
        "engines.mac.groups.minimum_bits: 7 are too few for a minimum: 8 to 16, or 0 for none",
    ),
    "an unknown order": (
        [groups("sizes: [32], layout: columns")],
        GROUPS_KEY,
        "engines.mac.groups.layout: must be one of 'blocks', 'rows', 'planes'; got 'columns'",
    ),
    "groups larger than an operation": (
        [groups("sizes: [32, 64]"), ("limits: {", "limits: {convolution: {max_input_channels: 48}, ")],
        GROUPS_KEY,
        "engines.mac.groups.sizes[1]: 64 are more than limits.convolution.max_input_channels=48: an operation has whole groups",
    ),
    "two arrays of two forms": (
        [groups("sizes: [32]"), second("sizes: [32], scale_bits: 12")],
        "  small:",
        "engines.small.groups.scale_bits: 12, and those of mac have 8: weights must not depend on the array that reads them",
    ),
    "two arrays of two orders": (
        [groups("sizes: [32]"), second("sizes: [32], layout: rows")],
        "  small:",
        "engines.small.groups.layout: rows, and those of mac have blocks: weights must not depend on the array that reads them",
    ),
    "weights in groups of another size": (
        [groups("sizes: [64, 128]"), (NUMERICS, f"{NUMERICS}  weight_group: 32\n")],
        "  weight_group:",
        "numerics.weight_group: 32 weights share a scale, and engines.mac.groups sizes are 64, 128",
    ),
    "weights in groups of an array that programs do not use": (
        [
            (MEMORIES, f"  far: {{size: 64 KiB, read_bytes_per_cycle: 8.0, write_bytes_per_cycle: 8.0}}\n{MEMORIES}"),
            second("sizes: [32]", "memories: {input: far}, "),
            (NUMERICS, f"{NUMERICS}  weight_group: 32\n"),
        ],
        "  weight_group:",
        "numerics.weight_group: 32, and no program uses small: engines.small.memories.input is far, "
        "compiled programs have it in sram",
    ),
    "weights in groups on an array without": (
        [(NUMERICS, f"{NUMERICS}  weight_group: 32\n")],
        "  weight_group:",
        "numerics.weight_group: 32 weights share a scale, and engines.mac.groups are not given",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_fault_is_one_exact_line(case: str, tmp_path: Path) -> None:
    changes, anchor, message = CASES[case]
    assert_one_fault(tmp_path, changes, anchor, message, load_chip)


def test_without_a_fault_it_loads(tmp_path: Path) -> None:
    changes = [groups("sizes: [64], minimum_bits: 12"), second("sizes: [32], minimum_bits: 12")]
    write_changed(tmp_path, "edge16.yaml", [*changes, (NUMERICS, f"{NUMERICS}  weight_group: 32\n")])
    numerics = load_chip(str(tmp_path / "mine.yaml")).numerics
    assert numerics.groups is not None and numerics.weight_group == 32
    assert (numerics.groups.sizes, numerics.groups.scale_bits, numerics.groups.minimum_bits) == ((32, 64), 8, 12)
