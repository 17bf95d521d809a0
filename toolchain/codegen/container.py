"""Read `model.npu`, the compiled file; `container_writer` writes it. Whatever is wrong in a file is refused here.

docs/container.md describes every byte. The file begins with magic, version (u32), length (u64) and SHA-256 of the rest.
Then come a u64 length, a JSON header, and the sections that the header lists. Numbers are little-endian. A file has one
entry for each set of input shapes that it was built for; most have one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from toolchain.codegen.constant_blocks import BlockReader
from toolchain.codegen.graph_json import graph_from_text
from toolchain.codegen.header import read_header
from toolchain.codegen.header_keys import EntryHeader, Header, IslandHeader, PluginHeader, PortHeader, RegionHeader, Span
from toolchain.codegen.model import (
    AreaContent,
    Container,
    DramArea,
    HostSubgraph,
    IoType,
    LayerInfo,
    LayerResult,
    MemoryUse,
    Port,
    Region,
    State,
)
from toolchain.codegen.verify_container import verify_container
from toolchain.errors import CompileError, NewerFileError, ProgramError, system_cause
from toolchain.foundation.atomic_files import read_limited
from toolchain.input_limits import DRAM_BYTES, PROGRAM_FILE_BYTES
from toolchain.ir.states import CircularState, StatePart
from toolchain.isa import Machine, machine_digest, machine_from_json
from toolchain.plugin import get_plugins

MAGIC = b"NPUMODEL"
VERSION = 2
MAIN = "main"  # the entry of a model that was built for one set of shapes
PREFIX = struct.Struct("<8sIQ32s")  # magic, version, length and digest of the rest
LENGTH = struct.Struct("<Q")  # of the header


def container_from_bytes(data: bytes, label: str, entry: str | None = None) -> Container:
    """Return one entry of a file's bytes, completely checked.

    Raise ProgramError where they are no such file, of another version, damaged, or not consistent in themselves. Raise
    CompileError where there is no such entry, or several and none was named.

    `label`: the file's name, for messages. `entry`: name of the entry, None: the only one.
    """
    rest = _check_prefix(data, label)
    with _add_label(label):
        header, body = _header(rest)
    chosen = _choose_entry(header, label, entry)
    with _add_label(label):
        return _container(header, chosen, body)


def entries_from_bytes(data: bytes, label: str) -> dict[str, Container]:
    """Return all entries by name, in the file's order. Raise ProgramError as `container_from_bytes` does."""
    rest = _check_prefix(data, label)
    with _add_label(label):
        header, body = _header(rest)
        return {e.name: _container(header, e, body) for e in header.entries}


@contextmanager
def _add_label(label: str) -> Generator[None]:
    """Put the file's name in front of errors raised inside. A ProgramError also gets the advice to build again."""
    try:
        yield
    except NewerFileError as fault:
        raise NewerFileError(f"{label}: {fault}") from None
    except ProgramError as fault:
        raise ProgramError(f"{label}: is not sound: {fault}; build it again") from None


def _choose_entry(header: Header, label: str, entry: str | None) -> EntryHeader:
    """Return the entry of this name, or the only one. Raise CompileError where there is none, or several and no name."""
    if entry is None and len(header.entries) == 1:
        return header.entries[0]
    chosen_entry = next((e for e in header.entries if e.name == entry), None)
    if chosen_entry is not None:
        return chosen_entry
    entry_list = "; ".join(f"{e.name} ({', '.join(f'{t.name} {list(t.shape)}' for t in e.inputs)})" for e in header.entries)
    if entry is None:
        raise CompileError(f"entry: {label} has {len(header.entries)}, say which: {entry_list}")
    raise CompileError(f"entry {entry}: {label} has no such entry; it has {entry_list}")


def _check_prefix(data: bytes, label: str) -> memoryview:
    """Return a view of the bytes after the prefix.

    Raise ProgramError where magic or version is another, or their length or checksum differs from the prefix.
    """
    if data[:8] != MAGIC:
        raise ProgramError(f"{label}: not a compiled model (no {MAGIC.decode()} at its start); build one with npu-build")
    if len(data) < PREFIX.size:
        raise ProgramError(f"{label}: holds {len(data)} bytes, its prefix alone has {PREFIX.size}; it was cut")
    _, version, length, digest = PREFIX.unpack_from(data)
    if version != VERSION:
        raise ProgramError(f"{label}: has format version {version}, this toolchain reads {VERSION}; build it again")
    rest = memoryview(data)[PREFIX.size :]
    if len(rest) != length:
        raise ProgramError(f"{label}: holds {len(rest)} bytes behind its prefix, which says {length}; it was cut or extended")
    if hashlib.sha256(rest).digest() != digest:
        raise ProgramError(f"{label}: its checksum does not match its contents; the file is damaged, build or copy it again")
    return rest


