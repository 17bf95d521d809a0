"""Define what one instruction of a machine may express."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from toolchain.hw.section import NonNegative, Positive, Section

# Descriptions and examples are quoted in faults, and shown by editors.
Pair = Annotated[tuple[Positive, Positive], Field(description="[height, width]", examples=[[3, 3]])]


class ConvolutionLimits(Section):
    max_kernel: Pair | None = None
    max_stride: Pair | None = None
    max_dilation: Pair | None = None
    max_pad: Annotated[tuple[NonNegative, NonNegative], Field(description="[height, width]", examples=[[1, 1]])] | None = None
    max_input_channels: Positive | None = None
    max_output_channels: Positive | None = None
    max_width: Positive | None = None


class MatrixLimits(Section):
    computed_operand: bool = True  # both operands may be activations
    max_k: Positive | None = None
    max_n: Positive | None = None
    max_batches: Positive = 1  # products of one operation, at strides


class PoolLimits(Section):
    max_kernel: Pair | None = None
    max_stride: Pair | None = None


class ElementwiseLimits(Section):
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
    """A section on what one instruction may express.

    What lies outside is split or rewritten; what cannot be goes to the host.
    """

    convolution: ConvolutionLimits = ConvolutionLimits()
    depthwise: ConvolutionLimits = ConvolutionLimits()
    matrix_product: MatrixLimits = MatrixLimits()
    pool: PoolLimits = PoolLimits()
    elementwise: ElementwiseLimits = ElementwiseLimits()
    decompose: tuple[Decomposed, ...] = ()  # operators made of steps in the machine's codes; else they go to the host
