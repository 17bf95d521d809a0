"""Signals and waits that order every two operations which touch the same bytes, one of them writing.

Engines are in order and run side by side. For every operation the latest conflicting one on each other engine is found;
what the engine does not know to be over yet (vector clocks) gets a signal behind it and a wait in front. A semaphore
serves one pair of engines, so that its k-th wait answers its k-th signal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolchain.codegen.lower import Placed
from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.isa.accesses import Access
from toolchain.isa.operations import End, MachineOp, Signal, Space, Wait, engine_index, engine_names

_GRANULE_BYTES = {Space.DRAM: 64, Space.SRAM: 16}


@dataclass(frozen=True)
class Synchronised:
    """A whole program: operations, and the layer each belongs to (-1: none)."""

    ops: tuple[MachineOp, ...]
    layers: tuple[int, ...]


def synchronise(placed: Sequence[Placed], chip: Chip, mutable_dram_bytes: int) -> Synchronised:
    """placed: in program order, which defines what the program means. DRAM from `mutable_dram_bytes` on is only read."""
    engines = len(engine_names(chip.engines.dma.channels))
    needs = _dependencies(placed, chip, engines, mutable_dram_bytes)
    signals: dict[int, list[int]] = {}
    for consumer, (_, sources) in enumerate(needs):
        for source in sources:
            signals.setdefault(source, []).append(consumer)
    return _assemble(placed, needs, signals, chip, engines)


def _dependencies(placed: Sequence[Placed], chip: Chip, engines: int, mutable_dram_bytes: int) -> list[tuple[int, list[int]]]:
    """For each operation its engine and the operations it must wait for by semaphore."""
    history = _History(chip, engines, mutable_dram_bytes)
    clocks = np.full((engines, engines), -1, np.int64)  # clocks[e][p]: last operation of p that e knows to be over
    known: list[np.ndarray] = []
    limit = chip.sync.max_count
    found: list[tuple[int, list[int]]] = []
    channels = _Channels(engines, limit)
    for index, item in enumerate(placed):
        engine = engine_index(item.op)
        assert engine is not None
        latest = history.latest(item.accesses)
        sources = []
        for other in range(engines):
            source = int(latest[other])
            if other != engine and source > clocks[engine][other]:
                sources.append(source)
        # The latest first: what it knows may make the others needless.
        kept = []
        for source in sorted(sources, reverse=True):
            other = found[source][0]
            if source > clocks[engine][other]:
                kept.append(source)
                np.maximum(clocks[engine], known[source], out=clocks[engine])
                channels.note(other, engine, source, index)
        history.record(item.accesses, engine, index)
        clocks[engine][engine] = index
        known.append(clocks[engine].copy())
        found.append((engine, sorted(kept)))
    channels.require(known, chip)
    return found


class _Channels:
    """How many signals of each pair of engines may be outstanding at once."""

    def __init__(self, engines: int, limit: int):
        self._limit = limit
        self._pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def note(self, source_engine: int, engine: int, source: int, consumer: int) -> None:
        self._pairs.setdefault((source_engine, engine), []).append((source, consumer))

    def require(self, known: Sequence[np.ndarray], chip: Chip) -> None:
        """A signal is safe when its engine knows that the wait `max_count` before it is over."""
        if len(self._pairs) > chip.sync.semaphores:
            raise CompileError(
                f"{chip.name}: the program needs {len(self._pairs)} semaphores, one for each pair of engines that meet; "
                f"sync.semaphores is {chip.sync.semaphores}"
            )
        for (_, engine), pairs in sorted(self._pairs.items()):
            for (source, _), (_, consumer) in zip(pairs[self._limit :], pairs):
                if known[source][engine] < consumer:
                    raise CompileError(
                        f"{chip.name}: more than sync.max_count={self._limit} signals of one semaphore may be outstanding"
                    )


class _History:
    """The last operation of each engine that wrote or read each granule of memory."""

    def __init__(self, chip: Chip, engines: int, mutable_dram_bytes: int):
        sizes = {Space.DRAM: mutable_dram_bytes, Space.SRAM: chip.memories.sram.size}
        self._engines = engines
        self._limits = sizes
        self._writes = {s: self._table(n, s) for s, n in sizes.items()}
        self._reads = {s: self._table(n, s) for s, n in sizes.items()}

    def _table(self, size_bytes: int, space: Space) -> np.ndarray:
        return np.full((self._engines, size_bytes // _GRANULE_BYTES[space] + 2), -1, np.int32)

    def _span(self, access: Access) -> slice | None:
        if access.space == Space.DRAM and access.address >= self._limits[Space.DRAM]:
            return None
        granule = _GRANULE_BYTES[access.space]
        return slice(access.address // granule, (access.end - 1) // granule + 1)

    def latest(self, touched: Sequence[Access]) -> np.ndarray:
        """int[engines]: the latest operation of each that conflicts, -1 for none."""
        found = np.full(self._engines, -1, np.int32)
        for access in touched:
            span = self._span(access)
            if span is None:
                continue
            np.maximum(found, self._writes[access.space][:, span].max(1), out=found)
            if access.write:
                np.maximum(found, self._reads[access.space][:, span].max(1), out=found)
        return found

    def record(self, touched: Sequence[Access], engine: int, index: int) -> None:
        for access in touched:
            span = self._span(access)
            if span is not None:
                (self._writes if access.write else self._reads)[access.space][engine, span] = index


def _assemble(
    placed: Sequence[Placed],
    needs: Sequence[tuple[int, list[int]]],
    signals: dict[int, list[int]],
    chip: Chip,
    engines: int,
) -> Synchronised:
    pairs = sorted({(needs[s][0], needs[c][0]) for s, consumers in signals.items() for c in consumers})
    number = {pair: i for i, pair in enumerate(pairs)}
    ops: list[MachineOp] = []
    layers: list[int] = []
    for index, item in enumerate(placed):
        engine, sources = needs[index]
        before = [Wait(engine, number[needs[s][0], engine]) for s in sources]
        after = [Signal(engine, number[engine, needs[c][0]]) for c in signals.get(index, [])]
        ops += [*before, item.op, *after]
        layers += [item.layer] * (len(before) + 1 + len(after))
    return Synchronised((*ops, End()), (*layers, -1))
