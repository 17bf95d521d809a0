"""Decide whether two strided accesses touch a common byte: exactly, and fast for the shapes that programs have.

Synchronisation and the simulator's hazard checks use it. Where more than _MOST_PARTS parts of an access may meet another, its
bytes are marked one by one instead. A `Nest` has (bytes from first to last, stride, count) of each stride, the longest stride
first and the contiguous run last.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from toolchain.machine.access import Access
from toolchain.machine.columns import IntOrColumn
from toolchain.machine.parameters.spaces import Space

Nest = tuple[tuple[int, int, int], ...]
_MOST_PARTS = 64


def overlaps_itself(access: Access) -> bool:
    """Return whether two elements of the access may share a byte: a stride is shorter than the elements inside it."""
    extent = access.inner_bytes
    for n, stride in sorted(zip(access.counts, access.strides), key=lambda dimension: dimension[1]):
        if n == 1:
            continue
        if stride < extent:
            return True
        extent += (n - 1) * stride
    return False


def overlap(a: Access, b: Access) -> bool:
    """Return whether two accesses of one memory touch a common byte. The memory is not compared; strides are not
    negative.
    """
    if a.end <= b.address or b.end <= a.address or not a.bytes or not b.bytes:
        return False
    if not a.strides and not b.strides:
        return True
    return _meet(b.address - a.address, _nest(a), _nest(b))


@dataclass(frozen=True, slots=True)
class Residues:
    """The position of accesses between multiples of their strides. It shows cheaply that most pairs are disjoint.

    Values are numbers or columns. `first`: first byte. `run`: contiguous bytes. `pitch`: greatest common divisor of the
    strides, 0 where there are none.
    """

    first: IntOrColumn
    run: IntOrColumn
    pitch: IntOrColumn

    def is_disjoint(self, other: Residues) -> IntOrColumn:
        """Return True where the two share no byte, whatever their counts. False says nothing."""
        pitch = np.gcd(self.pitch, other.pitch)
        offset = (other.first - self.first) % np.maximum(pitch, 1)
        return (offset >= self.run) & (offset + other.run <= pitch)


def residues(access: Access) -> Residues:
    """Return the residues of one access."""
    first, run, outer = access.block
    return Residues(first, run, gcd(*(stride for _, stride in outer)))


def _nest(access: Access) -> Nest:
    """Return the access as nested strides: (bytes from first to last, stride, count), the longest stride first, the run
    last.
    """
    _, run, outer = access.block
    strided = sorted((stride, n) for n, stride in outer if stride)
    nest: Nest = ((run, 0, 1),)
    for stride, n in strided:
        nest = ((nest[0][0] + (n - 1) * stride, stride, n), *nest)
    return nest


def _meet(offset: int, a: Nest, b: Nest) -> bool:
    """Return whether two nests have a common byte. `offset`: first byte of b minus that of a."""
    (extent_a, stride, count), (extent_b, stride_b, count_b) = a[0], b[0]
    if offset >= extent_a or -offset >= extent_b:
        return False
    if not stride and not stride_b:
        return True
    if stride_b > stride:
        return _meet(-offset, b, a)
    inner, other, least = a[1:], b, 0
    if stride == stride_b:
        # only how many strides further the one is than the other matters
        other, least = b[1:], 1 - count_b
    # the parts of a whose hull meets that of the other
    first = max(least, (offset - inner[0][0]) // stride + 1)
    last = min(count - 1, -(-(offset + other[0][0]) // stride) - 1)
    if last - first >= _MOST_PARTS:
        return _by_bytes(offset, a, b)
    return any(_meet(offset - k * stride, inner, other) for k in range(first, last + 1))


def _by_bytes(offset: int, a: Nest, b: Nest) -> bool:
    """Return whether two nests meet, by marking each byte."""
    base = min(offset, 0)
    touched = np.zeros(max(a[0][0], offset + b[0][0]) - base, np.bool_)
    _view(touched, -base, a)[...] = True
    return bool(_view(touched, offset - base, b).any())


def _view(array: np.ndarray, first: int, nest: Nest) -> np.ndarray:
    """Return the bytes of a nest as a strided view of `array`, from byte `first` on."""
    shape, strides = (n for _, _, n in nest[:-1]), (stride for _, stride, _ in nest[:-1])
    return np.ndarray((*shape, nest[-1][0]), array.dtype, array, first, (*strides, 1))


def byte_view(array: np.ndarray, access: Access) -> np.ndarray:
    """Return the bytes of an access as a strided view of a memory's array of bytes, in the order of its elements."""
    start, run, outer = access.block
    return np.ndarray((*(n for n, _ in outer), run), array.dtype, array, start, (*(stride for _, stride in outer), 1))


def rebase_access(access: Access, base: int) -> Access:
    """Return the access with addresses counted from `base`; `in_step` and `exact` have their defaults."""
    return Access(access.space, access.address - base, access.counts, access.strides, access.inner_bytes, access.write)


def range_text(access: Access) -> str:
    """Return the access as a text such as `sram[0x100..0x180)`, with the strides where it has holes."""
    _, run, outer = access.block
    shape = "" if not outer else " as " + "x".join(f"{n}@{stride}" for n, stride in outer) + f"x{run} bytes"
    return f"{Space(access.space).name.lower()}[{access.address:#x}..{access.end:#x}){shape}"
