"""model.npu: one file with programs, constants, ports, host islands and the integer graph. docs/container.md has every byte.

Magic, version (u32), length of the rest (u64), SHA-256 of the rest; then a u64 length and a JSON header, then the sections
that the header lists. Little-endian. The same build gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from toolchain.bounds import DRAM_BYTES, ENTRIES, PROGRAM_FILE_BYTES
from toolchain.codegen.blocks import BlockReader, BlockWriter
from toolchain.codegen.header import EntryHeader, Header, IslandHeader, PortHeader, RegionHeader, Span, read_header
from toolchain.codegen.model import Container, DramArea, Held, IoType, Island, LayerInfo, Occupied, Port, Region, Result
from toolchain.codegen.serial import graph_from_text, graph_to_text
from toolchain.codegen.soundness import check_soundness
from toolchain.errors import CompileError, NewerFileError, ProgramError
from toolchain.files import read_limited
from toolchain.isa import Machine, machine_digest, machine_from_json, machine_to_json

MAGIC = b"NPUMODEL"
VERSION = 2
MAIN = "main"  # the entry of a model that was built for one set of shapes
ALIGNMENT_BYTES = 16  # of every section in the file
_PREFIX = struct.Struct("<8sIQ32s")
_LENGTH = struct.Struct("<Q")


def container_to_bytes(container: Container) -> bytes:
    return entries_to_bytes({MAIN: container})


def entries_to_bytes(entries: Mapping[str, Container]) -> bytes:
    """One file with programs for several sets of input shapes, by name; constants that they have in common are stored once.

    Raises CompileError: none, too many, or not of one model and machine.
    """
    _require_alike(entries)
    sections, blocks = _Sections(), BlockWriter()
    said: list[dict[str, Any]] = []
    for index, (name, container) in enumerate(entries.items()):
        if index:
            blocks.next_entry()
        said.append(
            {
                "name": name,
                "inputs": [asdict(t) for t in container.inputs],
                "outputs": [asdict(t) for t in container.outputs],
                "segments": [_segment_header(s, sections, blocks) for s in container.segments],
                "fallbacks": [list(f) for f in container.fallbacks],
            }
        )
    for index, container in enumerate(entries.values()):
        if index:
            blocks.next_entry()
        said[index]["graph"] = sections.put(graph_to_text(container.graph, blocks.array).encode())
    first = next(iter(entries.values()))
    header = {
        "name": first.name,
        "machine": sections.put(machine_to_json(first.machine).encode()),
        "machine_name": first.machine.chip.name,
        "machine_digest": machine_digest(first.machine),
        "entries": said,
        "blocks": [sections.put(data) for data in blocks.blocks()],
    }
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-(_PREFIX.size + _LENGTH.size + len(text)) % ALIGNMENT_BYTES)
    rest = b"".join((_LENGTH.pack(len(text)), text, *sections.parts))
    return _PREFIX.pack(MAGIC, VERSION, len(rest), hashlib.sha256(rest).digest()) + rest


def _require_alike(entries: Mapping[str, Container]) -> None:
    if not entries:
        raise CompileError("entries: there are none; a file has one or more")
    if len(entries) > ENTRIES:
        raise CompileError(f"entries: {len(entries)} are given, a file holds {ENTRIES} at most; make several files")
    (name, first), *others = entries.items()
    for other, container in others:
        if container.name != first.name:
            raise CompileError(f"entry {other}: is of model {container.name!r}, entry {name} of {first.name!r}; a file holds one")
        if machine_digest(container.machine) != machine_digest(first.machine):
            raise CompileError(f"entry {other}: was built for another machine than entry {name}; a file holds programs of one")


class _Sections:
    """What stands behind the header."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._end = 0

    def put(self, data: bytes) -> list[int]:
        """First byte and number of bytes of the section."""
        start, padding = self._end, b"\0" * (-len(data) % ALIGNMENT_BYTES)
        self.parts += [data, padding]
        self._end += len(data) + len(padding)
        return [start, len(data)]


def _segment_header(segment: Region | Island, sections: _Sections, blocks: BlockWriter) -> dict[str, Any]:
    if isinstance(segment, Island):
        return {
            "kind": "host",
            "model": sections.put(segment.model),
            "inputs": segment.inputs,
            "outputs": segment.outputs,
            "nodes": segment.nodes,
        }
    ports = [_port_header(kind, p) for kind in ("input", "output") for p in getattr(segment, f"{kind}s")]
    return {
        "kind": "npu",
        "program": sections.put(segment.program),
        "constants": [[address, blocks.constant(data)] for address, data in segment.constants],
        "ports": ports,
        "dram_bytes": segment.dram_bytes,
        "nodes": segment.nodes,
        "layers": [_layer_header(info) for info in segment.layers],
        "op_layers": sections.put(struct.pack(f"<{len(segment.op_layers)}i", *segment.op_layers)),
        "sram_bound_bytes": segment.sram_bound_bytes,
        "sram_peak_bytes": segment.sram_peak_bytes,
        "areas": [asdict(area) for area in segment.areas],
        "buffers": [asdict(buffer) for buffer in segment.buffers],
    }


def _port_header(kind: str, port: Port) -> dict[str, Any]:
    """Of a port without granules nothing is said of them."""
    said = {"kind": kind, **asdict(replace(port, maps=None))}
    maps = said.pop("maps") if port.maps is None else port.maps.model_dump(include={"granule", "order"})
    return said if maps is None else {**said, "maps": maps}


def _layer_header(info: LayerInfo) -> dict[str, Any]:
    said = asdict(info)
    if info.result is not None and not info.result.granule:
        del said["result"]["granule"], said["result"]["surface_bytes"]
    return said


