"""Check the layout of constants: entries of any widths, weights in tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from toolchain.hw import Chip, load_chip
from toolchain.hw.chip_sections import Layout, ParameterEntry
from toolchain.machine import dense_bytes, in_tiles, out_of_tiles, pack_parameters, read_parameters


def chip_of(**layout: Any) -> Chip:
    return load_chip("edge16").model_copy(update={"layout": Layout(**layout)})


def test_tiles_are_those_of_the_page() -> None:
    """docs/machine.md: [3, 5] in tiles of [2, 2]."""
    weights = np.array([[10 * o + i for i in range(5)] for o in (1, 2, 3)], np.int8)
    tiles = in_tiles(weights, (2, 2))
    expected = [[10, 20, 11, 21], [12, 22, 13, 23], [14, 24, 0, 0], [30, 0, 31, 0], [32, 0, 33, 0], [34, 0, 0, 0]]
    assert tiles.tolist() == expected
    assert out_of_tiles(tiles, 3, 5, (2, 2)).tolist() == weights.tolist()
    assert dense_bytes(3, 5, 0, chip_of(weight_tile=(2, 2))) == tiles.size


def test_an_entry_is_the_bits_that_the_page_says() -> None:
    """10 bytes: 40 of a negative bias, 32, 6."""
    chip = chip_of(parameters=ParameterEntry(bias_bits=40, multiplier_bits=32, shift_bits=6))
    bias, multiplier, shift = np.array([-2, 5]), np.array([0x7ABCDEF1]), np.array([37, 62])
    block = pack_parameters(bias, multiplier, shift, chip)
    first = (((37 << 32) | 0x7ABCDEF1) << 40) | (1 << 40) - 2
    assert block[:10] == first.to_bytes(10, "little")
    read = read_parameters(block, chip)
    assert [values.tolist() for values in read] == [[-2, 5], [0x7ABCDEF1] * 2, [37, 62]]


@pytest.mark.parametrize("bias, shift", [(1 << 39, 5), (-(1 << 39) - 1, 5), (0, 64), (0, -1)])
def test_what_does_not_fit_is_not_cut(bias: int, shift: int) -> None:
    chip = chip_of(parameters=ParameterEntry(bias_bits=40, shift_bits=6))
    with pytest.raises(ValueError, match="does not fit"):
        pack_parameters(np.array([bias]), np.array([1]), np.array([shift]), chip)


def test_bias_of_64_bits() -> None:
    chip = chip_of()
    for bias in (-(1 << 63), (1 << 63) - 1, -1):
        block = pack_parameters(np.array([bias]), np.array([7]), np.array([3]), chip)
        assert block[:8] == (bias % (1 << 64)).to_bytes(8, "little")
        assert read_parameters(block, chip)[0].tolist() == [bias]


def test_left_shifts_have_their_sign() -> None:
    """ws8_pow2 shifts from -31 to 31, in 7 bits; its multiplier is 1 and takes none."""
    entry = ParameterEntry(bias_bits=32, multiplier_bits=0, shift_bits=7)
    chip = load_chip("ws8_pow2").model_copy(update={"layout": Layout(parameters=entry)})
    block = pack_parameters(np.array([5]), np.array([1]), np.array([-3]), chip)
    assert block == (((1 << 7) - 3) << 32 | 5).to_bytes(5, "little")
    assert [values.tolist() for values in read_parameters(block, chip)] == [[5], [1], [-3]]
