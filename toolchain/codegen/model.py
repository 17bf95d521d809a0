"""The data of a compiled model: what `model.npu` holds, as frozen values.

A `Container` has segments in the order in which they run. Each is a `Region` (a program of the chip with constants,
ports and states) or a `HostSubgraph` (an ONNX model). `codegen.link` makes regions, `codegen.container_writer` and
`codegen.container` write and read the file. Simulator, sessions and reports use these values. Addresses and sizes are
in bytes.
"""

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
    """A tensor in DRAM that others write before a program runs, or read after it.

    `tensor`: the chip's tensor; `model`: the tensor of the user's model that it is. `layout`: "plain", the model's
    order of dimensions, or "nhwc", channels last. `shape` is in this layout. `dtype`: type of the stored codes; real =
    scale * (code - zero_point). `maps`: channel blocks in which the codes lie; None: they lie densely.
    """

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
        """The bytes of DRAM that it takes, channel blocks filled up included."""
        return laid_bytes(self.shape, np.dtype(self.dtype).itemsize, self.maps)

    def holds_as(self, other: Port) -> bool:
        """Return whether the same bytes mean the same values of the same model tensor in both ports, wherever the ports lie."""
        return replace(self, tensor="", address=0) == replace(other, tensor="", address=0)


@dataclass(frozen=True)
class State:
    """A tensor that stays in DRAM from one run to the next.

    `port`: place and layout of the state as a run finds it; its names are those of the input. `present_tensor`: the
    chip's tensor that the run leaves there. `output`: the model's output that this tensor is. `part`: the part of the
    model's state that this is. None: all of it. `ring`: the state lies in a circular buffer, the port, with these
    positions. None: the port is the state.
    """

    port: Port
    present_tensor: str
    output: str
    part: StatePart | None = None
    ring: CircularState | None = None

    @property
    def name(self) -> str:
        """The label of the state's DRAM area."""
        return area_name(self.port.model, self.part, 0 if self.part is None else self.port.shape[0])

    def holds_as(self, other: State) -> bool:
        """Return whether the same bytes mean the same in both states."""
        return (self.part, self.ring) == (other.part, other.ring) and self.port.holds_as(other.port)

    @property
    def alone(self) -> Port:
        """The port with the shape of the state alone, where the port is a larger circular buffer."""
        ring = self.ring
        if ring is None:
            return self.port
        return replace(self.port, shape=tuple(ring.places if d == ring.axis else n for d, n in enumerate(self.port.shape)))


def state_of(carried: ChipState, port: Port) -> State:
    """Return the container's form of a state of the integer graph.

    `port`: port of the tensor that a run reads.
    """
    return State(replace(port, model=carried.pair.past), carried.present_tensor, carried.pair.present, carried.part, carried.ring)


@dataclass(frozen=True)
class AreaContent:
    """One thing that lies in a DRAM area.

    `kind`: constants, activations (kept by a program between layers), input, output or state. `tensor`: for an input or
    output the model's tensor, for a state its input; else empty.
    """

    kind: str
    tensor: str = ""

    @property
    def label(self) -> str:
        """The name of it in options and messages: `constants`, `input:x`."""
        return f"{self.kind}:{self.tensor}" if self.tensor else self.kind


