"""Buffers from a file in MiniMalloc's CSV format: a header, then a line per buffer (lower <= step < upper)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from toolchain.memory.buffer import Buffer, InvalidBuffers, check_buffers

REQUIRED = ("id", "lower", "upper", "size")
OPTIONAL = ("alignment",)


class InvalidCsv(ValueError):
    """The file is no list of buffers; the message begins with file:line."""


def read_csv(path: str | Path) -> list[Buffer]:
    """Columns id, lower, upper, size and optionally alignment, in any order. Raises InvalidCsv, or OSError."""
    buffers: list[Buffer] = []
    with open(path, newline="", encoding="utf-8") as file:
        try:
            rows = csv.DictReader(file)
            header = rows.fieldnames
            _check_header(path, header)
            for row in rows:
                buffers.append(_buffer(f"{path}:{rows.line_num}", row))
                try:
                    check_buffers(buffers[-1:])
                except InvalidBuffers as fault:
                    raise InvalidCsv(f"{path}:{rows.line_num}: {fault}") from None
        except (UnicodeDecodeError, csv.Error) as fault:
            raise InvalidCsv(f"{path}:1: not a CSV file: {fault}") from None
    if not buffers:
        raise InvalidCsv(f"{path}:1: no buffers after the header")
    try:
        check_buffers(buffers)
    except InvalidBuffers as fault:
        raise InvalidCsv(f"{path}:1: {fault}") from None
    return buffers


def _check_header(path: str | Path, header: object) -> None:
    if not header:
        raise InvalidCsv(f"{path}:1: the file is empty; expected the header {','.join(REQUIRED)}")
    names = [str(name).strip() for name in header] if isinstance(header, list) else []
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise InvalidCsv(f"{path}:1: no column {missing[0]}; expected the header {','.join(REQUIRED)}")
    for name in names:
        if name not in (*REQUIRED, *OPTIONAL):
            raise InvalidCsv(f"{path}:1: column {name} is not supported; known are {', '.join(REQUIRED + OPTIONAL)}")


def _buffer(where: str, row: Mapping[str | None, object]) -> Buffer:
    if None in row:
        raise InvalidCsv(f"{where}: more fields than the header has columns")
    values = {str(name).strip(): value for name, value in row.items()}
    numbers = {}
    for name in ("lower", "upper", "size", "alignment"):
        if name not in values:
            continue
        text = values[name]
        try:
            numbers[name] = int(str(text))
        except ValueError:
            raise InvalidCsv(f"{where}: {name}: {text!r} is not a whole number") from None
    return Buffer(str(values["id"]), numbers["lower"], numbers["upper"], numbers["size"], numbers.get("alignment", 1))
