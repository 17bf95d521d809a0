"""Where activations lie of which others are parts."""

from __future__ import annotations

import numpy as np
import pytest

from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.rounding import Rounding
from toolchain.hw.chip_sections import FeatureMaps
from toolchain.ir.graph import Node, TensorType
from toolchain.machine.tensors import Strides
from toolchain.ops.data_movement import IntegerConcat, Slice
from toolchain.ops.permutation import Reshape
from toolchain.ops.rescale import Rescale
from toolchain.schedule.views import View, ViewInputs, find_views

RESCALE = Rescale(0, Requant(np.array([1 << 30]), np.array([30]), Rounding.SINGLE_HALF_UP, 0, -128, 127))


def views_of(starts: tuple[int, ...], steps: tuple[int, ...], in_place: bool = True) -> dict[str, View]:
    """x, an input of the region of 8x8 pixels of 16 channels of two bytes; y, what is sliced from it; z, made of y."""
    shape = tuple(-(-(n - start) // step) for n, start, step in zip((1, 8, 8, 16), starts, steps))
    types = {"x": TensorType((1, 8, 8, 16), "int16"), "y": TensorType(shape, "int16"), "z": TensorType(shape, "int16")}
    nodes = (Node("slice", Slice(starts, steps, shape), ("x",), ("y",)), Node("rescale", RESCALE, ("y",), ("z",)))
    return find_views(ViewInputs(nodes, types, ("x", "z")), in_place=in_place)


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


SURFACES, LINES = FeatureMaps(granule=8, order="surface"), FeatureMaps(granule=8, order="line")


def views_of_maps(maps: FeatureMaps, *nodes: Node, **shapes: tuple[int, ...]) -> dict[str, View]:
    """Of nodes on bytes; x goes in, z comes out; tensors of four dimensions lie in granules."""
    types = {name: TensorType(shape, "int8") for name, shape in shapes.items()}
    maps_of_granules = [name for name, shape in shapes.items() if len(shape) == 4]
    return find_views(ViewInputs(nodes, types, ("x", "z"), maps_of_granules, maps), in_place=True)


def rescale(source: str, target: str) -> Node:
    return Node(f"{source} to {target}", RESCALE, (source,), (target,))


@pytest.mark.parametrize(("start", "root", "offset"), [(8, "x", 2 * 4 * 8), (16, "x", 2 * 2 * 4 * 8), (4, "y", 0), (20, "y", 0)])
def test_a_slice_of_a_map_lies_in_its_source_where_it_begins_with_a_granule(start: int, root: str, offset: int) -> None:
    cut = Slice((0, 0, 0, start), (1, 1, 1, 1), (1, 2, 4, 7))
    views = views_of_maps(
        SURFACES, Node("slice", cut, ("x",), ("y",)), rescale("y", "z"), x=(1, 2, 4, 28), y=(1, 2, 4, 7), z=(1, 2, 4, 7)
    )
    assert (views["y"].root, views["y"].offset_bytes) == (root, offset)


@pytest.mark.parametrize(("first", "last", "joined"), [(8, 5, "ab"), (16, 8, "ab"), (12, 8, ""), (5, 3, "")])
def test_parts_of_a_concat_lie_in_it_where_they_are_whole_granules(first: int, last: int, joined: str) -> None:
    shapes = {"x": (1, 2, 4, first), "a": (1, 2, 4, first), "w": (1, 2, 4, last), "b": (1, 2, 4, last)}
    nodes = rescale("x", "a"), rescale("w", "b"), Node("join", IntegerConcat(3), ("a", "b"), ("y",)), rescale("y", "z")
    shape = (1, 2, 4, first + last)
    views = views_of_maps(SURFACES, *nodes, **shapes, y=shape, z=shape)
    assert "".join(name for name in "ab" if views[name].root == "y") == joined
    assert not joined or views["b"].offset_bytes == first // 8 * 2 * 4 * 8


@pytest.mark.parametrize(
    ("maps", "before", "after", "free"),
    [
        (SURFACES, (1, 1, 1, 20), (20,), True),  # of one pixel
        (SURFACES, (20,), (1, 1, 1, 20), False),  # what fills the last granule is not there
        (SURFACES, (24,), (1, 1, 1, 24), True),
        (SURFACES, (1, 2, 4, 8), (8, 8), True),  # one granule a pixel
        (SURFACES, (1, 2, 4, 16), (8, 16), False),
        (SURFACES, (1, 2, 4, 16), (1, 1, 8, 16), True),
        (LINES, (1, 2, 4, 16), (1, 1, 8, 16), False),
        (LINES, (1, 2, 4, 16), (2, 1, 4, 16), True),
        (SURFACES, (1, 2, 4, 16), (2, 1, 4, 16), False),
    ],
)
def test_a_reshape_is_free_where_both_shapes_have_one_layout(
    maps: FeatureMaps, before: tuple[int, ...], after: tuple[int, ...], free: bool
) -> None:
    nodes = rescale("x", "a"), Node("view", Reshape(after), ("a",), ("y",)), rescale("y", "z")
    views = views_of_maps(maps, *nodes, x=before, a=before, y=after, z=after)
    assert views["y"].root == ("a" if free else "y")
