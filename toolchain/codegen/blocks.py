"""The constant bytes of a compiled file: each block is stored once, whoever needs it.

A region's constants are whole blocks, at one address or at several. An array of the integer graph is made of pieces of blocks:
weights mostly lie in the blocks that programs read already, in the same order, with each tile's parameters behind them. What is
found nowhere goes into one block of its own, the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from toolchain.machine import memory_type

_KEY_BYTES = 32  # by which a block is found that an array may go on in
_LEAST_SHARED_BYTES = 256  # a shorter piece costs as much to name as to store
_CHOICES = 8  # blocks of the same first bytes that are compared
_MOST_TOO_FAR = 64  # bytes by which what follows in a block may happen to be what follows in the array


class BlockWriter:
    """Give it the constants of all regions before the first array."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._rest = bytearray()
        self._starting: dict[bytes, list[bytes]] | None = None

    def block(self, data: bytes) -> int:
        """The number of the block with these bytes."""
        return self._blocks.setdefault(data, len(self._blocks))

    def array(self, value: np.ndarray) -> list[Any]:
        """[type, shape, pieces]: each piece is [block, first byte, bytes]."""
        little = np.ascontiguousarray(value).astype(memory_type(value.dtype), copy=False)
        raw = little.reshape(-1).view(np.uint8)
        return [value.dtype.name, list(value.shape), self._shared(raw) or [self._stored(raw)]]

    def blocks(self) -> list[bytes]:
        return [*self._blocks, bytes(self._rest)]

    def _stored(self, raw: np.ndarray) -> list[int]:
        start = len(self._rest)
        self._rest += raw.tobytes()
        return [len(self._blocks), start, raw.size]

    def _shared(self, raw: np.ndarray) -> list[list[int]]:
        """The pieces of programs' blocks that the array begins with, and what is left of it; none where there are none such."""
        pieces: list[list[int]] = []
        at = 0
        while at < raw.size:
            found = self._next(raw, at, _MOST_TOO_FAR if pieces else 0)
            if found is None:
                break
            back, block, same = found
            if back:
                pieces[-1][2] -= back
            pieces.append([self._blocks[block], 0, same])
            at += same - back
        return [*pieces, self._stored(raw[at:])] if pieces and at < raw.size else pieces

    def _next(self, raw: np.ndarray, at: int, most_back: int) -> tuple[int, bytes, int] | None:
        """(bytes to take back of the piece before, the block that goes on from there, how far it is the same)."""
        for back in range(most_back + 1):
            here = raw[at - back :]
            choices = self._unused().get(here[:_KEY_BYTES].tobytes(), [])
            same, block = max(((_same(here, b), b) for b in choices[:_CHOICES]), key=lambda found: found[0], default=(0, b""))
            if same >= _LEAST_SHARED_BYTES:
                choices.remove(block)  # each belongs to one array, so that no file unpacks to more than it holds
                return back, block, same
        return None

    def _unused(self) -> dict[bytes, list[bytes]]:
        """The blocks of programs that no array has pieces of, by their first bytes."""
        if self._starting is None:
            self._starting = {}
            for block in self._blocks:
                self._starting.setdefault(block[:_KEY_BYTES], []).append(block)
        return self._starting


def _same(raw: np.ndarray, block: bytes) -> int:
    """How many bytes both begin with."""
    size = min(raw.size, len(block))
    differs = raw[:size] != np.frombuffer(block, np.uint8, size)
    first = int(differs.argmax()) if size else 0
    return first if size and differs[first] else size


class BlockReader:
    """The blocks of a file. All arrays together have no more bytes than they: no file unpacks to more than it holds."""

    def __init__(self, blocks: Sequence[bytes]):
        self._blocks = blocks
        self._size_bytes = self._left = sum(map(len, blocks))

    def array(self, said: Any) -> np.ndarray:
        """The inverse of `BlockWriter.array`. Raises ValueError."""
        dtype, shape, pieces = said
        kind, count = np.dtype(dtype), math.prod(shape)
        size_bytes = sum(size for _, _, size in pieces)
        if kind.kind not in "biuf" or kind.name != dtype or min(shape, default=0) < 0 or count * kind.itemsize != size_bytes:
            raise ValueError(f"array of {dtype!r:.20} {shape!r:.40} in {size_bytes!r:.20} bytes")
        parts = [self._piece(*piece) for piece in pieces]
        self._left -= size_bytes
        if self._left < 0:
            raise ValueError(f"its arrays have more bytes together than the {self._size_bytes} of the blocks")
        raw = parts[0] if len(parts) == 1 else b"".join(parts)
        return np.frombuffer(raw, memory_type(kind)).astype(kind).reshape(shape)

    def _piece(self, block: int, start: int, size: int) -> memoryview:
        if not 0 <= block < len(self._blocks) or min(start, size) < 0 or start + size > len(self._blocks[block]):
            raise ValueError(f"a piece of {size} bytes at {start} of block {block}, which does not have them")
        return memoryview(self._blocks[block])[start : start + size]
