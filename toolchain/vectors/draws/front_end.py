"""The test cases of operations that the front end carries out: base registers, repeats, blocks; and of load_base.

A draw places operands and appends operations to the `CaseBuilder` it is given. `CASES` has a function for each
operation that yields (name of the case, draw). Draws raise NotApplicable where the machine has no base registers. Number 0
stands for no register.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from toolchain.hw import Chip
from toolchain.machine import BlockBegin, BlockEnd, Call, Copy, LoadBase, Repeat, RepeatEnd, SetBase, Space
from toolchain.vectors.case import Draw
from toolchain.vectors.case_builder import CaseBuilder, NotApplicable

RUN = 4  # bytes that each copy moves


def _base(bench: CaseBuilder) -> int:
    """Return the number of the last base register. Raise NotApplicable where there is none."""
    if not bench.chip.control.bases:
        raise NotApplicable("no base registers")
    return bench.chip.control.bases


def _bytes(bench: CaseBuilder, runs: int) -> tuple[int, int]:
    """Return the addresses of `runs` runs of random bytes in DRAM, and of room for them in the SRAM."""
    return bench.block(Space.DRAM, bench.rng.bytes(runs * RUN)), bench.room(Space.SRAM, runs * RUN)


def _copy(bench: CaseBuilder, source: int, target: int, **bases: int) -> None:
    f: dict[str, Any] = {"source_space": Space.DRAM, "source_address": source, "destination_space": Space.SRAM}
    bench.add(Copy, **f, destination_address=target, inner_bytes=RUN, **bases)


def based(bench: CaseBuilder) -> None:
    """Base registers, set from nothing, from one another and by less than 0, are added to both addresses of a copy."""
    base = _base(bench)
    source, target = _bytes(bench, 3)
    bench.add(SetBase, base=base, source=0, offset=2 * RUN)
    _copy(bench, source, target, source_base=base)
    bench.add(SetBase, base=1, source=base, offset=-RUN)
    _copy(bench, source, target, destination_base=1)
    _copy(bench, source, target + RUN, source_base=1, destination_base=1)


def repeated(bench: CaseBuilder, count: int) -> None:
    """A body that moves a base register on."""
    base = _base(bench)
    source, target = _bytes(bench, count)
    bench.add(SetBase, base=base, source=0, offset=0)
    bench.add(Repeat, count=count)
    _copy(bench, source, target, source_base=base, destination_base=base)
    bench.add(SetBase, base=base, source=base, offset=RUN)
    bench.add(RepeatEnd)


def nested(bench: CaseBuilder) -> None:
    """Repeats as deep inside one another as the machine allows, at most three."""
    base, depth = _base(bench), min(3, bench.chip.control.repeat.depth if bench.chip.control.repeat else 1)
    source, target = _bytes(bench, 2**depth)
    for _ in range(depth):
        bench.add(Repeat, count=2)
    _copy(bench, source, target, source_base=base, destination_base=base)
    bench.add(SetBase, base=base, source=base, offset=RUN)
    for _ in range(depth):
        bench.add(RepeatEnd)


def called(bench: CaseBuilder, block: int) -> None:
    """A block runs where it is met, and at each call."""
    base = _base(bench)
    source, target = _bytes(bench, 3)
    bench.add(BlockBegin, block=block)
    _copy(bench, source, target, source_base=base, destination_base=base)
    bench.add(BlockEnd)
    for _ in range(2):
        bench.add(SetBase, base=base, source=base, offset=RUN)
        bench.add(Call, block=block)


def read(bench: CaseBuilder, word_bytes: int, value: int) -> None:
    """A number in memory, times a size, is where a copy reads; what lies outside of 0 to the limit counts as the nearest."""
    base, limit = _base(bench), 5
    source, target = bench.block(Space.DRAM, bench.rng.bytes((limit + 1) * RUN)), bench.room(Space.SRAM, RUN)
    word = bench.block(Space.DRAM, value.to_bytes(word_bytes, "little", signed=True), word_bytes)
    f: dict[str, Any] = {"base": base, "source": 0, "offset": 0, "scale": RUN, "limit": limit, "word_bytes": word_bytes}
    bench.add(LoadBase, **f, space=Space.DRAM, address=word)
    _copy(bench, source, target, source_base=base)


def _repeats(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    yield "once", partial(repeated, count=1)
    yield "several_times", partial(repeated, count=5)
    yield "nested", nested


def _calls(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    yield "first_block", partial(called, block=0)
    yield "last_block", partial(called, block=chip.control.call.blocks - 1 if chip.control.call else 0)


def _reads(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    for word_bytes in (1, 2, 4):
        for value in (0, 3, 5, 6, 100, -1, -100):
            yield f"word_{word_bytes}_{value}".replace("-", "minus"), partial(read, word_bytes=word_bytes, value=value)


def _bases(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    yield "based", based


CASES = {
    SetBase: _bases,
    Repeat: _repeats,
    RepeatEnd: _repeats,
    BlockBegin: _calls,
    Call: _calls,
    BlockEnd: _calls,
    LoadBase: _reads,
}
