"""A compiled model: programs of the chip with their constants and ports, host islands, and the integer graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from toolchain.hw.chip_sections import FeatureMaps
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
        """Return whether the same bytes mean the same in both ports, wherever the ports lie."""
        return replace(self, tensor="", address=0) == replace(other, tensor="", address=0)


@dataclass(frozen=True)
class State:
    """A tensor that stays in DRAM from one run to the next.

    `port`: place and layout of the state as a run finds it; its names are those of the input.
    `present_tensor`: the chip's tensor that the run leaves there.
    `output`: the model's output that this tensor is.
    `part`: part of both, None: all of them.
    `ring`: position of the state in the port, None: it is all of it.
    """

    port: Port
    present_tensor: str
    output: str
    part: StatePart | None = None
    ring: CircularState | None = None

    @property
    def name(self) -> str:
        """Return the name of the state's area."""
        return area_name(self.port.model, self.part, 0 if self.part is None else self.port.shape[0])

    def holds_as(self, other: State) -> bool:
        """Return whether the same bytes mean the same in both states."""
        return (self.part, self.ring) == (other.part, other.ring) and self.port.holds_as(other.port)

    @property
    def alone(self) -> Port:
        """The port, of a ring with the shape of the state in it."""
        ring = self.ring
        if ring is None:
            return self.port
        return replace(self.port, shape=tuple(ring.places if d == ring.axis else n for d, n in enumerate(self.port.shape)))


def state_of(carried: ChipState, port: Port) -> State:
    """Return the state of a container.

    `port`: port of the tensor that a run reads.
    """
    return State(replace(port, model=carried.pair.past), carried.present_tensor, carried.pair.present, carried.part, carried.ring)


@dataclass(frozen=True)
class AreaContent:
    """A content of a DRAM area.

    `kind`: constants, activations (kept by a program between layers), input, output or state.
    `tensor`: for a port the model's tensor; for a state the input.
    """

    kind: str
    tensor: str = ""

    @property
    def label(self) -> str:
        """Return the label that options use: `constants`, `input:x`."""
        return f"{self.kind}:{self.tensor}" if self.tensor else self.kind


@dataclass(frozen=True)
class DramArea:
    """A range of DRAM bytes base .. base + size_bytes.

    `base_register`: register that holds `base` when the program starts, and by which the program reaches the
    area.
    0: its addresses are absolute.
    """

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
    """A location of a layer's tensor: element i at address + sum(i_k strides_k), bytes, of space dram or sram.

    `turns`: for a repeated batch, the number of samples stored there one after another, one an iteration.
    `granule`: number of channels that lie together, the next ones surface_bytes further; 0: all do.
    """

    tensor: str
    space: str
    address: int
    strides: tuple[int, ...]
    turns: int = 1
    granule: int = 0
    surface_bytes: int = 0

    def get_storage(self, kind: TensorType) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides of what lies there, a sample of it where they take turns: of granules, whole ones, each a last
        dimension. Raises ValueError where the tensor holds no such samples."""
        shape = kind.shape if self.turns == 1 else sample_shape(kind.shape, self.turns)
        if not self.granule:
            return shape, self.strides
        granule_shape = (*shape[:-1], -(-shape[-1] // self.granule), self.granule)
        return granule_shape, (*self.strides[:-1], self.surface_bytes, self.strides[-1])

    def place(self, kind: TensorType, space: int) -> Access:
        """The bytes, in the order of the tensor's elements; space: code of the memory."""
        shape, strides = self.get_storage(kind)
        return Access(space, self.address, shape, strides, np.dtype(kind.dtype).itemsize, True)


@dataclass(frozen=True)
class LayerInfo:
    """A description of a layer for reports and `npu-sim --verify`. `sources` are the model's own nodes."""

    name: str
    op: str
    sources: tuple[str, ...]
    result: LayerResult | None = None  # files of older builds do not say it


@dataclass(frozen=True)
class MemoryUse:
    """A plan's use of an on-chip memory, by its name, and the least that any plan of the same live ranges could
    need.
    """

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
    def result_tensors(self) -> tuple[str, ...]:
        """The chip's tensors that are wanted behind it."""
        return (*(p.tensor for p in self.outputs), *(s.present_tensor for s in self.states))

    def layer_of(self, flow: InstructionStream, index: int) -> int:
        """Return the layer of a dispatched operation, -1 for none.

        A call runs its block for the layers from the call's own layer on.
        Each layer keeps its distance from the block's first layer.
        """
        layer = self.op_layers[flow.sources[index]]
        for call, block in flow.calls[index]:
            here, block_layer = self.op_layers[call], self.op_layers[block]
            layer = layer + here - block_layer if min(layer, here, block_layer) >= 0 else -1
        return layer if layer < len(self.layers) else -1

    def layers_of(self, flow: InstructionStream) -> NDArray[np.int64]:
        """`layer_of` of each operation that is dispatched."""
        layer_indexes = np.array(self.op_layers, np.int64)[np.array(flow.sources, np.int64)]
        layer_indexes[layer_indexes >= len(self.layers)] = -1
        for index, calls in enumerate(flow.calls):
            if calls:
                layer_indexes[index] = self.layer_of(flow, index)
        return layer_indexes

    @property
    def bases(self) -> dict[int, int]:
        """Return the values of the areas' base registers when the program starts."""
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
        """Return the type in onnxruntime's notation, for example tensor(float)."""
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
