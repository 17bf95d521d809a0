"""Define where the elements of a tensor lie in memory; nothing else computes addresses of elements.

The channels of a feature map may lie in granules (channel blocks, a machine's `layout.feature_maps`). The last granule
is always whole, so such a map has more bytes than elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.hw.chip_sections import FeatureMaps

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Strides:
    """The layout of a tensor: bytes between neighbours along each dimension.

    `maps`: the last dimension lies in its granules, which are `surface_bytes` apart; its stride holds inside a granule.
    None: no granules.
    """

    along: Shape
    maps: FeatureMaps | None = None
    surface_bytes: int = 0

    def __getitem__(self, dimension: int) -> int:
        return self.along[dimension]

    def offset_bytes(self, element: Sequence[int]) -> int:
        """Return the bytes from the first element to this one."""
        if self.maps is None:
            return sum(i * s for i, s in zip(element, self.along))
        *outer, last = element
        surface, within = divmod(last, self.maps.granule)
        return sum(i * s for i, s in zip((*outer, within), self.along)) + surface * self.surface_bytes

    def take_steps(self, steps: Sequence[int]) -> Strides:
        """Return the strides of every steps[d]-th element along dimension d. With granules the last step must be 1."""
        return Strides(tuple(s * k for s, k in zip(self.along, steps)), self.maps, self.surface_bytes)

    def permute(self, perm: Sequence[int]) -> Strides:
        """Return the strides of the transposed tensor in the same bytes: its dimension i is dimension perm[i] of this
        one.

        Layouts with granules must not be permuted.
        """
        return Strides(tuple(self.along[p] for p in perm))

    def granules(self, count: int) -> int:
        """Return the number of granules that hold so many elements of the last dimension."""
        return -(-count // self.maps.granule) if self.maps is not None else 1

    def is_whole(self, start: int, count: int, total: int) -> bool:
        """Return whether elements [start, start + count) of the last dimension, out of `total`, are whole granules;
        True without granules.
        """
        if self.maps is None:
            return True
        return start % self.maps.granule == 0 and (count % self.maps.granule == 0 or start + count == total)

    def same_places(self, shape: Shape, other: Strides, other_shape: Shape) -> bool:
        """Return whether the elements of two shapes, in row-major order, lie at the same addresses. Both storages must
        be dense.

        False also where a channel-blocked layout is too irregular to tell.
        """
        if self.maps is None and other.maps is None:
            return True
        return _merge_loops(self, shape) == _merge_loops(other, other_shape) is not None


def _merge_loops(strides: Strides, shape: Shape) -> tuple[tuple[int, int], ...] | None:
    """Return (count, stride) of loops over the elements in their order, as few as possible; None where these are no
    loops.
    """
    loops = list(zip(shape, strides.along))
    if strides.maps is not None and shape[-1] > strides.maps.granule:
        granule = strides.maps.granule
        if shape[-1] % granule and strides.surface_bytes != granule * strides.along[-1]:
            return None
        *loops, (count, item) = loops
        loops += (
            [(count, item)]
            if strides.surface_bytes == granule * item
            else [(count // granule, strides.surface_bytes), (granule, item)]
        )
    merged_loops: list[tuple[int, int]] = []
    for count, stride in loops:
        if count == 1:
            continue
        if merged_loops and merged_loops[-1][1] == count * stride:
            merged_loops[-1] = (merged_loops[-1][0] * count, stride)
        else:
            merged_loops.append((count, stride))
    return tuple(merged_loops)


def dense(shape: Sequence[int], item_bytes: int, order: Sequence[int] = ()) -> Strides:
    """Return the strides of a tensor without gaps.

    `order`: its dimensions from the outermost to the contiguous one; empty: as they are.
    """
    strides = [0] * len(shape)
    step = item_bytes
    for dimension in reversed(order or range(len(shape))):
        strides[dimension] = step
        step *= shape[dimension]
    return Strides(tuple(strides))


def make_strides(shape: Shape, item_bytes: int, maps: FeatureMaps | None, order: Sequence[int] = ()) -> Strides:
    """Return the strides of a tensor without gaps, or of a feature map [n, h, w, c] in whole granules.

    `order`: as in `dense`.
    """
    if maps is None:
        return dense(shape, item_bytes, order)
    _, height, width, channels = shape
    surfaces, pixel = -(-channels // maps.granule), maps.granule * item_bytes
    if maps.order == "surface":
        line, surface = width * pixel, height * width * pixel
        image = surfaces * surface
    else:
        surface = width * pixel
        line = surfaces * surface
        image = height * line
    return Strides((image, line, pixel, item_bytes), maps, surface)


def laid_bytes(shape: Shape, item_bytes: int, maps: FeatureMaps | None) -> int:
    """Return the bytes of a dense tensor, or of a feature map in whole granules."""
    if maps is None:
        return math.prod(shape) * item_bytes
    *outer, channels = shape
    return math.prod(outer) * -(-channels // maps.granule) * maps.granule * item_bytes
