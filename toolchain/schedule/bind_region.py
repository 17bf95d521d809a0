"""The names of a schedule are resolved against a region: its layers, its tensors, the machine.

Nothing is searched here. All that is wrong is reported at once.
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
    BLOCKS,
    ROWS,
    TENSOR_MEMORIES,
    Alloc,
    LayerTree,
    Loop,
    RegionTree,
    Tensor,
    layer_of,
    layers_of,
    split_cascade,
    tensors_of,
)
from toolchain.schedule.options import LEVELS
from toolchain.schedule.parser import read_schedule
from toolchain.schedule.plan import Storage
from toolchain.schedule.stripes import WHOLE, Sweep, can_be_cut
from toolchain.schedule.text import quote_name
from toolchain.schedule.views import View, can_inline, is_inline


def read_schedules(file: str | None, entries: Sequence[str]) -> dict[str, tuple[RegionTree, ...]]:
    """What the file says, by entry, "" where the build has none. Raises CompileError, OSError naming the file."""
    found: dict[str, tuple[RegionTree, ...]] = {}
    told: list[str] = []
    for tree in () if file is None else read_schedule(file):
        faults = Faults(tree)
        if tree.entry and not entries:
            faults.add(tree.line, f"entry {quote_name(tree.entry)}: the build has no entries; leave it out, or give --entry")
        elif tree.entry not in entries and entries:
            there = ", ".join(map(quote_name, entries))
            faults.add(
                tree.line, f"entry {quote_name(tree.entry)}: there is none{suggestion(tree.entry, entries)}; entries are {there}"
            )
        told += faults.told()
        found[tree.entry] = (*found.get(tree.entry, ()), tree)
    if told:
        raise CompileError("\n".join(told))
    return found


def split_regions(schedule: Sequence[RegionTree], regions: Sequence[int]) -> dict[int, RegionTree]:
    """By region. regions: that there are. Raises CompileError: others."""
    told: list[str] = []
    for tree in schedule:
        if tree.region not in regions:
            there = ", ".join(map(str, regions))
            faults = Faults(tree)
            faults.add(
                tree.line,
                f"region {tree.region}: there is none; " + (f"regions are {there}" if there else "nothing runs on the chip"),
            )
            told += faults.told()
    if told:
        raise CompileError("\n".join(told))
    return {tree.region: tree for tree in schedule}


def resolve_level(tree: RegionTree, level: int, sampled: bool, sram_bytes: int) -> int:
    """By whose options the region is planned. level: of the build. sampled: whether there is a program of one sample. sram_bytes:
    that plans may have. Raises CompileError."""
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
    """free: nodes that are no layers, which go in front of the first that reads them. The nodes as they are where the schedule
    does not name each of the others once, or where its order lets one run before what it reads is made."""
    said = [layer.call.layer for layer in layers_of(tensors_of(tree.body)[1])]
    named = {node.name: node for node in nodes if node.name not in free}
    if sorted(said) != sorted(named):
        return nodes
    makers = {name: node for node in nodes for name in node.outputs}
    found: dict[str, Node] = {}
    for name in said:
        for node in (*_free_before(named[name], makers, free), named[name]):
            if any(tensor in makers and makers[tensor].name not in found for tensor in node.inputs):
                return nodes
            found[node.name] = node
    return [*found.values(), *(node for node in nodes if node.name not in found)]


def _free_before(node: Node, makers: dict[str, Node], free: Collection[str]) -> list[Node]:
    """Those that the node reads through, the first to run first."""
    found: list[Node] = []
    for name in node.inputs:
        maker = makers.get(name)
        if maker is not None and maker.name in free:
            found += [*_free_before(maker, makers, free), maker]
    return found


@dataclass(frozen=True)
class RegionFacts:
    """What is known of a region before anything is planned. free: Reshapes that are no layers. storages: of roots. ports: roots
    of its inputs and outputs. depth: slots of a ring, where nothing is said."""

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
    """Layers that run in turns, with the loop over rows around them, and the roots of which the latest rows are kept: how many.
    sweep: of what goes through all rows before the next block does."""

    loop: Loop
    layers: range
    rows: Mapping[str, int]
    sweep: Sweep = WHOLE


@dataclass(frozen=True)
class BoundTree:
    """What a tree says of its region. layers: by index, those it names; asked: of these what tiles are made. whole: all are
    named. resident: roots in SRAM; spilled: those that are said to lie in DRAM."""

    tree: RegionTree
    layers: Mapping[int, LayerTree]
    asked: Mapping[int, LayerDirective]
    turns: tuple[CascadeDirective, ...]
    resident: frozenset[str]
    spilled: frozenset[str]
    whole: bool
    lines: Mapping[str, int] = field(default_factory=dict[str, int])  # where the roots stand

    def alone(self, index: int) -> bool:
        """Whether the layer is named, and in no turns."""
        return index in self.layers and not any(index in turns.layers for turns in self.turns)


def bind_tree(tree: RegionTree, facts: RegionFacts) -> BoundTree:
    """Raises CompileError with all that no machine or network of this kind can do."""
    faults = Faults(tree)
    tensors, parts = tensors_of(tree.body)
    named = {layer.node.name: index for index, layer in enumerate(facts.layers)}
    layers: dict[int, LayerTree] = {}
    order: list[int] = []
    groups: list[tuple[Loop, list[int]]] = []
    for part in parts:
        turns, single = split_cascade(part), layer_of(part)
        members = turns[1] if turns is not None else (single,) if single is not None else ()
        found = [i for layer in members if (i := _index(layer, named, layers, facts, faults)) is not None]
        order += found
        if turns is not None and len(found) == len(members):
            groups.append((turns[0], found))
    _require_order(order, layers, facts, faults)
    whole = len(layers) == len(facts.layers)
    resident, spilled, rows, lines = _roots(tensors, facts, faults)
    made = [t for loop, members in groups if (t := _turns(loop, members, rows, lines, layers, facts, faults)) is not None]
    for root, alloc in rows.items():
        if faults or any(root in t.rows for t in made):
            continue
        faults.add(
            alloc.line,
            f"alloc {quote_name(root)}: rows are kept of tensors between layers in turns; no loop holds all that touch it",
        )
    _require_inline(layers, facts, faults)
    together = {i for _, members in groups for i in members}
    asked = {i: a for i, own in layers.items() if (a := bind_layer(facts.layers[i], own, i in together, faults)) is not None}
    faults.end()
    return BoundTree(tree, layers, asked, tuple(made), resident, spilled, whole, lines)


def _index(
    said: LayerTree, named: Mapping[str, int], layers: dict[int, LayerTree], facts: RegionFacts, faults: Faults
) -> int | None:
    """Which layer it is; it is noted in `layers`."""
    name, line = said.call.layer, said.call.line
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
    layers[index] = said
    return index


def inline_of(nodes: Sequence[Node], tree: RegionTree) -> dict[str, bool]:
    """What the tree says of the movers that can be inline, by name."""
    said = {layer.call.layer: layer.call.inline for layer in layers_of(tensors_of(tree.body)[1])}
    return {node.name: said[node.name] for node in nodes if node.name in said and can_inline(node)}


def _require_inline(layers: Mapping[int, LayerTree], facts: RegionFacts, faults: Faults) -> None:
    for index, own in layers.items():
        layer = facts.layers[index]
        if own.call.inline and not isinstance(layer.node.op, TiledOp) and not is_inline(layer.node, facts.views):
            reason = "nothing beside it makes or reads this where it would lie (below -O2 nothing at all does)"
            faults.of(layer, own.call.line, f"call inline: {reason}; write 'call' alone")


def _require_order(order: Sequence[int], layers: Mapping[int, LayerTree], facts: RegionFacts, faults: Faults) -> None:
    for before, index in pairwise(order):
        if index < before:
            names = quote_name(facts.layers[index].node.name), quote_name(facts.layers[before].node.name)
            faults.add(
                layers[index].call.line,
                f"layer {names[0]}: stands behind {names[1]}, before which it runs; layers keep the order of the network",
            )


def _roots(
    tensors: Sequence[Alloc], facts: RegionFacts, faults: Faults
) -> tuple[frozenset[str], frozenset[str], dict[str, Alloc], dict[str, int]]:
    """Roots in SRAM whole, those in DRAM, those of which rows are kept, and where they stand."""
    resident, spilled, rows, lines = set[str](), set[str](), dict[str, Alloc](), dict[str, int]()
    for alloc in tensors:
        assert isinstance(alloc.buffer, Tensor)
        name = alloc.buffer.name
        fault = _broken_tensor(alloc, alloc.buffer, facts)
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


def _broken_tensor(alloc: Alloc, tensor: Tensor, facts: RegionFacts) -> str | None:
    """Why it cannot lie there; or None."""
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


def _turns(
    loop: Loop,
    members: Sequence[int],
    rows: Mapping[str, Alloc],
    lines: Mapping[str, int],
    layers: Mapping[int, LayerTree],
    facts: RegionFacts,
    faults: Faults,
) -> CascadeDirective | None:
    """None where the layers cannot take turns so."""
    first, end = min(members), max(members) + 1
    missing = [quote_name(facts.layers[i].node.name) for i in range(first, end) if i not in members]
    last = facts.layers[end - 1]
    fault, sweep = None, WHOLE
    if loop.axis in BLOCKS and isinstance(loop.body, Loop):
        sweep, loop = Sweep(**{loop.axis: loop.step}), loop.body
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
        else CascadeDirective(
            loop, range(first, end), {r: a.buffer.rows for r, a in inside.items() if isinstance(a.buffer, Tensor)}, sweep
        )
    )


def _inside(storage: Storage, first: int, end: int) -> bool:
    return first <= storage.start and storage.end <= end


def tensors_in(layer: Layer, views: Mapping[str, View], roots: Collection[str]) -> Iterator[str]:
    """Of a layer's tensors those that lie in these roots."""
    return (n for n in (*layer.activations, *layer.node.outputs) if views[n].root in roots)
