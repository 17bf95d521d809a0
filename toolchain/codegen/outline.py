"""Outline repeated instruction sequences: runs that are equal but for addresses become one block that is called.

It takes a linked region (`codegen.link`) on a machine with `block`, `return` and `call`, and makes its program shorter.
The program is cut into groups, each an operation with its waits and signals. A suffix array shows which runs of groups
come several times. Addresses that differ between the places are reached through base registers. The run becomes a block
at its first place and a call at the others. The front end dispatches the same operations, one for one.

For each block the _MOST_TRIED longest repeated runs are tried. A block has _LEAST_GROUPS groups or more, since a shorter one is
not worth its call. A `Place` is (base register, address from there). A `_Need` is (operation, name of its address, `Place` of it
at each place of the block).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from toolchain.codegen.model import Region
from toolchain.codegen.synchronise import SynchronisedProgram
from toolchain.errors import InternalError
from toolchain.hw.chip import Chip
from toolchain.isa import Machine, decode, encode
from toolchain.machine import (
    BlockBegin,
    BlockEnd,
    Call,
    ControlOp,
    End,
    LoadBase,
    MachineOp,
    SetBase,
    Signal,
    Wait,
    dispatch_program,
)

_MOST_TRIED = 256
_LEAST_GROUPS = 2
Place = tuple[int, int]
_Need = tuple[int, str, tuple[Place, ...]]


def find_repeats(ids: Sequence[int], least: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield (places, length) of every maximal run of at least `least` equal ids that occurs more than once.

    Places are start indices in no particular order, and may overlap. A run is maximal where every longer one occurs
    less often. These are the inner nodes of the suffix tree, from the suffix array and its longest common prefixes.
    """
    order = _suffixes(np.array(ids, np.int64))
    prefixes = _common(ids, order)
    open_: list[tuple[int, int]] = [(0, 0)]  # length, first suffix
    for i, length in enumerate((*prefixes, 0), 1):
        first = i - 1
        while open_[-1][0] > length:
            top, first = open_.pop()
            if top >= least:
                yield tuple(order[first:i].tolist()), top
        if open_[-1][0] < length:
            open_.append((length, first))


def _suffixes(ids: np.ndarray) -> np.ndarray:
    """Return the suffix array of `ids`, by prefix doubling (Manber and Myers)."""
    rank, length = np.unique(ids, return_inverse=True)[1].astype(np.int64), 1
    while True:
        next_rank = np.full(len(ids), -1, np.int64)
        next_rank[:-length] = rank[length:]
        order = np.lexsort((next_rank, rank))
        pairs = np.stack((rank[order], next_rank[order]))
        new = np.zeros(len(ids), np.int64)
        new[order[1:]] = np.cumsum((pairs[:, 1:] != pairs[:, :-1]).any(axis=0))
        if new.max() == len(ids) - 1 or length >= len(ids):
            return order
        rank, length = new, 2 * length


def _common(ids: Sequence[int], order: np.ndarray) -> list[int]:
    """Return the length of the common prefix of each pair of neighbours in the order (Kasai)."""
    count = len(ids)
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    prefix_lengths, matched = [0] * max(0, count - 1), 0
    suffixes, places = order.tolist(), place.tolist()
    for start in range(count):
        at = places[start]
        if at == 0:
            matched = 0
            continue
        other = suffixes[at - 1]
        while max(start, other) + matched < count and ids[start + matched] == ids[other + matched]:
            matched += 1
        prefix_lengths[at - 1] = matched
        matched = max(0, matched - 1)
    return prefix_lengths


@dataclass(frozen=True)
class _RepeatedRun:
    """A run of groups [first, first + count) that repeats at each of `places`, all of them indices of groups.

    `slots`: number of the register for (operation of the block, name of its address). `moved`: for each place the (base
    register, offset in bytes) that each register is set to, by number. `saving`: words of the program that the block saves.
    """

    places: tuple[int, ...]
    count: int
    slots: Mapping[tuple[int, str], int]
    moved: tuple[tuple[Place, ...], ...]
    saving: int


