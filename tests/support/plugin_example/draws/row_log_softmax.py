"""Cases of the operation that the tests add."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from toolchain.machine.operations.row_log_softmax import RowLogSoftmax  # type: ignore[import-not-found]

from toolchain.hw import Chip
from toolchain.vectors.case import Draw
from toolchain.vectors.case_builder import CaseBuilder


def rows(bench: CaseBuilder, columns: int) -> None:
    """Rows of random codes."""
    unit = bench.unit(RowLogSoftmax)
    source = bench.feature_map(unit, "input", bench.codes((3, 1, columns)))
    target = bench.output(unit, (3, 1, columns))
    f = {"rows": 3, "columns": columns, "input_address": source.address, "input_row_stride": source.row}
    f |= {"output_address": target.address, "output_row_stride": target.row}
    bench.add(RowLogSoftmax, **f, multiplier=1 << 30, shift=8)


def _cases(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    for columns in (1, 10):
        yield f"rows_of_{columns}", partial(rows, columns=columns)


CASES = {RowLogSoftmax: _cases}
