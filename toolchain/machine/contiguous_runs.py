"""Contiguous runs of strided blocks."""

from __future__ import annotations

from collections.abc import Sequence


def merge_runs(inner: int, counts: Sequence[int], strides: Sequence[int]) -> tuple[int, list[tuple[int, int]]]:
    """Bytes of a contiguous run of a block, and the counts and strides around it, the innermost first."""
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
