"""Tile buffers (rings): the slots in on-chip memories through which a layer's tiles pass, their sizes and what they
hold.

Three kinds of operand have one: a tensor that does not lie where its unit reads it, a constant block, and an output in
DRAM. A tile that is still in a slot is not loaded again. A role here is the key of a buffer: r0, r1, ... for inputs,
b0, ... for constants, w for the output. Units with memories of their own have buffers of their own. Cost model and code
generation walk the same `MultiBuffer`, so that what is costed is what is emitted.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import Unit
from toolchain.machine import Space
from toolchain.machine.tensors import Strides
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Box, TileTask, round_up
from toolchain.schedule.copies import Stride
from toolchain.schedule.nodes import OperandBuffer, Ring

Room = Mapping[int, int]  # bytes by memory, a code of `chip.spaces`


@dataclass
class MultiBuffer:
    """The slots of a tile buffer and what each holds; the least recently used one is replaced.

    `copies`: how many slots. `keys`: what each used slot holds. `order`: used slots, the least recently used first.
    """

    copies: int
    keys: list[Hashable] = field(default_factory=list[Hashable])
    order: list[int] = field(default_factory=list[int])

    def holds(self, key: Hashable) -> bool:
        return key in self.keys

    def take(self, key: Hashable) -> tuple[int, bool]:
        """Return (slot, whether it holds `key` already). The slot holds `key` from now on."""
        if key in self.keys:
            index = self.keys.index(key)
            self.order.remove(index)
            self.order.append(index)
            return index, True
        if len(self.keys) < self.copies:
            self.keys.append(key)
            self.order.append(len(self.keys) - 1)
            return len(self.keys) - 1, False
        index = self.order.pop(0)
        self.keys[index] = key
        self.order.append(index)
        return index, False


def empty_buffers(rings: Iterable[Ring]) -> dict[tuple[str, int], MultiBuffer]:
    """Return a buffer without contents for each ring, by its key and memory."""
    return {(ring.key, ring.space): MultiBuffer(ring.copies) for ring in rings}


def needs_staging(box: Box, unit: Unit, resident: Collection[str]) -> bool:
    """Return whether a box must be loaded for the unit: its tensor does not lie in the memory from which the unit reads
    it.

    `resident`: tensors that lie in SRAM.
    """
    return box.tensor not in resident or unit.roles[box.role] != Space.SRAM


@dataclass(frozen=True)
class _Use:
    """The operand of a unit that a ring serves, and whether its tensor is resident in SRAM."""

    operand: str
    resident: bool


class Sizes:
    """The largest item that passes through each tile buffer of a layer, collected tile by tile with `add`.

    `total_bytes`: the sum over all buffers with one slot each, whatever their memories.
    """

    def __init__(self, layer: Layer, units: Sequence[Unit]):
        """Begin with no tiles. `units`: all that may run them."""
        self._layer = layer
        self._in_place = {o for o in units[0].roles if all(u.roles[o] == Space.SRAM for u in units)}  # where tensors are resident
        self._sizes: dict[str, dict[_Use, int]] = {}  # of each role and use, the largest item's bytes
        self._keys: dict[str, Hashable] = {}  # the first thing of each role
        self._many: set[str] = set()
        self.total_bytes = 0  # all roles with one slot each, wherever they lie

    def add(self, tile: TileTask, resident: Collection[str]) -> None:
        """Take the items of one more tile into account. `resident`: tensors that lie in SRAM."""
        for i, box in enumerate(tile.reads):
            is_resident = box.tensor in resident
            if not (is_resident and box.role in self._in_place):
                self._note(f"r{i}", self._layer.box_bytes(box), box, _Use(box.role, is_resident))
        for i, block in enumerate(tile.blocks):
            self._note(f"b{i}", block.size_bytes, block.key, _Use(block.role, False))
        if tile.write is not None and tile.write.tensor not in resident:
            self._note("w", self._layer.box_bytes(tile.write), tile.write, _Use("output", False))

    def _note(self, role: str, size_bytes: int, key: Hashable, use: _Use) -> None:
        """Take one item of a buffer into account. `role`: key of the buffer. `key`: of the item."""
        sizes = self._sizes.setdefault(role, {})
        if size_bytes > sizes.get(use, 0):
            before = max(sizes.values(), default=0)
            sizes[use] = size_bytes
            self.total_bytes += max(size_bytes - before, 0)
        if role not in self._many and self._keys.setdefault(role, key) != key:
            self._many.add(role)

    def least(self, units: Iterable[Unit]) -> Room:
        """Return the bytes of all buffers of these units with one slot each, not aligned, by memory."""
        least_bytes: dict[int, int] = {}
        for (_, space), (_, size) in self._rings(units).items():
            least_bytes[space] = least_bytes.get(space, 0) + size
        return least_bytes

    def slots(self, depth: int, units: Sequence[Unit], each_unit: bool = False, single: Collection[str] = ()) -> tuple[Ring, ...]:
        """Return the rings of these units: `depth` slots where more than one item passes through, else one.

        `each_unit`: so many slots for each unit that shares a ring. `single`: roles that have one slot in any case.
        """
        rings: list[Ring] = []
        for (role, space), (sharing, size) in sorted(self._rings(units).items()):
            copies = depth * (sharing if each_unit else 1) if role in self._many and role not in single else 1
            sizes, memory = (size,) * copies, self._layer.chip.spaces[space].name
            rings.append(Ring(OperandBuffer.of_key(role), memory, copies, sizes=sizes, space=space))
        return tuple(rings)

    def mixes(self) -> Iterator[frozenset[str]]:
        """Yield sets of roles for `single` of `slots`: of those through which several items pass, the fewest first.

        The empty set and the set of all are left out.
        """
        many = sorted(self._many)
        for count in range(1, len(many)):
            yield from map(frozenset, combinations(many, count))

    def _rings(self, units: Iterable[Unit]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return, for the ring of each (role, memory), how many of the units use it, and the bytes of its largest item."""
        rings: dict[tuple[str, int], tuple[int, int]] = {}
        for unit in units:
            for role, sizes in self._sizes.items():
                largest: dict[int, int] = {}
                for use, size in sizes.items():
                    space = unit.roles[use.operand]
                    if not (use.resident and space == Space.SRAM):
                        largest[space] = max(size, largest.get(space, 0))
                for space, size in largest.items():
                    sharing, most = rings.get((role, space), (0, 0))
                    rings[role, space] = sharing + 1, max(most, size)
        return rings


