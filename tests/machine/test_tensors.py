"""Check the places of a tensor's elements against arrays whose dimensions are in the order of memory."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from toolchain.hw.chip_sections import FeatureMaps
from toolchain.machine.tensors import Strides, dense, laid_bytes, make_strides

# (n, h, w, c) -> the dimensions in the order of memory; c of each granule at last
IN_MEMORY = {"surface": (0, 3, 1, 2, 4), "line": (0, 1, 3, 2, 4)}
SHAPES = [(1, 1, 1, 1), (1, 3, 2, 4), (2, 3, 5, 9), (1, 4, 1, 8), (3, 1, 2, 17)]


def places(shape: tuple[int, ...], item_bytes: int, granule: int, order: str) -> np.ndarray:
    """Byte of each element [n, h, w, c]: numbers given in the order of memory."""
    n, h, w, c = shape
    sizes = (n, h, w, -(-c // granule), granule)
    offsets = np.arange(np.prod(sizes)).reshape([sizes[i] for i in IN_MEMORY[order]]) * item_bytes
    back = offsets.transpose([IN_MEMORY[order].index(i) for i in range(5)])
    return back.reshape(n, h, w, -1)[..., :c]


@pytest.mark.parametrize("order", IN_MEMORY)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("item_bytes", [1, 2])
def test_elements_lie_in_whole_granules_in_the_order_that_the_machine_says(
    shape: tuple[int, ...], item_bytes: int, order: str
) -> None:
    for granule in (4, 8):
        maps = FeatureMaps.model_validate({"granule": granule, "order": order})
        strides, want = make_strides(shape, item_bytes, maps), places(shape, item_bytes, granule, order)
        offsets = [strides.offset_bytes(at) for at in product(*map(range, shape))]
        assert offsets == want.ravel().tolist()
        filled = -(-shape[-1] // granule) * granule
        assert laid_bytes(shape, item_bytes, maps) == shape[0] * shape[1] * shape[2] * filled * item_bytes


def test_without_granules_they_lie_without_gaps() -> None:
    assert make_strides((2, 3, 4, 5), 2, None) == dense((2, 3, 4, 5), 2) == Strides((120, 40, 10, 2))
    assert laid_bytes((2, 3, 4, 5), 2, None) == 240


def test_shapes_lie_alike_where_every_element_has_one_place() -> None:
    """Held against the places of all elements, in pairs of shapes of as many."""
    shapes = [(1, 2, 3, 8), (1, 1, 6, 8), (2, 1, 3, 8), (1, 6, 1, 8), (1, 2, 6, 4), (1, 1, 1, 48), (1, 3, 1, 16)]
    outcomes: set[bool] = set()
    for order, a, b in product(IN_MEMORY, shapes, shapes):
        maps = FeatureMaps.model_validate({"granule": 4, "order": order})
        for first, second in ((maps, maps), (maps, None)):
            one, other = make_strides(a, 1, first), make_strides(b, 1, second)
            has_same_places = np.array_equal(
                [one.offset_bytes(at) for at in product(*map(range, a))],
                [other.offset_bytes(at) for at in product(*map(range, b))],
            )
            assert one.same_places(a, other, b) == has_same_places, (order, a, b, second)
            outcomes.add(has_same_places)
    assert outcomes == {False, True}
