"""Derive units and address spaces from a machine's maps of engines and memories: each `count` is written out.

A role names a kind of operand: input, weights, parameters, tables, output, and `SUMS`, what lies in a memory of accumulators.
`EMIT` is the vector engines' function that takes sums out of there. `EMITTED` maps an array's role to that of the vector engine
that emits for it: both operands lie in one memory. `KINDS` are in the order of their queues. `DRAM` and `SRAM` are the numbers of
the memories that every machine has. Compiled programs have operands of the roles `FEATURE_MAPS` in the sram.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from toolchain.hw.engines import Dma, Engine, MacArray, Memory, Vector

SUMS = "sums"
EMIT = "emit"
EMITTED = {SUMS: SUMS, "input": "input", "parameters": "tables", "output": "output"}
KINDS = ("mac_array", "vector", "dma")
DRAM, SRAM = 0, 1
FEATURE_MAPS = ("input", "output")


@dataclass(frozen=True, slots=True)
class Space:
    """An address space: a memory, or one unit's copy of it where a memory is private to an engine (`owner`: the unit's
    name).

    `key`: its key in `memories`.
    """

    name: str
    key: str
    memory: Memory
    owner: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A unit that runs operations, one after another: an array, a vector engine or a DMA channel.

    `engine`: its key in `engines`. `number`: among the units of its kind. `queue`: among all units. `roles`: number of
    the memory that each kind of operand lies in; empty for DMA. `reach`: numbers of all memories that it touches.
    """

    name: str
    engine: str
    spec: Engine
    number: int
    queue: int
    roles: Mapping[str, int]
    reach: frozenset[int]

    @property
    def kind(self) -> str:
        """mac_array, vector or dma."""
        return self.spec.kind

    @property
    def key(self) -> str:
        """The path of its engine in the machine's file."""
        return f"engines.{self.engine}"

    @property
    def array(self) -> MacArray:
        """The keys of its array; the unit must be one."""
        assert isinstance(self.spec, MacArray), self.name
        return self.spec

    @property
    def vector(self) -> Vector:
        """The keys of its vector engine; the unit must be one."""
        assert isinstance(self.spec, Vector), self.name
        return self.spec

    @property
    def dma(self) -> Dma:
        """The keys of its DMA engine; the unit must be a channel of one."""
        assert isinstance(self.spec, Dma), self.name
        return self.spec


def spaces_of(memories: Mapping[str, Memory], engines: Mapping[str, Engine]) -> tuple[Space, ...]:
    """Return dram, sram, then the other memories by name; a private memory once for each unit of its engine.

    The index in the result is the memory's number.
    """
    space_list = [Space(name, name, memories[name]) for name in ("dram", "sram")]
    for name, memory in sorted(memories.items()):
        if name in ("dram", "sram"):
            continue
        engine = engines.get(memory.private_to or "")
        if engine is None:
            space_list.append(Space(name, name, memory))
            continue
        units = unit_names(memory.private_to or "", engine)
        space_list += [Space(_number_name(name, i, len(units)), name, memory, unit) for i, unit in enumerate(units)]
    return tuple(space_list)


def units_of(engines: Mapping[str, Engine], spaces: Sequence[Space]) -> tuple[Unit, ...]:
    """Return all units: arrays, vector engines, DMA channels, each kind by its engine's key; `queue` is the index here."""
    unit_list: list[Unit] = []
    for kind in KINDS:
        number = 0
        for name, engine in sorted(engines.items()):
            if engine.kind != kind:
                continue
            for unit in unit_names(name, engine):
                roles = dict(_roles(engine, unit, spaces))
                reach = frozenset(roles.values()) if roles else frozenset(_list_moved_spaces(engine, spaces))
                unit_list.append(Unit(unit, name, engine, number, len(unit_list), roles, reach))
                number += 1
    return tuple(unit_list)


def explain_unused_unit(unit: Unit, spaces: Sequence[Space], units: Sequence[Unit]) -> str | None:
    """Return why compiled programs do not use the unit, or None.

    Reasons are feature maps that lie elsewhere than in sram, and a memory that no DMA channel fills from dram.
    """
    dma_units = [u for u in units if u.kind == "dma" and DRAM in u.reach]
    if unit.kind == "dma":
        filled = {SRAM, *(code for u in units if _maps_in_sram(u) for role, code in u.roles.items() if role != SUMS)}
        missing = "dram" if unit not in dma_units else "sram" if not unit.reach & filled else None
        return f"{unit.key}.memories has no {missing}: compiled programs move between dram and sram" if missing else None
    for role, code in unit.roles.items():
        if role in FEATURE_MAPS and code != SRAM:
            return f"{unit.key}.memories.{role} is {spaces[code].key}, compiled programs have it in sram"
        if role != SUMS and code != SRAM and not any(code in u.reach for u in dma_units):
            keys = ", ".join(sorted({u.key for u in units if u.kind == "dma"}))
            return f"{unit.key}.memories.{role} is {spaces[code].key}, which {keys} does not fill from dram"
    return None


def _maps_in_sram(unit: Unit) -> bool:
    """Return whether the unit computes and has its feature maps in the sram."""
    return unit.kind != "dma" and all(unit.roles[role] == SRAM for role in FEATURE_MAPS)


def unit_names(name: str, engine: Engine) -> list[str]:
    """Return the name of each unit of an engine; a number is added where there are several, and always for DMA
    channels.
    """
    if isinstance(engine, Dma):
        return [f"{name}{i}" for i in range(engine.channels)]
    return [_number_name(name, i, engine.count) for i in range(engine.count)]


def _number_name(name: str, i: int, count: int) -> str:
    return name if count == 1 else f"{name}{i}"


def _roles(engine: Engine, unit: str, spaces: Sequence[Space]) -> Iterator[tuple[str, int]]:
    """Yield (role, number of the memory) of each operand of a unit; nothing for DMA."""
    if isinstance(engine, Dma):
        return
    for role, key in operand_memories(engine).items():
        yield role, next(i for i, s in enumerate(spaces) if s.key == key and s.owner in (None, unit))


def operand_memories(engine: MacArray | Vector) -> dict[str, str]:
    """Return the key of the memory by role. Sums are among them where the engine uses a memory of accumulators."""
    named = engine.memories.model_dump()
    if isinstance(engine, MacArray):
        named[SUMS] = engine.accumulators.memory
    return {role: key for role, key in named.items() if key is not None}


def _list_moved_spaces(engine: Engine, spaces: Sequence[Space]) -> Iterator[int]:
    """Yield the numbers of the memories that a DMA engine reaches."""
    assert isinstance(engine, Dma)
    for i, space in enumerate(spaces):
        if engine.memories is None or space.key in engine.memories:
            yield i
