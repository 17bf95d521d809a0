"""Print schedules as text, one line a node, with inner nodes indented. `schedule.parser` reads the text back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from toolchain.errors import shown
from toolchain.schedule.nodes import (
    ALL,
    Alloc,
    Call,
    CascadeTree,
    LayerTree,
    Loop,
    OperandBuffer,
    Prefetch,
    RegionTree,
    Tensor,
    layers_of,
)

PLAIN = re.compile(r"[A-Za-z0-9_.+-]+")  # names of a machine that need no quotes
_NOTES = 56  # column in which notes begin


class _Line(NamedTuple):
    """A line of text: depth of its indentation, content, and the note behind '#'."""

    depth: int
    content: str
    note: str


def print_schedule(regions: Iterable[RegionTree]) -> str:
    """Return the text of the regions, with each node's note behind '#'."""
    return "\n".join("\n".join(_written(line) for line in _region(region)) + "\n" for region in regions)


def _written(line: _Line) -> str:
    content = "  " * line.depth + line.content
    return f"{content:{_NOTES}}  # {shown(line.note)}" if line.note else content


def _region(region: RegionTree) -> Iterator[_Line]:
    words = [f"region {region.region}"]
    words += [f"entry {quote_name(region.entry)}"] if region.entry else []
    words += [f"level {region.level}"] if region.level >= 0 else []
    words += [f"within {region.within}"] if region.within else []
    words += ["sample"] if region.sample else []
    yield _Line(0, " ".join(words), region.note)
    yield from (_Line(1, _alloc(alloc), alloc.note) for alloc in region.tensors)
    for part in region.parts:
        loops = part.loops if isinstance(part, CascadeTree) else ()
        yield from _loops(loops, 1)
        for layer in layers_of(part):
            yield from _layer(layer, 1 + len(loops))


def _layer(layer: LayerTree, depth: int) -> Iterator[_Line]:
    yield _Line(depth, f"layer {quote_name(layer.name)}", layer.call.note)
    yield from (_Line(depth + 1, _alloc(alloc), alloc.note) for alloc in (*layer.rings, *layer.fetches))
    yield from _loops(layer.loops, depth + 1)
    yield _Line(depth + 1 + len(layer.loops), _call(layer.call), "")


def _loops(loops: Iterable[Loop], depth: int) -> Iterator[_Line]:
    """A line for each loop, further to the right than the one before it."""
    return (_Line(at, f"for {_machine(loop.axis)} by {loop.step}", loop.note) for at, loop in enumerate(loops, depth))


def _alloc(alloc: Alloc) -> str:
    if isinstance(alloc.buffer, Tensor):
        rows = f" rows {alloc.buffer.rows}" if alloc.buffer.rows else ""
        return f"alloc {quote_name(alloc.buffer.name)} in {_machine(alloc.memory)}{rows}"
    if isinstance(alloc.buffer, Prefetch):
        return f"fetch {alloc.buffer.constants} behind {quote_name(alloc.buffer.after_layer)}"
    slots = f" slots {alloc.slots}" if alloc.slots == ALL or alloc.slots != 1 else ""
    return f"ring {ring_name(alloc.buffer)} in {_machine(alloc.memory)}{slots}"


def ring_name(ring: OperandBuffer) -> str:
    """Return the name of a tile buffer in the text of a schedule: 'input 0', 'output'."""
    return "output" if ring.role == "output" else f"{ring.role} {ring.number}"


def _call(call: Call) -> str:
    if call.inline:
        return "call inline"
    on = f" on {', '.join(map(_machine, call.units))}" if call.units else ""
    flow = f" dataflow {_machine(call.dataflow)}" if call.dataflow else ""
    return f"call{on}{flow}{f' mode {_machine(call.mode)}' if call.mode else ''}"


def quote_name(name: str) -> str:
    """Return a user's name in quotes, as JSON in ASCII: it may hold anything, also line ends and '#'."""
    return json.dumps(name, ensure_ascii=True)


def _machine(name: str) -> str:
    """Return a name of the machine, in quotes only where it has unusual characters."""
    return name if PLAIN.fullmatch(name) else quote_name(name)
