"""Where activations lie of which others are parts."""

from __future__ import annotations

import numpy as np
import pytest

from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.rounding import Rounding
from toolchain.ir.graph import Node, TensorType
from toolchain.machine.tensors import Strides
from toolchain.ops.movement import Slice
from toolchain.ops.rescale import Rescale
from toolchain.schedule.places import Activations, View, find_views

RESCALE = Rescale(0, Requant(np.array([1 << 30]), np.array([30]), Rounding.SINGLE_HALF_UP, 0, -128, 127))


def views_of(starts: tuple[int, ...], steps: tuple[int, ...], in_place: bool = True) -> dict[str, View]:
    """x, an input of the region of 8x8 pixels of 16 channels of two bytes; y, what is sliced from it; z, made of y."""
    shape = tuple(-(-(n - start) // step) for n, start, step in zip((1, 8, 8, 16), starts, steps))
    types = {"x": TensorType((1, 8, 8, 16), "int16"), "y": TensorType(shape, "int16"), "z": TensorType(shape, "int16")}
    nodes = (Node("slice", Slice(starts, steps, shape), ("x",), ("y",)), Node("rescale", RESCALE, ("y",), ("z",)))
    return find_views(Activations(nodes, types, ("x", "z")), in_place=in_place)


@pytest.mark.parametrize(
    ("starts", "steps", "offset", "strides"),
    [
        ((0, 2, 3, 4), (1, 1, 1, 1), 2 * 256 + 3 * 32 + 4 * 2, (2048, 256, 32, 2)),
        ((0, 0, 1, 0), (1, 1, 2, 1), 32, (2048, 256, 64, 2)),
        ((0, 1, 0, 0), (1, 3, 2, 1), 256, (2048, 768, 64, 2)),
    ],
)
def test_a_slice_with_neighbouring_channels_lies_in_its_source(
    starts: tuple[int, ...], steps: tuple[int, ...], offset: int, strides: tuple[int, ...]
) -> None:
    assert views_of(starts, steps)["y"] == View("x", offset, Strides(strides), 2)
    assert views_of(starts, steps, in_place=False)["y"].root == "y"


def test_a_slice_of_every_other_channel_has_a_place_of_its_own() -> None:
    """Units read the channels of a pixel one behind the other."""
    assert views_of((0, 0, 0, 1), (1, 1, 1, 2))["y"] == View("y", 0, Strides((1024, 128, 16, 2)), 2)
