"""Write `model.npu`: containers become the bytes of one file. `codegen.container` reads them; docs/container.md has the
format.

The same containers give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from toolchain.codegen.constant_blocks import BlockWriter
from toolchain.codegen.container import LENGTH, MAGIC, MAIN, PREFIX, VERSION
from toolchain.codegen.graph_json import graph_to_text
from toolchain.codegen.model import Container, HostSubgraph, LayerInfo, Port, Region, State
from toolchain.errors import CompileError
from toolchain.input_limits import ENTRIES
from toolchain.isa import machine_digest, machine_to_json
from toolchain.plugin import get_plugins

ALIGNMENT_BYTES = 16  # of every section in the file


def container_to_bytes(container: Container) -> bytes:
    """Return the bytes of a file with one entry, named `MAIN`."""
    return entries_to_bytes({MAIN: container})


def entries_to_bytes(entries: Mapping[str, Container]) -> bytes:
    """Return the bytes of one file with several entries, by name: programs for several sets of input shapes.

    Constants that they have in common are stored once. Raise CompileError where there is no entry, more than ENTRIES,
    or entries of different models or machines.
    """
    _require_same_model(entries)
    sections, blocks = _Sections(), BlockWriter()
    entry_headers: list[dict[str, Any]] = []
    for index, (name, container) in enumerate(entries.items()):
        if index:
            blocks.next_entry()
        entry_headers.append(
            {
                "name": name,
                "inputs": [asdict(t) for t in container.inputs],
                "outputs": [asdict(t) for t in container.outputs],
                "segments": [_segment_header(s, sections, blocks) for s in container.segments],
                "fallbacks": [list(f) for f in container.fallbacks],
                **_bound_header(container.bound, sections),
            }
        )
    for index, container in enumerate(entries.values()):
        if index:
            blocks.next_entry()
        entry_headers[index]["graph"] = sections.put(graph_to_text(container.graph, blocks.array).encode())
    first = next(iter(entries.values()))
    header = {
        "name": first.name,
        "machine": sections.put(machine_to_json(first.machine).encode()),
        "machine_name": first.machine.chip.name,
        "machine_digest": machine_digest(first.machine),
        "entries": entry_headers,
        "blocks": [sections.put(data) for data in blocks.blocks()],
    }
    plugins = _list_plugins(entries.values())
    header |= {"plugins": plugins} if plugins else {}
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-(PREFIX.size + LENGTH.size + len(text)) % ALIGNMENT_BYTES)
    rest = b"".join((LENGTH.pack(len(text)), text, *sections.parts))
    return PREFIX.pack(MAGIC, VERSION, len(rest), hashlib.sha256(rest).digest()) + rest


def _list_plugins(containers: Iterable[Container]) -> list[dict[str, str]]:
    """Return name, version and digest of each plug-in of which the containers hold an operator or a machine operation."""
    used = {
        name for one in containers for name in (*one.machine.isa.plans, *(getattr(n.op, "NAME", "") for n in one.graph.nodes))
    }
    return [
        {"name": name, "version": loaded.plugin.version, "digest": loaded.digest}
        for name, loaded in sorted(get_plugins().items())
        if not used.isdisjoint(loaded.owned)
    ]


def _bound_header(bound: Mapping[str, np.ndarray], sections: _Sections) -> dict[str, Any]:
    """Return the header's key for bound inputs, or an empty dict where no input is bound."""
    bound_headers = [
        {"name": name, "shape": list(value.shape), "dtype": value.dtype.name, "data": sections.put(value.tobytes())}
        for name, value in bound.items()
    ]
    return {"bound": bound_headers} if bound_headers else {}


def _require_same_model(entries: Mapping[str, Container]) -> None:
    """Raise CompileError where entries are none, too many, or of different models or machines."""
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
    """A collection of the sections that follow the header."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._end = 0

    def put(self, data: bytes) -> list[int]:
        """Append a section, padded to 16 bytes, and return its [first byte, number of bytes]."""
        start, padding = self._end, b"\0" * (-len(data) % ALIGNMENT_BYTES)
        self.parts += [data, padding]
        self._end += len(data) + len(padding)
        return [start, len(data)]


def _segment_header(segment: Region | HostSubgraph, sections: _Sections, blocks: BlockWriter) -> dict[str, Any]:
    """Return the header of a segment, and store its program, constants and tables in `sections` and `blocks`."""
    if isinstance(segment, HostSubgraph):
        return {
            "kind": "host",
            "model": sections.put(segment.model),
            "inputs": segment.inputs,
            "outputs": segment.outputs,
            "nodes": segment.nodes,
        }
    ports = [_port_header(kind, p) for kind in ("input", "output") for p in getattr(segment, f"{kind}s")]
    ports += [_state_header(s) for s in segment.states]
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


def _state_header(state: State) -> dict[str, Any]:
    part = {} if state.part is None else {"part": list(state.part)}
    ring = {} if state.ring is None else {"ring": state.ring._asdict()}
    return {**_port_header("state", state.port), "made": state.present_tensor, "output": state.output, **part, **ring}


def _port_header(kind: str, port: Port) -> dict[str, Any]:
    """Return the header of a port. A port without granules has no keys for them."""
    header = {"kind": kind, **asdict(replace(port, maps=None))}
    maps = header.pop("maps") if port.maps is None else port.maps.model_dump(include={"granule", "order"})
    return header if maps is None else {**header, "maps": maps}


def _layer_header(info: LayerInfo) -> dict[str, Any]:
    """Return the header of a layer; a result without granules has no keys for them."""
    header = asdict(info)
    if info.result is not None and not info.result.granule:
        del header["result"]["granule"], header["result"]["surface_bytes"]
    return header