def container_from_bytes(data: bytes, label: str, entry: str | None = None) -> Container:
    """label: the file's name, for messages; entry: which one, None: the only one. Raises ProgramError: not such a file, another
    version, damaged, cut short; CompileError: no such entry, or several and none was named."""
    rest = _checked_rest(data, label)
    with _labelled(label):
        header, body = _header(rest)
    chosen = _chosen(header, label, entry)
    with _labelled(label):
        return _container(header, chosen, body)


def entries_from_bytes(data: bytes, label: str) -> dict[str, Container]:
    """All entries by name, in their order. Raises ProgramError."""
    rest = _checked_rest(data, label)
    with _labelled(label):
        header, body = _header(rest)
        return {e.name: _container(header, e, body) for e in header.entries}


@contextmanager
def _labelled(label: str) -> Iterator[None]:
    try:
        yield
    except NewerFileError as fault:
        raise NewerFileError(f"{label}: {fault}") from None
    except ProgramError as fault:
        raise ProgramError(f"{label}: is not sound: {fault}; build it again") from None


def _chosen(header: Header, label: str, entry: str | None) -> EntryHeader:
    """Raises CompileError."""
    if entry is None and len(header.entries) == 1:
        return header.entries[0]
    found = next((e for e in header.entries if e.name == entry), None)
    if found is not None:
        return found
    there = "; ".join(f"{e.name} ({', '.join(f'{t.name} {list(t.shape)}' for t in e.inputs)})" for e in header.entries)
    if entry is None:
        raise CompileError(f"entry: {label} has {len(header.entries)}, say which: {there}")
    raise CompileError(f"entry {entry}: {label} has no such entry; it has {there}")


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


def _header(rest: bytes) -> tuple[Header, bytes]:
    """And what lies behind it. Raises ProgramError where the bytes have the right checksum and still say nothing sound."""
    if len(rest) < _LENGTH.size:
        raise ProgramError("header: is missing")
    (size,) = _LENGTH.unpack_from(rest)
    body = rest[_LENGTH.size + size :]
    return read_header(rest[_LENGTH.size : _LENGTH.size + size], len(body)), body


def _container(header: Header, entry: EntryHeader, body: bytes) -> Container:
    """Raises ProgramError, as `_header`."""

    def get(span: Span) -> bytes:
        return body[span[0] : span[0] + span[1]]

    machine = machine_from_json(_text(get(header.machine), "machine"))
    if machine_digest(machine) != header.machine_digest:
        raise ProgramError(f"machine: {header.machine_name} is not the one that the file was built for")
    blocks = BlockReader([get(span) for span in header.blocks])
    segments = tuple(_segment(s, get, blocks, machine) for s in entry.segments)
    graph = graph_from_text(_text(get(entry.graph), "graph"), blocks.array)
    check_soundness(segments, graph, machine)
    inputs, outputs = ([IoType(t.name, t.shape, t.dtype) for t in ports] for ports in (entry.inputs, entry.outputs))
    return Container(header.name, machine, tuple(inputs), tuple(outputs), segments, entry.fallbacks, graph)


def _text(data: bytes, thing: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ProgramError(f"{thing}: is not UTF-8 text") from None


def _segment(
    header: IslandHeader | RegionHeader, get: Callable[[Span], bytes], blocks: BlockReader, machine: Machine
) -> Region | Island:
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
    host_bases = machine.chip.control.host_bases
    for area in header.areas:
        if area.base_register > host_bases:
            raise ProgramError(
                f"header: an area with base register {area.base_register}, {machine.chip.name} has {host_bases} of them"
            )
    names = {space.name for space in machine.chip.spaces}
    unknown = next((b.memory for b in header.buffers if b.memory not in names), None)
    if unknown is not None:
        raise ProgramError(f"header: says what it takes of {unknown!r}, {machine.chip.name} has no such memory")
    return Region(
        program=get(header.program),
        constants=tuple((address, blocks.constant(said)) for address, said in header.constants),
        inputs=tuple(_port(p) for p in header.ports if p.kind == "input"),
        outputs=tuple(_port(p) for p in header.ports if p.kind == "output"),
        dram_bytes=header.dram_bytes,
        nodes=header.nodes,
        layers=tuple(
            LayerInfo(i.name, i.op, i.sources, None if i.result is None else Result(**dict(i.result))) for i in header.layers
        ),
        op_layers=op_layers,
        sram_bound_bytes=header.sram_bound_bytes,
        sram_peak_bytes=header.sram_peak_bytes,
        areas=tuple(
            DramArea(tuple(Held(h.kind, h.tensor) for h in a.holds), a.base, a.size_bytes, a.base_register) for a in header.areas
        ),
        buffers=tuple(Occupied(b.memory, b.peak_bytes, b.bound_bytes) for b in header.buffers),
    )


def _port(header: PortHeader) -> Port:
    return Port(**{k: v for k, v in dict(header).items() if k != "kind"})


def read_container(path: str | Path, entry: str | None = None) -> Container:
    """entry: which one, None: the only one. Raises ProgramError, also where the file cannot be read, and CompileError as
    `container_from_bytes`."""
    return container_from_bytes(_read(path), str(path), entry)


def read_entries(path: str | Path) -> dict[str, Container]:
    """All entries by name, in their order. Raises ProgramError, also where the file cannot be read."""
    return entries_from_bytes(_read(path), str(path))


def _read(path: str | Path) -> bytes:
    try:
        return read_limited(path, PROGRAM_FILE_BYTES)
    except OSError as fault:
        raise ProgramError(f"{path}: {fault.strerror or fault}") from None
