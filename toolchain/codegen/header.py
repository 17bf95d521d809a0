"""Read the JSON header of `model.npu` and check that its keys are consistent.

The types of the keys are in `codegen.header_keys`. A checksum shows that a file is undamaged, not that this toolchain
wrote it. So addresses, sizes and indices are checked here, as far as that needs no machine; `codegen.container` checks
the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from pydantic import ValidationError

from toolchain.codegen.header_keys import EntryHeader, Header, IslandHeader, Pieces, PortHeader, RegionHeader, Span
from toolchain.errors import ProgramError
from toolchain.input_limits import ENTRIES


def read_header(text: bytes, body_bytes: int) -> Header:
    """Return the header of its JSON text. Raise ProgramError with the first fault.

    `body_bytes`: bytes of the file after the header, in which all sections must lie.
    """
    try:
        header = Header.model_validate_json(text)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"] if part not in ("host", "npu"))
        raise ProgramError(f"header{f' key {path}' if path else ''}: {first['msg'].removeprefix('Value error, ')}") from None
    fault = next(_faults(header, body_bytes), None)
    if fault is not None:
        raise ProgramError(f"header: {fault}")
    return header


def _where(header: Header, entry: EntryHeader) -> str:
    """Return the prefix of messages about an entry's segments, empty where the file has only one entry."""
    return f"entry {entry.name!r}: " if len(header.entries) > 1 else ""


def _faults(header: Header, body_bytes: int) -> Iterator[str]:
    """Yield a sentence for each fault of the header."""
    names = [e.name for e in header.entries]
    if not names:
        yield "has no entries, nothing that could be run"
    if len(names) > ENTRIES:
        yield f"has {len(names)} entries, {ENTRIES} are the most"
    yield from (f"has two entries of the name {name!r}" for i, name in enumerate(names) if name in names[:i])
    for entry in header.entries:
        where = _where(header, entry)
        yield from (f"{where}{fault}" for fault in _entry_faults(entry, header, body_bytes))


def _entry_faults(entry: EntryHeader, header: Header, body_bytes: int) -> Iterator[str]:
    """Yield faults of an entry: tensors that nothing makes, states, bound inputs, sections outside the file."""
    spans = [header.machine, entry.graph, *header.blocks, *(b.data for b in entry.bound)]
    regions = [s for s in entry.segments if isinstance(s, RegionHeader)]
    available_tensors, state_names = {t.name for t in entry.inputs}, set[str]()
    available_tensors.update(p.ring.number for s in regions for p in s.ports if p.ring is not None)
    shape_by_io = {t.name: t.shape for t in (*entry.inputs, *entry.outputs)}
    for index, segment in enumerate(entry.segments):
        where = f"segment {index}"
        if isinstance(segment, IslandHeader):
            spans.append(segment.model)
            required, results = segment.inputs, segment.outputs
        else:
            spans += [segment.program, segment.op_layers]
            yield from _region_faults(segment, header.blocks, shape_by_io, where)
            required, results = ([p.model for p in segment.ports if p.kind == kind] for kind in ("input", "output"))
            lasting = [p for p in segment.ports if p.kind == "state"]
            both = (p.model for p in lasting if p.model in available_tensors or p.model in state_names)
            yield from (f"{where}: {name!r} is a state, and is made or kept elsewhere too" for name in both)
            yield from (f"{where}: {fault}" for fault in (*_part_faults(lasting), *_ring_faults(segment.ports)))
            state_names.update(p.model for p in lasting)
        yield from (
            f"{where} reads tensor {name!r}, which nothing before it makes" for name in required if name not in available_tensors
        )
        available_tensors.update(results)
    yield from (
        f"the bound input {b.name!r} has {b.data[1]} bytes, not {b.size_bytes}" for b in entry.bound if b.data[1] != b.size_bytes
    )
    yield from (f"the input {b.name!r} is bound, and given too" for b in entry.bound if b.name in {t.name for t in entry.inputs})
    yield from (f"no segment makes the output {t.name!r}" for t in entry.outputs if t.name not in available_tensors)
    yield from _span_faults(spans, body_bytes)
    yield from _find_unpacked_faults(entry, header.blocks)


