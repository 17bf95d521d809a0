"""The manual's sections on layouts: feature maps and their granules, weights, parameters, with examples.

The examples are laid out by the code that compiler and simulator use. The weights drawn there are of OUTPUTS output channels,
a kernel of 1 x TAPS and INPUTS input channels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quant.fixed_point.core.codes import CodeType
from toolchain.hw import Chip
from toolchain.hw.chip_sections import FeatureMaps
from toolchain.isa.machine import Machine
from toolchain.isa.manual.figures import Fields, Figure, Strip, WindowFigure
from toolchain.isa.manual.words import bits_text
from toolchain.machine import Convolution, in_tiles, pack_parameters
from toolchain.machine.manual_text import formula
from toolchain.machine.tensors import laid_bytes, make_strides

OUTPUTS, TAPS, INPUTS = 3, 2, 3


def layouts(machine: Machine) -> Iterator[str | Figure]:
    """Yield the paragraphs and figures of the manual's sections on layouts."""
    yield "## Layout of feature maps"
    yield from _feature_maps(machine.chip)
    yield "## Layout of constants"
    yield from _parameters(machine.chip)
    yield from _weights(machine.chip)


def _feature_maps(chip: Chip) -> Iterator[str | Figure]:
    codes, in_granules = chip.code_types[0], ", or in granules of them" if chip.layout.feature_maps is not None else ""
    yield (
        "A feature map has rows, columns and channels. The channels of a pixel lie one behind the other, each a code; columns "
        "are a column stride apart, rows a row stride, both in bytes and of any size, so that a part of a larger map is "
        "addressed in place and bytes between are left as they are. A matrix has rows and columns alone. In DRAM, ports lie "
        f"as `ports.json` of an image says: dense, channels last{in_granules}, one sample behind the other."
    )
    yield from granules(chip)
    size, gap = codes.size_bytes, codes.size_bytes
    column, row = 2 * size, 3 * 2 * size + gap
    cells, groups = list[str](), list[int]()
    for y in range(2):
        for x in range(3):
            cells += [f"{y}{x}{c}{'lh'[b] if size > 1 else ''}" for c in range(2) for b in range(size)]
            groups.append(column)
        cells += ["-"] * (gap if y == 0 else 0)
        groups += [gap] if y == 0 else []
    byte_order = " of two bytes, l the low one" if size > 1 else ""
    yield Strip(
        f"2 rows, 3 columns, 2 channels ({codes}{byte_order}), column stride {column}, row stride {row}: cell yxc is row y, "
        "column "
        "x, channel c; - is a gap. Bytes from the address on.",
        "byte",
        tuple(cells),
        tuple(groups),
    )
    yield WindowFigure(
        "A window of 3 x 3, stride 2, dilation 1, on an input of 5 x 6 with pad_top 1 and pad_left 1: output row 1, column 0.",
        (5, 6), (1, 1), (3, 3), (2, 2), (1, 1), (1, 0),
    )  # fmt: skip


def _parameters(chip: Chip) -> Iterator[str | Figure]:
    entry = chip.layout.parameters
    sign = ", two's complement" if chip.numerics.scale.shifts[0] < 0 else ""
    fields = (
        ("bias", ", two's complement", entry.bias_bits),
        ("multiplier", "", entry.multiplier_bits),
        ("shift", sign, entry.shift_bits),
    )
    field_texts: list[str] = []
    drawn: list[tuple[str, int, int]] = []
    low = 0
    for name, form, width in fields:
        if width:
            field_texts.append(f"in bits {bits_text((low + width - 1, low))} the {name}{form}")
            drawn.append((name, low + width - 1, low))
        low += width
    size_bits = 8 * entry.size_bytes
    drawn += [("", size_bits - 1, low)] if size_bits > low else []
    step = Convolution.need("parameter_address", chip).step
    yield (
        f"**Parameters.** An entry of requantization parameters, one an output channel, has {entry.size_bytes} bytes: "
        f"{'; '.join(field_texts)}. The first of several is on a multiple of {step}; they follow one another without "
        "gaps, in the order of channels."
    )
    if not entry.multiplier_bits:
        yield "There is no multiplier: it is 1."
    yield Fields(
        f"An entry of {entry.size_bytes} bytes, by its bits; bit 0 is the least of the first byte.", tuple(reversed(drawn))
    )
    if chip.numerics.scale.kind != "float32":
        shown_bits = min(entry.bias_bits, 16)
        bias, shift = -(1 << (shown_bits - 3)) + 5, max(3, chip.numerics.scale.shifts[0])
        multiplier = 1 if chip.numerics.scale.kind == "pow2" else (1 << (chip.numerics.scale.multiplier_bits - 1)) + 1
        data = pack_parameters(np.array([bias]), np.array([multiplier]), np.array([shift]), chip)
        yield Strip(f"bias {bias}, multiplier {multiplier}, shift {shift}, as bytes.", "byte", tuple(f"{b:02x}" for b in data))


