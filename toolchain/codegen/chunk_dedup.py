"""Find bytes that stored blocks already contain: constants of programs for other shapes are cut at other places.

Every 32nd byte of a block begins an anchor of 32 bytes.
Where an anchor occurs in new bytes, the equal bytes around it become one piece.
No piece of 63 bytes or more is missed because tiles were cut differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

ANCHOR_BYTES = 32
LEAST_BYTES = 128  # of a piece: a shorter one costs nearly as much to name as to store
_CHOICES = 4  # places of one anchor that are compared
_WORD_BYTES = 8
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)


class SharedChunk(NamedTuple):
    """`size` bytes from byte `at` on are those of a block from byte `first` on."""

    at: int
    block: int
    first: int
    size: int


class ChunkIndex:
    """The anchors of blocks, by a hash of their bytes."""

    def __init__(self, blocks: Sequence[bytes]) -> None:
        self._blocks = [np.frombuffer(b, np.uint8) for b in blocks]
        places = [(n, np.arange(0, b.size - ANCHOR_BYTES + 1, ANCHOR_BYTES)) for n, b in enumerate(self._blocks)]
        self._block = np.concatenate([np.full(at.size, n) for n, at in places] or [np.zeros(0, np.int64)])
        self._first = np.concatenate([at for _, at in places] or [np.zeros(0, np.int64)])
        hashes = np.concatenate([_hashes(b, ANCHOR_BYTES) for b in self._blocks] or [np.zeros(0, np.uint64)])
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._block, self._first = hashes[order], self._block[order], self._first[order]

    def pieces(self, data: bytes) -> Iterator[SharedChunk]:
        """Yield shared chunks in order and without overlap, each as long as possible."""
        new = np.frombuffer(data, np.uint8)
        hashes = _hashes(new, 1)
        places = np.searchsorted(self._hashes, hashes)
        places[places == self._hashes.size] = 0
        done = 0
        for at in np.flatnonzero(self._hashes[places] == hashes) if self._hashes.size else ():
            if at < done:
                continue
            same = range(places[at], min(self._hashes.size, places[at] + _CHOICES))
            choices = (self._around(new, int(at), place, done) for place in same if self._hashes[place] == hashes[at])
            longest = max(choices, key=lambda p: p.size)
            if longest.size >= LEAST_BYTES:
                yield longest
                done = longest.at + longest.size

    def _around(self, new: np.ndarray, at: int, place: int, least: int) -> SharedChunk:
        """The longest run of equal bytes through an anchor that ends behind `least`; empty where only the hash is the same."""
        number, first = int(self._block[place]), int(self._first[place])
        block = self._blocks[number]
        forward_bytes = _same(new[at:], block[first:])
        if forward_bytes < ANCHOR_BYTES:
            return SharedChunk(at, number, first, 0)
        back = _same(new[least:at][::-1], block[:first][::-1])
        return SharedChunk(at - back, number, first - back, back + forward_bytes)


def _hashes(data: np.ndarray, step: int) -> np.ndarray:
    """uint64 of the ANCHOR_BYTES at every `step`th byte that has so many behind it."""
    if data.size < ANCHOR_BYTES:
        return np.zeros(0, np.uint64)
    words = np.lib.stride_tricks.sliding_window_view(data, _WORD_BYTES)
    count = data.size - ANCHOR_BYTES + 1
    hash_sums = np.zeros(-(-count // step), np.uint64)
    for k, factor in enumerate(_FACTORS):
        part = np.ascontiguousarray(words[k * _WORD_BYTES :][:count:step]).view("<u8")[:, 0]
        hash_sums += part * factor
    return hash_sums


def _same(one: np.ndarray, other: np.ndarray) -> int:
    """Return the length of the common prefix in elements."""
    size, done, step = min(one.size, other.size), 0, 256
    while done < size:
        end = min(size, done + step)
        differs = one[done:end] != other[done:end]
        if differs.any():
            return done + int(differs.argmax())
        done, step = end, 4 * step
    return size
