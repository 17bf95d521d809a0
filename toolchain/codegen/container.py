"""model.npu: one file with programs, constants, ports, host islands and the integer graph.

Layout: magic, version (u32), length of the rest (u64), SHA-256 of the rest; then a u64 length and a JSON header, then the
sections that the header lists. Little-endian. The same build gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolchain.bounds import DRAM_BYTES, PROGRAM_FILE_BYTES
from toolchain.codegen.header import IslandHeader, RegionHeader, Span, read_header
from toolchain.codegen.serial import graph_from_bytes, graph_to_bytes
from toolchain.errors import ProgramError
from toolchain.files import read_limited
from toolchain.ir.graph import Graph
from toolchain.isa import Machine, machine_digest, machine_from_json, machine_to_json
from toolchain.ops.base import Layer
from toolchain.ops.integer_convolution import IntegerConvolution

MAGIC = b"NPUMODEL"
VERSION = 1
_PREFIX = struct.Struct("<8sIQ32s")
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

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Result:
    """Where a layer leaves its tensor: element i at address + sum(i_k strides_k), bytes, of space dram or sram."""

    tensor: str
    space: str
    address: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class LayerInfo:
    """What reports and `npu-sim --verify` need of a layer: `sources` are the model's own nodes."""

    name: str
    op: str
    sources: tuple[str, ...]
    result: Result | None = None  # files of older builds do not say it


@dataclass(frozen=True)
class Region:
    """A program of the chip. `constants`: (DRAM address, bytes). `op_layers[i]`: layer of operation i, -1 for none."""

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


@dataclass(frozen=True)
class Island:
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
    """A compiled model. `fallbacks`: (node, op, reason)."""

    name: str
    machine: Machine
    inputs: tuple[IoType, ...]
    outputs: tuple[IoType, ...]
    segments: tuple[Region | Island, ...]
    fallbacks: tuple[tuple[str, str, str], ...]
    graph: Graph


def container_to_bytes(container: Container) -> bytes:
    sections = bytearray()

    def put(data: bytes) -> list[int]:
        start = len(sections)
        sections.extend(data)
        sections.extend(b"\0" * (-len(data) % 16))
        return [start, len(data)]

    graph_text, arrays = graph_to_bytes(container.graph)
    header = {
        "name": container.name,
        "machine": put(machine_to_json(container.machine).encode()),
        "machine_name": container.machine.chip.name,
        "machine_digest": machine_digest(container.machine),
        "inputs": [asdict(t) for t in container.inputs],
        "outputs": [asdict(t) for t in container.outputs],
        "segments": [_segment_header(s, put) for s in container.segments],
        "fallbacks": [list(f) for f in container.fallbacks],
        "graph": put(graph_text.encode()),
        "arrays": put(arrays),
    }
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    rest = struct.pack("<Q", len(text)) + text + bytes(sections)
    return _PREFIX.pack(MAGIC, VERSION, len(rest), hashlib.sha256(rest).digest()) + rest


def _segment_header(segment: Region | Island, put: Any) -> dict[str, Any]:
    if isinstance(segment, Island):
        return {
            "kind": "host",
            "model": put(segment.model),
            "inputs": segment.inputs,
            "outputs": segment.outputs,
            "nodes": segment.nodes,
        }
    return {
        "kind": "npu",
        "program": put(segment.program),
        "constants": [[address, *put(data)] for address, data in segment.constants],
        "inputs": [asdict(p) for p in segment.inputs],
        "outputs": [asdict(p) for p in segment.outputs],
        "dram_bytes": segment.dram_bytes,
        "nodes": segment.nodes,
        "layers": [asdict(info) for info in segment.layers],
        "op_layers": put(_pack_layers(segment.op_layers)),
        "sram_bound_bytes": segment.sram_bound_bytes,
        "sram_peak_bytes": segment.sram_peak_bytes,
    }


def _pack_layers(layers: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(layers)}i", *layers)


def container_from_bytes(data: bytes, label: str) -> Container:
    """label: the file's name, for messages. Raises ProgramError: not such a file, another version, damaged, cut short."""
    rest = _checked_rest(data, label)
    try:
        return _container(rest)
    except ProgramError as fault:
        raise ProgramError(f"{label}: is not sound: {fault}; build it again") from None


def _checked_rest(data: bytes, label: str) -> bytes:
    """What lies behind the prefix, its length and checksum as the prefix says."""
    if data[:8] != MAGIC:
        raise ProgramError(f"{label}: not a compiled model (no {MAGIC.decode()} at its start); build one with npu-build")
    if len(data) < _PREFIX.size:
        raise ProgramError(f"{label}: holds {len(data)} bytes, its prefix alone has {_PREFIX.size}; it was cut")
    _, version, length, digest = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise ProgramError(f"{label}: has format version {version}, this toolchain reads {VERSION}; build it again")
    rest = data[_PREFIX.size :]
    if len(rest) != length:
        raise ProgramError(f"{label}: holds {len(rest)} bytes behind its prefix, which says {length}; it was cut or extended")
    if hashlib.sha256(rest).digest() != digest:
        raise ProgramError(f"{label}: its checksum does not match its contents; the file is damaged, build or copy it again")
    return rest


