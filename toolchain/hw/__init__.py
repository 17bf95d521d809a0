"""The chip: the typed model of a machine's YAML, its units, and the loader that reports every fault with its line."""

from __future__ import annotations

from toolchain.hw.chip import Chip
from toolchain.hw.load import ChipFile, load_chip, read_chip_file, read_text, shipped_names
from toolchain.hw.source import Source, read_source
from toolchain.hw.validation import suggest, validate

__all__ = [
    "Chip",
    "ChipFile",
    "Source",
    "load_chip",
    "read_chip_file",
    "read_source",
    "read_text",
    "shipped_names",
    "suggest",
    "validate",
]
