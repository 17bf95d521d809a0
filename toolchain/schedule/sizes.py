"""Sizes of SRAM for which plans are made."""

from __future__ import annotations

from itertools import count, takewhile

FIRST = 32 * 1024  # bytes


def grid(last: int, alignment_bytes: int) -> list[int]:
    """From 32 KiB up to `last`, each 2^(1/2) times the one before, in whole units of the alignment, rising."""
    steps = (int(FIRST * 2 ** (k / 2)) // alignment_bytes * alignment_bytes for k in count())
    return list(takewhile(lambda size: size <= last, steps))


def unplanned_bytes(sram_bytes: int, alignment_bytes: int, per_octave: int) -> int:
    """Of the SRAM above the largest of `parted`; none where it is smaller than all of them."""
    sizes = parted(sram_bytes, alignment_bytes, per_octave)
    return sram_bytes - sizes[-1] if sizes else 0


def parted(last: int, alignment_bytes: int, per_octave: int) -> list[int]:
    """From 32 KiB up to `last`, so many at equal distances until each is twice as large, in whole units of the alignment, rising:
    of eight 32, 36, 40 to 64 KiB, 72, 80 and so on."""
    each = (FIRST * (per_octave + k % per_octave) * 2 ** (k // per_octave) // per_octave for k in count())
    return list(takewhile(lambda size: size <= last, (size // alignment_bytes * alignment_bytes for size in each)))
