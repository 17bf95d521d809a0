"""Constants that a schedule has fetched ahead, held against what the layer has and the layers behind whose loads they come."""

from __future__ import annotations

from collections.abc import Sequence

from quant.suggestion import suggestion
from toolchain.errors import counted
from toolchain.ops.kit.operator import TiledOp
from toolchain.schedule.copies import dram_alignment
from toolchain.schedule.parts import Constants, constants_of, parts_of
from toolchain.schedule.staging import Part
from toolchain.schedule.tree.asked import Asked
from toolchain.schedule.tree.faults import Faults
from toolchain.schedule.tree.nodes import Ahead, Alloc, LayerTree, Ring
from toolchain.schedule.tree.text import quoted
from toolchain.schedule.tree.to_plan import Facts, Given


def said_fetches(said: LayerTree) -> list[tuple[Ahead, Alloc]]:
    """Of a layer's allocations those of constants that are fetched ahead."""
    return [(alloc.buffer, alloc) for alloc in said.rings if isinstance(alloc.buffer, Ahead)]


def fetched_parts(index: int, asked: Asked, given: Given, facts: Facts, faults: Faults) -> tuple[Part, ...] | None:
    """Of a layer by itself; () where it says nothing of them, None where something is wrong."""
    fetches = said_fetches(asked.said)
    if not fetches:
        return ()
    found: list[tuple[int, int]] = []
    for ahead, alloc in fetches:
        behind = _behind(ahead.behind, index, given, facts)
        if isinstance(behind, str):
            faults.of(asked.layer, alloc.line, f"fetch {ahead.constants} behind {quoted(ahead.behind)}: {behind}")
            return None
        found.append((ahead.constants, behind))
    constants = constants_of(asked.layer, asked.tiling, asked.units)
    fault = _fault([since for _, since in found], sum(n for n, _ in found), constants, asked, facts)
    if fault is not None:
        faults.of(asked.layer, fetches[0][1].line, f"fetch: {fault}")
        return None
    assert constants is not None
    return parts_of(constants, found, dram_alignment(facts.chip))


def _behind(name: str, own: int, given: Given, facts: Facts) -> int | str:
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


def _fault(order: list[int], count: int, constants: Constants | None, asked: Asked, facts: Facts) -> str | None:
    """order: behind which layers. count: of the constants that are fetched so."""
    if order != sorted(order):
        return "constants come in the order of their use; name the layers in their order"
    if constants is None:
        return "its units read constants in more than one memory, so that nothing is fetched ahead; leave it out"
    memory = facts.chip.spaces[constants.space]
    if dram_alignment(facts.chip) % memory.memory.alignment_bytes:
        return f"{memory.key}.alignment_bytes does not divide that of DRAM, so that nothing is fetched ahead; leave it out"
    if count > len(constants.blocks):
        return f"{counted(count, 'constant')} in all; with these loops it has {len(constants.blocks)}"
    rings = [r for r in asked.said.rings if isinstance(r.buffer, Ring) and r.buffer.role == "constant"]
    if rings and count == len(constants.blocks):
        return "its constants pass through no ring then; leave out the rings of constants"
    return None


def fetches_all(asked: Asked, parts: Sequence[Part]) -> bool:
    """Whether no constant of the layer is left that would pass through a ring."""
    constants = constants_of(asked.layer, asked.tiling, asked.units) if parts else None
    return constants is not None and sum(len(part.blocks) for part in parts) == len(constants.blocks)
