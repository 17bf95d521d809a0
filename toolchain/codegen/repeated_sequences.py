"""Runs that come several times in a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def find_repeats(ids: Sequence[int], least: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield (places, length) of every maximal run of at least `least` that repeats. Places may overlap.

    A run is maximal where a longer one would occur less often.
    These are the inner nodes of the suffix tree, from the suffix array and its longest common prefixes.
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
    """Prefix doubling (Manber and Myers)."""
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
