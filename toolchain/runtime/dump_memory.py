"""Dump the memories behind an operation of a program: their bytes, which of them are known, and which tensors they hold.

It is `npu-sim --dump-memory`. docs/backends.md describes every field of memory.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.program_order import program_order
from toolchain.codegen import Container, LayerResult, Port, Region
from toolchain.errors import CompileError
from toolchain.ir.graph import TensorName
from toolchain.isa import machine_digest
from toolchain.machine import Access, InstructionStream, Space, accesses_at
from toolchain.ops.data_movement import IntegerConcat
from toolchain.runtime.session import Progress, Session

CONTENTS = "memory.json"
_NEVER = -1  # written by no operation


@dataclass(frozen=True)
class DumpPoint:
    """A point behind an operation of a segment.

    `segment`: index of the segment.
    `index`: index in the program's flow, where loops and calls are written out.
    """

    segment: int
    index: int


def parse_stop(text: str, session: Session) -> DumpPoint:
    """Return the point that a text names: INDEX or `end`, with `SEGMENT:` in front where the model has several programs.

    An index counts as npu-dis does; `end` is the last operation. An operation that runs several times is its last run.
    Raise CompileError for another text, where there is no such operation, and where no engine runs it.
    """
    match = re.fullmatch(r"(?:([0-9]{1,9}):)?([0-9]{1,12}|end)", text)
    if match is None:
        raise CompileError(
            f"{text}: must be an operation's index, or end; npu-dis shows indices; SEGMENT:INDEX names the program"
        )
    regions = [i for i, s in enumerate(session.container.segments) if isinstance(s, Region)]
    if not regions:
        raise CompileError(f"{text}: the model has no program, the host runs all of it")
    segment_text, after = match.groups()
    if segment_text is None and len(regions) > 1:
        examples = ", ".join(f"{i}:{after}" for i in regions)
        raise CompileError(f"{text}: the model has {len(regions)} programs; say of which, one of {examples}")
    segment = regions[0] if segment_text is None else int(segment_text)
    if segment not in regions:
        raise CompileError(f"{text}: segment {segment} has no program; those with one are {', '.join(map(str, regions))}")
    program = session.program(segment)
    count = len(program.decoded.ops)
    index = count - 1 if after == "end" else int(after)
    if not 0 <= index < count:
        raise CompileError(f"{text}: there is no operation {index}; the program has 0 to {count - 1}")
    runs = [i for i, source in enumerate(program.flow.sources) if source == index]
    if not runs:
        name = program.decoded.ops[index].NAME
        raise CompileError(f"{text}: operation {index} is {name}, which the front end carries out and no engine runs")
    return DumpPoint(segment, runs[-1])


def memory_files(
    session: Session, stop: DumpPoint, feeds: Mapping[str, np.ndarray], progress: Progress | None = None
) -> dict[str, bytes]:
    """Run the program up to a point and return the files of the dump by name: NAME.bin and NAME.mask of each memory, and
    memory.json.

    NAME.bin has the memory's bytes. NAME.mask has as many: 1 for each that was given or written, else 0. Only memories that
    the backend can read are there.
    Raise CompileError where the backend cannot stop there.
    """
    memory = session.memory_behind(stop.segment, stop.index, feeds, progress)
    container, program = session.container, session.program(stop.segment)
    ops, region = program.flow, program.region
    op, layer = ops[stop.index], region.layer_of(ops, stop.index)
    chip = container.machine.chip
    engine = op.queue(chip)
    contents = _Contents(container, region, ops, stop.index)
    masks = {name: contents.mask(chip.space_code(name), data.size) for name, data in sorted(memory.items())}
    summary = {
        "version": 2,
        "model": container.name,
        "machine": container.machine.chip.name,
        "machine_digest": machine_digest(container.machine),
        "backend": session.backend_name,
        "segment": stop.segment,
        "operations": len(program.decoded.ops),
        "after": {
            "index": ops.sources[stop.index],
            "operation": op.NAME,
            "engine": None if engine is None else chip.units[engine].name,
            "layer": region.layers[layer].name if layer >= 0 else None,
        },
        "memories": {
            name: {"file": f"{name}.bin", "mask": f"{name}.mask", "bytes": data.size} for name, data in sorted(memory.items())
        },
        "contents": [c for c in contents.all() if c["memory"] in memory],
    }
    files = {f"{name}.bin": data.tobytes() for name, data in sorted(memory.items())}
    files |= {f"{name}.mask": mask.tobytes() for name, mask in masks.items()}
    return {CONTENTS: (json.dumps(summary, indent=1) + "\n").encode(), **files}


class _Contents:
    """The contents of the memories by the operations' writes: for each byte, the layer whose operation wrote it last."""

    def __init__(self, container: Container, region: Region, ops: InstructionStream, last: int):
        self._container, self._region = container, region
        self._unknown = len(region.layers)
        self._nodes = {n.name: n for n in container.graph.nodes}
        chip = container.machine.chip
        run = [i for i in program_order(chip, ops).legal if i <= last]
        writes = [(i, a) for i in run for a in accesses_at(ops, i, chip) if a.write and a.exact]
        ends = [max((a.end for _, a in writes if a.space == space), default=0) for space in range(len(chip.spaces))]
        self._owners = [np.full(end, _NEVER, np.int32) for end in ends]
        for index, access in writes:
            layer = region.layer_of(ops, index)
            self._bytes(access)[...] = layer if layer >= 0 else self._unknown

    def mask(self, space: int, size_bytes: int) -> np.ndarray:
        """Return bool[size_bytes] of a memory: bytes that hold what the program or its inputs say, not what was there at
        power-on.

        It must be taken before `all`, which forgets what it has listed.
        """
        owners = self._owners[space][:size_bytes]
        known_bytes = np.zeros(size_bytes, np.bool_)
        known_bytes[: owners.size] = owners != _NEVER
        if space == Space.DRAM:
            ports = (*self._region.inputs, *(s.port for s in self._region.states))
            constants = [(address, len(data)) for address, data in self._region.constants]
            for address, length in (*constants, *((p.address, p.size_bytes) for p in ports)):
                known_bytes[address : address + length] = True
        return known_bytes

    def all(self) -> Iterator[dict[str, Any]]:
        """Yield the contents as memory.json has them: constants, ports, tensors of layers, and last all other written spans as
        buffers."""
        for address, data in self._region.constants:
            yield {"kind": "constant", "memory": "dram", "address": address, "bytes": len(data)}
        states = [s.port for s in self._region.states]
        for kind, ports in (("input", self._region.inputs), ("output", self._region.outputs), ("state", states)):
            yield from (self._port(kind, p) for p in ports)
        tensors = [self._tensor(i, info.result) for i, info in enumerate(self._region.layers) if info.result is not None]
        yield from tensors
        yield from self._buffers()

    def _port(self, kind: str, port: Port) -> dict[str, Any]:
        """Return the record of a port."""
        port_owners = self._owners[Space.DRAM][port.address : port.address + port.size_bytes]
        written = {"written_bytes": int((port_owners != _NEVER).sum())} if kind != "input" else {}
        return {
            "kind": kind,
            "memory": "dram",
            "address": port.address,
            "bytes": port.size_bytes,
            **self._describe_tensor(port.tensor, port),
            "shape": list(port.shape),
            "dtype": port.dtype,
            "scale": port.scale,
            "zero_point": port.zero_point,
            **({} if port.maps is None else port.maps.model_dump(include={"granule", "order"})),
            **written,
        }

    def _describe_tensor(self, tensor: str, port: Port | None = None) -> dict[str, Any]:
        """Return the model's tensor that a chip tensor is, or is a step of, and its name in the integer graph."""
        tensor_name = self._container.graph.shown(tensor)
        if port is not None and not tensor_name.inside:  # files of older builds know this of ports alone
            tensor_name = TensorName(port.model, port.layout, None)
        return {**tensor_name._asdict(), "name": tensor}

    def _tensor(self, layer: int, result: LayerResult) -> dict[str, Any]:
        """Return the record of a layer's tensor, with how many of its bytes the layer has written and still hold."""
        kind = self._container.graph.types[result.tensor]
        byte_owners = self._bytes(self._place(result))
        return {
            "kind": "tensor",
            "memory": result.space,
            "address": result.address,
            "bytes": byte_owners.size if result.granule else kind.size_bytes,
            **self._describe_tensor(result.tensor),
            "layer": self._region.layers[layer].name,
            "shape": list(kind.shape),
            "dtype": kind.dtype,
            "strides": list(result.strides),
            **({"granule": result.granule, "surface_bytes": result.surface_bytes} if result.granule else {}),
            "written_bytes": int(np.isin(byte_owners, self._makers(layer)).sum()),
        }

    def _makers(self, layer: int) -> list[int]:
        """Return the layer, and of a Concat also the layers that make parts of its tensor where they belong."""
        node, layer_result = self._nodes[self._region.layers[layer].name], self._region.layers[layer].result
        if not isinstance(node.op, IntegerConcat) or layer_result is None:
            return [layer]
        makers, span = [layer], self._place(layer_result)
        for part, info in enumerate(self._region.layers[:layer]):
            if info.result is not None and info.result.tensor in node.inputs and info.result.space == layer_result.space:
                place = self._place(info.result)
                makers += self._makers(part) if span.address <= place.address and place.end <= span.end else ()
        return makers

    def _buffers(self) -> Iterator[dict[str, Any]]:
        """Yield the spans that are no layer's tensor, one for each layer and memory."""
        for info in self._region.layers:
            if info.result is not None:
                self._bytes(self._place(info.result))[...] = _NEVER
        for space, owners in enumerate(self._owners):
            places = np.flatnonzero(owners != _NEVER)
            layers: list[int] = np.unique(owners[places]).tolist()
            for layer in layers:
                layer_places = places[owners[places] == layer]
                first, end = int(layer_places[0]), int(layer_places[-1]) + 1
                yield {
                    "kind": "buffer",
                    "memory": self._container.machine.chip.spaces[space].name,
                    "address": first,
                    "bytes": end - first,
                    "layer": self._region.layers[layer].name if layer != self._unknown else None,
                    "written_bytes": int(layer_places.size),
                }

    def _place(self, result: LayerResult) -> Access:
        kind, space = self._container.graph.types[result.tensor], self._container.machine.chip.space_code(result.space)
        return result.place(kind, space)

    def _bytes(self, access: Access) -> np.ndarray:
        """Return a view of the owners of an access's bytes, one for each byte. The record grows where nothing was written
        yet."""
        owners = self._owners[access.space]
        if access.end > owners.size:
            grown = np.full(access.end, _NEVER, np.int32)
            grown[: owners.size] = owners
            owners = self._owners[access.space] = grown
        shape, strides = (*access.counts, access.inner_bytes), (*access.strides, 1)
        return np.ndarray(shape, np.int32, owners, access.address * 4, tuple(s * 4 for s in strides))
