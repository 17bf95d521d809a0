"""Resolve the names of a user's schedule against a region: its layers, its tensors and the machine.

Input is the parsed tree (`schedule.parser`), output a `BoundTree` for `schedule.bind_plans` and
`schedule.user_schedule`. Nothing is searched here. All faults are reported at once, each with its line. A root is a
tensor with storage of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from quant.suggestion import suggestion
from toolchain.errors import CompileError, format_count
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Node
from toolchain.ops.kit.operator import Layer, TiledOp
from toolchain.schedule.bind_layer import Faults, LayerDirective, bind_layer
from toolchain.schedule.cost import CostModel
from toolchain.schedule.nodes import (
    ROWS,
    TENSOR_MEMORIES,
    CascadeTree,
    LayerTree,
    Loop,
    RegionTree,
    TensorAlloc,
    layers_of,
)
from toolchain.schedule.options import LEVELS
from toolchain.schedule.parser import read_schedule
from toolchain.schedule.plan import Storage
from toolchain.schedule.stripes import UNCUT, Sweep, can_be_cut
from toolchain.schedule.text import quote_name
from toolchain.schedule.views import View, can_inline, is_inline


def read_schedules(file: str | None, entries: Sequence[str]) -> dict[str, tuple[RegionTree, ...]]:
    """Read a schedule file and return its regions by entry, "" where the build has no entries; empty where `file` is
    None.

    `entries`: names of the build's entries (sets of input shapes). Raise CompileError for faults of the text or unknown
    entries; OSError, which names the file, where it cannot be read.
    """
    trees: dict[str, tuple[RegionTree, ...]] = {}
    faulty: list[str] = []
    for tree in () if file is None else read_schedule(file):
        faults = Faults(tree)
        if tree.entry and not entries:
            faults.add(tree.line, f"entry {quote_name(tree.entry)}: the build has no entries; leave it out, or give --entry")
        elif tree.entry not in entries and entries:
            names = ", ".join(map(quote_name, entries))
            faults.add(
                tree.line, f"entry {quote_name(tree.entry)}: there is none{suggestion(tree.entry, entries)}; entries are {names}"
            )
        faulty += faults.list_sentences()
        trees[tree.entry] = (*trees.get(tree.entry, ()), tree)
    if faulty:
        raise CompileError("\n".join(faulty))
    return trees


def split_regions(schedule: Sequence[RegionTree], regions: Sequence[int]) -> dict[int, RegionTree]:
    """Return the schedules by number of their region. Raise CompileError for a number that is not in `regions`."""
    faulty: list[str] = []
    for tree in schedule:
        if tree.region not in regions:
            numbers = ", ".join(map(str, regions))
            faults = Faults(tree)
            faults.add(
                tree.line,
                f"region {tree.region}: there is none; " + (f"regions are {numbers}" if numbers else "nothing runs on the chip"),
            )
            faulty += faults.list_sentences()
    if faulty:
        raise CompileError("\n".join(faulty))
    return {tree.region: tree for tree in schedule}


def resolve_level(tree: RegionTree, level: int, sampled: bool, sram_bytes: int) -> int:
    """Return the optimization level whose switches the region is planned with: the schedule's, or else `level`, the
    build's.

    `sampled`: the batch can be the repeated program of one sample. `sram_bytes`: the most SRAM that a plan may have.
    Raise CompileError where the schedule asks for more SRAM, an unknown level, or a sample's program that does not
    exist.
    """
    faults = Faults(tree)
    if tree.within > sram_bytes:
        faults.add(
            tree.line, f"within {tree.within:,}: plans have {sram_bytes:,} bytes of sram (memories.sram.size, --sram-budget)"
        )
    if tree.level >= len(LEVELS):
        faults.add(tree.line, f"level {tree.level}: must be from 0 to {len(LEVELS) - 1}")
    if tree.sample and not sampled:
        faults.add(
            tree.line,
            "sample: the region is not made sample by sample: control.repeat of the machine, and a batch of more than one",
        )
    faults.end()
    return level if tree.level < 0 else tree.level


def reorder_nodes(nodes: Sequence[Node], free: Collection[str], tree: RegionTree) -> Sequence[Node]:
    """Return the nodes in the order in which the schedule names its layers.

    `free`: names of nodes that are no layers; each goes in front of its first reader. The nodes stay as they are where
    the schedule does not name each layer once, or names one before its inputs are made. A free node that no layer reads
    comes last.
    """
    written = [layer.name for layer in tree.layers]
    named = {node.name: node for node in nodes if node.name not in free}
    if sorted(written) != sorted(named):
        return nodes
    makers = {name: node for node in nodes for name in node.outputs}
    ordered: dict[str, Node] = {}
    for name in written:
        for node in (*_free_before(named[name], makers, free), named[name]):
            if any(tensor in makers and makers[tensor].name not in ordered for tensor in node.inputs):
                return nodes
            ordered[node.name] = node
    return [*ordered.values(), *(node for node in nodes if node.name not in ordered)]


def _free_before(node: Node, makers: dict[str, Node], free: Collection[str]) -> list[Node]:
    """Return the free nodes through which the node reads, each after its own sources."""
    before: list[Node] = []
    for name in node.inputs:
        maker = makers.get(name)
        if maker is not None and maker.name in free:
            before += [*_free_before(maker, makers, free), maker]
    return before


@dataclass(frozen=True)
class RegionFacts:
    """The facts of a region that hold before anything is planned.

    `layers`: in the order in which they run; an index of a layer is its place here. `free`: Reshapes that cost nothing
    and are no layers. `views`: where each tensor lies in its root. `storages`: size and live range of each root.
    `ports`: roots of the region's inputs and outputs. `model`: costs layers on the machine. `depth`: slots of a tile
    buffer where the schedule gives no number.
    """

    layers: Sequence[Layer]
    free: Sequence[Node]
    views: Mapping[str, View]
    storages: Mapping[str, Storage]
    ports: Collection[str]
    model: CostModel
    depth: int

    @property
    def chip(self) -> Chip:
        return self.model.chip


@dataclass(frozen=True)
class CascadeDirective:
    """A cascade of a schedule, resolved: layers that take turns over rows.

    `loop`: the loop over rows. `layers`: their indices. `rows`: rows that the rolling buffer of each root keeps.
    `sweep`: blocks of channels or columns, each of which goes through all rows before the next.
    """

    loop: Loop
    layers: range
    rows: Mapping[str, int]
    sweep: Sweep = UNCUT


@dataclass(frozen=True)
class BoundTree:
    """A schedule, resolved against its region. It has no faults that can be seen before planning.

    `layers`: the statement of each named layer, by index. `directives`: the same with tilings and units; data movement
    has none. `resident`, `spilled`: roots that must lie in SRAM as a whole, and in DRAM. `names_all_layers`: no layer
    is left to the search. `lines`: the line that places each root.
    """

    tree: RegionTree
    layers: Mapping[int, LayerTree]
    directives: Mapping[int, LayerDirective]
    cascades: tuple[CascadeDirective, ...]
    resident: frozenset[str]
    spilled: frozenset[str]
    names_all_layers: bool
    lines: Mapping[str, int] = field(default_factory=dict[str, int])  # where the roots stand


def bind_tree(tree: RegionTree, facts: RegionFacts) -> BoundTree:
    """Return the schedule resolved against a region. Raise CompileError with every fault that can be seen without
    planning.

    These are unknown or repeated names, a wrong order of layers, impossible places of tensors, and wrong loops, units
    or modes.
    """
    faults = Faults(tree)
    named = {layer.node.name: index for index, layer in enumerate(facts.layers)}
    layers: dict[int, LayerTree] = {}
    order: list[int] = []
    groups: list[tuple[CascadeTree, list[int]]] = []
    for part in tree.parts:
        indices = [i for layer in layers_of(part) if (i := _index(layer, named, layers, facts, faults)) is not None]
        order += indices
        if isinstance(part, CascadeTree) and len(indices) == len(part.layers):
            groups.append((part, indices))
    _require_order(order, layers, facts, faults)
    complete = len(layers) == len(facts.layers)
    resident, spilled, rows, lines = _roots(tree.tensors, facts, faults)
    cascades = [
        t for part, members in groups if (t := _bind_cascade(part.loops, members, rows, lines, layers, facts, faults)) is not None
    ]
    for root, alloc in rows.items():
        if faults or any(root in t.rows for t in cascades):
            continue
        faults.add(
            alloc.line,
            f"alloc {quote_name(root)}: rows are kept of tensors between layers in turns; no loop holds all that touch it",
        )
    _require_inline(layers, facts, faults)
    together = {i for _, members in groups for i in members}
    directives = {
        i: a for i, stmt in layers.items() if (a := bind_layer(facts.layers[i], stmt, i in together, faults)) is not None
    }
    faults.end()
    return BoundTree(tree, layers, directives, tuple(cascades), resident, spilled, complete, lines)


def _index(
    stmt: LayerTree, named: Mapping[str, int], layers: dict[int, LayerTree], facts: RegionFacts, faults: Faults
) -> int | None:
    """Return the index of the layer that a statement names, and add the statement to `layers`; None after a fault."""
    name, line = stmt.name, stmt.call.line
    index = named.get(name)
    fault = None
    if index is None and any(node.name == name for node in facts.free):
        fault = "is a Reshape that costs nothing here: its codes lie as they did; leave it out"
    elif index is None:
        fault = f"there is no such layer{suggestion(name, named)}"
    elif index in layers:
        fault = "stands there twice"
    if fault is not None:
        faults.add(line, f"layer {quote_name(name)}: {fault}")
        return None
    assert index is not None
    layers[index] = stmt
    return index


def inline_of(nodes: Sequence[Node], tree: RegionTree) -> dict[str, bool]:
    """Return what the schedule says of the data-movement operators that may move nothing: by name, whether it is
    inline.
    """
    inline = {layer.name: layer.call.inline for layer in tree.layers}
    return {node.name: inline[node.name] for node in nodes if node.name in inline and can_inline(node)}


def _require_inline(layers: Mapping[int, LayerTree], facts: RegionFacts, faults: Faults) -> None:
    """Add a fault for each move that is marked inline though nothing can use its data in place."""
    for index, stmt in layers.items():
        layer = facts.layers[index]
        if stmt.call.inline and not isinstance(layer.node.op, TiledOp) and not is_inline(layer.node, facts.views):
            reason = "nothing beside it makes or reads this where it would lie (below -O2 nothing at all does)"
            faults.of(layer, stmt.call.line, f"call inline: {reason}; write 'call' alone")


def _require_order(order: Sequence[int], layers: Mapping[int, LayerTree], facts: RegionFacts, faults: Faults) -> None:
    """Add a fault for each layer that stands behind one before which it runs."""
    for before, index in pairwise(order):
        if index < before:
            names = quote_name(facts.layers[index].node.name), quote_name(facts.layers[before].node.name)
            faults.add(
                layers[index].call.line,
                f"layer {names[0]}: stands behind {names[1]}, before which it runs; layers keep the order of the network",
            )


def _roots(
    tensors: Sequence[TensorAlloc], facts: RegionFacts, faults: Faults
) -> tuple[frozenset[str], frozenset[str], dict[str, TensorAlloc], dict[str, int]]:
    """Return the roots in SRAM, those in DRAM, the allocs of rolling buffers by root, and the line of each root."""
    resident, spilled, rows, lines = set[str](), set[str](), dict[str, TensorAlloc](), dict[str, int]()
    for alloc in tensors:
        name = alloc.buffer.name
        fault = _broken_tensor(alloc, facts)
        if fault is None and name in lines:
            fault = f"stands there twice, in line {lines[name]} too"
        if fault is not None:
            faults.add(alloc.line, f"alloc {quote_name(name)}: {fault}")
            continue
        lines[name] = alloc.line
        if alloc.buffer.rows:
            rows[name] = alloc
        else:
            (resident if alloc.memory == "sram" else spilled).add(name)
    return frozenset(resident), frozenset(spilled), rows, lines


def _broken_tensor(alloc: TensorAlloc, facts: RegionFacts) -> str | None:
    """Return why the tensor cannot lie there, or None."""
    tensor = alloc.buffer
    view = facts.views.get(tensor.name)
    if view is None or view.root not in facts.storages:
        return f"the region has no such tensor{suggestion(tensor.name, facts.storages)}"
    if view.root != tensor.name:
        return f"lies in {quote_name(view.root)}; say where that one lies"
    if alloc.memory not in TENSOR_MEMORIES:
        return f"in {alloc.memory}: tensors lie in {' or '.join(TENSOR_MEMORIES)}{suggestion(alloc.memory, TENSOR_MEMORIES)}"
    if tensor.name in facts.ports and alloc.memory == "sram":
        return "is an input or output of the region, which lie in dram"
    if tensor.rows and alloc.memory != "sram":
        return f"rows {tensor.rows}: latest rows are kept in sram; in dram it lies whole"
    return None


def _bind_cascade(
    loops: Sequence[Loop],
    members: Sequence[int],
    rows: Mapping[str, TensorAlloc],
    lines: Mapping[str, int],
    layers: Mapping[int, LayerTree],
    facts: RegionFacts,
    faults: Faults,
) -> CascadeDirective | None:
    """Return the cascade of loops over layers, by index; None after a fault."""
    first, end = min(members), max(members) + 1
    missing = [quote_name(facts.layers[i].node.name) for i in range(first, end) if i not in members]
    last = facts.layers[end - 1]
    fault = None
    *blocks, loop = loops[:2]
    sweep = Sweep(**{block.axis: block.step for block in blocks})
    if loop.axis != ROWS:
        fault = f"for {loop.axis}: layers take turns over {ROWS}"
    elif missing:
        fault = f"for {ROWS}: layers that take turns follow one another; {', '.join(missing)} runs between them"
    elif len(members) < 2:
        fault = f"for {ROWS}: one layer takes no turns; cut its tiles by its own loop"
    elif len(last.output.shape) == 4 and loop.step >= last.output.shape[1]:
        tall = format_count(last.output.shape[1], "row")
        fault = f"for {ROWS} by {loop.step}: {quote_name(last.node.name)} has {tall}, which is one turn; take a smaller step"
    if fault is not None:
        faults.add(loop.line, fault)
        return None
    uncut = [i for i in range(first, end) if not can_be_cut(facts.layers[i])]
    for i in uncut:
        faults.add(
            layers[i].call.line,
            f"layer {quote_name(facts.layers[i].node.name)}: its rows are not made apart, so it takes no turns with others",
        )
    inside = {root: alloc for root, alloc in rows.items() if _inside(facts.storages[root], first, end)}
    return (
        None
        if uncut
        else CascadeDirective(loop, range(first, end), {root: alloc.buffer.rows for root, alloc in inside.items()}, sweep)
    )


def _inside(storage: Storage, first: int, end: int) -> bool:
    """Return whether all steps of the root are in [first, end)."""
    return first <= storage.start and storage.end <= end


def tensors_in(layer: Layer, views: Mapping[str, View], roots: Collection[str]) -> Iterator[str]:
    """Yield the activations and outputs of the layer that lie in these roots."""
    return (n for n in (*layer.activations, *layer.node.outputs) if views[n].root in roots)