def staging_bytes(rings: Iterable[Ring], chip: Chip) -> Room:
    """Return the bytes that rings take of each memory, every slot aligned."""
    total_bytes: dict[int, int] = {}
    for ring in rings:
        alignment = chip.spaces[ring.space].memory.alignment_bytes
        total_bytes[ring.space] = total_bytes.get(ring.space, 0) + sum(round_up(size, alignment) for size in ring.sizes)
    return total_bytes


def fits(need: Room, room: Room) -> bool:
    """Return whether every memory has the room that is needed of it. One that `room` lacks has none."""
    return all(size <= room.get(space, 0) for space, size in need.items())


def box_strides(box: Box, source: Strides, target: Strides) -> list[Stride]:
    """Return the loops of a copy of a box between two places with the same order of dimensions, outermost first.

    Strides are bytes. The largest stride of the target is outermost. Channel-blocked maps are copied in whole blocks.
    """
    loops = [Stride(n, a, b) for n, a, b in zip(box.size, source.along, target.along)]
    maps = source.maps
    if maps is None:
        return sorted(loops, key=lambda loop: -loop.target)
    surfaces = Stride(source.granules(box.size[-1]), source.surface_bytes, target.surface_bytes)
    inner = replace(loops[-1], count=maps.granule)
    image, line, pixel = loops[:-1]
    return [image, surfaces, line, pixel, inner] if maps.order == "surface" else [image, line, surfaces, pixel, inner]
