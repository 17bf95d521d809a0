"""The program of one sample, repeated over a batch: base registers step the addresses of what lies in DRAM sample by sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from toolchain.codegen.lower import Placed
from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.machine import Again, Copy, End, Fill, MachineOp, Repeat, SetBase, Space


@dataclass(frozen=True)
class Stepping:
    """DRAM bytes [first, last) of the first sample; those of the next lie last - first behind."""

    first: int
    last: int

    @property
    def step_bytes(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class Repeated:
    """How often the program runs, and the base register of each step."""

    count: int
    bases: tuple[tuple[int, int], ...]  # step in bytes, number


def repeated(count: int, stepping: Iterable[Stepping], chip: Chip) -> Repeated:
    """Raises CompileError where the machine cannot repeat so often, or has too few base registers."""
    repeat, steps = chip.control.repeat, sorted({s.step_bytes for s in stepping})
    if repeat is None or repeat.max_count < count or chip.control.bases < len(steps):
        raise CompileError(f"{chip.name}: a repeat of {count} with {len(steps)} base registers is more than its control has")
    return Repeated(count, tuple((step, number) for number, step in enumerate(steps, 1)))


def based(placed: Sequence[Placed], repeat: Repeated, stepping: Sequence[Stepping]) -> list[Placed]:
    """Moves that reach what steps name its base register; their accesses stay those of the first sample."""
    numbers = dict(repeat.bases)

    def base(space: Space, address: int) -> int:
        return next((numbers[s.step_bytes] for s in stepping if space == Space.DRAM and s.first <= address < s.last), 0)

    def moved(op: MachineOp) -> MachineOp:
        if not isinstance(op, Copy | Fill):
            return op
        target = base(op.destination_space, op.destination_address)
        source = base(op.source_space, op.source_address) if isinstance(op, Copy) else 0
        if not (source or target):
            return op
        named = {"source_base": source} if isinstance(op, Copy) else {}
        return replace(op, destination_base=target, **named)

    return [replace(p, op=moved(p.op)) for p in placed]


def framed(ops: Sequence[MachineOp], layers: Sequence[int], repeat: Repeated) -> tuple[tuple[MachineOp, ...], tuple[int, ...]]:
    """ops: of one sample, at whose end every engine knows that all of them are over. layers: of each."""
    head = [Repeat(repeat.count)]
    tail = [*(SetBase(number, number, step) for step, number in repeat.bases), Again(), End()]
    return (*head, *ops, *tail), (*[-1] * len(head), *layers, *[-1] * len(tail))
