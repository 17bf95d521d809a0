"""The section of a machine's manual that says how feature maps lie, with one drawn."""

from __future__ import annotations

from collections.abc import Iterator

from toolchain.hw import Chip
from toolchain.hw.layout_section import FeatureMaps
from toolchain.machine.manual_text import formula
from toolchain.machine.tensors import laid_bytes, make_strides


def granules(chip: Chip) -> Iterator[str]:
    """Yield the manual's text about granules; nothing for a machine whose channels lie together."""
    maps = chip.layout.feature_maps
    if maps is None:
        return
    granule, item_bytes = maps.granule, chip.code_types[0].size_bytes
    outer = "channels / {0}, rows, columns" if maps.order == "surface" else "rows, channels / {0}, columns"
    yield (
        f"**Granules.** {granule} channels of a pixel lie together, a granule; granules of a map by {outer.format(granule)}. "
        "The last granule of a pixel is whole: what lies behind the last channel is no code; it is read and changes nothing, "
        "and is written as 0. In formulas channel(c, s) is where channel c of a pixel lies behind its first one, s the "
        "operand's surface stride; of s = 0, as of matrices, all channels of a pixel lie together:"
    )
    yield formula(
        "channel(c, s) = c size                                             where s = 0",
        f"              = floor(c / {granule}) s + (c mod {granule}) size            elsewhere; size: bytes of a code",
    )
    shape = (1, 2, 3, granule + granule // 4)
    yield f"For example 2 rows of 3 columns of {shape[3]} channels, by the first byte of each granule:"
    yield formula(*_drawn(shape, item_bytes, maps))


def _drawn(shape: tuple[int, int, int, int], item_bytes: int, maps: FeatureMaps) -> Iterator[str]:
    """The granules of a map in the order in which they lie."""
    strides, (_, rows, columns, channels) = make_strides(shape, item_bytes, maps), shape
    firsts = range(0, channels, maps.granule)
    places = [(strides.offset_bytes((0, y, x, c)), y, x, c) for y in range(rows) for x in range(columns) for c in firsts]
    wide = len(str(laid_bytes(shape, item_bytes, maps)))
    for at, y, x, c in sorted(places):
        channel_count, last = min(maps.granule, channels - c), c + maps.granule - 1
        fill = "" if channel_count == maps.granule else f", {last - channels + 1} of them none"
        yield f"    {at:>{wide}}  row {y} column {x} channels {c} to {last}{fill}"
    yield f"    {laid_bytes(shape, item_bytes, maps):>{wide}}  end"
