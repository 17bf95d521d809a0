"""Store the constant bytes of `model.npu` as blocks, each block once, and read them back.

`BlockWriter` is for `codegen.container_writer`, `BlockReader` for `codegen.container`. Two things name bytes of blocks.
A region's constants are whole blocks, at one DRAM address or at several. An array of the integer graph is made of
pieces of blocks, since most weights lie in blocks that programs read, in the same order. Array bytes that lie in no
block go into one more block, the last.

A further entry of the file (other input shapes) has the same weights cut into other tiles. Its constants are pieces of
earlier blocks, and one block with the missing bytes. `ChunkIndex` finds such pieces. Every 32nd byte of a block begins
an anchor of 32 bytes. Where an anchor occurs in new bytes, the equal bytes around it become one piece, if they are at
least `LEAST_BYTES`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from quant.fixed_point.core.codes import CodeType
from toolchain.machine import memory_type
from toolchain.ops.kit.requants import pack_weights

ANCHOR_BYTES = 32
LEAST_BYTES = 128  # of a piece: a shorter one costs nearly as much to name as to store
_ANCHOR_CHOICES = 4  # places of one anchor that are compared
_WORD_BYTES = 8
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)
Pieces = list[list[int]]  # block, first byte and bytes of each
_NARROW = "int4"  # of arrays, two a byte; no type of numpy's
_KEY_BYTES = 32  # by which a block is found that an array may go on in
_LEAST_SHARED_BYTES = 256  # a shorter piece costs as much to name as to store
_CHOICES = 8  # blocks of the same first bytes that are compared
_MOST_TOO_FAR = 64  # bytes by which what follows in a block may happen to be what follows in the array


class SharedChunk(NamedTuple):
    """Bytes that a stored block has already: `size` bytes from byte `at` of the new data equal those of `block` from
    `first` on.
    """

    at: int
    block: int
    first: int
    size: int


class ChunkIndex:
    """An index of the anchors of blocks, by a hash of their bytes. Blocks are numbered by their place in `blocks`."""

    def __init__(self, blocks: Sequence[bytes]) -> None:
        self._blocks = [np.frombuffer(b, np.uint8) for b in blocks]
        places = [(n, np.arange(0, b.size - ANCHOR_BYTES + 1, ANCHOR_BYTES)) for n, b in enumerate(self._blocks)]
        self._block = np.concatenate([np.full(at.size, n) for n, at in places] or [np.zeros(0, np.int64)])
        self._first = np.concatenate([at for _, at in places] or [np.zeros(0, np.int64)])
        hashes = np.concatenate([_hashes(b, ANCHOR_BYTES) for b in self._blocks] or [np.zeros(0, np.uint64)])
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._block, self._first = hashes[order], self._block[order], self._first[order]

    def pieces(self, data: bytes) -> Iterator[SharedChunk]:
        """Yield the chunks of `data` that lie in the blocks, in order and without overlap, each of LEAST_BYTES or more."""
        new = np.frombuffer(data, np.uint8)
        hashes = _hashes(new, 1)
        places = np.searchsorted(self._hashes, hashes)
        places[places == self._hashes.size] = 0
        done = 0
        for at in np.flatnonzero(self._hashes[places] == hashes) if self._hashes.size else ():
            if at < done:
                continue
            same = range(places[at], min(self._hashes.size, places[at] + _ANCHOR_CHOICES))
            choices = (self._around(new, int(at), place, done) for place in same if self._hashes[place] == hashes[at])
            longest = max(choices, key=lambda p: p.size)
            if longest.size >= LEAST_BYTES:
                yield longest
                done = longest.at + longest.size

    def _around(self, new: np.ndarray, at: int, place: int, least: int) -> SharedChunk:
        """Return the longest run of equal bytes through an anchor that begins at `least` or later; of size 0 where only
        the hashes agree.
        """
        number, first = int(self._block[place]), int(self._first[place])
        block = self._blocks[number]
        forward_bytes = _count_equal(new[at:], block[first:])
        if forward_bytes < ANCHOR_BYTES:
            return SharedChunk(at, number, first, 0)
        back = _count_equal(new[least:at][::-1], block[:first][::-1])
        return SharedChunk(at - back, number, first - back, back + forward_bytes)


def _hashes(data: np.ndarray, step: int) -> np.ndarray:
    """Return a uint64 hash of the ANCHOR_BYTES that begin at every `step`th byte, as far as so many bytes follow."""
    if data.size < ANCHOR_BYTES:
        return np.zeros(0, np.uint64)
    words = np.lib.stride_tricks.sliding_window_view(data, _WORD_BYTES)
    count = data.size - ANCHOR_BYTES + 1
    hash_sums = np.zeros(-(-count // step), np.uint64)
    for k, factor in enumerate(_FACTORS):
        part = np.ascontiguousarray(words[k * _WORD_BYTES :][:count:step]).view("<u8")[:, 0]
        hash_sums += part * factor
    return hash_sums


def _count_equal(one: np.ndarray, other: np.ndarray) -> int:
    """Return the length of the common prefix in elements."""
    size, done, step = min(one.size, other.size), 0, 256
    while done < size:
        end = min(size, done + step)
        differs = one[done:end] != other[done:end]
        if differs.any():
            return done + int(differs.argmax())
        done, step = end, 4 * step
    return size


def _halves(pairs: np.ndarray, count: int) -> np.ndarray:
    """Unpack int8[pairs] into int8[count] codes of 4 bits with sign, the low half of a byte first."""
    return np.stack((np.left_shift(pairs, 4) >> 4, pairs >> 4), axis=-1).reshape(-1)[:count]


class BlockWriter:
    """A collector of the blocks of one file.

    Call `constant` and `block` for all entries first, then `array` for all entries, then `blocks` once. `next_entry`
    comes between two entries, in both rounds.
    """

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._held_bytes = 0
        self._rest = bytearray()
        self._starting: dict[bytes, list[bytes]] | None = None
        self._earlier: Sequence[bytes] = ()  # blocks of the entries before this one
        self._index: ChunkIndex | None = None  # of these, once it is needed
        self._pieced: dict[bytes, Pieces] = {}  # constants of this entry
        self._pieced_bytes = 0
        self._arrays: dict[bytes, list[Pieces]] = {}  # by digest; no two have a byte in common
        self._reusable: dict[bytes, list[Pieces]] = {}  # of the entries before this one

    def next_entry(self) -> None:
        """Begin another entry. Its constants may be pieces of blocks before it, and its arrays the pieces of earlier
        entries' arrays.
        """
        self._earlier, self._index = (*self._blocks,), None
        self._pieced, self._pieced_bytes = {}, 0
        self._reusable = {digest: list(arrays) for digest, arrays in self._arrays.items()}

    def block(self, data: bytes) -> int:
        """Return the number of the block with these bytes; they are stored where no block has them."""
        if data not in self._blocks:
            self._blocks[data] = len(self._blocks)
            self._held_bytes += len(data)
        return self._blocks[data]

    def constant(self, data: bytes) -> int | Pieces:
        """Store a region's constant bytes and return the number of their block.

        In a further entry it may be pieces instead, [block, first byte, bytes] each: one after the other they are these
        bytes. Equal bytes give an equal result within an entry.
        """
        if data in self._blocks or not self._earlier:
            return self.block(data)
        if data not in self._pieced:
            pieces = self._cut(data)
            if not pieces:
                return self.block(data)
            self._pieced[data] = pieces
        return self._pieced[data]

    def array(self, value: np.ndarray, narrow: bool = False) -> list[Any]:
        """Store an array, little-endian in C order, and return [type, shape, pieces]; each piece is [block, first byte,
        bytes].

        `narrow`: the values are codes of 4 bits, stored two a byte as programs have them. The type is then "int4".
        Within one entry no two arrays share a byte, so that a file never unpacks to more than it holds.
        """
        little = np.ascontiguousarray(value).astype(memory_type(value.dtype), copy=False)
        raw = np.frombuffer(pack_weights(little.reshape(1, -1), CodeType.INT4), np.uint8) if narrow else _bytes(little)
        digest = hashlib.sha256(raw.data).digest()
        reusable = self._reusable.get(digest)
        if reusable:
            pieces = reusable.pop()
        else:
            pieces = self._find_shared_pieces(raw) or [self._store(raw)]
            self._arrays.setdefault(digest, []).append(pieces)
        return [_NARROW if narrow else value.dtype.name, list(value.shape), pieces]

    def blocks(self) -> list[bytes]:
        """Return the bytes of all blocks in the order of their numbers. The last holds the bytes of arrays that no
        other block has.
        """
        return [*self._blocks, bytes(self._rest)]

    def _store(self, raw: np.ndarray) -> list[int]:
        """Append bytes to the last block and return their piece."""
        start = len(self._rest)
        self._rest += raw.tobytes()
        return [len(self._blocks), start, raw.size]

    def _cut(self, data: bytes) -> Pieces:
        """Return pieces of earlier blocks and of one new block between them that are `data`; empty where no earlier
        block helps.

        It is empty too where the entry's constants in pieces would have more bytes than all blocks.
        """
        self._index = self._index or ChunkIndex(self._earlier)
        chunks = list(self._index.pieces(data))
        ends = [0, *(p.at + p.size for p in chunks)]
        between = [data[end : p.at] for end, p in zip(ends, chunks)] + [data[ends[-1] :]]
        new, first = b"".join(between), 0
        held_bytes = self._held_bytes + (0 if new in self._blocks else len(new))
        if not chunks or self._pieced_bytes + len(data) > held_bytes:  # no file unpacks to more than it holds
            return []
        self._pieced_bytes += len(data)
        pieces: Pieces = []
        for gap, piece in zip(between, [*chunks, None]):
            if gap:
                pieces.append([self.block(new), first, len(gap)])
                first += len(gap)
            if piece is not None:
                pieces.append([piece.block, piece.first, piece.size])
        return pieces

    def _find_shared_pieces(self, raw: np.ndarray) -> list[list[int]]:
        """Return pieces of programs' blocks that the array begins with, and a piece for its rest; empty where no block
        fits.
        """
        pieces: list[list[int]] = []
        at = 0
        while at < raw.size:
            next_match = self._next(raw, at, _MOST_TOO_FAR if pieces else 0)
            if next_match is None:
                break
            back, block, same = next_match
            if back:
                pieces[-1][2] -= back
            pieces.append([self._blocks[block], 0, same])
            at += same - back
        return [*pieces, self._store(raw[at:])] if pieces and at < raw.size else pieces

    def _next(self, raw: np.ndarray, at: int, most_back: int) -> tuple[int, bytes, int] | None:
        """Return the block that goes on with the array from `at`, or a few bytes before, and how far; None where none
        does.

        The result is (bytes to take back of the piece before, block, equal bytes). The block is used up: no array gets
        it again.
        """
        for back in range(most_back + 1):
            here = raw[at - back :]
            choices = self._list_unused_blocks().get(here[:_KEY_BYTES].tobytes(), [])
            same, block = max(((_same(here, b), b) for b in choices[:_CHOICES]), key=lambda match: match[0], default=(0, b""))
            if same >= _LEAST_SHARED_BYTES:
                choices.remove(block)  # each belongs to one array, so that no file unpacks to more than it holds
                return back, block, same
        return None

    def _list_unused_blocks(self) -> dict[bytes, list[bytes]]:
        """Return the blocks of programs that no array has pieces of, by their first 32 bytes."""
        if self._starting is None:
            self._starting = {}
            for block in self._blocks:
                self._starting.setdefault(block[:_KEY_BYTES], []).append(block)
        return self._starting


def _bytes(value: np.ndarray) -> np.ndarray:
    return value.reshape(-1).view(np.uint8)


def _same(raw: np.ndarray, block: bytes) -> int:
    """Return the length of the common prefix in bytes."""
    size = min(raw.size, len(block))
    differs = raw[:size] != np.frombuffer(block, np.uint8, size)
    first = int(differs.argmax()) if size else 0
    return first if size and differs[first] else size


class BlockReader:
    """The blocks of a file as constants and arrays.

    Arrays together may have no more bytes than the blocks, so that a small file cannot fill the memory. Codes of 4 bits
    become two bytes of memory for each stored byte.
    """

    def __init__(self, blocks: Sequence[bytes]):
        self._blocks = blocks
        self._size_bytes = self._remaining_bytes = sum(map(len, blocks))
        self._constants: dict[tuple[tuple[int, int, int], ...], bytes] = {}

    def constant(self, constant_ref: int | tuple[tuple[int, int, int], ...]) -> bytes:
        """Return the bytes of a constant by what `BlockWriter.constant` returned. Raise ValueError for a piece that a
        block lacks.
        """
        if isinstance(constant_ref, int):
            return self._blocks[constant_ref]
        if constant_ref not in self._constants:
            self._constants[constant_ref] = b"".join(self._piece(*piece) for piece in constant_ref)
        return self._constants[constant_ref]

    def array(self, array_ref: Any) -> np.ndarray:
        """Return the array of what `BlockWriter.array` returned, codes of 4 bits as int8.

        Raise ValueError where type, shape and pieces do not fit together, and where all arrays have more bytes than the
        blocks.
        """
        dtype, shape, pieces = array_ref
        narrow = dtype == _NARROW
        kind, count = np.dtype(np.int8 if narrow else dtype), math.prod(shape)
        size_bytes, expected_bytes = sum(size for _, _, size in pieces), -(-count // 2) if narrow else count * kind.itemsize
        if (
            kind.kind not in "biuf"
            or (kind.name != dtype and not narrow)
            or min(shape, default=0) < 0
            or expected_bytes != size_bytes
        ):
            raise ValueError(f"array of {dtype!r:.20} {shape!r:.40} in {size_bytes!r:.20} bytes")
        parts = [self._piece(*piece) for piece in pieces]
        self._remaining_bytes -= size_bytes
        if self._remaining_bytes < 0:
            raise ValueError(f"its arrays have more bytes together than the {self._size_bytes} of the blocks")
        raw = parts[0] if len(parts) == 1 else b"".join(parts)
        if narrow:
            return _halves(np.frombuffer(raw, np.int8), count).reshape(shape)
        # larger numbers may lie at an odd address of the file
        return np.frombuffer(raw, memory_type(kind)).astype(kind, copy=kind.itemsize > 1).reshape(shape)

    def _piece(self, block: int, start: int, size: int) -> memoryview:
        """Return these bytes of a block as a view, not a copy. Raise ValueError where the block does not have them."""
        if not 0 <= block < len(self._blocks) or min(start, size) < 0 or start + size > len(self._blocks[block]):
            raise ValueError(f"a piece of {size} bytes at {start} of block {block}, which does not have them")
        return memoryview(self._blocks[block])[start : start + size]
