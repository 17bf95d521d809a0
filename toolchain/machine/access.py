"""The bytes that an operation touches, and the sums that it makes.

`merge_runs` finds the contiguous runs of strided blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from toolchain.hw.unit_map import Unit
from toolchain.machine.columns import IntOrColumn

Block = tuple[int, int, tuple[tuple[int, int], ...]]  # first byte, contiguous run, (count, stride) outermost first


@dataclass(frozen=True, slots=True)
class Access:
    """A set of bytes address + sum(i_k strides[k]) + j for i_k < counts[k], j < inner_bytes; strides are not
    negative.

    `exact`: every one of these bytes is touched; else they are a box around the touched bytes.
    `in_step`: a read that goes element by element with the write, so that both may be the same bytes.
    """

    space: int  # a code of `chip.spaces`
    address: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    inner_bytes: int
    write: bool
    in_step: bool = False
    exact: bool = True
    end: int = field(init=False, compare=False)  # one past the last byte touched

    def __post_init__(self) -> None:
        end = self.address + self.inner_bytes
        for n, stride in zip(self.counts, self.strides):
            end = end + (n - 1) * stride
        object.__setattr__(self, "end", end)

    def at(self, address: int) -> Access:
        """Return the access of as many bytes in the same shape at another address."""
        return Access(self.space, address, self.counts, self.strides, self.inner_bytes, self.write, self.in_step, self.exact)

    @property
    def block(self) -> Block:
        """Return the same bytes as address, contiguous bytes, and (count, stride) of each dimension around these.

        Dimensions of one element are dropped. Those that continue the run, or the dimension inside, are merged into it.
        """
        run = self.inner_bytes
        outer: list[tuple[int, int]] = []
        for n, stride in zip(reversed(self.counts), reversed(self.strides)):
            if n == 1:
                continue
            if not outer and stride == run:
                run *= n
            elif outer and stride == outer[-1][0] * outer[-1][1]:
                outer[-1] = (outer[-1][0] * n, outer[-1][1])
            else:
                outer.append((n, stride))
        return self.address, run, tuple(reversed(outer))

    @property
    def bytes(self) -> int:
        """Return how many bytes are touched, those of overlapping elements once for each."""
        total = self.inner_bytes
        for n in self.counts:
            total = total * n  # columns are shared: nothing is changed in place
        return total


def read_of(
    unit: Unit,
    role: str,
    address: IntOrColumn,
    counts: tuple[IntOrColumn, ...],
    strides: tuple[IntOrColumn, ...],
    inner_bytes: IntOrColumn,
) -> Access:
    """Return a read of the memory in which the unit's operands of this role lie."""
    return Access(unit.roles[role], address, counts, strides, inner_bytes, False)


class AccumulatorUse(NamedTuple):
    """A use of the accumulators by an operation.

    `shape`: of the sums made.
    `accumulate`: the sums are added to those in the accumulators.
    `emit`: the sums are written out, so that none stay.
    `address`: address of the sums if the accumulators are a memory.
    `dataflow`: which of the array's dataflows makes the sums.
    """

    shape: tuple[IntOrColumn, ...]
    accumulate: IntOrColumn
    emit: IntOrColumn
    address: IntOrColumn
    dataflow: IntOrColumn = 0

    @property
    def total(self) -> IntOrColumn:
        """Return the number of sums."""
        product = 1
        for size in self.shape:
            product = product * size
        return product


def merge_runs(inner: int, counts: Sequence[int], strides: Sequence[int]) -> tuple[int, list[tuple[int, int]]]:
    """Return the bytes of a contiguous run of a block, and (count, stride) of the dimensions around it, the innermost first.

    `inner`: contiguous bytes of an element.
    """
    run = inner
    outer: list[tuple[int, int]] = []
    for n, stride in zip(reversed(counts), reversed(strides)):
        if n == 1:
            continue
        if stride == run and not outer:
            run *= n
        else:
            outer.append((n, stride))
    return run, outer
