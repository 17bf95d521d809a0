"""Describe the bytes that an operation touches (`Access`), and its use of an array's accumulators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from toolchain.hw.unit_map import Unit
from toolchain.machine.columns import IntOrColumn

Block = tuple[int, int, tuple[tuple[int, int], ...]]  # first byte, contiguous run, (count, stride) outermost first


@dataclass(frozen=True, slots=True)
class Access:
    """A strided set of bytes: address + sum(i_k strides[k]) + j for i_k < counts[k] and j < inner_bytes.

    Strides are bytes and not negative, the outermost first. `space`: number of the memory in `chip.spaces`. `end`: one
    past the last byte. `exact`: every one of these bytes is touched. Else they are a superset of the touched bytes.
    `in_step`: a read that goes element by element with the write, so that both may be the same bytes. Numbers may be
    columns, int64[op], for all operations of a program at once.
    """

    space: int
    address: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    inner_bytes: int
    write: bool
    in_step: bool = False
    exact: bool = True
    end: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        end = self.address + self.inner_bytes
        for n, stride in zip(self.counts, self.strides):
            end = end + (n - 1) * stride
        object.__setattr__(self, "end", end)

    def at(self, address: int) -> Access:
        """Return the access with the same shape at another address."""
        return Access(self.space, address, self.counts, self.strides, self.inner_bytes, self.write, self.in_step, self.exact)

    @property
    def block(self) -> Block:
        """The same bytes as (address, contiguous bytes, (count, stride) of each dimension around them, outermost
        first).

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
        """The number of bytes touched; where elements overlap, their bytes count once for each."""
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
    """Return a read in the memory in which the unit's operands of this role lie."""
    return Access(unit.roles[role], address, counts, strides, inner_bytes, False)


class AccumulatorUse(NamedTuple):
    """An operation's use of an array's accumulators.

    `shape`: of the sums that it makes. `accumulate`: 1: they are added to those in the accumulators. `emit`: 1: the
    sums are written out, so that none stay. `address`: address of the sums where the accumulators are a memory.
    `dataflow`: number of the array's dataflow that makes the sums.
    """

    shape: tuple[IntOrColumn, ...]
    accumulate: IntOrColumn
    emit: IntOrColumn
    address: IntOrColumn
    dataflow: IntOrColumn = 0

    @property
    def total(self) -> IntOrColumn:
        """The number of sums."""
        product = 1
        for size in self.shape:
            product = product * size
        return product


def merge_runs(inner: int, counts: Sequence[int], strides: Sequence[int]) -> tuple[int, list[tuple[int, int]]]:
    """Return (bytes of the contiguous run, (count, stride) of each dimension around it, the innermost first).

    Dimensions that continue the run are merged into it, not into one another; `Access.block` does both.
    `inner`: contiguous bytes of an element. `counts`, `strides`: outermost first.
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