def _header(rest: memoryview) -> tuple[Header, memoryview]:
    """Return the checked header and the sections after it. Raise ProgramError where the header is not sound.

    Raise NewerFileError where a plug-in that the file needs is not loaded, or is another one.
    """
    if len(rest) < LENGTH.size:
        raise ProgramError("header: is missing")
    (size,) = LENGTH.unpack_from(rest)
    body = rest[LENGTH.size + size :]
    header = read_header(bytes(rest[LENGTH.size : LENGTH.size + size]), len(body))
    for plugin in header.plugins:
        _require_plugin(plugin)
    return header, body


def _require_plugin(requirement: PluginHeader) -> None:
    """Raise NewerFileError where a plug-in that the file needs is not loaded, or another one of that name is."""
    loaded = get_plugins().get(requirement.name)
    label = f"plug-in {requirement.name} {requirement.version} (digest {requirement.digest[:12]})"
    if loaded is None:
        way_out = "give it by --plugin FILE.py, or Session(..., plugins=[FILE])"
        raise NewerFileError(f"needs {label}, which is not loaded; {way_out}")
    if loaded.digest != requirement.digest:
        reason = f"was built with {label}, and {loaded.file} is {loaded.label}"
        raise NewerFileError(f"{reason}; give the one that it was built with, or build it again")


def _container(header: Header, entry: EntryHeader, body: memoryview) -> Container:
    """Return an entry with all of its sections read and checked against the machine. Raise ProgramError."""

    def get(span: Span) -> bytes:
        return bytes(body[span[0] : span[0] + span[1]])

    machine = machine_from_json(_text(get(header.machine), "machine"))
    if machine_digest(machine) != header.machine_digest:
        raise ProgramError(f"machine: {header.machine_name} is not the one that the file was built for")
    blocks = BlockReader([get(span) for span in header.blocks])
    segments = tuple(_segment(s, get, blocks, machine) for s in entry.segments)
    graph = graph_from_text(_text(get(entry.graph), "graph"), blocks.array)
    verify_container(segments, graph, machine)
    inputs, outputs = ([IoType(t.name, t.shape, t.dtype) for t in ports] for ports in (entry.inputs, entry.outputs))
    bound = {b.name: np.frombuffer(get(b.data), b.dtype).reshape(b.shape) for b in entry.bound}
    return Container(header.name, machine, tuple(inputs), tuple(outputs), segments, entry.fallbacks, graph, bound)


def _text(data: bytes, thing: str) -> str:
    """Return a section as text. Raise ProgramError, which names the section, where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ProgramError(f"{thing}: is not UTF-8 text") from None


def _segment(
    header: IslandHeader | RegionHeader, get: Callable[[Span], bytes], blocks: BlockReader, machine: Machine
) -> Region | HostSubgraph:
    """Return a segment of its header, with its sections read and checked against the machine. Raise ProgramError.

    `get`: returns the bytes of a section.
    """
    if isinstance(header, IslandHeader):
        return HostSubgraph(get(header.model), header.inputs, header.outputs, header.nodes)
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
        constants=tuple((address, blocks.constant(constant_ref)) for address, constant_ref in header.constants),
        inputs=tuple(_port(p) for p in header.ports if p.kind == "input"),
        outputs=tuple(_port(p) for p in header.ports if p.kind == "output"),
        dram_bytes=header.dram_bytes,
        nodes=header.nodes,
        layers=tuple(
            LayerInfo(i.name, i.op, i.sources, None if i.result is None else LayerResult(**dict(i.result))) for i in header.layers
        ),
        op_layers=op_layers,
        sram_bound_bytes=header.sram_bound_bytes,
        sram_peak_bytes=header.sram_peak_bytes,
        areas=tuple(
            DramArea(tuple(AreaContent(h.kind, h.tensor) for h in a.holds), a.base, a.size_bytes, a.base_register)
            for a in header.areas
        ),
        buffers=tuple(MemoryUse(b.memory, b.peak_bytes, b.bound_bytes) for b in header.buffers),
        states=tuple(_state(p) for p in header.ports if p.kind == "state"),
    )


def _state(header: PortHeader) -> State:
    part = None if header.part is None else StatePart(*header.part)
    ring = None if header.ring is None else CircularState(**dict(header.ring))
    return State(_port(header), header.made, header.output, part, ring)


def _port(header: PortHeader) -> Port:
    return Port(**{k: v for k, v in dict(header).items() if k not in ("kind", "made", "output", "part", "ring")})


def read_container(path: str | Path, entry: str | None = None) -> Container:
    """Read one entry of a container file.

    Raise ProgramError, also where the file cannot be read, and CompileError as `container_from_bytes` does. `entry`:
    name of the entry, None: the only one.
    """
    return container_from_bytes(_read(path), str(path), entry)


def read_entries(path: str | Path) -> dict[str, Container]:
    """Read all entries of a container file, by name in their order. Raise ProgramError, also where the file cannot be
    read.
    """
    return entries_from_bytes(_read(path), str(path))


def _read(path: str | Path) -> bytes:
    """Return the bytes of a file of at most PROGRAM_FILE_BYTES. Raise ProgramError where it cannot be read."""
    try:
        return read_limited(path, PROGRAM_FILE_BYTES)
    except OSError as fault:
        raise ProgramError(f"{path}: {system_cause(fault)}") from None