def outline_region(region: Region, machine: Machine) -> Region | None:
    """Return the region with a shorter program of blocks and calls; None where nothing makes it shorter.

    Its front end dispatches the same operations for the same layers. Raise InternalError where that check fails.
    """
    decoded = decode(region.program, machine.isa)
    outlined = outline_program(SynchronisedProgram(decoded.ops, region.op_layers), decoded.words, machine)
    program = encode(outlined.ops, machine.isa)
    if len(program) >= len(region.program):
        return None
    shorter = replace(region, program=program, op_layers=outlined.layers)
    if _run(region, decoded.ops, machine) != _run(shorter, outlined.ops, machine):
        raise InternalError(f"{machine.chip.name}: blocks that are called change what its front end dispatches")
    return shorter


def _run(region: Region, ops: Sequence[MachineOp], machine: Machine) -> list[tuple[MachineOp, int]]:
    """Return the dispatched operations with the layer of each."""
    flow = dispatch_program(machine.chip, ops, None, region.bases)
    named = (
        replace(op, **{base: 0 for base, _ in op.pair_bases_with_addresses()}) if op.pair_bases_with_addresses() else op
        for op in flow
    )
    return [(op, region.layer_of(flow, i)) for i, op in enumerate(named)]


@dataclass(frozen=True)
class _Costs:
    """Costs in words: setting a base register, a call, and register writes that a jump makes necessary again."""

    set_base: int
    call: int
    forgotten: int


def _costs(ops: Sequence[MachineOp], machine: Machine) -> _Costs:
    """Return the costs of registers and calls on this machine, measured by encoding them."""
    most = machine.chip.dram.size - 1
    sets = decode(encode([Call(0), SetBase(1, 0, 1), SetBase(1, 0, -most)], machine.isa), machine.isa).words
    kinds = {type(op): op for op in ops}
    fresh = sum(decode(encode([*kinds.values()], machine.isa), machine.isa).words)
    return _Costs(sets[2], sets[0], fresh - len(kinds) if machine.isa.kind == "registers" else 0)


def outline_program(program: SynchronisedProgram, words: Sequence[int], machine: Machine) -> SynchronisedProgram:
    """Return the outlined program, or the program itself where no call pays or the machine has no calls.

    `words`: number of instruction words of each operation. Blocks are chosen greedily, the one that saves most words
    first.
    """
    control, used = machine.chip.control, _bases_used(program.ops)
    call = control.call
    if call is None:
        return program
    groups = _Groups(program, words, _costs(program.ops, machine), machine.chip)
    chosen_runs: list[_RepeatedRun] = []
    while len(chosen_runs) < call.blocks:
        best = max(groups.list_runs(control.bases - used), key=lambda f: f.saving, default=None)
        if best is None or best.saving <= 0:
            break
        chosen_runs.append(best)
        groups.take(best)
    return _Writer(program, groups.starts, chosen_runs, used).written() if chosen_runs else program


def _bases_used(ops: Sequence[MachineOp]) -> int:
    """Return the highest base register that the operations use, 0 for none."""
    named = (getattr(op, base) for op in ops for base, _ in op.pair_bases_with_addresses())
    return max((*named, *(op.base for op in ops if isinstance(op, SetBase | LoadBase))), default=0)


