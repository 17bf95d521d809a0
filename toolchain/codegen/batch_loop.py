"""The program of one sample, repeated over a batch: base registers step the addresses of what lies in DRAM sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.machine import End, MachineOp, Repeat, RepeatEnd, SetBase


@dataclass(frozen=True)
class AddressStep:
    """DRAM bytes [first, last) of the first sample; those of the next lie last - first behind."""

    first: int
    last: int

    @property
    def step_bytes(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class BatchLoop:
    """A description of how often the program runs.

    `steps`: (base register that it starts from, 0 for none; bytes of a sample; its own register).
    """

    count: int
    steps: tuple[tuple[int, int, int], ...]


def wrap_batch_loop(
    ops: Sequence[MachineOp], layers: Sequence[int], repeat: BatchLoop
) -> tuple[tuple[MachineOp, ...], tuple[int, ...]]:
    """Wrap the operations of one sample in a loop over the batch.

    `ops`: operations of one sample, at whose end every engine knows that all of them are over.
    `layers`: layer of each operation.
    """
    head = [*(SetBase(number, source, 0) for source, _, number in repeat.steps if source), Repeat(repeat.count)]
    tail = [*(SetBase(number, number, step) for _, step, number in repeat.steps), RepeatEnd(), End()]
    return (*head, *ops, *tail), (*[-1] * len(head), *layers, *[-1] * len(tail))
