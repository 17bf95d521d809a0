"""The test cases of the DMA's moves, copy and fill.

A draw places operands and appends operations to the `CaseBuilder` it is given. `CASES` has a function for each
operation that yields (name of the case, draw).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

from toolchain.hw import Chip
from toolchain.machine import Copy, Fill, Space
from toolchain.machine.operations.move import MOST_DIMENSIONS
from toolchain.vectors.case import Draw
from toolchain.vectors.case_builder import CaseBuilder, NotApplicable

COUNTS = (2, 3, 2, 3)  # of a move of all dimensions, the outermost first
NAMES = ("_outer", "0", "1", "2")


def _make_strides(bench: CaseBuilder, dimensions: int, run: int, step: int = 1) -> tuple[dict[str, int], list[int], int]:
    """Return (counts by parameter, strides that leave gaps, bytes from the first to the last) of a move.

    `run`: bytes of a contiguous run. `dimensions`: counts above 1 around it.
    `step`: a larger one widens the gaps, so that two sides differ.
    """
    counts = [1] * (MOST_DIMENSIONS - dimensions) + list(COUNTS[MOST_DIMENSIONS - dimensions :])
    strides, span = [0] * MOST_DIMENSIONS, run
    for at in reversed(range(MOST_DIMENSIONS - dimensions, MOST_DIMENSIONS)):
        strides[at] = span + step * (at + 1)
        span += (counts[at] - 1) * strides[at]
    return {f"count{name}": n for name, n in zip(NAMES, counts)}, strides, span


def _spaces(bench: CaseBuilder, channel: int, *spaces: int) -> None:
    """Raise NotApplicable where the channel does not reach these memories."""
    if not bench.unit(Copy, channel).reach.issuperset(spaces):
        raise NotApplicable("the channel does not reach the memory")


def copied(bench: CaseBuilder, channel: int, source: int, target: int, dimensions: int, run: int) -> None:
    """A copy; strides of both sides leave gaps, and differ."""
    _spaces(bench, channel, source, target)
    counts, strides, span = _make_strides(bench, dimensions, run)
    _, wider, wide = _make_strides(bench, dimensions, run, 3)
    f: dict[str, Any] = {"channel": channel, "inner_bytes": run, **counts}
    f |= {"source_space": Space(source), "destination_space": Space(target)}
    f |= {f"source_stride{name}": s for name, s in zip(NAMES, strides)}
    f |= {f"destination_stride{name}": s for name, s in zip(NAMES, wider)}
    f["source_address"] = bench.block(source, bench.rng.bytes(span))
    bench.add(Copy, **f, destination_address=bench.room(target, wide))


def repeated(bench: CaseBuilder) -> None:
    """A source stride of 0: one run, several times."""
    counts, strides, span = _make_strides(bench, 1, 5)
    f = {"source_space": Space.DRAM, "destination_space": Space.SRAM, "inner_bytes": 5, **counts}
    f |= {"source_address": bench.block(0, bench.rng.bytes(5)), "destination_address": bench.room(1, span)}
    bench.add(Copy, **f, destination_stride2=strides[3])


def long(bench: CaseBuilder) -> None:
    """A long run; many runs, of one byte each."""
    f: dict[str, Any] = {"source_space": Space.DRAM, "destination_space": Space.SRAM}
    for run, counts in ((70_000, {}), (1, {"count2": 3000}), (1, {"count2": 2, "count1": 2000})):
        size = run * max(counts.values(), default=1) * (2 if len(counts) > 1 else 1)
        strides = {"source_stride2": 1, "destination_stride2": 1, "source_stride1": 2, "destination_stride1": 2}
        used = {name: stride for name, stride in strides.items() if f"count{name[-1]}" in counts}
        source, target = bench.block(0, bench.rng.bytes(size)), bench.room(1, size)
        bench.add(Copy, **f, **counts, **used, inner_bytes=run, source_address=source, destination_address=target)


def largest_strides(bench: CaseBuilder) -> None:
    """A copy of four bytes with the largest strides; counts are 1, so no stride is taken."""
    f: dict[str, Any] = {"source_space": Space.DRAM, "destination_space": Space.SRAM, "inner_bytes": 4}
    for side in ("source", "destination"):
        f |= {f"{side}_stride{n}": Copy.need(f"{side}_stride{n}", bench.chip).high for n in NAMES}
    bench.add(Copy, **f, source_address=bench.block(0, bench.rng.bytes(4)), destination_address=bench.room(1, 4))


def turned(bench: CaseBuilder, number: int) -> None:
    """A copy that transposes. `number`: index of the elements' type in `chip.code_types`."""
    size = bench.type(number).size_bytes
    rows, columns = 5, 7
    f = {"source_space": Space.DRAM, "destination_space": Space.SRAM, "inner_bytes": columns * size, "count2": rows}
    f |= {"transpose": 1, "element_type": number, "source_stride2": (columns + 1) * size}
    f |= {
        "destination_stride2": (rows + 2) * size,
        "source_address": bench.block(0, bench.rng.bytes(rows * (columns + 1) * size)),
    }
    bench.add(Copy, **f, destination_address=bench.room(1, columns * (rows + 2) * size))


