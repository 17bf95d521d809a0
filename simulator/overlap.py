"""Do two strided accesses touch a common byte? Exact, and quick for the shapes that programs have."""

from __future__ import annotations

import numpy as np

from toolchain.machine import Access, Space
from toolchain.machine.operation import Block


def repeats_itself(access: Access) -> bool:
    """True where two elements of the access may share a byte: a stride shorter than what lies inside it."""
    extent = access.inner_bytes
    for n, stride in sorted(zip(access.counts, access.strides), key=lambda dimension: dimension[1]):
        if n == 1:
            continue
        if stride < extent:
            return True
        extent += (n - 1) * stride
    return False


def overlap(a: Access, b: Access) -> bool:
    """True where a and b, of one memory, touch a common byte. Strides are not negative."""
    if a.end <= b.address or b.end <= a.address or not a.bytes or not b.bytes:
        return False
    first, second = a.block, b.block
    if not first[2] and not second[2]:
        return True
    if len(first[2]) <= 1 and len(second[2]) <= 1:
        quick = _one_stride(first, second)
        if quick is not None:
            return quick
    return _by_bytes(a, b)


def _one_stride(a: Block, b: Block) -> bool | None:
    """Runs at one stride against a run, or against runs at the same stride and shorter than it; None: neither."""
    if not a[2]:
        a, b = b, a
    start, run, ((count, stride),) = a
    low, length, dimensions = b
    if not dimensions:
        # the last run that starts before the end of b; runs are in order of their starts
        last = min(count - 1, (low + length - 1 - start) // stride) if stride else 0
        return last >= 0 and start + last * stride + run > low
    if dimensions[0][1] != stride or max(run, length) > stride:
        return None
    if low < start:
        start, run, count, low, length = low, length, dimensions[0][0], start, run
    # b starts within or after a: only a's runs at and after the one below b's first can meet it
    ahead, offset = divmod(low - start, stride)
    return (offset < run and ahead < count) or (offset + length > stride and ahead + 1 < count)


def byte_view(array: np.ndarray, access: Access) -> np.ndarray:
    """The bytes of an access as a strided view of a one-byte array, in the order of its elements."""
    start, run, outer = access.block
    return np.ndarray((*(n for n, _ in outer), run), array.dtype, array, start, (*(stride for _, stride in outer), 1))


def _by_bytes(a: Access, b: Access) -> bool:
    base = min(a.address, b.address)
    touched = np.zeros(max(a.end, b.end) - base, np.bool_)
    byte_view(touched, moved(a, base))[...] = True
    return bool(byte_view(touched, moved(b, base)).any())


def moved(access: Access, base: int) -> Access:
    """The access with addresses counted from `base`."""
    return Access(access.space, access.address - base, access.counts, access.strides, access.inner_bytes, access.write)


def range_text(access: Access) -> str:
    """`sram[0x100..0x180)`, with the strides where it has holes."""
    _, run, outer = access.block
    shape = "" if not outer else " as " + "x".join(f"{n}@{stride}" for n, stride in outer) + f"x{run} bytes"
    return f"{Space(access.space).name.lower()}[{access.address:#x}..{access.end:#x}){shape}"
