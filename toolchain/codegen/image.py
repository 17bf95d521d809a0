"""A compiled model as plain files, for those who load a chip's memory themselves: words, constants by address, ports."""

from __future__ import annotations

import json
from typing import Any

from toolchain.codegen.model import Container, DramArea, Island, Port, Region
from toolchain.isa import machine_digest

PORTS = "ports.json"


def image_files(container: Container) -> dict[str, bytes]:
    """Name -> bytes: ports.json, and for segment N that is a region regionN.program.bin and regionN.constants.bin, for one that
    is an island islandN.onnx. Addresses are bytes of the region's DRAM; docs/image.md describes every field.
    """
    files: dict[str, bytes] = {}
    segments = [_segment(i, segment, container, files) for i, segment in enumerate(container.segments)]
    machine = container.machine
    said = {
        "version": 1,
        "model": container.name,
        "machine": machine.chip.name,
        "machine_digest": machine_digest(machine),
        "word_bytes": machine.isa.word_bytes,
        "inputs": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in container.inputs],
        "outputs": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in container.outputs],
        "segments": segments,
    }
    return {PORTS: (json.dumps(said, indent=1) + "\n").encode(), **files}


def _segment(index: int, segment: Region | Island, container: Container, files: dict[str, bytes]) -> dict[str, Any]:
    """What ports.json says of a segment; its files are added."""
    if isinstance(segment, Island):
        files[f"island{index}.onnx"] = segment.model
        return {"kind": "island", "file": f"island{index}.onnx", "inputs": list(segment.inputs), "outputs": list(segment.outputs)}
    program, constants = f"region{index}.program.bin", f"region{index}.constants.bin"
    blocks, data = [], bytearray()
    for address, block in sorted(segment.constants):
        blocks.append({"address": address, "bytes": len(block), "offset": len(data)})
        data += block
    files[program], files[constants] = segment.program, bytes(data)
    return {
        "kind": "region",
        "program": {"file": program, "words": len(segment.program) // container.machine.isa.word_bytes},
        "constants": {"file": constants, "blocks": blocks},
        "dram_bytes": segment.dram_bytes,
        "areas": [_area(a) for a in segment.areas],
        "inputs": [_port(p) for p in segment.inputs],
        "outputs": [_port(p) for p in segment.outputs],
    }


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
    }