@dataclass(frozen=True)
class DramArea:
    """DRAM bytes base .. base + size_bytes, with all that they hold.

    `base_register`: register that holds `base` when the program starts, and by which the program reaches the area. 0:
    the program's addresses are absolute.
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
    """The place of a layer's output tensor: element i lies at address + sum(i_k * strides_k), in bytes.

    `space`: name of the memory, dram or sram. `turns`: number of samples of a repeated batch that are stored there one
    after another, each over the one before. `granule`: number of channels that lie together, the next ones
    `surface_bytes` further. 0: all channels do.
    """

    tensor: str
    space: str
    address: int
    strides: tuple[int, ...]
    turns: int = 1
    granule: int = 0
    surface_bytes: int = 0

    def get_storage(self, kind: TensorType) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (shape, strides in bytes) of the stored elements, of one sample where samples take turns.

        With granules, channels become two dimensions: granules, and channels of a whole granule. Raise ValueError where
        the tensor cannot be cut into so many samples.
        """
        shape = kind.shape if self.turns == 1 else sample_shape(kind.shape, self.turns)
        if not self.granule:
            return shape, self.strides
        granule_shape = (*shape[:-1], -(-shape[-1] // self.granule), self.granule)
        return granule_shape, (*self.strides[:-1], self.surface_bytes, self.strides[-1])

    def place(self, kind: TensorType, space: int) -> Access:
        """Return the stored bytes as an access that writes, in the order of the tensor's elements.

        `space`: number of the memory on its machine.
        """
        shape, strides = self.get_storage(kind)
        return Access(space, self.address, shape, strides, np.dtype(kind.dtype).itemsize, True)


@dataclass(frozen=True)
class LayerInfo:
    """A layer as reports and `npu-sim --verify` name it.

    `op`: name of the integer operator. `sources`: the model's own nodes that it stands for. `result`: where its output
    lies. None: it is never whole at one place, or an older build's file does not say.
    """

    name: str
    op: str
    sources: tuple[str, ...]
    result: LayerResult | None = None  # files of older builds do not say it


@dataclass(frozen=True)
class MemoryUse:
    """A program's use of one on-chip memory other than the SRAM.

    `peak_bytes`: end of the last byte used. `bound_bytes`: the least peak that any placement of the same live ranges
    has.
    """

    memory: str
    peak_bytes: int
    bound_bytes: int


@dataclass(frozen=True)
class Region:
    """A program of the chip, with all that it takes to run it.

    `program`: encoded instruction words. `constants`: (DRAM address, bytes). `nodes`: nodes of the integer graph.
    `op_layers[i]`: index in `layers` of operation i of the program, -1 for none. `sram_peak_bytes`, `sram_bound_bytes`:
    SRAM that the plan uses, and the least that its live ranges allow. `areas`: empty in files of older builds.
    `buffers`: use of on-chip memories other than the SRAM. Addresses of ports, constants and results are those that
    hold while each area is at its base.
    """

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
        """All tensors that others write before the program runs or read after it: inputs, outputs and states."""
        return (*self.inputs, *self.outputs, *(state.port for state in self.states))

    @property
    def read(self) -> tuple[str, ...]:
        """Names of the chip's tensors that exist before the program runs: inputs and states."""
        return (*(p.tensor for p in self.inputs), *(s.port.tensor for s in self.states))

    @property
    def result_tensors(self) -> tuple[str, ...]:
        """Names of the chip's tensors that are read after the program: outputs and next values of states."""
        return (*(p.tensor for p in self.outputs), *(s.present_tensor for s in self.states))

    def layer_of(self, flow: InstructionStream, index: int) -> int:
        """Return the index in `layers` of the dispatched operation at `index` of `flow`, -1 for none.

        A block runs for the layers of its call: each of its layers keeps its distance from the block's first layer.
        """
        layer = self.op_layers[flow.sources[index]]
        for call, block in flow.calls[index]:
            here, block_layer = self.op_layers[call], self.op_layers[block]
            layer = layer + here - block_layer if min(layer, here, block_layer) >= 0 else -1
        return layer if layer < len(self.layers) else -1

    def layers_of(self, flow: InstructionStream) -> NDArray[np.int64]:
        """Return int64 `layer_of` of all operations that are dispatched."""
        layer_indexes = np.array(self.op_layers, np.int64)[np.array(flow.sources, np.int64)]
        layer_indexes[layer_indexes >= len(self.layers)] = -1
        for index, calls in enumerate(flow.calls):
            if calls:
                layer_indexes[index] = self.layer_of(flow, index)
        return layer_indexes

    @property
    def bases(self) -> dict[int, int]:
        """The values of base registers when the program starts, by register."""
        return {area.base_register: area.base for area in self.areas if area.base_register}


@dataclass(frozen=True)
class HostSubgraph:
    """A part of the model that onnxruntime runs on the host.

    `model`: a serialized ONNX model. `inputs`, `outputs` and `nodes` are names of the user's model.
    """

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
    """A compiled model for one set of input shapes.

    `segments`: in the order in which they run. `fallbacks`: (node, operator, reason) of each node that the host runs.
    `graph`: the integer graph of the chip's nodes, by which the reference computes. `bound`: inputs of the user's file
    that are constants here; a run may feed these values only.
    """

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
        """The inputs that no region reads. They may hold NaN and infinity."""
        read = {port.model for s in self.segments if isinstance(s, Region) for port in s.inputs}
        return frozenset(t.name for t in self.inputs) - read

    @property
    def states(self) -> tuple[tuple[int, State], ...]:
        """(index of its segment, state) of every state."""
        return tuple((i, state) for i, s in enumerate(self.segments) if isinstance(s, Region) for state in s.states)
