"""Insert signals and waits, so that every two operations that touch a common byte, one of them writing, run in program
order.

This is the step between lowering and encoding. Engines run concurrently, each one in order. For every operation the
latest conflicting one on each other engine is found. Vector clocks show which of them the engine already knows to be
over. The rest get a signal after them and a wait in front of the operation.

A semaphore serves one ordered pair of engines, so that its k-th wait answers its k-th signal. On machines with few
semaphores only some pairs have one. The others are ordered by relays, a wait and a signal on engines in between.

Where a count could pass `sync.max_count`, the waiting engine answers by a semaphore of its own, and the next signal
waits for that answer. Every signal stands before its wait in program order, so nothing can block for good.

A program that is repeated ends with a barrier. One engine learns that the last operation of every other is over, and
signals all of them. So nothing of an iteration runs concurrently with the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from toolchain.codegen.access_history import AccessHistory
from toolchain.codegen.dram_areas import BatchLoop, wrap_batch_loop
from toolchain.codegen.lower import PlacedOp
from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.machine import End, MachineOp, Signal, Wait

Pair = tuple[int, int]  # engine that signals, engine that waits
_MOST_PERMUTED = 7  # engines whose rings are all compared. Measured: 1.2 ms of CPU; 8 take 9 ms, 9 take 73 ms


@dataclass(frozen=True)
class SynchronisedProgram:
    """A whole program: operations with signals, waits and the end, and the layer that each belongs to (-1: none)."""

    ops: tuple[MachineOp, ...]
    layers: tuple[int, ...]


@dataclass(frozen=True)
class _Event:
    """An operation on an engine's queue, or a relay in front of it.

    `item`: index among the placed operations. `waits`: indices of the events that it waits for by a semaphore.
    """

    engine: int
    item: int
    relay: bool
    waits: tuple[int, ...]


@dataclass(frozen=True)
class _Answer:
    """An order of events by index: the signal of `source` for `consumer` must first hear that the wait of `earlier` is
    over.
    """

    source: int
    consumer: int
    earlier: int


@dataclass(frozen=True)
class _Order:
    """Events in program order, and the answers of each pair of engines that needs any, in the order of their signals."""

    events: tuple[_Event, ...]
    answers: dict[Pair, tuple[_Answer, ...]]

    @property
    def pairs(self) -> Counter[Pair]:
        """Ordered pairs (engine that signals, engine that waits) that need a semaphore, with their number of signals."""
        return Counter((self.events[s].engine, e.engine) for e in self.events for s in e.waits)

    @property
    def semaphores(self) -> int:
        """The number of semaphores that this order takes."""
        return len(self.pairs) + len(self.answers)


def synchronise(
    placed: Sequence[PlacedOp], chip: Chip, mutable_dram_bytes: int, repeat: BatchLoop | None = None
) -> SynchronisedProgram:
    """Return the program with signals, waits and its end.

    `placed`: operations in program order, which defines what the program means; none of the front end, so that each has
    a queue. `mutable_dram_bytes`: DRAM from this address on is only read. `repeat`: the program is one sample's, and is
    wrapped in this loop. None: it runs once.

    Raise CompileError where even the fewest semaphores that can order the engines are more than the machine has. Raise
    it where a repeat meets `sync.max_count` 1.
    """
    if repeat is not None and chip.sync.max_count < 2:
        raise CompileError(f"{chip.name}: a repeat needs sync.max_count=2, for its barrier leaves a signal to the next iteration")
    order = _order_engines(placed, chip, mutable_dram_bytes, None, repeat is not None)
    links = _scarce_links(order, chip.sync.semaphores) if order.semaphores > chip.sync.semaphores else ()
    for some in links:
        order = _order_engines(placed, chip, mutable_dram_bytes, some, repeat is not None)
        if order.semaphores <= chip.sync.semaphores:
            break
    if order.semaphores > chip.sync.semaphores:
        used = ", ".join(chip.units[e].name for e in sorted({e for pair in order.pairs for e in pair}))
        answers = f" and {len(order.answers)} for answers, since sync.max_count is {chip.sync.max_count}" if order.answers else ""
        raise CompileError(
            f"{chip.name}: to order {used} takes at least {len(order.pairs)} semaphores{answers}; "
            f"sync.semaphores is {chip.sync.semaphores}: raise it to {order.semaphores}"
        )
    return _assemble(placed, order, repeat)


def _scarce_links(order: _Order, semaphores: int) -> Iterator[frozenset[Pair]]:
    """Yield sets of pairs with semaphores that still connect every engine with every other.

    The first has as many pairs as there may be semaphores, the most used ones. Each further one has one fewer, the last
    is a ring.
    """
    counts = order.pairs
    ring = _ring(counts, sorted({e for pair in counts for e in pair}))
    others = [pair for pair, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if pair not in ring]
    most = max(0, min(semaphores - len(ring), len(others)))
    for spare in range(most, -1, -1):
        yield frozenset([*ring, *others[:spare]])


def _ring(counts: Counter[Pair], engines: Sequence[int]) -> list[Pair]:
    """Return a cycle through all engines that uses the most used pairs.

    It is the best of all cycles for up to 7 engines. With more, each engine is followed by the one that it signals
    most.
    """
    if len(engines) <= _MOST_PERMUTED:
        ways = ((engines[0], *rest) for rest in permutations(engines[1:]))
        return max((_close_ring(way) for way in ways), key=lambda links: sum(counts[link] for link in links))
    way, unvisited = [engines[0]], list(engines[1:])
    while unvisited:
        way.append(max(unvisited, key=lambda e: counts[way[-1], e]))
        unvisited.remove(way[-1])
    return _close_ring(way)


def _close_ring(way: Sequence[int]) -> list[Pair]:
    """Return the pairs of neighbours in this order of engines, the last with the first."""
    return list(zip(way, (*way[1:], way[0])))


def _order_engines(
    placed: Sequence[PlacedOp], chip: Chip, mutable_dram_bytes: int, links: frozenset[Pair] | None, closed: bool
) -> _Order:
    """Return the events, with those that each operation must wait for by a semaphore.

    `links`: the pairs of engines that have a semaphore (None: all). `closed`: the program ends with a barrier.
    """
    engines = len(chip.units)
    queues = [p.op.queue(chip) for p in placed]
    history = AccessHistory([mutable_dram_bytes, *(space.memory.size for space in chip.spaces[1:])], engines)
    clocks = np.full((engines, engines), -1, np.int64)  # clocks[e][p]: last event of p that e knows to be over
    clock_by_event: list[np.ndarray] = []
    events: list[_Event] = []
    hops = _hops(links, engines)

    def happen(engine: int, item: int, relay: bool, waits: Sequence[int]) -> int:
        for source in waits:
            np.maximum(clocks[engine], clock_by_event[source], out=clocks[engine])
        clocks[engine][engine] = len(events)
        clock_by_event.append(clocks[engine].copy())
        events.append(_Event(engine, item, relay, tuple(sorted(waits))))
        return len(events) - 1

    def waits_for(engine: int, index: int, latest: Iterable[int]) -> list[int]:
        """The events to wait for, so that all of `latest` are known to be over (-1: nothing)."""
        clock, waits = clocks[engine].copy(), dict[int, int]()  # waits: one event an engine
        # The latest first: what it knows may make the others needless.
        for source in sorted((int(s) for s in latest), reverse=True):
            if source < 0 or events[source].engine == engine or source <= clock[events[source].engine]:
                continue
            for hop in hops.get((events[source].engine, engine), ()):
                hop_is_informed = source <= clocks[hop][events[source].engine]
                source = int(clocks[hop][hop]) if hop_is_informed else happen(hop, index, True, (source,))
            np.maximum(clock, clock_by_event[source], out=clock)
            waits[events[source].engine] = max(source, waits.get(events[source].engine, -1))
        return list(waits.values())

    for index, (engine, touched) in enumerate(zip(queues, (p.accesses for p in placed))):
        assert engine is not None
        waits = waits_for(engine, index, history.latest(touched, clocks[engine].tolist()))
        history.record(touched, engine, happen(engine, index, False, waits))
    if closed and placed:
        # The engine of the last operation knows most.
        end, hub = len(placed) - 1, events[-1].engine
        others = [e for e in range(engines) if e != hub and clocks[e][e] >= 0]
        hub_waits = waits_for(hub, end, [clocks[e][e] for e in others])
        last = happen(hub, end, True, hub_waits) if hub_waits else len(events) - 1
        for engine in others:
            end_waits = waits_for(engine, end, [last])
            if end_waits:
                happen(engine, end, True, end_waits)
    # The barrier's own signals may still stand when the next iteration begins, one of each pair.
    return _Order(tuple(events), _answers(events, clock_by_event, chip.sync.max_count - closed))


def _hops(links: frozenset[Pair] | None, engines: int) -> dict[Pair, tuple[int, ...]]:
    """Return the engines between two that have no semaphore of their own, by the fewest relays; empty where `links` is
    None.
    """
    hops_by_pair: dict[Pair, tuple[int, ...]] = {}
    for start in range(engines) if links is not None else ():
        ways: dict[int, tuple[int, ...]] = {start: ()}
        front = [start]
        for here in front:
            for _, neighbour in sorted(link for link in links or () if link[0] == here):
                if neighbour not in ways:
                    ways[neighbour] = (*ways[here], neighbour)
                    front.append(neighbour)
        hops_by_pair |= {(start, end): way[:-1] for end, way in ways.items() if end != start}
    return hops_by_pair


def _answers(events: Sequence[_Event], clock_by_event: Sequence[np.ndarray], limit: int) -> dict[Pair, tuple[_Answer, ...]]:
    """Return the signals that need an answer, by pair of engines.

    A signal is safe when its engine knows that the wait `limit` signals before it is over.
    """
    sent: dict[Pair, list[tuple[int, int]]] = {}
    for consumer, event in enumerate(events):
        for source in event.waits:
            sent.setdefault((events[source].engine, event.engine), []).append((source, consumer))
    answers = {
        pair: tuple(
            _Answer(source, consumer, earlier)
            for (source, consumer), (_, earlier) in zip(signals[limit:], signals)
            if clock_by_event[source][pair[1]] < earlier
        )
        for pair, signals in sorted(sent.items())
    }
    return {pair: pair_answers for pair, pair_answers in answers.items() if pair_answers}


def _assemble(placed: Sequence[PlacedOp], order: _Order, repeat: BatchLoop | None) -> SynchronisedProgram:
    """Write the events as operations with numbered semaphores, and the program's end or its loop."""
    events = order.events
    number = {pair: i for i, pair in enumerate(sorted(order.pairs))}
    answer_number = {pair: len(number) + i for i, pair in enumerate(order.answers)}
    answers = {(a.source, a.consumer): a for pair_answers in order.answers.values() for a in pair_answers}
    after: dict[int, list[MachineOp]] = {}
    answering: dict[tuple[int, int], int] = {}  # (event, engine whose signal it waits for) -> semaphore of the answer
    for consumer, event in enumerate(events):
        for source in event.waits:
            pair = (events[source].engine, event.engine)
            answer = answers.get((source, consumer))
            signals: list[MachineOp] = [Signal(pair[0], number[pair])]
            if answer is not None:
                answering[answer.earlier, pair[0]] = answer_number[pair]
                signals.insert(0, Wait(pair[0], answer_number[pair]))
            # A signal that waits for an answer stands behind it in program order.
            after.setdefault(source if answer is None else max(source, answer.earlier), []).extend(signals)
    ops: list[MachineOp] = []
    layers: list[int] = []
    for index, event in enumerate(events):
        before: list[MachineOp] = []
        for source in event.waits:
            pair = (events[source].engine, event.engine)
            before.append(Wait(event.engine, number[pair]))
            if (index, pair[0]) in answering:
                before.append(Signal(event.engine, answering[index, pair[0]]))
        item = placed[event.item]
        item_ops = [*before, *([] if event.relay else [item.op]), *after.get(index, [])]
        ops += item_ops
        layers += [item.layer] * len(item_ops)
    if repeat is not None:
        return SynchronisedProgram(*wrap_batch_loop(ops, layers, repeat))
    return SynchronisedProgram((*ops, End()), (*layers, -1))
