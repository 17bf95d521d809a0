"""The chip: the typed model of a machine's YAML, the units that follow from it, and the loader.

The loader reports every fault of a file at once, as `file:line: path: reason`. The instruction table, which the file
names, is read by `toolchain.isa`.
"""

from __future__ import annotations

from toolchain.hw.chip import Chip, chip_schema, format_schema, schema_text, table_name_fault
from toolchain.hw.chip_sections import ConvolutionLimits, PoolLimits
from toolchain.hw.cross_section_rules import find_broken_rules
from toolchain.hw.describe import chip_differences, chip_lines
from toolchain.hw.formats import MACHINE_FORMAT, TABLE_FORMAT, Upgrade, take_format, upgrade_text
from toolchain.hw.load import (
    Changes,
    ChipFile,
    change_keys,
    is_shipped,
    list_shipped_names,
    load_chip,
    machine_files,
    read_chip_file,
)
from toolchain.hw.section import NonNegative, Section, write_bytes, write_hertz
from toolchain.hw.type_rules import Broken
from toolchain.hw.unit_map import Space, Unit
from toolchain.hw.validation import shown, suggest, validate
from toolchain.hw.yaml_source import KeyPath, Source, read_source, read_yaml, render_path

__all__ = [
    "MACHINE_FORMAT",
    "TABLE_FORMAT",
    "Broken",
    "Changes",
    "Chip",
    "ChipFile",
    "ConvolutionLimits",
    "KeyPath",
    "NonNegative",
    "PoolLimits",
    "Section",
    "Source",
    "Space",
    "Unit",
    "Upgrade",
    "change_keys",
    "chip_differences",
    "chip_lines",
    "chip_schema",
    "find_broken_rules",
    "format_schema",
    "is_shipped",
    "list_shipped_names",
    "load_chip",
    "machine_files",
    "read_chip_file",
    "read_source",
    "read_yaml",
    "render_path",
    "schema_text",
    "shown",
    "suggest",
    "table_name_fault",
    "take_format",
    "upgrade_text",
    "validate",
    "write_bytes",
    "write_hertz",
]
