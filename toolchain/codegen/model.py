"""A compiled model: programs of the chip with their constants and ports, host islands, and the integer graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from toolchain.hw.layout_section import FeatureMaps
from toolchain.ir.graph import Graph, TensorType
from toolchain.ir.states import ChipState, CircularState, StatePart, area_name
from toolchain.isa import Machine
from toolchain.machine import Access, InstructionStream
from toolchain.machine.tensors import laid_bytes
from toolchain.ops.kit.operator import sample_shape

_ORT_NAMES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class Port:
    """A tensor in DRAM at a program's start or end. `tensor`: its chip name; `model`: the model's tensor."""

    tensor: str
    model: str
    layout: str  # plain or nhwc
    address: int
    shape: tuple[int, ...]
    dtype: str
    scale: float
    zero_point: int
    maps: FeatureMaps | None = None  # the granules of channels in which its codes lie

    @property
    def size_bytes(self) -> int:
        return laid_bytes(self.shape, np.dtype(self.dtype).itemsize, self.maps)

    def holds_as(self, other: Port) -> bool:
        """Whether the same bytes mean the same in both, wherever these lie."""
        return replace(self, tensor="", address=0) == replace(other, tensor="", address=0)


@dataclass(frozen=True)
class State:
    """A tensor that stays in DRAM from one run to the next. port: where and how, as a run finds it; its names are those of the
    input. made: the chip's tensor that the run leaves there; output: the model's output that this is; part: of both, None: all
    of them; ring: where in the port the state is, None: it is all of it."""

    port: Port
    made: str
    output: str
    part: StatePart | None = None
    ring: CircularState | None = None

    @property
    def name(self) -> str:
        """Of its area."""
        return area_name(self.port.model, self.part, 0 if self.part is None else self.port.shape[0])

    def holds_as(self, other: State) -> bool:
        """Whether the same bytes mean the same in both."""
        return (self.part, self.ring) == (other.part, other.ring) and self.port.holds_as(other.port)

    @property
    def alone(self) -> Port:
        """The port, of a ring with the shape of the state in it."""
        ring = self.ring
        if ring is None:
            return self.port
        return replace(self.port, shape=tuple(ring.places if d == ring.axis else n for d, n in enumerate(self.port.shape)))


def state_of(carried: ChipState, port: Port) -> State:
    """port: of what a run reads."""
    return State(replace(port, model=carried.pair.past), carried.made, carried.pair.present, carried.part, carried.ring)


@dataclass(frozen=True)
class AreaContent:
    """What lies in an area of DRAM. kind: constants, activations (what a program keeps between layers), input, output or state.
    tensor: of a port, the model's; of a state the input."""

    kind: str
    tensor: str = ""

    @property
    def label(self) -> str:
        """As options name it: `constants`, `input:x`."""
        return f"{self.kind}:{self.tensor}" if self.tensor else self.kind


@dataclass(frozen=True)
class DramArea:
    """DRAM bytes base .. base + size_bytes. base_register: the one that holds `base` when the program starts, by which it reaches
    what lies here; 0: its addresses are absolute."""

    holds: tuple[AreaContent, ...]
    base: int
    size_bytes: int
    base_register: int

    @property
    def end(self) -> int:
        return self.base + self.size_bytes

    @property
    def label(self) -> str:
        return ", ".join(h.label for h in self.holds)


@dataclass(frozen=True)
class LayerResult:
    """Where a layer leaves its tensor: element i at address + sum(i_k strides_k), bytes, of space dram or sram. turns: of a batch
    that is repeated, the samples that lie there one after another, one an iteration. granule: so many channels lie together, the
    next ones surface_bytes further; 0: all do."""

    tensor: str
    space: str
    address: int
    strides: tuple[int, ...]
    turns: int = 1
    granule: int = 0
    surface_bytes: int = 0

    def held(self, kind: TensorType) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides of what lies there, a sample of it where they take turns: of granules, whole ones, each a last
        dimension. Raises ValueError where the tensor holds no such samples."""
        shape = kind.shape if self.turns == 1 else sample_shape(kind.shape, self.turns)
        if not self.granule:
            return shape, self.strides
        held = (*shape[:-1], -(-shape[-1] // self.granule), self.granule)
        return held, (*self.strides[:-1], self.surface_bytes, self.strides[-1])

    def place(self, kind: TensorType, space: int) -> Access:
        """The bytes, in the order of the tensor's elements; space: code of the memory."""
        shape, strides = self.held(kind)
        return Access(space, self.address, shape, strides, np.dtype(kind.dtype).itemsize, True)


