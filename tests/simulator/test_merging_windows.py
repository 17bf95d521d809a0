"""The window of tiles that run as one operation: padding lies only where the whole has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simulator.merging.windows import find_valid_window


def tile(at: int, pad: int, columns: int) -> Any:
    """Return a tile of four outputs of a kernel of three columns. `columns`: of data that it is given behind its padding."""
    height = {"pad_top": 0, "dilation_height": 1, "kernel_height": 1, "output_height": 1, "input_height": 1}
    width = {"pad_left": pad, "dilation_width": 1, "kernel_width": 3, "output_width": 4, "input_width": columns}
    return SimpleNamespace(at=(0, at), tile=SimpleNamespace(op=SimpleNamespace(**height, **width)))


@pytest.mark.parametrize(
    ("tiles", "columns"),
    [
        ([tile(0, 1, 5), tile(4, 0, 5)], (1, 9)),  # the whole has a column of padding on each side
        ([tile(0, 1, 8), tile(4, 0, 8)], (1, 10)),  # more data than a window sees changes nothing
        ([tile(0, 1, 5), tile(4, 1, 5)], None),  # padding where the first tile sees data
        ([tile(0, 1, 4), tile(4, 0, 5)], None),  # padding where the second tile sees data
        ([tile(0, 0, 5), tile(4, 0, 6)], None),
    ],
)
def test_padding_within_the_whole_is_no_window(tiles: list[Any], columns: tuple[int, int] | None) -> None:
    evaluation: Any = SimpleNamespace(low=(0, 0), tiles=tiles, first=SimpleNamespace(strides=(1, 1)))
    assert find_valid_window(evaluation) == (None if columns is None else ((0, 1), columns))
