"""Place the buffers of a plan: an address for every resident root and every slot, in each on-chip memory.

This is the last step of planning. Live ranges of buffers are in steps, the indices of layers; `memory.place` finds the
addresses. A root is a tensor with storage of its own.

A search for one placement visits _PLACING_NODES nodes at most. Another attempt, with less resident, costs less than a longer
search.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine import Space
from toolchain.memory import Buffer, DoesNotFit, Placement, place
from toolchain.ops.kit.tile import round_up
from toolchain.schedule.nodes import Ring
from toolchain.schedule.plan import PlannedLayer, Storage, extend_life, slot_name

_PLACING_NODES = 2_000


@dataclass(frozen=True)
class ResidentRoot:
    """A root in SRAM. `storage` has its live range, `size_bytes` what it takes of the SRAM, perhaps only its latest
    rows.
    """

    storage: Storage
    size_bytes: int


@dataclass(frozen=True)
class Allocation:
    """The buffers of a plan, to be placed in the memories of a chip.

    `together`: for each layer of a cascade, all of its layers; buffers of one live as long as all run. `beside_next`:
    layers beside which the next one may run; their slots outlive them by one step where that fits. `early`: slots of
    constants are live one step early where that fits, so that they can be loaded ahead. `in_place`: by root, the root
    in whose place it may lie where not all fit otherwise.
    """

    chip: Chip
    planned: Sequence[PlannedLayer]
    resident_roots: Sequence[ResidentRoot]
    together: Mapping[int, range]
    beside_next: Collection[int]
    early: bool
    in_place: Mapping[str, str]

    def in_memories(self, searched: bool = True) -> dict[int, Placement] | None:
        """Return the placement in each memory; None where some buffer has no place.

        `searched`: a search follows where no simple order of the buffers fits; otherwise only such orders are tried.
        """
        used = {item.space for planned in self.planned for item in (*planned.rings, *planned.fetches)}
        placements: dict[int, Placement] = {}
        for space in sorted({int(Space.SRAM), *used}):
            placement = self._in(space, searched)
            if placement is None:
                return None
            placements[space] = placement
        return placements

    def count_used_bytes(self, space: int) -> list[int]:
        """Return, for each layer, the bytes of a memory that are live while it runs."""
        align, used_bytes = self.chip.spaces[space].memory.alignment_bytes, [0] * len(self.planned)
        buffers = {b.name: b for b in self.buffers(space)}
        for buffer in buffers.values():
            for step in range(buffer.start, min(buffer.end, len(used_bytes))):
                used_bytes[step] += round_up(buffer.size_bytes, align)
        for out, old in self.in_place.items() if space == Space.SRAM else ():
            for step in range(buffers[out].start, buffers[old].end):
                used_bytes[step] -= round_up(buffers[out].size_bytes, align)
        return used_bytes

    def _in(self, space: int, searched: bool) -> Placement | None:
        """Return the placement in one memory, or None. Longer live ranges are tried first, in-place rights last."""
        outliving = [(1, 1)] if self.beside_next else []  # a layer that runs beside the one before should not wait for its bytes
        outlive = (*outliving, (1, 0), (0, 0)) if self.early else (*outliving, (0, 0))
        prefetches = any(planned.fetches for planned in self.planned)
        nodes = _PLACING_NODES if searched else 0
        for in_place in (False, True) if self.in_place and space == Space.SRAM else (False,):
            for early, late in outlive:
                try:
                    buffers = self.buffers(space, early, late, in_place)
                    return place(buffers, self.chip.spaces[space].memory.size, nodes)
                except DoesNotFit as fault:
                    # Constants ahead live long: a search costs much, another rarely finds more, and there is a plan without them.
                    nodes = 0 if prefetches and fault.nodes else nodes
        return None

    def buffers(self, space: int, early: int = 0, late: int = 0, in_place: bool = False) -> list[Buffer]:
        """Return the buffers of one memory: resident roots (SRAM only), slots and prefetched constants.

        `early`, `late`: steps by which slots begin earlier or end later than their layer. `in_place`: roots may take
        others' places.
        """
        align, beside_next = self.chip.spaces[space].memory.alignment_bytes, frozenset(self.beside_next)
        homes = [
            Buffer(
                h.storage.name,
                *extend_life(h.storage.start, h.storage.end, self.together),
                h.size_bytes,
                align,
                in_place_of=self.in_place.get(h.storage.name) if in_place else None,
            )
            for h in (self.resident_roots if space == Space.SRAM else ())
        ]
        slots = [
            Buffer(slot_name(step, ring.key, i), _since(start, ring, early), end + late * (step in beside_next), size, align)
            for step, planned in enumerate(self.planned)
            for start, end in (extend_life(step, step + 1, self.together),)
            for ring in planned.rings
            if ring.space == space
            for i, size in enumerate(ring.sizes)
        ]
        fetched = [
            Buffer(slot_name(step, fetch.key, 0), fetch.since, step + 1 + late * (step in beside_next), fetch.size_bytes, align)
            for step, planned in enumerate(self.planned)
            for fetch in planned.fetches
            if fetch.space == space
        ]
        return [*homes, *slots, *fetched]


def _since(step: int, ring: Ring, early: int) -> int:
    """Return the first step of a slot: constants may be loaded while the layer before still runs."""
    return max(0, step - early) if ring.of_constants else step