def _copies(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    for channel, unit in enumerate(chip.of_kind("dma")):
        for source, target in product(sorted(unit.reach), repeat=2):
            draw = partial(copied, channel=channel, source=source, target=target)
            name = f"{chip.spaces[source].name}_to_{chip.spaces[target].name}_on_{unit.name}"
            yield name, partial(draw, dimensions=0, run=17)
            yield f"{name}_at_end", partial(draw, dimensions=1, run=6)
            if {source, target} == {Space.DRAM, Space.SRAM}:
                yield f"{name}_strided", partial(draw, dimensions=unit.dma.dimensions, run=3)
                yield f"{name}_byte", partial(draw, dimensions=0, run=1)
    yield "repeated", repeated
    yield "largest_strides", largest_strides
    yield "long", long
    for number in range(len(chip.code_types)):
        yield f"turned_{number}", partial(turned, number=number)


def filled(bench: CaseBuilder, channel: int, space: int, value: str, number: int) -> None:
    """A fill with one code.

    `value`: `low` or `high`, the least or largest code, or `some`, one between.
    `number`: index of the code's type in `chip.code_types`.
    """
    _spaces(bench, channel, space)
    codes = bench.type(number)
    counts, strides, span = _make_strides(bench, bench.unit(Fill, channel).dma.dimensions, 3 * codes.size_bytes, codes.size_bytes)
    f: dict[str, Any] = {"channel": channel, "destination_space": Space(space), "inner_elements": 3, **counts}
    f |= {f"destination_stride{name}": s for name, s in zip(NAMES, strides)}
    chosen = {"low": codes.low, "high": codes.high, "some": codes.low + (codes.high - codes.low) // 3}[value]
    bench.add(Fill, **f, value=chosen, element_type=number, destination_address=bench.room(space, span))


def many(bench: CaseBuilder) -> None:
    """A long run; many runs, of one code each."""
    size = bench.type(0).size_bytes
    for inner, count in ((40_000 // size, 1), (1, 3000)):
        f = {"destination_space": Space.SRAM, "inner_elements": inner, "count2": count, "value": bench.type(0).low + 1}
        bench.add(
            Fill, **f, destination_stride2=size if count > 1 else 0, destination_address=bench.room(1, inner * count * size)
        )


def stretched(bench: CaseBuilder) -> None:
    """The largest strides, of counts of 1."""
    f: dict[str, Any] = {f"destination_stride{n}": Fill.need(f"destination_stride{n}", bench.chip).high for n in NAMES}
    f |= {"destination_space": Space.SRAM, "inner_elements": 1, "value": bench.type(0).high}
    bench.add(Fill, **f, destination_address=bench.room(1, bench.type(0).size_bytes))


def _fills(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    for channel, unit in enumerate(chip.of_kind("dma")):
        for space in sorted(unit.reach):
            name = f"{chip.spaces[space].name}_on_{unit.name}"
            yield f"{name}_some", partial(filled, channel=channel, space=space, value="some", number=0)
            yield f"{name}_at_end", partial(filled, channel=channel, space=space, value="high", number=0)
    yield "many", many
    yield "largest_strides", stretched
    for number in range(len(chip.code_types)):
        yield f"least_of_type_{number}", partial(filled, channel=0, space=1, value="low", number=number)
        yield f"largest_of_type_{number}", partial(filled, channel=0, space=1, value="high", number=number)


CASES = {Copy: _copies, Fill: _fills}