def _container(rest: bytes) -> Container:
    """Raises ProgramError where the bytes have the right checksum and still say nothing sound."""
    if len(rest) < 8:
        raise ProgramError("header: is missing")
    size = struct.unpack_from("<Q", rest)[0]
    body = rest[8 + size :]
    header = read_header(rest[8 : 8 + size], len(body))

    def get(span: Span) -> bytes:
        return body[span[0] : span[0] + span[1]]

    machine = machine_from_json(_text(get(header.machine), "machine"))
    if machine_digest(machine) != header.machine_digest:
        raise ProgramError(f"machine: {header.machine_name} is not the one that the file was built for")
    segments = tuple(_segment(s, get, machine) for s in header.segments)
    graph = graph_from_bytes(_text(get(header.graph), "graph"), get(header.arrays))
    _check_graph(segments, graph)
    _check_operators(graph, machine)
    _check_results(segments, graph, machine)
    inputs, outputs = ([IoType(t.name, t.shape, t.dtype) for t in ports] for ports in (header.inputs, header.outputs))
    return Container(header.name, machine, tuple(inputs), tuple(outputs), segments, header.fallbacks, graph)


def _text(data: bytes, thing: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ProgramError(f"{thing}: is not UTF-8 text") from None


def _segment(header: IslandHeader | RegionHeader, get: Callable[[Span], bytes], machine: Machine) -> Region | Island:
    if isinstance(header, IslandHeader):
        return Island(get(header.model), header.inputs, header.outputs, header.nodes)
    dram_size_bytes = machine.chip.dram.size
    if header.dram_bytes > dram_size_bytes:
        raise ProgramError(f"header: {header.dram_bytes} bytes of DRAM, {machine.chip.name} has {dram_size_bytes}")
    if header.dram_bytes > DRAM_BYTES:
        raise ProgramError(f"header: {header.dram_bytes:,} bytes of DRAM, the simulator holds {DRAM_BYTES:,}")
    packed = get(header.op_layers)
    op_layers = struct.unpack(f"<{len(packed) // 4}i", packed)
    if op_layers and not -1 <= min(op_layers) <= max(op_layers) < len(header.layers):
        raise ProgramError(f"layer table: names a layer outside the {len(header.layers)} of its region")
    return Region(
        program=get(header.program),
        constants=tuple((address, get((start, size))) for address, start, size in header.constants),
        inputs=tuple(Port(**dict(p)) for p in header.inputs),
        outputs=tuple(Port(**dict(p)) for p in header.outputs),
        dram_bytes=header.dram_bytes,
        nodes=header.nodes,
        layers=tuple(
            LayerInfo(i.name, i.op, i.sources, None if i.result is None else Result(**dict(i.result))) for i in header.layers
        ),
        op_layers=op_layers,
        sram_bound_bytes=header.sram_bound_bytes,
        sram_peak_bytes=header.sram_peak_bytes,
    )


def _check_graph(segments: Sequence[Region | Island], graph: Graph) -> None:
    """The integer graph computes every port of the regions from what came before it."""
    made = set(graph.constants)
    nodes = {n.name for n in graph.nodes}
    for region in segments:
        if not isinstance(region, Region):
            continue
        made.update(p.tensor for p in region.inputs)
        held = set(region.nodes)
        missing = next((n for n in region.nodes if n not in nodes), None)
        if missing is not None:
            raise ProgramError(f"graph: has no node {missing!r}, which a region holds")
        for node in (n for n in graph.nodes if n.name in held):
            undefined = next((n for n in node.inputs if n and n not in made), None)
            if undefined is not None:
                raise ProgramError(f"graph: node {node.name!r} reads {undefined!r} before it is made")
            made.update(node.outputs)
        for port in region.outputs:
            if port.tensor not in made:
                raise ProgramError(f"graph: no node makes the port {port.tensor!r}")


def _check_operators(graph: Graph, machine: Machine) -> None:
    """What the report asks of the operators follows from tensors of the right kinds."""
    for node in graph.nodes:
        missing = next((n for n in (*node.inputs, *node.outputs) if n and n not in graph.types), None)
        if missing is not None:
            raise ProgramError(f"graph: node {node.name!r} names {missing!r}, which has no type")
        if isinstance(node.op, IntegerConvolution):
            try:
                node.op.macs(Layer(node, graph.types, graph.constants, machine.chip))
            except (ArithmeticError, LookupError, TypeError, ValueError) as fault:
                reason = f"lacks {fault}" if isinstance(fault, KeyError) else str(fault)
                raise ProgramError(f"graph: node {node.name!r} does not fit its tensors: {reason}") from None


def _check_results(segments: Sequence[Region | Island], graph: Graph, machine: Machine) -> None:
    """Each layer's tensor is the one that its node makes, and lies inside its memory."""
    made = {n.name: n.outputs[0] for n in graph.nodes}
    for region in (s for s in segments if isinstance(s, Region)):
        sizes = {"dram": region.dram_bytes, "sram": machine.chip.sram.size}
        for layer, result in ((i.name, i.result) for i in region.layers if i.result is not None):
            if made.get(layer) != result.tensor:
                raise ProgramError(f"layer {layer!r}: its result {result.tensor!r} is not what its node makes")
            kind = graph.types[result.tensor]
            if len(result.strides) != len(kind.shape):
                raise ProgramError(f"layer {layer!r}: {len(result.strides)} strides for {len(kind.shape)} dimensions")
            reach = sum((n - 1) * stride for n, stride in zip(kind.shape, result.strides))
            if result.address + reach + np.dtype(kind.dtype).itemsize > sizes[result.space]:
                raise ProgramError(f"layer {layer!r}: its result at {result.address:#x} reaches outside {result.space}")


def read_container(path: str | Path) -> Container:
    """Raises ProgramError, also where the file cannot be read."""
    try:
        data = read_limited(path, PROGRAM_FILE_BYTES)
    except OSError as fault:
        raise ProgramError(f"{path}: {fault.strerror or fault}") from None
    return container_from_bytes(data, str(path))