class _Groups:
    """A program as groups: operations that a block holds or leaves out together, which are an operation with its waits
    and signals.

    `starts`: index of the first operation of each group, and the end of all.
    """

    def __init__(self, program: SynchronisedProgram, words: Sequence[int], costs: _Costs, chip: Chip):
        ops, self._layers, self._costs = program.ops, program.layers, costs
        self._movable = {kind: _movable(kind, chip) for kind in {type(op) for op in ops}}
        self._ops = ops
        group_starts = [i for i, op in enumerate(ops) if not i or not (isinstance(ops[i - 1], Wait) or isinstance(op, Signal))]
        self.starts = [*group_starts, len(ops)]
        self._words = [sum(words[a:b]) for a, b in self._spans()]
        number_by_key: dict[object, int] = {}
        self._ids = [number_by_key.setdefault(self._get_group_key(g), len(number_by_key)) for g in range(len(group_starts))]

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Return (first, end) of the operations of each group."""
        return zip(self.starts, self.starts[1:])

    def _get_group_key(self, group: int) -> object:
        """Return a key that is equal for groups that may be one in a block.

        Groups with operations of the front end, `load_base` or the end equal no other.
        """
        first, last = self.starts[group], self.starts[group + 1]
        ops = self._ops[first:last]
        if any(isinstance(op, ControlOp | LoadBase | End) for op in ops):
            return group
        before = self._layers[first - 1] if first else -1
        steps = tuple(layer - before for layer in self._layers[first:last])
        return steps, tuple((type(op), self._list_fixed_values(op)) for op in ops)

    def _list_fixed_values(self, op: MachineOp) -> tuple[int, ...]:
        """Return the values of all parameters but the addresses that base registers move, and these registers."""
        moved = {name for pair in self._movable[type(op)] for name in pair}
        return tuple(int(getattr(op, name)) for name in op.parameters() if name not in moved)

    def take(self, run: _RepeatedRun) -> None:
        """Mark the groups of a block or call as used, so that they join no other."""
        fresh = max(self._ids) + 1
        for place in run.places:
            for group in range(place, place + run.count):
                self._ids[group], fresh = fresh, fresh + 1

    def list_runs(self, registers: int) -> Iterator[_RepeatedRun]:
        """Yield runs that repeat, each with the part that saves most words with `registers`, and with halves, quarters
        and so on of them.

        The saving may be 0.
        """
        candidate_runs = {
            run for places, count in find_repeats(self._ids, _LEAST_GROUPS) for run in _list_disjoint_runs(places, count)
        }
        for places, count in sorted(candidate_runs, key=lambda r: (-(len(r[0]) - 1) * r[1], r))[:_MOST_TRIED]:
            needs = [self._list_moved_addresses(places, g) for g in range(count)]
            yield from (self._window(places, needs, registers >> part) for part in range(registers.bit_length() + 1))

    def _window(self, places: Sequence[int], needs: Sequence[Sequence[_Need]], registers: int) -> _RepeatedRun:
        """Return the part of a run that saves most with so many registers for its addresses; of length 0 where none
        saves.
        """
        vector_counts: Counter[tuple[Place, ...]] = Counter()
        best, first, words = (0, 0, 0), 0, 0
        for last, need in enumerate(needs):
            vector_counts.update(v for _, _, v in need)
            words += self._elsewhere(places, last)
            while len(vector_counts) > registers:
                for _, _, v in needs[first]:
                    vector_counts[v] -= 1
                    if not vector_counts[v]:
                        del vector_counts[v]
                words -= self._elsewhere(places, first)
                first += 1
            if last + 1 - first >= _LEAST_GROUPS:
                costs = self._costs
                each = len(vector_counts) * costs.set_base + costs.call + costs.forgotten
                best = max(best, (words - len(places) * each - costs.call - costs.forgotten, first, last + 1))
        saving, first, last = best
        return self._make_run([p + first for p in places], last - first, needs[first:last], saving)

    def _elsewhere(self, places: Sequence[int], offset: int) -> int:
        """Return the words of one group of the run at all places but the first, where it stays."""
        return sum(self._words[p + offset] for p in places[1:])

    def _make_run(self, places: Sequence[int], count: int, needs: Sequence[Sequence[_Need]], saving: int) -> _RepeatedRun:
        """Return a run with the registers for its addresses: addresses that move equally share one."""
        vectors = list(dict.fromkeys(v for need in needs for _, _, v in need))
        base = self.starts[places[0]]
        slots = {(op - base, address): vectors.index(v) for need in needs for op, address, v in need}
        moved = tuple(tuple(v[k] for v in vectors) for k in range(len(places)))
        return _RepeatedRun(tuple(places), count, slots, moved, saving)

    def _list_moved_addresses(self, places: Sequence[int], offset: int) -> list[_Need]:
        """Return what a register must move in one group of a run: each address that differs between the places.

        Each entry is (operation, name of the address, its base register and its distance from the first place's, by
        place).
        """
        moved_addresses: list[_Need] = []
        starts = [self.starts[p + offset] for p in places]
        for i in range(self.starts[places[0] + offset + 1] - starts[0]):
            ops = [self._ops[s + i] for s in starts]
            for base, address in self._movable[type(ops[0])]:
                first_address = getattr(ops[0], address)
                vector = tuple((getattr(op, base), getattr(op, address) - first_address) for op in ops)
                if len({*vector}) > 1:
                    moved_addresses.append((starts[0] + i, address, vector))
        return moved_addresses


def _movable(kind: type[MachineOp], chip: Chip) -> tuple[tuple[str, str], ...]:
    """Return (name of the base register, name of the address) for each address that a base register can move on this
    machine.
    """
    return tuple((base, address) for base, address in kind.pair_bases_with_addresses() if kind.need(base, chip).high)


def _list_disjoint_runs(places: Sequence[int], count: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield (places, length) of runs whose places do not overlap, with two places or more.

    One has the whole run at as many places as there is room for. Where places overlap, as layers repeat one after the
    other, another has only the part between neighbours, at all of them.
    """
    places = sorted(places)
    least = min((b - a for a, b in pairwise(places)), default=count)
    for length in sorted({count, min(count, least)}):
        disjoint_places: list[int] = []
        for place in places:
            if not disjoint_places or place >= disjoint_places[-1] + length:
                disjoint_places.append(place)
        if len(disjoint_places) > 1 and length >= _LEAST_GROUPS:
            yield tuple(disjoint_places), length


