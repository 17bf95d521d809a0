"""Step through a prepared program by the numbers of its values, and merge what is part of one evaluation.

Every byte has a value number: an array, which says what made the byte, and a place in it. An evaluation is a layer's work
that its tiles cut up; later runs compute it in one numpy call. Copies only move numbers.
A window operation, one element by element or a product of matrices becomes a tile of an evaluation in two conditions.
Its constants are constant and its operands affine in one array each.
Where an operand lies in several arrays, another step through the program follows the places that bytes were copied from.
Every other operation stays single: its bytes are brought to where it reads them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.dram_ranges import DramRange, DramRangeKind
from simulator.merging.box_copies import ValueBox, boxes_of_access, boxes_of_bytes
from simulator.merging.evaluation_checks import is_one_operation
from simulator.merging.merged_program import MergedProgram, SingleOperation, build_merged_program
from simulator.merging.places import FIRST_PLACES, Places
from simulator.merging.pointwise import describe_pointwise, describe_product
from simulator.merging.sum_chains import SumChain, find_sum_chains
from simulator.merging.tiles import COLUMN, ROW, Evaluation, Memories, Readings, Tile
from simulator.merging.value_numbers import ARRAY_BITS, INITIAL, Numbers, ValueNumbers, array_of, box_of, forget_offsets
from simulator.merging.windows import InputPart, describe_window, read_input_part
from toolchain.hw.chip import Chip
from toolchain.machine import (
    Convolution,
    Copy,
    Elementwise,
    End,
    InstructionStream,
    MachineOp,
    MatrixProduct,
    Signal,
    Table,
    Wait,
    WindowOp,
    accesses,
)

_TRIED = 4  # evaluations of a kind that a tile is tried with, the latest first; measured: 1 to 16 merge the same in ResNet-50
_MOST_PASSES = 16  # measured: the networks of examples/networks take one; damaged programs take more
_MOST_SINGLES = 0.9  # of the operations; beyond it they run one by one. Measured: 32 of 41 in bert_tiny, in 0.7 of the time


def merge_program(
    chip: Chip, flow: InstructionStream, legal: Sequence[int], parts: Sequence[DramRange], dram: np.ndarray
) -> MergedProgram | None:
    """Return the program with its layers' tiles merged, or None where that saves little or cannot be proved.

    It is also None for programs that read addresses from memory. A merged run gives the same bytes as the program.

    `flow`: the operations with loops and calls written out. `legal`: their indices in an order that can run; the program has
    passed all rules. `parts`: the ranges of DRAM that hold constants, ports and states.
    `dram`: uint8 image with the constants in place; they are the same in all runs.
    """
    if flow.indirect:
        return None
    merger = _merge_by_numbers(chip, flow, legal, parts, dram.size)
    forget_offsets()  # some tens of MiB after ResNet-50
    if merger is None:
        return None
    merged = merger.list_evaluations()
    computed = sum(len(e.tiles) for e in merged) + len(merger.steps) - len(merged)
    if len(merger.steps) > _MOST_SINGLES * computed:
        return None
    stores = boxes_of_bytes(*merger.memories.values.list_written())
    constants = [(p.first, p.last) for p in parts if p.kind is DramRangeKind.CONSTANT]
    return build_merged_program(chip, merger.steps, stores, dram, constants)


def _merge_by_numbers(
    chip: Chip, flow: InstructionStream, legal: Sequence[int], parts: Sequence[DramRange], dram_bytes: int
) -> _Merger | None:
    """Step through the program until every evaluation is proved to be one operation. Return None where that takes long."""
    refused: set[int] = set()
    gathered: frozenset[Hashable] = frozenset()
    chains = find_sum_chains(chip, flow, legal)
    for _ in range(_MOST_PASSES):
        merger = _Merger(chip, dram_bytes, parts, chains, refused, gathered)
        if not all(merger.step(index, flow[index]) for index in legal):
            return None
        if not merger.memories.scattered <= gathered:
            gathered |= merger.memories.scattered
            continue
        merged, arrays = merger.list_evaluations(), merger.list_arrays()
        uneven = [e for e in merged if not is_one_operation(e, arrays)]
        if not uneven:
            return merger
        refused |= {p.tile.index for e in uneven for p in e.tiles}
    return None


def _describe_tile(index: int, op: MachineOp, memories: Memories) -> tuple[Tile, Readings] | None:
    if isinstance(op, WindowOp):
        return describe_window(index, op, memories)
    if isinstance(op, Elementwise | Table):
        return describe_pointwise(index, op, memories)
    return describe_product(index, op, memories) if isinstance(op, MatrixProduct) else None


@dataclass
class _Merger:
    """A step through a program.

    `chains`: the chain of each operation that is part of one.
    `refused`: operations that stay single, of a chain the last one.
    `gathered`: kinds of tiles whose operands are gathered.
    `waiting`: operations of chains whose last one was not met, each as a single one and as a part of a tile.
    """

    chip: Chip
    dram_bytes: int
    parts: Sequence[DramRange]
    chains: dict[int, SumChain]
    refused: set[int]
    gathered: frozenset[Hashable]
    steps: list[Evaluation | SingleOperation] = field(default_factory=list["Evaluation | SingleOperation"])
    evaluations: dict[Any, list[Evaluation]] = field(default_factory=dict[Any, list[Evaluation]])
    arrays: int = INITIAL
    waiting: dict[SumChain, list[tuple[SingleOperation, InputPart | None]]] = field(
        default_factory=dict[SumChain, list[tuple[SingleOperation, "InputPart | None"]]]
    )

    def __post_init__(self) -> None:
        sizes = (self.dram_bytes, *(space.memory.size for space in self.chip.spaces[1:]))
        others = [p for p in self.parts if p.kind is not DramRangeKind.CONSTANT]
        constants = [
            (p.first, p.last)
            for p in self.parts
            if p.kind is DramRangeKind.CONSTANT and not any(p.first < o.last and o.first < p.last for o in others)
        ]
        places = Places(sizes) if self.gathered else None
        self.memories = Memories(self.chip, ValueNumbers(sizes), constants, places, self.gathered)

    def list_evaluations(self) -> list[Evaluation]:
        return [step for step in self.steps if isinstance(step, Evaluation)]

    def list_arrays(self) -> dict[int, Evaluation | int]:
        """Return what made each array: an evaluation, or the bytes of an operation's output and of the DRAM."""
        arrays: dict[int, Evaluation | int] = {INITIAL: self.dram_bytes}
        for step in self.steps:
            if isinstance(step, Evaluation):
                arrays[step.array] = step
            else:
                arrays |= {array_of(box.number): int(np.prod(box.counts)) for _, box in step.writes}
        return arrays

    def step(self, index: int, op: MachineOp) -> bool:
        """Step through one operation. Return False where there are more arrays than numbers."""
        if isinstance(op, Signal | Wait | End):
            return True
        if isinstance(op, Copy):
            source, target = op.ranges(self.chip)
            values = self.memories.values
            values.write(
                target.space, target.address, *box_of(target), values.read(source.space, source.address, *box_of(source))
            )
            if self.memories.places is not None:
                self.memories.places.copy(source, target)
            return True
        if index in self.chains:
            self._add_to_chain(index, op, self.chains[index])
        elif index in self.refused or not self._merge(_describe_tile(index, op, self.memories)):
            self._keep(op)
        return self.arrays < FIRST_PLACES - 1

    def _merge(self, described: tuple[Tile, Readings] | None) -> bool:
        """Add a tile to an evaluation. Return False, and change nothing, where it is none."""
        if described is None:
            return False
        tile, readings = described
        candidates = self.evaluations.setdefault(tile.kind, [])
        number = next((n for e in reversed(candidates[-_TRIED:]) if (n := e.add(tile, readings)) is not None), None)
        if number is None:
            evaluation = Evaluation(self.arrays + 1, tile)
            number = evaluation.add(tile, readings)
            if number is None:  # larger than the numbers of an array
                return False
            self.arrays += 1
            self.memories.grids.add(evaluation.array)
            candidates.append(evaluation)
            self.steps.append(evaluation)
        item_bytes = tile.item_bytes
        rows, columns, channels = tile.shape[0], tile.shape[1], tile.shape[2] * item_bytes
        written = number + ROW * np.arange(rows)[:, None, None] + COLUMN * np.arange(columns)[:, None] + np.arange(channels)
        space, address, *strides = tile.output
        self._write(space, address, (rows, columns, channels), (*strides, 1), written)
        return True

    def _add_to_chain(self, index: int, op: MachineOp, chain: SumChain) -> None:
        """Step through an operation of a chain. The last one is a tile of all that they read, or all stay single."""
        assert isinstance(op, Convolution)
        *_, last = chain.indexes
        part = None if last in self.refused else read_input_part(op, chain.joined_op, self.memories)
        if index != last:
            self.waiting.setdefault(chain, []).append((self._describe_single(op), part))
            return
        singles, parts = zip(*self.waiting.pop(chain))
        if not self._merge(describe_window(index, chain.joined_op, self.memories, (*parts, part))):
            self.steps += singles
            self._keep(op)

    def _keep(self, op: MachineOp) -> None:
        self.steps.append(self._describe_single(op))

    def _describe_single(self, op: MachineOp) -> SingleOperation:
        """Return the operation with the values that it reads now, and let what it writes be new ones."""
        values, touched = self.memories.values, accesses(op, self.chip)
        reads: list[tuple[int, ValueBox]] = []
        for a in touched:
            if not a.write:
                numbers = values.read(a.space, a.address, *box_of(a))
                reads += [(a.space, box) for box in boxes_of_access(a.address, *box_of(a), numbers)]
        writes: list[tuple[int, ValueBox]] = []
        for a in touched:
            if a.write:
                self.arrays += 1
                counts, strides = box_of(a)
                steps = tuple(int(np.prod(counts[k + 1 :])) for k in range(len(counts)))
                box = ValueBox(a.address, self.arrays << ARRAY_BITS, counts, strides, steps)
                numbers = box.number + np.arange(a.bytes).reshape(counts)
                self._write(a.space, a.address, counts, strides, numbers)
                writes.append((a.space, box))
        return SingleOperation(op, tuple(reads), tuple(writes))

    def _write(self, space: int, address: int, counts: Sequence[int], strides: Sequence[int], numbers: Numbers) -> None:
        """Let a box of bytes hold new values."""
        self.memories.values.write(space, address, counts, strides, numbers)
        if self.memories.places is not None:
            self.memories.places.reset(space, address, counts, strides)
