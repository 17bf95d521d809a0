"""Define the keys of the JSON header of `model.npu`, with their types and ranges, as pydantic models.

`codegen.header` reads them and checks that they are consistent. docs/container.md says more of each key. Unknown keys and
other types are refused. A `Span` is (first byte, number of bytes) of a section, counted from the end of the header. One of
`Pieces` is (number of a block, its first byte, number of bytes).
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat

from toolchain.hw.chip_sections import FeatureMaps
from toolchain.hw.numerics import AnyActivationName
from toolchain.input_limits import HEADER_RANK, TENSOR_ELEMENTS
from toolchain.ir.states import StatePart, area_name
from toolchain.machine.tensors import laid_bytes
from toolchain.ops.kit.layout import channels_second

Count = Annotated[int, Field(ge=0, le=1 << 62)]
Span = tuple[Count, Count]
Pieces = tuple[tuple[Count, Count, Count], ...]


def _check_shape_bytes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape. Raise ValueError where it has too many dimensions or elements."""
    if len(shape) > HEADER_RANK:
        raise ValueError(f"has {len(shape)} dimensions, {HEADER_RANK} are the most")
    if math.prod(max(1, d) for d in shape) > TENSOR_ELEMENTS:
        raise ValueError(f"{list(shape)} are more than {TENSOR_ELEMENTS:,} elements")
    return shape


Shape = Annotated[tuple[Count, ...], AfterValidator(_check_shape_bytes)]


def _element_type(name: str) -> str:
    """Return the name. Raise ValueError where it is no element type of ONNX."""
    if not re.fullmatch(r"bool|complex(64|128)|bfloat16|u?int(4|8|16|32|64)|float(16|32|64|8_\w+)", name):
        raise ValueError(f"{name!r} is no element type of ONNX")
    return name


class _Section(BaseModel):
    """The base of all sections of the header: frozen and strict, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class IoHeader(_Section):
    """An input or output of the whole model; `dtype` is numpy's name."""

    name: str
    shape: Shape
    dtype: Annotated[str, AfterValidator(_element_type)]


class BoundHeader(_Section):
    """An input of the user's file that is a constant in this build; `data` are its bytes."""

    name: str
    shape: Shape
    dtype: Literal[
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"
    ]
    data: Span

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class RingHeader(_Section):
    """A state in a circular buffer, so that no row moves; a port has 2 `period` rows along `axis`.

    `places`: rows of the state. `rows`: new rows of a run, each written at both of its places. `number`: the region's input
    that says where they go, n. The next run gets (n + `rows`) mod `period`.
    """

    axis: Annotated[int, Field(ge=0, lt=HEADER_RANK)]
    places: Annotated[int, Field(ge=1, le=1 << 31)]
    period: Annotated[int, Field(ge=1, le=1 << 31)]
    rows: Annotated[int, Field(ge=1, le=1 << 31)]
    number: str


class PortHeader(_Section):
    """A tensor of the integer graph that lies in DRAM before or after a run; real = scale (code - zero_point).

    `model`: the user's tensor. `layout`: `nhwc` where channels are last here and second there, else `plain`.
    `maps`: channel blocks; None: codes are dense. `made`, `output`: of a state, the tensor that a run leaves there and the
    model's output that this is. `part`: (first row, rows of the whole) of a state in parts; None: all of it. `ring`: of a
    state in a circular buffer.
    """

    kind: Literal["input", "output", "state"]
    tensor: str
    model: str
    layout: Literal["plain", "nhwc"]
    address: Count
    shape: Shape
    dtype: AnyActivationName
    scale: Annotated[FiniteFloat, Field(gt=0)]
    zero_point: int
    maps: FeatureMaps | None = None
    made: str = ""
    output: str = ""
    part: tuple[Count, Count] | None = None
    ring: RingHeader | None = None

    @property
    def size_bytes(self) -> int:
        return laid_bytes(self.shape, np.dtype(self.dtype).itemsize, self.maps)

    @property
    def area_name(self) -> str:
        """The label of a state's DRAM area."""
        return self.model if self.part is None else area_name(self.model, StatePart(*self.part), self.shape[0])

    @property
    def model_shape(self) -> tuple[int, ...]:
        """The shape in the model's order of dimensions, channels second."""
        return tuple(self.shape[i] for i in channels_second(len(self.shape))) if self.layout == "nhwc" else self.shape


