"""Read buffers from a file in MiniMalloc's CSV format: a header, then a line per buffer (lower <= step < upper).

`scripts/plan_memory.py` and benchmarks read instances by it. A file has MOST_BYTES and MOST_BUFFERS at most, and a number
MOST_CHARACTERS. Beyond MOST_FAULTS faults are counted instead of told.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolchain.memory.buffer import Buffer, InvalidBuffers, check_buffers

MOST_BYTES = 16 << 20
MOST_BUFFERS = 200_000
MOST_FAULTS = 100
MOST_CHARACTERS = 64
REQUIRED = ("id", "lower", "upper", "size")
OPTIONAL = ("alignment",)


class InvalidCsv(ValueError):
    """The file is no list of buffers. The message has a line for every fault, up to 100, which begins with file:line."""


def read_csv(path: str | Path) -> list[Buffer]:
    """Return the buffers in the order of the file.

    Columns are id, lower, upper, size and optionally alignment, in any order; sizes and alignments are bytes.
    Raise InvalidCsv with the faults, also for a file too large or without buffers, or OSError.
    """
    buffers: list[Buffer] = []
    faults: list[str] = []
    lines: dict[str, int] = {}
    try:
        rows = csv.DictReader(io.StringIO(_text(path), newline=""))
        _check_header(path, rows.fieldnames)
        for row in rows:
            read, wrong = _buffer(row, lines)
            faults += [f"{path}:{rows.line_num}: {fault}" for fault in wrong]
            if read is not None:
                buffers.append(read)
                lines.setdefault(read.name, rows.line_num)
            if len(buffers) > MOST_BUFFERS:
                raise InvalidCsv(f"{path}:{rows.line_num}: {MOST_BUFFERS:,} buffers are the most")
    except (UnicodeDecodeError, csv.Error) as fault:
        raise InvalidCsv(f"{path}:1: not a CSV file: {fault}") from None
    if faults:
        more = [f"{path}: and {len(faults) - MOST_FAULTS:,} more faults"] if len(faults) > MOST_FAULTS else []
        raise InvalidCsv("\n".join([*faults[:MOST_FAULTS], *more]))
    if not buffers:
        raise InvalidCsv(f"{path}:1: no buffers after the header")
    try:
        check_buffers(buffers)
    except InvalidBuffers as fault:
        raise InvalidCsv(f"{path}:1: {fault}") from None
    return buffers


def _text(path: str | Path) -> str:
    """Return the file's text. Raise InvalidCsv above MOST_BYTES, UnicodeDecodeError where it is no UTF-8."""
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise InvalidCsv(f"{path}:1: holds more than {MOST_BYTES:,} bytes, which are the most for such a file")
    return data.decode("utf-8-sig")  # spreadsheets begin UTF-8 with a byte order mark


def _check_header(path: str | Path, header: Sequence[str] | None) -> None:
    """Raise InvalidCsv where the file is empty, or a column is missing, unknown or given twice."""
    if not header:
        raise InvalidCsv(f"{path}:1: the file is empty; expected the header {','.join(REQUIRED)}")
    names = [name.strip() for name in header]
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise InvalidCsv(f"{path}:1: no column {missing[0]}; expected the header {','.join(REQUIRED)}")
    for name in names:
        if name not in (*REQUIRED, *OPTIONAL):
            raise InvalidCsv(f"{path}:1: column {name} is not supported; known are {', '.join(REQUIRED + OPTIONAL)}")
        if names.count(name) > 1:
            raise InvalidCsv(f"{path}:1: column {name} is given twice")


def _buffer(row: Mapping[str | None, object], lines: Mapping[str, int]) -> tuple[Buffer | None, list[str]]:
    """Return (the buffer, no faults) or (None, its faults). `lines`: the line of each name before it."""
    if None in row:
        return None, ["more fields than the header has columns"]
    values = {str(name).strip(): value for name, value in row.items()}
    absent = [name for name, value in values.items() if value is None]
    if absent:
        return None, [f"ends before column{'s' if len(absent) > 1 else ''} {', '.join(absent)}"]
    numbers: dict[str, int] = {}
    faults: list[str] = []
    name = str(values["id"])
    if not name.strip():
        faults.append("id: is empty; give every buffer a name")
    elif name in lines:
        faults.append(f"buffer {name}: the name is given twice, first in line {lines[name]}")
    for column in ("lower", "upper", "size", "alignment"):
        text = str(values.get(column, 1))
        try:
            if len(text) > MOST_CHARACTERS:
                raise ValueError
            numbers[column] = int(text)
        except ValueError:
            faults.append(f"{column}: {text[:MOST_CHARACTERS]!r} is not a whole number")
    if faults:
        return None, faults
    buffer = Buffer(name, numbers["lower"], numbers["upper"], numbers["size"], numbers["alignment"])
    try:
        check_buffers([buffer])
    except InvalidBuffers as fault:
        return None, [str(fault)]
    return buffer, []
