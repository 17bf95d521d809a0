"""Constants that a schedule has fetched ahead, held against what the layer has and the layers behind whose loads they come."""

from __future__ import annotations

from collections.abc import Sequence

from quant.suggestion import suggestion
from toolchain.errors import format_count
from toolchain.ops.kit.operator import TiledOp
from toolchain.schedule.copies import dram_alignment
from toolchain.schedule.prefetch_parts import LayerConstants, collect_constants, split_constants
from toolchain.schedule.tile_buffers import PrefetchPart
from toolchain.schedule.tree.bind_tree import BoundTree, RegionFacts
from toolchain.schedule.tree.layer_directives import LayerDirective
from toolchain.schedule.tree.nodes import Alloc, LayerTree, OperandBuffer, Prefetch
from toolchain.schedule.tree.schedule_faults import Faults
from toolchain.schedule.tree.text import quote_name


def list_prefetches(said: LayerTree) -> list[tuple[Prefetch, Alloc]]:
    """Of a layer's allocations those of constants that are fetched ahead."""
    return [(alloc.buffer, alloc) for alloc in said.rings if isinstance(alloc.buffer, Prefetch)]


def bind_prefetches(
    index: int, asked: LayerDirective, given: BoundTree, facts: RegionFacts, faults: Faults
) -> tuple[PrefetchPart, ...] | None:
    """Of a layer by itself; () where it says nothing of them, None where something is wrong."""
    fetches = list_prefetches(asked.said)
    if not fetches:
        return ()
    found: list[tuple[int, int]] = []
    for ahead, alloc in fetches:
        behind = _behind(ahead.behind, index, given, facts)
        if isinstance(behind, str):
            faults.of(asked.layer, alloc.line, f"fetch {ahead.constants} behind {quote_name(ahead.behind)}: {behind}")
            return None
        found.append((ahead.constants, behind))
    constants = collect_constants(asked.layer, asked.tiling, asked.units)
    fault = _fault([since for _, since in found], sum(n for n, _ in found), constants, asked, facts)
    if fault is not None:
        faults.of(asked.layer, fetches[0][1].line, f"fetch: {fault}")
        return None
    assert constants is not None
    return split_constants(constants, found, dram_alignment(facts.chip))


def _behind(name: str, own: int, given: BoundTree, facts: RegionFacts) -> int | str:
    """The place of that layer, or why nothing is fetched behind its loads."""
    named = {layer.node.name: index for index, layer in enumerate(facts.layers)}
    at = named.get(name)
    if at is None:
        return f"there is no such layer{suggestion(name, named)}"
    if at > own:
        return "it runs later; name this layer or one before it"
    if not isinstance(facts.layers[at].node.op, TiledOp):
        return "it is moved by DMA and has no tiles"
    if any(at in turns.layers for turns in given.turns):
        return "it runs in turns with others; name one that does not"
    if at not in given.layers:
        return "the schedule does not name it, so that it might take turns; name it too"
    return at


def _fault(
    order: list[int], count: int, constants: LayerConstants | None, asked: LayerDirective, facts: RegionFacts
) -> str | None:
    """order: behind which layers. count: of the constants that are fetched so."""
    if order != sorted(order):
        return "constants come in the order of their use; name the layers in their order"
    if constants is None:
        return "its units read constants in more than one memory, so that nothing is fetched ahead; leave it out"
    memory = facts.chip.spaces[constants.space]
    if dram_alignment(facts.chip) % memory.memory.alignment_bytes:
        return f"{memory.key}.alignment_bytes does not divide that of DRAM, so that nothing is fetched ahead; leave it out"
    if count > len(constants.blocks):
        return f"{format_count(count, 'constant')} in all; with these loops it has {len(constants.blocks)}"
    rings = [r for r in asked.said.rings if isinstance(r.buffer, OperandBuffer) and r.buffer.role == "constant"]
    if rings and count == len(constants.blocks):
        return "its constants pass through no ring then; leave out the rings of constants"
    return None


def fetches_all(asked: LayerDirective, parts: Sequence[PrefetchPart]) -> bool:
    """Whether no constant of the layer is left that would pass through a ring."""
    constants = collect_constants(asked.layer, asked.tiling, asked.units) if parts else None
    return constants is not None and sum(len(part.blocks) for part in parts) == len(constants.blocks)
