"""Arithmetic over columns of many operations."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain.machine.columns import distinct_rows


@pytest.mark.parametrize("largest", [1, 3, 2**31, 2**62])
def test_rows_are_told_apart_however_large_their_numbers(largest: int) -> None:
    """Four columns of numbers up to 2**62 are more than one number of mixed radix can hold."""
    rng = np.random.default_rng(0)
    values = [np.unique(rng.integers(-largest, largest, 3)) for _ in range(4)]
    table = [rng.choice(column, 200) for column in values]
    rows, back = distinct_rows(*table, 7)
    assert len(rows) == len(set(rows))
    assert [rows[i] for i in back.tolist()] == [(*row, 7) for row in zip(*(column.tolist() for column in table))]


def test_a_table_without_rows_has_none() -> None:
    empty = np.zeros(0, np.int64)
    assert distinct_rows(empty, empty)[0] == []