class ResultHeader(_Section):
    """The place where a layer leaves its tensor.

    `strides`: bytes, one for each dimension. `turns`: samples of a repeated batch that lie there one after another.
    `granule`, `surface_bytes`: channels of a block, and bytes between blocks; 0 without channel blocks.
    """

    tensor: str
    space: Literal["dram", "sram"]
    address: Count
    strides: tuple[Count, ...]
    turns: Annotated[int, Field(ge=1, le=1 << 62)] = 1
    granule: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    surface_bytes: Count = 0


class LayerHeader(_Section):
    """A layer of a region. `sources`: the user's nodes. `result`: None where its rows lie in a rolling buffer."""

    name: str
    op: str
    sources: tuple[str, ...]
    result: ResultHeader | None


class AreaContentHeader(_Section):
    """One of the contents of an area. `tensor`: of a port, the user's tensor; of a state that of its input."""

    kind: Literal["constants", "activations", "input", "output", "state"]
    tensor: str = ""


class AreaHeader(_Section):
    """A part of the DRAM that the program reaches by `base_register`, which must hold `base`; 0: by absolute addresses."""

    holds: tuple[AreaContentHeader, ...]
    base: Count
    size_bytes: Annotated[int, Field(ge=1, le=1 << 62)]
    base_register: Annotated[int, Field(ge=0, le=255)]


class MemoryUseHeader(_Section):
    """Bytes that the plan takes of an on-chip memory other than SRAM, and the least that any plan could."""

    memory: str
    peak_bytes: Count
    bound_bytes: Count


class IslandHeader(_Section):
    """A host subgraph: `model` is an ONNX model, `nodes` are the user's."""

    kind: Literal["host"]
    model: Span
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]


class RegionHeader(_Section):
    """A program of the chip, as `codegen.model.Region`.

    `constants`: (DRAM address, number of a block or pieces of blocks). `op_layers`: an int32 for each operation.
    """

    kind: Literal["npu"]
    program: Span
    constants: tuple[tuple[Count, Count | Pieces], ...]
    ports: tuple[PortHeader, ...]
    dram_bytes: Count
    nodes: tuple[str, ...]
    layers: tuple[LayerHeader, ...]
    op_layers: Span
    sram_bound_bytes: Count
    sram_peak_bytes: Count
    areas: tuple[AreaHeader, ...] = ()
    buffers: tuple[MemoryUseHeader, ...] = ()


class EntryHeader(_Section):
    """One set of input shapes: its inputs and outputs, the segments that run for it, and the integer graph.

    `fallbacks`: (node, operator, reason) of each node on the host. `bound`: inputs that are constants in this build.
    """

    name: str
    inputs: tuple[IoHeader, ...]
    outputs: tuple[IoHeader, ...]
    segments: tuple[Annotated[IslandHeader | RegionHeader, Field(discriminator="kind")], ...]
    fallbacks: tuple[tuple[str, str, str], ...]
    graph: Span
    bound: tuple[BoundHeader, ...] = ()


class PluginHeader(_Section):
    """A plug-in that the file needs; `digest` is its SHA-256."""

    name: str
    version: str
    digest: str


class Header(_Section):
    """The whole header.

    `machine`: JSON of the machine and its instruction table. `blocks`: constant bytes, which all else names by number.
    """

    name: str
    machine: Span
    machine_name: str
    machine_digest: str
    entries: tuple[EntryHeader, ...]
    blocks: tuple[Span, ...]
    plugins: tuple[PluginHeader, ...] = ()
