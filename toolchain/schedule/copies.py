"""Boxes of tensors as DMA copies: contiguous runs merged, what exceeds the engine's dimensions unrolled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from toolchain.isa.operations import Copy, Fill, Space


@dataclass(frozen=True)
class Spot:
    """An address in one of the memories."""

    space: Space
    address: int


@dataclass(frozen=True)
class Stride:
    """One loop of a copy, in bytes."""

    count: int
    source: int
    target: int


def copies(
    source: Spot, target: Spot, strides: Sequence[Stride], item_bytes: int, dimensions: int, channel: int
) -> Iterator[Copy]:
    """strides: outermost first, over elements of item_bytes -> copies of at most `dimensions` counts each."""
    loops, inner = merge(strides, item_bytes)
    outer, kept = loops[: max(0, len(loops) - dimensions)], loops[max(0, len(loops) - dimensions) :]
    padded = [Stride(1, 0, 0)] * (3 - len(kept)) + list(kept)
    for index in product(*(range(s.count) for s in outer)):
        yield Copy(
            channel=channel,
            source_space=source.space,
            source_address=source.address + sum(i * s.source for i, s in zip(index, outer)),
            destination_space=target.space,
            destination_address=target.address + sum(i * s.target for i, s in zip(index, outer)),
            inner_bytes=inner,
            count0=padded[0].count,
            count1=padded[1].count,
            count2=padded[2].count,
            source_stride0=padded[0].source,
            source_stride1=padded[1].source,
            source_stride2=padded[2].source,
            destination_stride0=padded[0].target,
            destination_stride1=padded[1].target,
            destination_stride2=padded[2].target,
        )


def fills(
    target: Spot, sizes: Sequence[int], strides: Sequence[int], value: int, item_bytes: int, dimensions: int, channel: int
) -> Iterator[Fill]:
    """The box of these sizes and byte strides set to one code."""
    loops, inner = merge([Stride(n, s, s) for n, s in zip(sizes, strides)], item_bytes)
    outer, kept = loops[: max(0, len(loops) - dimensions)], loops[max(0, len(loops) - dimensions) :]
    padded = [Stride(1, 0, 0)] * (3 - len(kept)) + list(kept)
    for index in product(*(range(s.count) for s in outer)):
        yield Fill(
            channel=channel,
            destination_space=target.space,
            destination_address=target.address + sum(i * s.target for i, s in zip(index, outer)),
            inner_elements=inner // item_bytes,
            count0=padded[0].count,
            count1=padded[1].count,
            count2=padded[2].count,
            destination_stride0=padded[0].target,
            destination_stride1=padded[1].target,
            destination_stride2=padded[2].target,
            value=value,
        )


def merge(strides: Sequence[Stride], item_bytes: int) -> tuple[list[Stride], int]:
    """Loops of count 1 dropped, neighbours that continue each other joined; -> (loops, bytes of the contiguous run)."""
    loops: list[Stride] = []
    for s in strides:
        if s.count == 1:
            continue
        last = loops[-1] if loops else None
        if last and last.source == s.count * s.source and last.target == s.count * s.target:
            loops[-1] = Stride(last.count * s.count, s.source, s.target)
        else:
            loops.append(s)
    if loops and loops[-1].source == item_bytes == loops[-1].target:
        return loops[:-1], loops[-1].count * item_bytes
    return loops, item_bytes
