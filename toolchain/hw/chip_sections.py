"""The sections `layout`, `control`, `sync` and `limits` of a machine's YAML, as typed models.

`layout`: how codes and constants lie in memory. `control`: what a front end does besides reading words in order.
`sync`: semaphores. `limits`: what one instruction may express.
"""

from __future__ import annotations

from math import gcd
from typing import Annotated, Literal

from pydantic import Field

from toolchain.hw.section import NonNegative, Positive, Section

_MOST_ALIGNED = 16  # bytes: entries of more are not aligned further

TileSide = Annotated[int, Field(ge=1, le=1 << 14)]
Tile = Annotated[tuple[TileSide, TileSide], Field(description="[inner, outputs]", examples=[[16, 16]])]


# Descriptions and examples are quoted in faults, and shown by editors.
Pair = Annotated[tuple[Positive, Positive], Field(description="[height, width]", examples=[[3, 3]])]


class ParameterEntry(Section):
    """The requantization entry that convolutions read for each output channel.

    From the least bit of the first byte on it has the bias (two's complement), the multiplier (unsigned), and the
    shift. The shift is two's complement where numerics.scale.shift_min is below 0. Remaining bits are 0.
    """

    bias_bits: Annotated[int, Field(ge=8, le=64)] = 64
    multiplier_bits: Annotated[int, Field(ge=0, le=32)] = 32  # 0: powers of two have none
    shift_bits: Annotated[int, Field(ge=1, le=32)] = 32

    @property
    def size_bytes(self) -> int:
        """The bytes of an entry: its bits, rounded up."""
        return -(-(self.bias_bits + self.multiplier_bits + self.shift_bits) // 8)

    @property
    def alignment_bytes(self) -> int:
        """The alignment of the first of several entries: the largest power of two that divides an entry, up to 16."""
        return gcd(self.size_bytes, _MOST_ALIGNED)


class FeatureMaps(Section):
    """A layout in which `granule` channels of a pixel lie together (NCHWc, NHCWB16).

    `order`: of tensors [n, h, w, c]; surface is [n, c / granule, h, w, granule], line is [n, h, c / granule, w,
    granule]. The last granule is always whole. `ports`: the host's inputs and outputs lie so too, or densely.
    """

    granule: Literal[4, 8, 16, 32, 64, 128]
    order: Literal["surface", "line"] = "surface"
    ports: Literal["granules", "dense"] = "granules"


class Layout(Section):
    """The section on how constants and feature maps lie in memory.

    `weight_tile`: [inner, outputs], weights of convolutions lie in tiles; not given: the weights of an output channel
    lie together. `feature_maps`: channels lie in granules; not given: all channels of a pixel lie together.
    """

    parameters: ParameterEntry = ParameterEntry()
    # Of convolutions, [inner, outputs]; not given: the weights of an output channel together
    weight_tile: Tile | None = None
    feature_maps: FeatureMaps | None = None  # not given: the channels of a pixel together


class Sync(Section):
    """The section on semaphores: how many there are, and how far each counts."""

    semaphores: Positive
    max_count: Positive = 255


class Repeats(Section):
    """Operations between `repeat` and `again` run several times.

    `depth`: repeats inside one another. `max_count`: iterations at most. `buffer_words`: a body of at most so many
    words is read once only.
    """

    depth: Annotated[int, Field(ge=1, le=16)] = 1  # repeats inside one another
    max_count: Annotated[int, Field(ge=1, le=(1 << 32) - 1)] = (1 << 16) - 1
    buffer_words: NonNegative = 0  # a body of at most so many words is read once, not for each iteration


class Calls(Section):
    """Operations between `block` and `return` run again at each `call`.

    `blocks`: number of blocks that the front end can remember. `depth`: blocks inside one another, called ones
    included.
    """

    blocks: Annotated[int, Field(ge=1, le=1 << 16)]  # addresses that the front end keeps
    depth: Annotated[int, Field(ge=1, le=16)] = 1  # blocks inside one another, those that are called included


class Indirect(Section):
    """`load_base` adds a number that lies in a memory, from 0 to `max_index`, times a size to a base register."""

    max_index: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] = (1 << 16) - 1


class Control(Section):
    """The section on the front end: what it does besides reading words in order.

    `bases`: registers that moves may add to an address, numbered from 1. `host_bases`: the first of these, at most `bases`.
    The host sets each before a start to where an area of dram lies.
    `operand_bases`: arrays and vector engines may add base registers too.
    `repeat`, `call`, `indirect`: what the front end does beside that; not given: it cannot.
    """

    bases: Annotated[int, Field(ge=0, le=255)] = 0  # registers that moves may add to an address, from 1 on
    host_bases: Annotated[int, Field(ge=0, le=255)] = (
        0  # the first of them: set before a start, each to where an area of dram lies
    )
    operand_bases: bool = False  # arrays and vector engines add them to the addresses of their operands, as moves do
    repeat: Repeats | None = None
    call: Calls | None = None
    indirect: Indirect | None = None


class ConvolutionLimits(Section):
    """Limits of one convolution or depthwise instruction; not given: none. Pairs are [height, width].

    `max_width`: columns of the output.
    """

    max_kernel: Pair | None = None
    max_stride: Pair | None = None
    max_dilation: Pair | None = None
    max_pad: Annotated[tuple[NonNegative, NonNegative], Field(description="[height, width]", examples=[[1, 1]])] | None = None
    max_input_channels: Positive | None = None
    max_output_channels: Positive | None = None
    max_width: Positive | None = None


class MatrixLimits(Section):
    """Limits of one matrix product instruction; not given: none.

    `computed_operand`: both operands may be activations. `max_k`: inner size. `max_n`: columns. `max_batches`: products
    at strides.
    """

    computed_operand: bool = True  # both operands may be activations
    max_k: Positive | None = None
    max_n: Positive | None = None
    max_batches: Positive = 1  # products of one operation, at strides


class PoolLimits(Section):
    """Limits of one pool instruction; not given: none. Pairs are [height, width]."""

    max_kernel: Pair | None = None
    max_stride: Pair | None = None


class ElementwiseLimits(Section):
    """Limits of one elementwise instruction. `broadcast`: the second operand may have fewer elements."""

    broadcast: bool = True  # a second operand of fewer elements


Decomposed = Literal[
    "Div",
    "GRU",
    "GroupNormalization",
    "InstanceNormalization",
    "LSTM",
    "LayerNormalization",
    "LogSoftmax",
    "RMSNormalization",
    "RNN",
    "Softmax",
    "Sqrt",
]


class Limits(Section):
    """The section on what one instruction may express. Larger operators are split or rewritten; what cannot be goes to
    the host.

    `decompose`: operators that are made of steps in the machine's codes; not listed, these go to the host.
    """

    convolution: ConvolutionLimits = ConvolutionLimits()
    depthwise: ConvolutionLimits = ConvolutionLimits()
    matrix_product: MatrixLimits = MatrixLimits()
    pool: PoolLimits = PoolLimits()
    elementwise: ElementwiseLimits = ElementwiseLimits()
    decompose: tuple[Decomposed, ...] = ()  # operators made of steps in the machine's codes; else they go to the host