def _part_faults(ports: Sequence[PortHeader]) -> Iterator[str]:
    """Yield faults of a region's states, each of which occurs once: as a whole, or in parts without gaps between them."""
    for name in dict.fromkeys(p.model for p in ports):
        parts = [p for p in ports if p.model == name]
        at = 0
        for port in sorted(parts, key=lambda p: p.part or (0, 0)):
            rows = port.model_shape[0] if port.model_shape else 1
            first, total_rows = port.part or (0, rows)
            if first != at or total_rows != (parts[0].part or (0, rows))[1] or port.output != parts[0].output:
                yield f"the state {name!r} is made of parts that do not fit together"
                break
            at += rows
        else:
            if at != (parts[0].part or (0, at))[1]:
                yield f"the state {name!r} is made of parts that do not fit together"


def _ring_faults(ports: Sequence[PortHeader]) -> Iterator[str]:
    """Yield faults of states in circular buffers.

    A buffer has twice its period along its axis. Its step number is an input of one element, and steps as every other
    with it.
    """
    steps: dict[str, tuple[int, int]] = {}
    for port in ports:
        ring = port.ring
        if ring is None:
            continue
        if port.kind != "state" or port.part is not None or port.maps is not None:
            yield f"port {port.model!r} is a ring, which only whole states are that lie dense"
        elif ring.axis >= len(port.shape) or port.shape[ring.axis] != 2 * ring.period:
            yield f"the state {port.model!r} is a ring of another size than its port {list(port.shape)}"
        elif ring.places > ring.period or ring.period % ring.rows:
            yield f"the state {port.model!r} is a ring of {ring.period} rows: {ring.places} in steps of {ring.rows} do not fit"
        numbers = [p for p in ports if p.kind == "input" and p.model == ring.number]
        if len(numbers) != 1 or numbers[0].shape != (1,):
            yield f"the state {port.model!r} is a ring whose number {ring.number!r} is no input of one element"
        if steps.setdefault(ring.number, (ring.period, ring.rows)) != (ring.period, ring.rows):
            yield f"the state {port.model!r} is a ring whose number goes on as another's"


def _find_unpacked_faults(entry: EntryHeader, blocks: Sequence[Span]) -> Iterator[str]:
    """Yield a fault where constants in pieces have more bytes than the blocks. So no small file unpacks to a large one."""
    regions = [s for s in entry.segments if isinstance(s, RegionHeader)]
    pieced = {constant_ref for region in regions for _, constant_ref in region.constants if not isinstance(constant_ref, int)}
    pieced_bytes, held_bytes = sum(size for pieces in pieced for *_, size in pieces), sum(size for _, size in blocks)
    if pieced_bytes > held_bytes:
        yield f"its constants in pieces have {pieced_bytes} bytes together, the blocks {held_bytes}"


def _span_faults(spans: Collection[Span], body_bytes: int) -> Iterator[str]:
    """Yield faults of sections: each lies inside the file, and all together have no more bytes than it."""
    for start, size in spans:
        if start + size > body_bytes:
            yield f"a section of {size} bytes at {start} does not lie within the {body_bytes} bytes behind the header"
    if sum(size for _, size in spans) > body_bytes:
        yield f"its sections have more bytes together than the {body_bytes} behind the header"