@dataclass(frozen=True)
class LayerInfo:
    """What reports and `npu-sim --verify` need of a layer: `sources` are the model's own nodes."""

    name: str
    op: str
    sources: tuple[str, ...]
    result: LayerResult | None = None  # files of older builds do not say it


@dataclass(frozen=True)
class MemoryUse:
    """What a plan takes of a memory on the chip, by its name, and the least that any plan of the same live ranges could."""

    memory: str
    peak_bytes: int
    bound_bytes: int


@dataclass(frozen=True)
class Region:
    """A program of the chip. `constants`: (DRAM address, bytes). `op_layers[i]`: layer of operation i, -1 for none.
    `buffers`: what it takes of other memories on the chip than the SRAM.

    Addresses of ports, constants and results are those that they have with every area at its base."""

    program: bytes
    constants: tuple[tuple[int, bytes], ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    dram_bytes: int
    nodes: tuple[str, ...]
    layers: tuple[LayerInfo, ...]
    op_layers: tuple[int, ...]
    sram_bound_bytes: int
    sram_peak_bytes: int
    areas: tuple[DramArea, ...] = ()  # files of older builds do not say them
    buffers: tuple[MemoryUse, ...] = ()
    states: tuple[State, ...] = ()

    @property
    def ports(self) -> tuple[Port, ...]:
        """All that others write before the program runs or read behind it."""
        return (*self.inputs, *self.outputs, *(state.port for state in self.states))

    @property
    def read(self) -> tuple[str, ...]:
        """The chip's tensors that are there before the program runs."""
        return (*(p.tensor for p in self.inputs), *(s.port.tensor for s in self.states))

    @property
    def made(self) -> tuple[str, ...]:
        """The chip's tensors that are wanted behind it."""
        return (*(p.tensor for p in self.outputs), *(s.made for s in self.states))

    def layer_of(self, flow: InstructionStream, index: int) -> int:
        """Of an operation that is dispatched; -1 for none. A call runs its block for the layers from its own on: each lies as
        far from it as the operation's own from that of the block's begin."""
        layer = self.op_layers[flow.sources[index]]
        for call, block in flow.calls[index]:
            here, there = self.op_layers[call], self.op_layers[block]
            layer = layer + here - there if min(layer, here, there) >= 0 else -1
        return layer if layer < len(self.layers) else -1

    def layers_of(self, flow: InstructionStream) -> NDArray[np.int64]:
        """`layer_of` of each operation that is dispatched."""
        found = np.array(self.op_layers, np.int64)[np.array(flow.sources, np.int64)]
        found[found >= len(self.layers)] = -1
        for index, calls in enumerate(flow.calls):
            if calls:
                found[index] = self.layer_of(flow, index)
        return found

    @property
    def bases(self) -> dict[int, int]:
        """What the base registers of areas hold when the program starts."""
        return {area.base_register: area.base for area in self.areas if area.base_register}


@dataclass(frozen=True)
class HostSubgraph:
    """An ONNX model that the host runs."""

    model: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class IoType:
    """An input or output of the whole model, in the model's own terms."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def type(self) -> str:
        """In onnxruntime's words, for example tensor(float)."""
        return f"tensor({_ORT_NAMES.get(self.dtype, self.dtype)})"


@dataclass(frozen=True)
class Container:
    """A compiled model. `fallbacks`: (node, op, reason); bound: inputs of the user's file that are constants here, so that a run
    may only feed these values."""

    name: str
    machine: Machine
    inputs: tuple[IoType, ...]
    outputs: tuple[IoType, ...]
    segments: tuple[Region | HostSubgraph, ...]
    fallbacks: tuple[tuple[str, str, str], ...]
    graph: Graph
    bound: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    @property
    def host_inputs(self) -> frozenset[str]:
        """The inputs that the chip does not read: they may hold NaN and infinity."""
        read = {port.model for s in self.segments if isinstance(s, Region) for port in s.inputs}
        return frozenset(t.name for t in self.inputs) - read

    @property
    def states(self) -> tuple[tuple[int, State], ...]:
        """(the segment that keeps it, state) of each."""
        return tuple((i, state) for i, s in enumerate(self.segments) if isinstance(s, Region) for state in s.states)
