"""Write the rows of a sweep as a CSV or Parquet table. No column depends on the time or the place of a build."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolchain.sweep.extra import import_extra
from toolchain.sweep.metrics import METRICS
from toolchain.sweep.run_sweep import Row

_INTEGERS = ("cycles", "sram_bytes", "sram_size_bytes", "dram_bytes", "program_bytes", "file_bytes", "macs", "host_nodes")


def csv_table(rows: Sequence[Row]) -> bytes:
    """Return the table as CSV with a row of column names, in UTF-8. What a build lacks is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = make_columns(rows)
    writer.writerow(columns)
    writer.writerows(zip(*(["" if value is None else value for value in values] for values in columns.values())))
    return text.getvalue().encode(errors="backslashreplace")


def parquet_table(rows: Sequence[Row]) -> bytes:
    """Return the table as Parquet: metrics are int64 and double, everything else is text, and what a build lacks is null.

    Raise CompileError where pyarrow is not installed.
    """
    pyarrow, parquet = import_extra("pyarrow", "--parquet"), import_extra("pyarrow.parquet", "--parquet")
    kinds = {name: pyarrow.int64() if name in _INTEGERS else pyarrow.float64() for name in METRICS}
    arrays = {
        name: pyarrow.array(values, type=kinds.get(name, pyarrow.string()), from_pandas=True)
        for name, values in make_columns(rows).items()
    }
    target = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(arrays), target)
    return target.getvalue().to_pybytes()


def make_columns(rows: Sequence[Row]) -> Mapping[str, list[Any]]:
    """Return the values of each column: network, machine, keys, options, status, reason, metrics, and `key`, that of the build.

    Columns stand in this order, each as long as `rows`. Keys and options have one for each that any row sets.
    Values of keys and options are text: JSON, unless they are strings. A row has None where it lacks a key, option or metric.
    """
    keys = dict.fromkeys(key for row in rows for key, _ in row.point.keys)
    options = dict.fromkeys(option for row in rows for option, _ in row.point.options)
    columns: dict[str, list[Any]] = {
        "network": [row.point.network for row in rows],
        "machine": [row.point.machine for row in rows],
    }
    columns |= {key: [_as_text(dict(row.point.keys).get(key)) for row in rows] for key in keys}
    columns |= {option: [_as_text(dict(row.point.options).get(option)) for row in rows] for option in options}
    columns |= {"status": [row.result.status for row in rows], "reason": [row.result.reason for row in rows]}
    columns |= {metric: [row.result.metrics.get(metric) for row in rows] for metric in METRICS}
    return columns | {"key": [row.key for row in rows]}


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
