"""Every fault of the section `layout`: one line each, with file, line, path, value and way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine_files import assert_one_fault, write_changed

from toolchain.hw import load_chip

NUMERICS = "numerics:\n"
HELD = "layout:"


def layout(said: str) -> tuple[str, str]:
    return NUMERICS, f"layout: {{{said}}}\n{NUMERICS}"


GROUPS = ("    kind: mac_array\n", "    kind: mac_array\n    groups: {sizes: [32]}\n")
# what is replaced by what, the fault
CASES = {
    "a narrow bias": (
        [layout("parameters: {bias_bits: 24}")],
        "layout.parameters.bias_bits: 24 bits; a bias may take the 32 of engines.mac.accumulators.bits",
    ),
    "a narrow multiplier": (
        [layout("parameters: {multiplier_bits: 16}")],
        "layout.parameters.multiplier_bits: 16 bits; a multiplier has 31 (numerics.scale)",
    ),
    "a narrow shift": (
        [layout("parameters: {shift_bits: 5}")],
        "layout.parameters.shift_bits: 5 bits; shifts from 0 to 62 (numerics.scale) take 6",
    ),
    "a field too wide": (
        [layout("parameters: {bias_bits: 65}")],
        "layout.parameters.bias_bits: must be at most 64, got 65",
    ),
    "a tile of one side": (
        [layout("weight_tile: [16]")],
        "layout.weight_tile: must be a list [inner, outputs], for example [16, 16], got [16]",
    ),
    "tiles beside groups": (
        [layout("weight_tile: [16, 16]"), GROUPS],
        "layout.weight_tile: weights in groups lie as engines.mac.groups.layout says; leave out one of the two",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_fault_is_one_exact_line(case: str, tmp_path: Path) -> None:
    changes, said = CASES[case]
    assert_one_fault(tmp_path, changes, HELD, said, load_chip)


def test_bytes_of_an_entry(tmp_path: Path) -> None:
    """Whole bytes, and aligned to the largest power of two that divides them."""
    for said, size, step in (("", 16, 16), ("bias_bits: 40, shift_bits: 6", 10, 2), ("bias_bits: 34, shift_bits: 6", 9, 1)):
        write_changed(tmp_path, "edge16.yaml", [layout(f"parameters: {{{said}}}")])
        entry = load_chip(str(tmp_path / "mine.yaml")).layout.parameters
        assert (entry.size_bytes, entry.alignment_bytes) == (size, step)
