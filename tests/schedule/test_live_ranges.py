"""Tests of live ranges of tensors whose layers take turns in a cascade."""

from __future__ import annotations

import pytest

from toolchain.schedule.plan import extend_life


@pytest.mark.parametrize(
    ("life", "extended"),
    [
        ((0, 3), (0, 3)),  # before the cascade of the layers 3 to 5
        ((1, 4), (1, 6)),  # read by its first layer
        ((4, 5), (3, 6)),  # inside
        ((5, 8), (3, 8)),  # made by its last layer
        ((6, 9), (6, 9)),
        ((1, 8), (1, 8)),
    ],
)
def test_a_life_ends_where_the_cascade_of_its_last_layer_ends(life: tuple[int, int], extended: tuple[int, int]) -> None:
    assert extend_life(*life, dict.fromkeys(range(3, 6), range(3, 6))) == extended
