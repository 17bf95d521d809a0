"""Every fault of the section `layout`: one line each, with file, line, path, value and way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine_files import assert_one_fault, write_changed

from toolchain.hw import load_chip

NUMERICS = "numerics:\n"
LIMITS = "limits: {"
LAYOUT_KEY = "layout:"


def layout(content: str) -> tuple[str, str]:
    return NUMERICS, f"layout: {{{content}}}\n{NUMERICS}"


def limit_layout(content: str, limits: str) -> tuple[str, str]:
    return LIMITS, f"layout: {{{content}}}\n{LIMITS}{limits}, "


GROUPS = ("    kind: mac_array\n", "    kind: mac_array\n    groups: {sizes: [32]}\n")
ROWS = ("    rows: 16\n    columns: 16\n", "    rows: 4\n    columns: 4\n")


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
    "a granule of no power of two": (
        [layout("feature_maps: {granule: 24}")],
        "layout.feature_maps.granule: must be one of 4, 8, 16, 32, 64, 128; got 24",
    ),
    "another order": (
        [layout("feature_maps: {granule: 16, order: rows}")],
        "layout.feature_maps.order: must be one of 'surface', 'line'; got 'rows'",
    ),
    "ports in another form": (
        [layout("feature_maps: {granule: 16, ports: lines}")],
        "layout.feature_maps.ports: must be one of 'granules', 'dense'; got 'lines'",
    ),
    "inputs below a granule": (
        [limit_layout("feature_maps: {granule: 16}", "convolution: {max_input_channels: 8}")],
        "layout.feature_maps.granule: 16 channels; limits.convolution.max_input_channels is 8, at least 16 are needed",
    ),
    "outputs below a granule": (
        [limit_layout("feature_maps: {granule: 16}", "convolution: {max_output_channels: 15}")],
        "layout.feature_maps.granule: 16 channels; limits.convolution.max_output_channels is 15, at least 16 are needed",
    ),
    "a depthwise limit below a granule": (
        [limit_layout("feature_maps: {granule: 16}", "depthwise: {max_output_channels: 12}")],
        "layout.feature_maps.granule: 16 channels; limits.depthwise.max_output_channels is 12, at least 16 are needed",
    ),
    "inputs below a granule of groups": (
        [limit_layout("feature_maps: {granule: 64}", "convolution: {max_input_channels: 32}"), GROUPS],
        "layout.feature_maps.granule: 64 channels in groups of 32 (engines.*.groups.sizes); "
        "limits.convolution.max_input_channels is 32, at least 64 are needed",
    ),
    "accumulators below a granule": (
        [layout("feature_maps: {granule: 128}"), ("entries: 4096", "entries: 64"), ROWS],
        "layout.feature_maps.granule: 128 channels; engines.mac.accumulators.entries is 64",
    ),
    "tiles beside groups": (
        [layout("weight_tile: [16, 16]"), GROUPS],
        "layout.weight_tile: weights in groups lie as engines.mac.groups.layout says; leave out one of the two",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_fault_is_one_exact_line(case: str, tmp_path: Path) -> None:
    changes, message = CASES[case]
    assert_one_fault(tmp_path, changes, LAYOUT_KEY, message, load_chip)


def test_bytes_of_an_entry(tmp_path: Path) -> None:
    """Whole bytes, and aligned to the largest power of two that divides them."""
    for content, size, step in (("", 16, 16), ("bias_bits: 40, shift_bits: 6", 10, 2), ("bias_bits: 34, shift_bits: 6", 9, 1)):
        write_changed(tmp_path, "edge16.yaml", [layout(f"parameters: {{{content}}}")])
        entry = load_chip(str(tmp_path / "mine.yaml")).layout.parameters
        assert (entry.size_bytes, entry.alignment_bytes) == (size, step)