class _Writer:
    """The program with blocks and calls. They use the base registers from `used` + 1 on."""

    def __init__(self, program: SynchronisedProgram, starts: Sequence[int], runs: Sequence[_RepeatedRun], used: int):
        self._program, self._starts, self._used = program, starts, used
        self._at = {place: (number, k) for number, f in enumerate(runs) for k, place in enumerate(f.places)}
        self._runs = runs

    def written(self) -> SynchronisedProgram:
        """Return the program with a block at the first place of each run, and calls at the others."""
        ops: list[MachineOp] = []
        layers: list[int] = []
        group = 0
        while group < len(self._starts) - 1:
            number, k = self._at.get(group, (-1, 0))
            count = self._runs[number].count if number >= 0 else 1
            first, last = self._starts[group], self._starts[group + count]
            group_ops = [*self._program.ops[first:last]]
            group_layers = [*self._program.layers[first:last]]
            if number >= 0:
                head: list[MachineOp] = [
                    SetBase(self._used + 1 + i, base, offset) for i, (base, offset) in enumerate(self._runs[number].moved[k])
                ]
                head.append(Call(number) if k else BlockBegin(number))
                group_ops = head if k else [*head, *self._name_registers(group_ops, self._runs[number]), BlockEnd()]
                group_layers = [group_layers[0]] * len(head) + ([] if k else [*group_layers, group_layers[-1]])
            ops += group_ops
            layers += group_layers
            group += count
        return SynchronisedProgram(tuple(ops), tuple(layers))

    def _name_registers(self, ops: Sequence[MachineOp], run: _RepeatedRun) -> Iterator[MachineOp]:
        """Yield the operations with the registers of the addresses that move."""
        for i, op in enumerate(ops):
            named = {base: self._used + 1 + run.slots[i, a] for base, a in op.pair_bases_with_addresses() if (i, a) in run.slots}
            yield replace(op, **named) if named else op
