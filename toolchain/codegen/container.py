"""model.npu: one file with programs, constants, ports, host islands and the integer graph.

Layout: magic, version (u32), length of the rest (u64), SHA-256 of the rest; then a u64 length and a JSON header, then the
sections that the header lists. Little-endian. The same build gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolchain.codegen.serial import graph_from_bytes, graph_to_bytes
from toolchain.errors import ProgramError
from toolchain.ir.graph import Graph
from toolchain.isa import Machine, machine_digest, machine_from_json, machine_to_json

MAGIC = b"NPUMODEL"
VERSION = 1
_PREFIX = struct.Struct("<8sIQ32s")


@dataclass(frozen=True)
class Port:
    """A tensor in DRAM at a program's start or end. `tensor`: its chip name; `model`: the model's tensor; layout plain or nhwc."""

    tensor: str
    model: str
    layout: str
    address: int
    shape: tuple[int, ...]
    dtype: str
    scale: float
    zero_point: int


@dataclass(frozen=True)
class LayerInfo:
    """What the report needs of a layer: `sources` are the model's own nodes."""

    name: str
    op: str
    sources: tuple[str, ...]


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
    if len(data) < _PREFIX.size or data[:8] != MAGIC:
        raise ProgramError(f"{label}: not a compiled model (no {MAGIC.decode()} at its start); build one with npu-build")
    _, version, length, digest = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise ProgramError(f"{label}: has format version {version}, this toolchain reads {VERSION}; build it again")
    rest = data[_PREFIX.size :]
    if len(rest) != length:
        raise ProgramError(f"{label}: holds {len(rest)} bytes behind its prefix, which says {length}; it was cut or extended")
    if hashlib.sha256(rest).digest() != digest:
        raise ProgramError(f"{label}: its checksum does not match its contents; the file is damaged, build or copy it again")
    size = struct.unpack_from("<Q", rest)[0]
    header = json.loads(rest[8 : 8 + size])
    body = rest[8 + size :]

    def get(span: list[int]) -> bytes:
        return body[span[0] : span[0] + span[1]]

    machine = machine_from_json(get(header["machine"]).decode())
    if machine_digest(machine) != header["machine_digest"]:
        raise ProgramError(f"{label}: its machine {header['machine_name']} is not the one it was built for; build it again")
    return Container(
        header["name"],
        machine,
        tuple(_io(t) for t in header["inputs"]),
        tuple(_io(t) for t in header["outputs"]),
        tuple(_segment(s, get) for s in header["segments"]),
        tuple((f[0], f[1], f[2]) for f in header["fallbacks"]),
        graph_from_bytes(get(header["graph"]).decode(), get(header["arrays"])),
    )


def _io(fields: Mapping[str, Any]) -> IoType:
    return IoType(fields["name"], tuple(fields["shape"]), fields["dtype"])


def _port(fields: Mapping[str, Any]) -> Port:
    return Port(**{**fields, "shape": tuple(fields["shape"])})


def _segment(fields: Mapping[str, Any], get: Any) -> Region | Island:
    names = {k: tuple(fields[k]) for k in ("inputs", "outputs", "nodes")}
    if fields["kind"] == "host":
        return Island(get(fields["model"]), **names)
    packed = get(fields["op_layers"])
    return Region(
        program=get(fields["program"]),
        constants=tuple((c[0], get(c[1:])) for c in fields["constants"]),
        inputs=tuple(_port(p) for p in fields["inputs"]),
        outputs=tuple(_port(p) for p in fields["outputs"]),
        dram_bytes=fields["dram_bytes"],
        nodes=names["nodes"],
        layers=tuple(LayerInfo(i["name"], i["op"], tuple(i["sources"])) for i in fields["layers"]),
        op_layers=struct.unpack(f"<{len(packed) // 4}i", packed),
        sram_bound_bytes=fields["sram_bound_bytes"],
        sram_peak_bytes=fields["sram_peak_bytes"],
    )


def read_container(path: str | Path) -> Container:
    """Raises ProgramError, OSError."""
    return container_from_bytes(Path(path).read_bytes(), str(path))


def write_whole(path: str | Path, data: bytes) -> None:
    """Writes beside, then renames: a reader never sees half a file, and a failure leaves the old one."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
