"""The test cases of signals and waits, and of the end of a program.

A draw places operands and appends operations to the `CaseBuilder` it is given. `CASES` has a function for each
operation that yields (name of the case, draw). ROUNDS is how often a fill and a convolution take turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from toolchain.hw import Chip
from toolchain.machine import Convolution, End, Fill, Signal, Space, Wait
from toolchain.vectors.case import Draw
from toolchain.vectors.case_builder import CaseBuilder
from toolchain.vectors.draws.convolution_draws import add_window_operation
from toolchain.vectors.draws.weights import Window

ROUNDS = 3


def _fill_first_pixel(bench: CaseBuilder, op: Any, value: int) -> None:
    """Add a fill of the convolution's first input pixel with one code, on the first DMA channel."""
    space = bench.unit(Convolution).roles["input"]
    where: dict[str, Any] = {"destination_space": Space(space), "destination_address": op.input_address}
    bench.add(Fill, **where, inner_elements=op.input_channels, value=value)


def _queues(bench: CaseBuilder) -> tuple[int, int]:
    return bench.unit(Fill).queue, bench.unit(Convolution).queue


def ordered(bench: CaseBuilder, semaphore: int) -> None:
    """A fill, and a convolution that reads what it writes: a signal of the one, a wait of the other."""
    dma_queue, array = _queues(bench)
    op = add_window_operation(bench, Convolution, Window())
    bench.ops.clear()
    _fill_first_pixel(bench, op, bench.type(0).high)
    bench.add(Signal, engine=dma_queue, semaphore=semaphore)
    bench.add(Wait, engine=array, semaphore=semaphore)
    bench.ops.append(op)


def to_and_fro(bench: CaseBuilder) -> None:
    """ROUNDS rounds of a fill and a convolution that reads it; each waits for the other, on two semaphores."""
    dma_queue, array = _queues(bench)
    first, second = 0, bench.chip.sync.semaphores - 1
    window_ops = [add_window_operation(bench, Convolution, Window(size=(2, 2), output=(2, 2))) for _ in range(ROUNDS)]
    bench.ops.clear()
    for turn, op in enumerate(window_ops):
        if turn:
            bench.add(Wait, engine=dma_queue, semaphore=second)
        _fill_first_pixel(bench, op, bench.type(0).low + turn)
        bench.add(Signal, engine=dma_queue, semaphore=first)
        bench.add(Wait, engine=array, semaphore=first)
        bench.ops.append(op)
        if turn < ROUNDS - 1:
            bench.add(Signal, engine=array, semaphore=second)


def counted(bench: CaseBuilder) -> None:
    """Draw as many signals as a semaphore can count, at most 20, then as many waits."""
    dma_queue, array = _queues(bench)
    op = add_window_operation(bench, Convolution, Window())
    bench.ops.clear()
    _fill_first_pixel(bench, op, bench.type(0).low)
    count = min(bench.chip.sync.max_count, 20)
    for engine, kind in ((dma_queue, Signal), (array, Wait)):
        for _ in range(count):
            bench.add(kind, engine=engine, semaphore=1)
    bench.ops.append(op)


def nothing(bench: CaseBuilder) -> None:
    """A program that ends at once; the memories keep what they hold."""
    bench.block(Space.DRAM, bench.rng.bytes(4))
    bench.block(Space.SRAM, bench.rng.bytes(4))


def drained(bench: CaseBuilder) -> None:
    """The end stands behind operations that still run: it waits for all of them."""
    add_window_operation(bench, Convolution, Window())
    address = bench.room(Space.SRAM, 16)
    f = {"destination_space": Space.SRAM, "inner_elements": 16 // bench.type(0).size_bytes, "value": bench.type(0).low}
    bench.add(Fill, **f, destination_address=address)


def _waits(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    yield "first_semaphore", partial(ordered, semaphore=0)
    yield "last_semaphore", partial(ordered, semaphore=chip.sync.semaphores - 1)
    yield "to_and_fro", to_and_fro


def _signals(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    yield "ordered", partial(ordered, semaphore=chip.sync.semaphores // 2)
    yield "counted", counted


def _ends(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    yield "nothing", nothing
    yield "drained", drained


CASES = {Wait: _waits, Signal: _signals, End: _ends}
