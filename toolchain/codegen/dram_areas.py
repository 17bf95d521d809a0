"""Divide a program's DRAM into areas, and let its operations reach each area through a base register.

Areas are ports, activations that lie in DRAM between layers, and constants. Where the host sets base registers
(`control.host_bases`), DRAM addresses in a program are offsets into areas, and an area lies wherever its register says.
Where registers are fewer than areas, neighbours become one area.

Other base registers step through the samples of a repeated batch, or hold the address of a row whose index is read from
memory. `codegen.link` calls this after lowering and before synchronisation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from toolchain.codegen.lower import PlacedOp, Row, conflict
from toolchain.codegen.model import AreaContent, DramArea
from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.machine import Copy, End, Fill, LoadBase, MachineOp, Repeat, RepeatEnd, SetBase, Space, accesses


@dataclass(frozen=True)
class AddressStep:
    """DRAM bytes [first, last) of the first sample. Those of each further sample lie `step_bytes` behind."""

    first: int
    last: int

    @property
    def step_bytes(self) -> int:
        """The bytes of one sample."""
        return self.last - self.first


@dataclass(frozen=True)
class BatchLoop:
    """A loop over a batch: how often the program of one sample runs, and the base registers that advance with each run.

    `steps`: (base register that its start is taken from, 0 for none; bytes of a sample; the register that advances).
    """

    count: int
    steps: tuple[tuple[int, int, int], ...]


def wrap_batch_loop(
    ops: Sequence[MachineOp], layers: Sequence[int], repeat: BatchLoop
) -> tuple[tuple[MachineOp, ...], tuple[int, ...]]:
    """Return the operations of a loop over the batch, with their layers: registers are set, the body repeated, the
    program ended.

    `ops`: operations of one sample; they must end with a barrier of all engines. `layers`: layer of each operation.
    Operations of the loop itself have -1.
    """
    head = [*(SetBase(number, source, 0) for source, _, number in repeat.steps if source), Repeat(repeat.count)]
    tail = [*(SetBase(number, number, step) for _, step, number in repeat.steps), RepeatEnd(), End()]
    return (*head, *ops, *tail), (*[-1] * len(head), *layers, *[-1] * len(tail))


@dataclass(frozen=True)
class DramPiece:
    """DRAM bytes [first, last) with what they hold. Pieces are disjoint and in the order of addresses."""

    holds: tuple[AreaContent, ...]
    first: int
    last: int

    @property
    def is_port(self) -> bool:
        """True when a port lies here: an input, an output or a state."""
        return any(h.tensor for h in self.holds)

    @property
    def is_constant(self) -> bool:
        """True when constants alone lie here."""
        return not self.is_port and all(h.kind == "constants" for h in self.holds)


def make_dram_areas(
    pieces: Sequence[DramPiece],
    chip: Chip,
    stepping: Sequence[AddressStep] = (),
    count: int | None = None,
    placed: Sequence[PlacedOp] = (),
) -> tuple[tuple[DramArea, ...], BatchLoop | None]:
    """Return the areas in the order of addresses, and the loop over the batch (None: the program runs once).

    Each piece is an area where registers suffice; else all ports, then everything but constants, then everything
    becomes one. On machines without `control.host_bases` areas have register 0: addresses are absolute. Raise
    CompileError where the machine cannot repeat so often, or has too few base registers.

    `stepping`: addresses that advance with each sample. `count`: samples, None: no loop. `placed`: the program's
    operations. Each computed row that they reach needs a register of its own.
    """
    control, repeat = chip.control, chip.control.repeat
    for groups in _groupings(pieces):
        areas = tuple(_area(group, number) for number, group in enumerate(groups, 1))
        if control.host_bases == 0:
            areas = tuple(replace(area, base_register=0) for area in areas)
        elif len(areas) > control.host_bases:
            continue
        used = max((area.base_register for area in areas), default=0)
        steps = sorted({(register_of(areas, s.first), s.step_bytes) for s in stepping})
        rows = len(find_row_accesses(placed, areas))
        if count is None and used + rows <= control.bases:
            return areas, None
        if count is None:
            continue
        if used + len(steps) <= control.bases and repeat is not None and count <= repeat.max_count:
            return areas, BatchLoop(count, tuple((*step, number) for number, step in enumerate(steps, used + 1)))
    if count is None:
        required = len(find_row_accesses(placed, ())) + min(1, control.host_bases)
        raise CompileError(
            f"{chip.name}: rows at computed places take {required} base registers; control.bases is {control.bases}"
        )
    steps = len({s.step_bytes for s in stepping}) + min(1, control.host_bases)
    raise CompileError(f"{chip.name}: a repeat of {count} with {steps} base registers is more than its control has")


def _groupings(pieces: Sequence[DramPiece]) -> Iterator[list[list[DramPiece]]]:
    """Yield groups of pieces that become one area each, ever fewer.

    First each piece is by itself. Then all ports are together, then all but the constants, then everything.
    """
    ports = [p for p in pieces if p.is_port]
    others = [p for p in pieces if not p.is_port]
    constants = [p for p in pieces if p.is_constant]
    mutable = [p for p in pieces if not p.is_constant]
    for groups in ([[p] for p in pieces], [ports, *([p] for p in others)], [mutable, constants], [[*pieces]]):
        yield [group for group in groups if group]


def _area(pieces: Sequence[DramPiece], register: int) -> DramArea:
    """Return the area of neighbouring pieces, from the first byte of the first to the end of the last.

    `register`: its base register.
    """
    first, last = pieces[0].first, pieces[-1].last
    return DramArea(tuple(h for piece in pieces for h in piece.holds), first, last - first, register)


def register_of(areas: Iterable[DramArea], address: int) -> int:
    """Return the base register of the area that holds a DRAM address; 0: none, or absolute addresses."""
    area = area_at(areas, address)
    return area.base_register if area is not None else 0


def area_at(areas: Iterable[DramArea], address: int) -> DramArea | None:
    """Return the area that holds a DRAM address, or None."""
    return next((a for a in areas if a.base <= address < a.end), None)


def find_row_accesses(placed: Sequence[PlacedOp], areas: Sequence[DramArea]) -> dict[tuple[Row, int], int]:
    """Return the first operation, by index, that reaches each computed row.

    Keys are (row, base register of the area that it is counted from).
    """
    register_rows: dict[tuple[Row, int], int] = {}
    for index, p in enumerate(placed):
        if p.row is not None and isinstance(p.op, Copy):
            reached = p.op.destination_address if p.op.destination_base else p.op.source_address
            register_rows.setdefault((p.row, register_of(areas, reached)), index)
    return register_rows


def use_base_registers(
    placed: Sequence[PlacedOp], areas: Sequence[DramArea], repeat: BatchLoop | None, stepping: Sequence[AddressStep], chip: Chip
) -> list[PlacedOp]:
    """Return the operations with base register and offset in place of each DRAM address of a copy or fill.

    `areas`, `repeat`: of `make_dram_areas`, `stepping` as it had them. `LoadBase` operations are inserted for computed
    rows, each as soon as its number is written. Accesses stay those of the first sample, with every area at its base.
    """
    rows = find_row_accesses(placed, areas)
    named = dict(zip(rows, range(max((area.base_register for area in areas), default=0) + 1, chip.control.bases + 1)))
    numbers = {} if repeat is None else {(source, step): number for source, step, number in repeat.steps}

    def reached(space: Space, address: int) -> tuple[int, int]:
        """(base register, address from there)."""
        area = area_at(areas, address) if space == Space.DRAM else None
        if area is None:
            return 0, address
        step = next((s.step_bytes for s in stepping if s.first <= address < s.last), None)
        offset = address - area.base if area.base_register else address
        return (area.base_register if step is None else numbers[area.base_register, step]), offset

    def moved(op: MachineOp, row: Row | None) -> MachineOp:
        if not isinstance(op, Copy | Fill):
            return op
        base, address = reached(op.destination_space, op.destination_address)
        changed = {"destination_base": base, "destination_address": address}
        if isinstance(op, Copy):
            changed["source_base"], changed["source_address"] = reached(op.source_space, op.source_address)
            if row is not None:
                end = "destination_base" if op.destination_base else "source_base"
                changed[end] = named[row, changed[end]]
        return replace(op, **changed) if changed["destination_base"] or changed.get("source_base") else op

    def read(row: Row, source: int, layer: int) -> PlacedOp:
        base, address = reached(row.space, row.address)
        base_load = LoadBase(0, named[row, source], source, 0, row.scale, row.limit, row.space, row.address, row.word_bytes)
        return PlacedOp(replace(base_load, address=address, address_base=base), layer, accesses(base_load, chip))

    loads: dict[int, list[PlacedOp]] = {}
    for (row, source), first in rows.items():
        load = read(row, source, placed[first].layer)
        writers = (i for i in range(first - 1, -1, -1) if any(conflict(a, b) for a in placed[i].accesses for b in load.accesses))
        loads.setdefault(next(writers, -1), []).append(load)
    done = [replace(p, op=moved(p.op, p.row)) for p in placed]
    return [*loads.get(-1, ()), *(q for i, p in enumerate(done) for q in (p, *loads.get(i, ())))]
