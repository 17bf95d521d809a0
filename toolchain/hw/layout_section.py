"""Define how codes and constants lie in memory where the default does not hold: the section `layout` of a
machine's YAML.
"""

from __future__ import annotations

from math import gcd
from typing import Annotated, Literal

from pydantic import Field

from toolchain.hw.section import Section

_MOST_ALIGNED = 16  # bytes: entries of more are not aligned further

TileSide = Annotated[int, Field(ge=1, le=1 << 14)]
Tile = Annotated[tuple[TileSide, TileSide], Field(description="[inner, outputs]", examples=[[16, 16]])]


class ParameterEntry(Section):
    """An entry that convolutions read for each output channel.

    From the least bit of the first byte on it has the bias, two's complement, then the multiplier, unsigned, then
    the shift.
    The shift is two's complement where numerics.scale.shift_min is below 0. Bits left of the last byte are 0.
    """

    bias_bits: Annotated[int, Field(ge=8, le=64)] = 64
    multiplier_bits: Annotated[int, Field(ge=0, le=32)] = 32  # 0: powers of two have none
    shift_bits: Annotated[int, Field(ge=1, le=32)] = 32

    @property
    def size_bytes(self) -> int:
        return -(-(self.bias_bits + self.multiplier_bits + self.shift_bits) // 8)

    @property
    def alignment_bytes(self) -> int:
        """Return the alignment of the first of several entries: the largest power of two that divides an entry, up to
        16.
        """
        return gcd(self.size_bytes, _MOST_ALIGNED)


class FeatureMaps(Section):
    """A layout in which `granule` channels of a pixel lie together.

    `order`: of tensors [n, h, w, c]; surface is [n, c / granule, h, w, granule], line is [n, h, c / granule, w,
    granule].
    The last granule is whole, whatever fills it.
    `ports`: the host's inputs and outputs lie so too, or dense, all channels of a pixel together.
    """

    granule: Literal[4, 8, 16, 32, 64, 128]
    order: Literal["surface", "line"] = "surface"
    ports: Literal["granules", "dense"] = "granules"


class Layout(Section):
    parameters: ParameterEntry = ParameterEntry()
    # Of convolutions, [inner, outputs]; not given: the weights of an output channel together
    weight_tile: Tile | None = None
    feature_maps: FeatureMaps | None = None  # not given: the channels of a pixel together
