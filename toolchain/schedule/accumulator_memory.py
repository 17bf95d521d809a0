"""Rewrite operations for arrays whose accumulators are a memory: they only accumulate there, and an `emit` takes the
sums out.

An emit runs on a vector engine. Each array has a share of the memory: its size over the number of arrays with sums
there. Sums that fit half of a share use its halves in turn, so that the array goes on while the last sums are taken
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SUMS, Unit
from toolchain.machine import Emit, EmitKind, MachineOp, MatrixProduct
from toolchain.machine.access import AccumulatorUse


class _Share(NamedTuple):
    """An array's part of the memory, in bytes: its beginning, the beginning of its second half, and the size of a half."""

    first: int
    second: int
    half_bytes: int


def _share(array: Unit, chip: Chip) -> _Share:
    """Return the array's part of its memory of accumulators."""
    sharing = [u.queue for u in chip.of_kind("mac_array") if u.roles.get(SUMS) == array.roles[SUMS]]
    words = chip.spaces[array.roles[SUMS]].memory.size // array.array.accumulators.sum_bytes // len(sharing)
    first, half = sharing.index(array.queue) * words, words // 2
    return _Share(*(n * array.array.accumulators.sum_bytes for n in (first, first + half, half)))


def count_accumulator_halves(sums: AccumulatorUse, array: Unit, chip: Chip) -> int:
    """Return 2 where such sums fit half of the array's share, else 1."""
    return 2 if sums.total * array.array.accumulators.sum_bytes <= _share(array, chip).half_bytes else 1


class AccumulatorAddresses:
    """The addresses of arrays' sums. A chain is the operations that add to the same sums; chains use the two halves in
    turn.
    """

    def __init__(self, chip: Chip):
        self._chip = chip
        self._second: dict[int, bool] = {}  # by queue of the array: the latest chain lies in the second half

    def address(self, sums: AccumulatorUse, array: Unit) -> int:
        """Return the address of an operation's sums. Ask in the order of the array's queue: an operation that begins
        sums moves on.
        """
        if not sums.accumulate:
            self._second[array.queue] = count_accumulator_halves(sums, array, self._chip) > 1 and not self._second.get(
                array.queue, True
            )
        share = _share(array, self._chip)
        return share.second if self._second.get(array.queue, False) else share.first


def split_emit(ops: Sequence[MachineOp], unit: Unit, chip: Chip, where: AccumulatorAddresses) -> Iterator[MachineOp]:
    """Yield the operations of a tile as `unit` runs them, with emits where its accumulators are a memory.

    An operation with sums then only adds to them at an address; behind the last of a chain comes an `Emit`. All other
    operations are yielded as they are. `where`: gives the addresses of sums; it changes.
    """
    emitter = chip.emitter(unit)
    for op in ops:
        sums = op.sums()
        if emitter is None or sums is None:
            yield op
            continue
        address = where.address(sums, unit)
        # a parameter of what becomes of the sums has nothing to say here
        nothing: dict[str, Any] = {name: 0 for name, parameter in op.get_descriptions().items() if parameter.way_out}
        yield replace(op, **nothing, sums_address=address)
        if sums.emit:
            yield _emit(op, sums, address, emitter)


def _emit(op: MachineOp, sums: AccumulatorUse, address: int, emitter: Unit) -> Emit:
    """Return the operation that requantizes and stores the sums, as `op` would have done itself."""
    *lead, channels = sums.shape
    values: dict[str, Any] = {name: getattr(op, name, 0) for name in Emit.parameters()}
    values |= {"height": lead[0], "width": lead[1] if len(lead) > 1 else 1, "channels": channels}
    kind = EmitKind.MATRIX_PRODUCT if isinstance(op, MatrixProduct) else EmitKind.CONVOLUTION
    values |= {"kind": kind, "sums_address": address, "unit": emitter.number}
    return Emit(**values)
