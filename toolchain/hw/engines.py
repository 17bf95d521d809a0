"""The sections `memories` and `engines` of a machine's YAML, as typed models: arrays, vector engines, DMA, and their
memories.

Both are maps of any names. Engines are told apart by `kind`; each says which memories it reaches. docs/machine.md
explains each key. A fold is one pass of an array: the part of the work that its rows and columns hold at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import ceil, lcm
from typing import Annotated, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.weight_scaling import GROUP_STEP, LARGEST_GROUP, LEAST_GROUP, GroupForm
from toolchain.hw.numerics import ActivationName, AnyActivationName, WeightName
from toolchain.hw.section import Bytes, Hertz, NonNegative, Positive, PositiveFloat, Section, Units
from toolchain.hw.timing import UNLIMITED, ArrayTiming, Rate, Timing, get_rate

_MOST_WORD_BYTES = 4096
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
# None is written `any`
WordBytes = Annotated[
    Annotated[int, Field(ge=1, le=_MOST_WORD_BYTES)] | None,
    BeforeValidator(lambda value: None if value == "any" else value),
    PlainSerializer(lambda value: "any" if value is None else value),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": _MOST_WORD_BYTES}, {"const": "any"}]}),
]


class Memory(Section):
    """One address space. `dram` holds weights, inputs and outputs; engines compute on `sram`.

    Transfers are charged in whole bursts for each contiguous run. `frequency`: of a clock of its own, in whose cycles
    its rates and latencies are given. `bank_bytes`: bytes of a word; words lie in the banks in turn. `bank_cycles`:
    cycles for which a word occupies its bank. `words`: whole: each run takes the words that it touches; packed: runs
    share words. `shared_ports`: reads and writes share the larger of both rates. `arbitration`: whom a port serves
    first of those that are ready. `private_to`: an engine, each of whose units has a memory like this for itself.
    """

    size: Bytes
    frequency: Hertz | None = None  # of a clock of its own, of whose cycles its rates and latencies speak; not given: the chip's
    read_bytes_per_cycle: PositiveFloat
    write_bytes_per_cycle: PositiveFloat
    latency_cycles: NonNegative = 0
    write_latency_cycles: NonNegative = 0
    burst_bytes: Positive = 1  # a transfer is charged in whole bursts of this size, per contiguous run
    alignment_bytes: Positive = 1  # of every buffer placed here
    banks: Positive = 1
    # of a word; words lie in the banks in turn, each of which has to do with one at a time. any: all bytes are reached alike
    bank_bytes: WordBytes = None
    bank_cycles: PositiveFloat = 1.0  # for which a bank has to do with a word
    # whole: each contiguous run of an operand takes the words that it touches; packed: runs share words
    words: Literal["whole", "packed"] = "whole"
    shared_ports: bool = False  # reads and writes share one bandwidth (the larger of the two figures)
    # whom a port serves of several that are ready. fixed: by an order that the program fixes; round_robin: units in turn, a burst
    # each; fcfs: who was ready first
    arbitration: Literal["fixed", "round_robin", "fcfs"] = "fixed"
    private_to: Name | None = None  # an engine: each of its units has one of these for itself

    @property
    def size_step_bytes(self) -> int:
        """The bytes of which a size of this memory must be a multiple."""
        return lcm(self.alignment_bytes, self.banks * (self.bank_bytes or 1))

    def in_cycles_of(self, frequency: float) -> Memory:
        """Return the memory with rates and latencies in cycles of another clock; latencies are rounded up."""
        if self.frequency is None or self.frequency == frequency:
            return self
        ratio = self.frequency / frequency
        return self.model_copy(
            update={
                "frequency": None,
                "read_bytes_per_cycle": self.read_bytes_per_cycle * ratio,
                "write_bytes_per_cycle": self.write_bytes_per_cycle * ratio,
                "latency_cycles": ceil(self.latency_cycles / ratio),
                "write_latency_cycles": ceil(self.write_latency_cycles / ratio),
                "bank_cycles": self.bank_cycles / ratio,
            }
        )


class MacRate(Section):
    """Types of operands that the array takes together, and the share of its peak that it reaches with them."""

    activation: ActivationName
    weight: WeightName
    rate: Annotated[float, Field(gt=0, le=4)] = 1.0


class Accumulators(Section):
    """The accumulators of an array. `entries`: sums that one instruction may have.

    `memory`: the sums lie in this memory, and the operation emit of a vector engine takes them out. Not given: the
    array keeps them to itself.
    """

    bits: Literal[24, 32, 40, 48, 64] = 32
    entries: Positive  # accumulators available to one instruction: output pixels x output channels
    # sums lie there at addresses, and the operation `emit` of a vector engine takes them away; not given: the array's own affair
    memory: Name | None = None

    @property
    def sum_bytes(self) -> int:
        """Return the bytes of one sum in the memory: a whole word, the sign extended."""
        return 4 if self.bits <= 32 else 8


class ArrayMemories(Section):
    """The memory that each operand of an array lies in.

    `input`: activations and addends. `parameters`: requantization entries and tables.
    """

    input: Name = "sram"
    weights: Name = "sram"
    parameters: Name = "sram"
    output: Name = "sram"


GroupSize = Annotated[int, Field(ge=LEAST_GROUP, le=LARGEST_GROUP, multiple_of=GROUP_STEP)]


class WeightGroups(Section):
    """Groups of weights along the reduction, each with a scale and a minimum: `quant.fixed_point.sums.grouped_sums`."""

    sizes: Annotated[tuple[GroupSize, ...], Field(min_length=1, examples=[[32]])]  # weights of a group; an operation names one
    scale_bits: Annotated[int, Field(ge=4, le=16)] = 8
    minimum_bits: Annotated[int, Field(ge=0, le=16)] = 0  # 0: groups have no minimum
    # blocks: group by group scale, minimum, codes; rows: of each output channel codes, scales, minima; planes: the same of all
    layout: Literal["blocks", "rows", "planes"] = "blocks"
    fold_cycles: NonNegative = 1  # for which a fold's sums are scaled at its end

    @property
    def scale_bytes(self) -> int:
        return bytes_of(self.scale_bits)

    @property
    def minimum_bytes(self) -> int:
        return bytes_of(self.minimum_bits)

    @property
    def entry_bytes(self) -> int:
        """The bytes that a group has beside its codes."""
        return self.scale_bytes + self.minimum_bytes


def bytes_of(bits: int) -> int:
    """Return the whole bytes that hold so many bits."""
    return -(-bits // 8)


Dataflow = Literal["os", "ws", "is"]
DepthwiseMode = Literal["diagonal", "column"]


class MacArray(Section):
    """An array of rows x columns processing elements, each of which computes a dot product of `depth` pairs a cycle.

    With ws, rows hold reduction elements and columns output channels. With os, rows hold output pixels and columns
    output channels. With is, rows hold reduction elements and columns output pixels.

    `more_dataflows`, `more_depthwise`: what an operation may name in place of the first. `folds_overlap`: the next fold
    fills while this one drains. `depthwise`: diagonal: `columns` channels at once; column: one channel at a time; none:
    the array has no such operation. `types`: pairs of operand types that it takes. `groups`: of weights with scales of
    their own. `post`: steps that outputs may pass on their way to memory. `issue_cycles`: to issue an operation.
    """

    even: ClassVar[bool] = False  # last folds take as many rows and columns as the others: `EvenArray`

    kind: Literal["mac_array"]
    count: Units = 1  # arrays like this
    rows: Positive
    columns: Positive
    depth: Positive = 1
    dataflow: Dataflow
    more_dataflows: Annotated[tuple[Dataflow, ...], Field(examples=[["ws"]])] = ()  # that an operation may name instead
    folds_overlap: bool = False  # the next fold fills while this one drains
    depthwise: Literal["diagonal", "column", "none"] = "diagonal"  # diagonal: `columns` channels at once; column: one
    more_depthwise: Annotated[tuple[DepthwiseMode, ...], Field(examples=[["column"]])] = ()  # that an operation may name instead
    types: Annotated[tuple[MacRate, ...], Field(min_length=1, examples=[[{"activation": "int8", "weight": "int8"}]])]
    accumulators: Accumulators
    groups: WeightGroups | None = None  # of weights, which may have scales of their own
    # applied to outputs on their way to memory
    post: Annotated[tuple[Literal["table", "add"], ...], Field(examples=[["table", "add"]])] = ()
    timing: Timing = ArrayTiming()
    memories: ArrayMemories = ArrayMemories()
    queue_depth: Positive = 4
    issue_cycles: NonNegative = 1

    @property
    def dataflows(self) -> tuple[Dataflow, ...]:
        """Return the dataflows in the order of the numbers by which operations name them."""
        return self.dataflow, *self.more_dataflows

    @property
    def depthwise_modes(self) -> tuple[str, ...]:
        """Return the depthwise modes in the order of the numbers by which operations name them; ("none",) where there is
        none.
        """
        return self.depthwise, *self.more_depthwise

    @property
    def multipliers(self) -> int:
        return self.rows * self.columns * self.depth

    @cached_property
    def edge_bytes(self) -> tuple[int, int]:
        """(bytes of activations, bytes of weights) that enter the array in a cycle."""
        activation = max(CodeType(pair.activation).bits for pair in self.types) // 8
        weight = max(CodeType(pair.weight).bits for pair in self.types) / 8
        across, along = self.columns * self.depth, self.rows * self.depth
        by_inputs = max(across if flow == "is" else along for flow in self.dataflows)
        by_weights = max(along if flow == "is" else across for flow in self.dataflows)
        inputs = get_rate(self.timing.input_edge_bytes, by_inputs * activation)
        return inputs, get_rate(self.timing.weight_edge_bytes, max(1, round(by_weights * weight)))

    def rate_of(self, activation: str, weight: str) -> float | None:
        """Return the share of its peak that the array reaches with operands of these types; None where it does not take
        them.
        """
        return next((t.rate for t in self.types if (t.activation, t.weight) == (activation, weight)), None)


class EvenArray(MacArray):
    """An array that charges an operation's last folds the mean rows and columns of all its folds.

    However an operation is cut, its parts take no less than the whole does on this array.
    `MacArray` charges last folds as full ones, so there parts may have fewer rows and columns a fold.
    """

    even: ClassVar[bool] = True


class FunctionRate(Section):
    """The rate of one function of a vector engine: startup + passes ceil(elements / lanes) cycles an operation.

    `lanes`: elements a cycle. `passes`: of the elements through the lanes, at least; a pool has one for each tap of its
    window. `type_lanes`: lanes where an operand has codes of this type; the fewest count.
    """

    lanes: Positive  # elements a cycle
    startup: NonNegative = 4  # cycles
    passes: Positive = 1  # at least, of the elements through the lanes; a pool has one for each tap of its window
    # elements a cycle where an operand has codes of this type: of an operation's types the one of fewest lanes counts
    type_lanes: Annotated[dict[AnyActivationName, Positive] | None, Field(examples=[{"int16": 8}])] = None

    def lanes_of(self, codes: str) -> int:
        """Return the elements a cycle where operands have codes of this type."""
        return (self.type_lanes or {}).get(cast(AnyActivationName, str(codes)), self.lanes)


class VectorMemories(Section):
    """The memory that each operand of a vector engine lies in.

    `tables`: tables of functions, and parameters of emits. `sums`: an array's accumulators.
    """

    input: Name = "sram"
    tables: Name = "sram"
    output: Name = "sram"
    sums: Name | None = None


class Vector(Section):
    """A vector engine: computes elementwise functions, tables, pools and others, each at its own rate.

    `count`: number of engines like this. `functions`: by the names that machine operations give theirs.
    """

    kind: Literal["vector"]
    count: Units = 1  # engines like this
    functions: Annotated[
        dict[Name, FunctionRate],  # by the names that machine operations give theirs (toolchain.machine.registry.FUNCTIONS)
        Field(examples=[{"add": {"lanes": 16, "startup": 4}, "table": {"lanes": 16}, "exp": {"lanes": 4}}]),
    ]
    memories: VectorMemories = VectorMemories()
    queue_depth: Positive = 4
    issue_cycles: NonNegative = 1


class Dma(Section):
    """A DMA engine: channels that move data between memories, each an in-order queue.

    `bytes_per_cycle`: of one channel. `runs`: whole_beats: each contiguous run takes whole beats; packed: runs share
    beats. `request_cycles`: until a request reaches the memories. `run_cycles`: for each contiguous run, in which
    nothing moves. `outstanding`: operations of a channel in flight. `in_flight_bytes`: requested and not yet received.
    `dimensions`: strided counts around a run. `transpose_block`: side of the square of elements that it transposes; 0:
    it cannot. `memories`: those that it reaches; not given: all.
    """

    kind: Literal["dma"]
    channels: Units = 1  # each an in-order queue of its own
    bytes_per_cycle: PositiveFloat  # of one channel
    # whole_beats: each contiguous run takes the beats (of bytes_per_cycle, rounded up) that it touches; packed: runs share beats
    runs: Literal["whole_beats", "packed"] = "whole_beats"
    request_cycles: NonNegative = 2  # behind issue_cycles, until what an operation asks of memories is on its way to them
    run_cycles: NonNegative = 1  # of each contiguous run, for its address, in which the channel moves nothing
    outstanding: Positive = 1  # operations of a channel that have asked and are not over; more of them hide what each waits
    in_flight_bytes: Rate = UNLIMITED  # that a channel has asked for and not received: room for them
    dimensions: Annotated[int, Field(ge=1, le=4)] = 3  # strided counts around the contiguous run
    transpose_block: NonNegative = 0  # elements a side of the square block that it turns on its way; 0: copies cannot transpose
    memories: tuple[Name, ...] | None = None  # those it moves between; not given: all
    queue_depth: Positive = 4
    issue_cycles: NonNegative = 1


Engine = Annotated[MacArray | Vector | Dma, Field(discriminator="kind")]


def get_grouped_arrays(engines: Mapping[str, Engine]) -> dict[str, WeightGroups]:
    """Return the weight groups of the arrays that have them, by name."""
    return {name: e.groups for name, e in engines.items() if isinstance(e, MacArray) and e.groups is not None}


def group_sizes(engines: Mapping[str, Engine]) -> tuple[int, ...]:
    """Return the group sizes that some array has, ascending."""
    return tuple(sorted({size for groups in get_grouped_arrays(engines).values() for size in groups.sizes}))


def group_form(engines: Mapping[str, Engine]) -> GroupForm | None:
    """Return the form of the arrays' weight groups; None where no array has groups."""
    for groups in get_grouped_arrays(engines).values():
        return GroupForm(group_sizes(engines), groups.scale_bits, groups.minimum_bits)
    return None