def _weights(chip: Chip) -> Iterator[str | Figure]:
    labels = np.array([[f"{'abcdefgh'[o]}{t}{i}" for t in range(TAPS) for i in range(INPUTS)] for o in range(OUTPUTS)])
    drawn = (
        f"of {OUTPUTS} output channels a, b, c, a kernel of 1 x {TAPS} and {INPUTS} input channels; a01 is channel a, kx 0, "
        "input channel 1"
    )
    tile = chip.layout.weight_tile
    narrow = [codes for codes in chip.weight_types if codes is CodeType.INT4]
    if tile is None:
        yield (
            "**Weights of a convolution** lie by output channel, in each by ky, kx and input channel i: w[o, ky, kx, i] is "
            "number ((o kernel_height + ky) kernel_width + kx) input_channels + i, one byte each (int8)."
        )
        yield Strip(f"Weights {drawn}.", "byte", tuple(labels.reshape(-1).tolist()), (TAPS * INPUTS,) * OUTPUTS)
    else:
        rows, columns = tile
        yield (
            f"**Weights of a convolution** are in tiles of {columns} output channels by {rows} of the weights ky, kx, i of "
            "each, counted (ky kernel_width + kx) input_channels + i. Tiles follow one another along ky, kx, i, then along "
            "output channels. In a tile the weights of all channels for one ky, kx, i lie together; zeros fill the last "
            "tiles, which are whole."
        )
        padded = np.where(in_tiles(np.ones(labels.shape, np.int8), tile) > 0, _in_tiles(labels, tile), "0")
        yield Strip(f"Weights {drawn}; the first tile.", "byte", tuple(padded[0].tolist()), (columns,) * rows)
    if narrow:
        each = "each tile" if tile else "each output channel"
        yield f"int4: two weights a byte, the first in its low four bits, two's complement; {each} starts on a byte of its own."
        yield Strip("a00 a01 a02 a10 a11 a12 as int4, high | low four bits.", "byte", ("a01|a00", "a10|a02", "a12|a11"))
    yield (
        "**Weights of a depthwise operation** lie by ky, kx and channel c: w[ky, kx, c] is number (ky kernel_width + kx) "
        "channels + c"
        + (", in no tiles" if tile else "")
        + (". int4: the channels of each ky, kx start on a byte." if narrow else ".")
    )
    yield from _groups(chip)


def _in_tiles(labels: np.ndarray, tile: tuple[int, int]) -> np.ndarray:
    """Return the labels in the order in which `in_tiles` stores the weights that they name; "0" fills the last tiles."""
    numbers = in_tiles(np.arange(1, labels.size + 1).reshape(labels.shape), tile)
    return np.array(["0", *labels.reshape(-1).tolist()])[numbers]


def _groups(chip: Chip) -> Iterator[str | Figure]:
    arrays = [unit.array for unit in chip.of_kind("mac_array") if unit.array.groups is not None]
    if not arrays or arrays[0].groups is None:
        return
    keys = arrays[0].groups
    minimum = (
        f", then its minimum of {keys.minimum_bytes} bytes, two's complement ({keys.minimum_bits} bits)"
        if keys.minimum_bytes
        else ""
    )
    entry = f"its scale of {keys.scale_bytes} bytes, not negative ({keys.scale_bits} bits){minimum}"
    order = {
        "blocks": f"the weights of each output channel lie group by group, in front of the codes of each {entry}",
        "rows": f"of each output channel lie all codes, then of each group {entry}: all scales, then all minima",
        "planes": "first lie the codes of all output channels, then all scales by output channel and group, then all minima",
    }[keys.layout]
    yield (
        f"**Weights in groups** (`group` of {' or '.join(map(str, keys.sizes))}): {order}. Scales and minima lie least "
        "significant byte first. A last group that is smaller has fewer codes and the same scale and minimum; of int4 its "
        "bytes are whole."
    )


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
    """Yield a line for each granule of a map in the order of their addresses, and a line for the end.

    `shape`: (1, rows, columns, channels).
    """
    strides, (_, rows, columns, channels) = make_strides(shape, item_bytes, maps), shape
    firsts = range(0, channels, maps.granule)
    places = [(strides.offset_bytes((0, y, x, c)), y, x, c) for y in range(rows) for x in range(columns) for c in firsts]
    wide = len(str(laid_bytes(shape, item_bytes, maps)))
    for at, y, x, c in sorted(places):
        channel_count, last = min(maps.granule, channels - c), c + maps.granule - 1
        fill = "" if channel_count == maps.granule else f", {last - channels + 1} of them none"
        yield f"    {at:>{wide}}  row {y} column {x} channels {c} to {last}{fill}"
    yield f"    {laid_bytes(shape, item_bytes, maps):>{wide}}  end"
