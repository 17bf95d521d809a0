"""Slow and plain answers to hold the searches against: every address, every order, every choice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from toolchain.memory import (
    Buffer,
    Operator,
    Placement,
    ResidentTensor,
    UsedTensor,
    peak_of_order,
    validate,
)


def smallest_peak_by_stacking(buffers: Sequence[Buffer]) -> int:
    """Every order, each buffer on top of those before it. Exact where nothing but time matters."""
    best = sum(b.size_bytes for b in buffers)
    least = max(sum(b.size_bytes for b in buffers if b.start <= a.start < b.end) for a in buffers)  # live at once
    meets = [[a.start < b.end and b.start < a.end for b in buffers] for a in buffers]
    tops = [0] * len(buffers)  # of those that are placed

    def extend(unplaced: int, peak: int) -> None:
        """Extend the stacking by each buffer.

        `left`: a bit for each buffer that is not placed.
        """
        nonlocal best
        if not unplaced:
            best = peak
        for i, b in enumerate(buffers):
            if unplaced >> i & 1 and best > least:
                tops[i] = b.size_bytes + max((top for top, met in zip(tops, meets[i]) if met), default=0)
                if max(peak, tops[i]) < best:
                    extend(unplaced ^ 1 << i, max(peak, tops[i]))
                tops[i] = 0

    extend((1 << len(buffers)) - 1, 0)
    return best


def smallest_peak_by_address(buffers: Sequence[Buffer], limit: int) -> int | None:
    """Every address below `limit` for every buffer, judged by the validator: knows alignment, banks and all."""
    best: int | None = None
    ranges = [range(limit - b.size_bytes + 1) for b in buffers]

    def extend(k: int, addresses: dict[str, int], peak: int) -> None:
        nonlocal best
        if best is not None and peak >= best:
            return
        if addresses and validate(buffers[:k], Placement(addresses, peak, 0, False, 0)):
            return
        if k == len(buffers):
            best = peak
            return
        for address in ranges[k]:
            b = buffers[k]
            top = address + b.size_bytes if b.size_bytes else 0
            extend(k + 1, {**addresses, b.name: address}, max(peak, top))

    extend(0, {}, 0)
    return best


def smallest_peak_of_orders(
    operators: Sequence[Operator], sizes: dict[str, int], inputs: Sequence[str], outputs: Sequence[str]
) -> int:
    """Every topological order."""
    best: int | None = None
    for order in itertools.permutations(operators):
        computed = set(inputs)
        for op in order:
            if not computed.issuperset(op.inputs):
                break
            computed.update(op.outputs)
        else:
            peak = peak_of_order(operators, [op.name for op in order], sizes, inputs, outputs)
            best = peak if best is None else min(best, peak)
    assert best is not None
    return best


def most_saved(tensors: Sequence[ResidentTensor], reserved: Sequence[int], capacity: int) -> int:
    """Every subset of the candidates."""
    steps = max(t.end for t in tensors)
    best = 0
    for size in range(len(tensors) + 1):
        for residents in itertools.combinations(tensors, size):
            use = [reserved[s] if s < len(reserved) else 0 for s in range(steps)]
            for t in residents:
                for s in range(t.start, t.end):
                    use[s] += t.size_bytes
            live = [any(t.size_bytes and t.start <= s < t.end for t in residents) for s in range(steps)]
            if all(u <= capacity or not some for u, some in zip(use, live)):
                best = max(best, sum(t.saving_bytes for t in residents))
    return best


def fewest_spilled(tensors: Sequence[UsedTensor], reserved: Sequence[int], capacity: int) -> int:
    """Every subset of the gaps between uses."""
    gaps = [(t, k) for t in tensors for k in range(len(t.uses) - 1)]
    best: int | None = None
    for choice in itertools.product((False, True), repeat=len(gaps)):
        use = [r + sum(t.size_bytes for t in tensors if s in t.uses) for s, r in enumerate(reserved)]
        cost = 0
        spilled = set()
        for (t, k), keep in zip(gaps, choice):
            if keep:
                for s in range(t.uses[k] + 1, t.uses[k + 1]):
                    use[s] += t.size_bytes
            else:
                cost += t.size_bytes
                spilled.add(t)
        cost += sum(t.size_bytes for t in spilled if not t.in_ddr)
        if all(u <= capacity for u in use) and (best is None or cost < best):
            best = cost
    assert best is not None
    return best
