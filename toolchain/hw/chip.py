"""The typed chip: what a machine's YAML says, in base units. Loaded by `toolchain.hw.load_chip`.

Sizes are bytes, times are cycles of the one clock, bandwidths are bytes per cycle.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from toolchain.hw.units import Bytes, Hertz

Positive = Annotated[int, Field(ge=1, le=1 << 40)]
NonNegative = Annotated[int, Field(ge=0, le=1 << 40)]
PositiveFloat = Annotated[float, Field(gt=0)]
Rounding = Literal[
    "single_half_up",
    "double_round",
    "half_away",
    "half_even",
    "truncate",
    "floor",
    "fp32_rne",
    "pow2",
    "scale16",
    "reduced16",
]
Operation = Literal["add", "sub", "mul", "rescale", "prelu", "table", "max_pool", "average_pool"]
RoundedOperation = Literal["convolution", "matrix_product", "average_pool", "add", "sub", "mul", "rescale", "prelu"]
# Descriptions and examples are quoted in faults, and shown by editors.
Pair = Annotated[tuple[Positive, Positive], Field(description="[height, width]", examples=[[3, 3]])]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Clock(Section):
    frequency: Hertz


class Memory(Section):
    """One address space. `dram` holds weights, inputs and outputs; `sram` is what the engines compute on."""

    size: Bytes
    read_bytes_per_cycle: PositiveFloat
    write_bytes_per_cycle: PositiveFloat
    latency_cycles: NonNegative = 0
    write_latency_cycles: NonNegative = 0
    burst_bytes: Positive = 1  # a transfer is charged in whole bursts of this size, per contiguous run
    alignment_bytes: Positive = 1  # of every buffer placed here
    banks: Positive = 1
    shared_ports: bool = False  # reads and writes share one bandwidth (the larger of the two figures)


class Memories(Section):
    dram: Memory
    sram: Memory


class MacRate(Section):
    """Operand types the array takes and the share of its peak it reaches with them (1.0, 0.5, ...)."""

    activation: Literal["int8", "int16"]
    weight: Literal["int4", "int8"]
    rate: Annotated[float, Field(gt=0, le=4)] = 1.0


class Accumulators(Section):
    bits: Literal[24, 32, 40, 48, 64] = 32
    entries: Positive  # accumulators available to one instruction: output pixels x output channels


class MacArray(Section):
    """rows x columns processing elements, each a dot product of `depth` pairs a cycle.

    ws: rows hold reduction elements, columns output channels. os: rows hold output pixels, columns output channels.
    is: rows hold reduction elements, columns output pixels.
    """

    kind: Literal["mac_array"]
    rows: Positive
    columns: Positive
    depth: Positive = 1
    dataflow: Literal["os", "ws", "is"]
    folds_overlap: bool = False  # the next fold fills while this one drains
    depthwise: Literal["diagonal", "column", "none"] = "diagonal"  # diagonal: `columns` channels at once; column: one
    types: Annotated[tuple[MacRate, ...], Field(min_length=1, examples=[[{"activation": "int8", "weight": "int8"}]])]
    accumulators: Accumulators
    # applied to outputs on their way to memory
    post: Annotated[tuple[Literal["table", "add"], ...], Field(examples=[["table", "add"]])] = ()
    queue_depth: Positive = 4
    issue_cycles: NonNegative = 1


class Vector(Section):
    kind: Literal["vector"]
    lanes: Positive  # elements a cycle
    operations: Annotated[tuple[Operation, ...], Field(examples=[["add", "mul", "rescale"]])]
    startup_cycles: NonNegative = 4
    queue_depth: Positive = 4
    issue_cycles: NonNegative = 1


class Dma(Section):
    kind: Literal["dma"]
    channels: Positive = 1  # each an in-order queue of its own
    bytes_per_cycle: PositiveFloat  # of one channel
    dimensions: Annotated[int, Field(ge=1, le=3)] = 3  # strided counts around the contiguous run
    queue_depth: Positive = 4
    issue_cycles: NonNegative = 1


class Engines(Section):
    mac: MacArray
    vector: Vector
    dma: Dma


class ScaleForm(Section):
    kind: Literal["multiplier", "pow2", "float32"]
    multiplier_bits: Annotated[int, Field(ge=1, le=31)] = 31
    shift_min: Annotated[int, Field(ge=-31, le=62)] = 0  # below 0: a left shift, powers of two only
    shift_max: Annotated[int, Field(ge=0, le=62)] = 62


class TableForm(Section):
    """How a non-linear function is computed: 256 entries for 8 bit, 513 interpolated entries for 16 bit."""

    entries: Literal[256, 513]
    interpolation: Literal["none", "tosa", "tflite"] = "none"


class Numerics(Section):
    activation: Literal["int8", "int16"]
    weight: Literal["int4", "int8"]
    symmetric_activations: bool = False
    weights_per_channel: bool = True
    scale: ScaleForm
    rounding: Rounding
    per_op: dict[RoundedOperation, Rounding] = Field(default_factory=dict)
    overflow: Literal["saturate", "wrap"] = "saturate"
    add_left_shift: Annotated[int, Field(ge=0, le=20)] = 20  # headroom given to both operands of a sum
    table: TableForm


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


class PoolLimits(Section):
    max_kernel: Pair | None = None
    max_stride: Pair | None = None


class ElementwiseLimits(Section):
    broadcast: bool = True  # a second operand of fewer elements


class Limits(Section):
    """What one instruction may express. What lies outside is split or rewritten; what cannot be goes to the host."""

    convolution: ConvolutionLimits = ConvolutionLimits()
    depthwise: ConvolutionLimits = ConvolutionLimits()
    matrix_product: MatrixLimits = MatrixLimits()
    pool: PoolLimits = PoolLimits()
    elementwise: ElementwiseLimits = ElementwiseLimits()


def table_name_fault(name: str) -> str | None:
    """Why an instruction table may not be named so: a machine of a stranger reads no files of other people."""
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts or path.suffix not in (".yaml", ".yml"):
        return f"{name!r} must be a .yaml file in the machine's folder or below it, such as isa/mine.yaml"
    return None


def _table_name(name: str) -> str:
    fault = table_name_fault(name)
    if fault is not None:
        raise ValueError(fault)
    return name


class Isa(Section):
    file: Annotated[str, AfterValidator(_table_name)]  # beside the machine's YAML, e.g. isa/registers.yaml
    word_cycles: PositiveFloat = 1.0  # the front end reads one instruction word in this time


class Sync(Section):
    semaphores: Positive
    max_count: Positive = 255


class Energy(Section):
    pj_per_mac: PositiveFloat
    pj_per_sram_byte: PositiveFloat
    pj_per_dram_byte: PositiveFloat


class Chip(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_\-]*$")]
    description: str = ""
    clock: Clock
    memories: Memories
    engines: Engines
    numerics: Numerics
    limits: Limits = Limits()
    isa: Isa
    sync: Sync
    energy: Energy | None = None

    @property
    def macs_per_cycle(self) -> float:
        """Peak multiply-accumulates a cycle with this machine's operand types."""
        mac = self.engines.mac
        rate = next(
            (t.rate for t in mac.types if (t.activation, t.weight) == (self.numerics.activation, self.numerics.weight)),
            0.0,
        )
        return mac.rows * mac.columns * mac.depth * rate

    @property
    def used_channels(self) -> int:
        """DMA channels that programs use: as many as leave a semaphore for each ordered pair of engines; one at least.

        Where counts are small, each pair may need a second semaphore for answers.
        """
        others, each = 1 + bool(self.engines.vector.operations), 2 if self.sync.max_count < 4 else 1
        fitting = (
            c for c in range(2, self.engines.dma.channels + 1) if each * (others + c) * (others + c - 1) <= self.sync.semaphores
        )
        return max(fitting, default=1)

    @property
    def activation_bytes(self) -> int:
        return 2 if self.numerics.activation == "int16" else 1