def _region_faults(
    region: RegionHeader, blocks: Sequence[Span], shape_by_tensor: dict[str, tuple[int, ...]], where: str
) -> Iterator[str]:
    """Yield faults of a region's tables, constants, ports and areas. `where`: the segment, for messages."""
    if region.op_layers[1] % 4:
        yield f"{where}: its table of layers has {region.op_layers[1]} bytes, no multiple of 4"
    yield from _constant_faults(region, blocks, where)
    for port in region.ports:
        if port.maps is not None and len(port.shape) != 4:
            yield f"{where}: port {port.model!r} is in granules with {len(port.shape)} dimensions"
            continue
        if port.address + port.size_bytes > region.dram_bytes:
            size, end = port.size_bytes, region.dram_bytes
            yield f"{where}: port {port.model!r} of {size} bytes at {port.address:#x} lies outside the {end} of its DRAM"
        if port.layout == "nhwc" and len(port.shape) not in (3, 4):
            yield f"{where}: port {port.model!r} is channels-last with {len(port.shape)} dimensions"
        elif shape_by_tensor.get(port.model, port.model_shape) != port.model_shape:
            yield f"{where}: port {port.model!r} has another shape than the model's tensor of that name"
        state_keys = [port.made, port.output]
        if not all(state_keys) if port.kind == "state" else any(state_keys):
            yield f"{where}: port {port.model!r} is of kind {port.kind}; states have the keys made and output, nothing else does"
        limits = np.iinfo(port.dtype)
        if not limits.min <= port.zero_point <= limits.max:
            yield f"{where}: port {port.model!r} has zero point {port.zero_point}, no code of {port.dtype}"
    yield from _area_faults(region, blocks, where)


def _constant_faults(region: RegionHeader, blocks: Sequence[Span], where: str) -> Iterator[str]:
    """Yield faults of constants, which must be in the order of addresses, disjoint, and inside the region's DRAM."""
    end = 0
    for address, constant_ref in region.constants:
        size, missing = _size_bytes(constant_ref, blocks)
        if missing:
            yield f"{where}: constants at {address:#x} are {missing}"
            return
        if address + size > region.dram_bytes:
            yield f"{where}: constants of {size} bytes at {address:#x} lie outside the {region.dram_bytes} of its DRAM"
        if address < end:
            yield f"{where}: constants at {address:#x} begin before those in front of them end, at {end:#x}"
        end = address + size


def _size_bytes(constant_ref: int | Pieces, blocks: Sequence[Span]) -> tuple[int, str]:
    """Return (size of constants, ""), or (0, a text about the part that the file lacks)."""
    for block, first, size in [(constant_ref, 0, 0)] if isinstance(constant_ref, int) else constant_ref:
        if block >= len(blocks):
            return 0, f"block {block}, the file has {len(blocks)}"
        if first + size > blocks[block][1]:
            return 0, f"{size} bytes at {first} of block {block}, which has {blocks[block][1]}"
    return blocks[constant_ref][1] if isinstance(constant_ref, int) else sum(size for *_, size in constant_ref), ""


def _area_faults(region: RegionHeader, blocks: Sequence[Span], where: str) -> Iterator[str]:
    """Yield faults of areas, which must be in the order of addresses, disjoint, and with a base register of their own.

    Where areas have registers, every port, constant and DRAM result must lie in one.
    """
    end = 0
    for area in region.areas:
        if area.base < end:
            yield f"{where}: the area at {area.base:#x} begins before the one in front of it ends, at {end:#x}"
        end = area.base + area.size_bytes
    if end > region.dram_bytes:
        yield f"{where}: its areas end at {end:#x}, outside the {region.dram_bytes} of its DRAM"
    states = {p.area_name for p in region.ports if p.kind == "state"}
    missing_states = (h.tensor for a in region.areas for h in a.holds if h.kind == "state" and h.tensor not in states)
    yield from (f"{where}: an area holds state {name!r}, of which there is no port" for name in missing_states)
    registers = [a.base_register for a in region.areas if a.base_register]
    if len({*registers}) < len(registers):
        yield f"{where}: two areas have one base register"
    if not registers:
        return
    results = [i.result for i in region.layers if i.result is not None and i.result.space == "dram"]
    places = [(f"port {p.model!r}", p.address, p.size_bytes) for p in region.ports]
    sizes = ((address, *_size_bytes(constant_ref, blocks)) for address, constant_ref in region.constants)
    places += [("a block of constants", address, size) for address, size, missing in sizes if not missing]
    places += [(f"the result {r.tensor!r}", r.address, 1) for r in results]
    for what, address, size in places:
        if not any(a.base <= address and address + size <= a.base + a.size_bytes for a in region.areas):
            yield f"{where}: {what} at {address:#x} lies in none of its areas"
