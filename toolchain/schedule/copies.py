"""Boxes of tensors as DMA copies: contiguous runs merged, what exceeds the engine's dimensions unrolled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from toolchain.machine import Copy, Fill, Space


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
    run = _unroll(strides, item_bytes, dimensions)
    for source_offset, target_offset in run.offsets:
        yield Copy(
            channel=channel,
            source_space=source.space,
            source_address=source.address + source_offset,
            destination_space=target.space,
            destination_address=target.address + target_offset,
            inner_bytes=run.inner_bytes,
            source_stride0=run.loops[0].source,
            source_stride1=run.loops[1].source,
            source_stride2=run.loops[2].source,
            **run.target_fields,
        )


def fills(
    target: Spot, sizes: Sequence[int], strides: Sequence[int], value: int, item_bytes: int, dimensions: int, channel: int
) -> Iterator[Fill]:
    """The box of these sizes and byte strides set to one code."""
    run = _unroll([Stride(n, s, s) for n, s in zip(sizes, strides)], item_bytes, dimensions)
    for _, target_offset in run.offsets:
        yield Fill(
            channel=channel,
            destination_space=target.space,
            destination_address=target.address + target_offset,
            inner_elements=run.inner_bytes // item_bytes,
            value=value,
            **run.target_fields,
        )


@dataclass(frozen=True)
class _Unrolled:
    """`loops`: the three that one instruction runs over contiguous runs; `offsets`: of each instruction's source and target."""

    inner_bytes: int
    loops: tuple[Stride, ...]
    offsets: list[tuple[int, int]]

    @property
    def target_fields(self) -> dict[str, int]:
        """Counts and destination strides, as copies and fills name them."""
        first, second, third = self.loops
        return {
            "count0": first.count,
            "count1": second.count,
            "count2": third.count,
            "destination_stride0": first.target,
            "destination_stride1": second.target,
            "destination_stride2": third.target,
        }


def _unroll(strides: Sequence[Stride], item_bytes: int, dimensions: int) -> _Unrolled:
    """The innermost loops up to the engine's dimensions, the others written out."""
    merged, inner_bytes = merge(strides, item_bytes)
    cut = max(0, len(merged) - dimensions)
    outer, kept = merged[:cut], merged[cut:]
    offsets = [
        (sum(i * s.source for i, s in zip(index, outer)), sum(i * s.target for i, s in zip(index, outer)))
        for index in product(*(range(s.count) for s in outer))
    ]
    return _Unrolled(inner_bytes, (*[Stride(1, 0, 0)] * (3 - len(kept)), *kept), offsets)


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
