"""Write a compiled model as plain files, for those who load a chip's memory themselves (`npu-build --image`).

These are program words, constants with their addresses, and ports.json, which says where inputs and outputs lie.
docs/image.md describes every field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from toolchain.codegen.constant_blocks import BlockWriter, Pieces
from toolchain.codegen.model import Container, DramArea, HostSubgraph, Port, Region, State
from toolchain.isa import machine_digest

PORTS = "ports.json"
SHARED = "constants.bin"  # of several entries

Places = Mapping[bytes, Sequence[tuple[int, int]]]  # of constants: offset and bytes of each piece


def images_of_entries(entries: Mapping[str, Container]) -> dict[str, bytes]:
    """Return the files of several entries, each in a folder of its name: path -> bytes.

    They are those of `image_files`, but the constants of all entries are in one file beside the folders (`SHARED`).
    Common bytes are stored there once.
    """
    writer, pieces = BlockWriter(), dict[bytes, Pieces]()
    for container in entries.values():
        writer.next_entry()
        for data in (data for s in container.segments if isinstance(s, Region) for _, data in sorted(s.constants)):
            constant_ref = writer.constant(data)
            pieces[data] = [[constant_ref, 0, len(data)]] if isinstance(constant_ref, int) else constant_ref
    blocks = writer.blocks()
    offsets = list(accumulate(map(len, blocks), initial=0))
    places = {data: [(offsets[n] + first, size) for n, first, size in block_pieces] for data, block_pieces in pieces.items()}
    files = {SHARED: b"".join(blocks)}
    for name, container in entries.items():
        files |= {f"{name}/{file}": data for file, data in _files(container, places).items()}
    return files


def image_files(container: Container) -> dict[str, bytes]:
    """Return the files of a compiled model: name -> bytes.

    There is ports.json. For segment N there are regionN.program.bin and regionN.constants.bin, or islandN.onnx for one
    on the host. Addresses are bytes of the region's DRAM.
    """
    return _files(container, None)


def _files(container: Container, places: Places | None) -> dict[str, bytes]:
    """Return the files of a container.

    `places`: offset and bytes of each piece of a constant in the file that entries share. None: each region has a file
    of its own.
    """
    files: dict[str, bytes] = {}
    segments = [_segment(i, segment, container, files, places) for i, segment in enumerate(container.segments)]
    machine = container.machine
    ports_header = {
        "version": 1,
        "model": container.name,
        "machine": machine.chip.name,
        "machine_digest": machine_digest(machine),
        "word_bytes": machine.isa.word_bytes,
        "inputs": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in container.inputs],
        "outputs": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in container.outputs],
        "segments": segments,
    }
    return {PORTS: (json.dumps(ports_header, indent=1) + "\n").encode(), **files}


def _segment(
    index: int, segment: Region | HostSubgraph, container: Container, files: dict[str, bytes], places: Places | None
) -> dict[str, Any]:
    """Return the entry of a segment in ports.json, and add the segment's files to `files`."""
    if isinstance(segment, HostSubgraph):
        files[f"island{index}.onnx"] = segment.model
        return {"kind": "island", "file": f"island{index}.onnx", "inputs": list(segment.inputs), "outputs": list(segment.outputs)}
    program, constants = f"region{index}.program.bin", f"region{index}.constants.bin"
    files[program] = segment.program
    if places is None:
        data = [block for _, block in sorted(segment.constants)]
        files[constants] = b"".join(data)
        block_places = [[(offset, len(block))] for offset, block in zip(accumulate(map(len, data), initial=0), data)]
    else:
        constants = f"../{SHARED}"
        block_places = [places[block] for _, block in sorted(segment.constants)]
    return {
        "kind": "region",
        "program": {"file": program, "words": len(segment.program) // container.machine.isa.word_bytes},
        "constants": {
            "file": constants,
            "blocks": [b for (address, _), at in zip(sorted(segment.constants), block_places) for b in _blocks(address, at)],
        },
        "dram_bytes": segment.dram_bytes,
        "areas": [_area(a) for a in segment.areas],
        "inputs": [_port(p) for p in segment.inputs],
        "outputs": [_port(p) for p in segment.outputs],
        **({"states": [_state(s) for s in segment.states]} if segment.states else {}),
    }


def _blocks(address: int, pieces: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    """Return the blocks of constants at an address whose pieces lie at these offsets."""
    starts = accumulate((size for _, size in pieces), initial=address)
    return [{"address": at, "bytes": size, "offset": offset} for at, (offset, size) in zip(starts, pieces)]


def _state(state: State) -> dict[str, Any]:
    part = {} if state.part is None else {"part": {"first": state.part.first, "of": state.part.total_rows}}
    ring = {} if state.ring is None else {"ring": state.ring._asdict()}
    return {**_port(state.port), "output": state.output, **part, **ring}


def _area(area: DramArea) -> dict[str, Any]:
    return {
        "holds": [{"kind": h.kind, **({"tensor": h.tensor} if h.tensor else {})} for h in area.holds],
        "base": area.base,
        "bytes": area.size_bytes,
        "base_register": area.base_register or None,
    }


def _port(port: Port) -> dict[str, Any]:
    return {
        "tensor": port.model,
        "address": port.address,
        "bytes": port.size_bytes,
        "shape": list(port.shape),
        "layout": port.layout,
        "dtype": port.dtype,
        "scale": port.scale,
        "zero_point": port.zero_point,
        **({} if port.maps is None else {"granule": port.maps.granule, "order": port.maps.order}),
    }
