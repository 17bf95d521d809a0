"""How a tensor lies in memory: the one place that says where an element of it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Strides:
    """Bytes between neighbours along each dimension."""

    along: tuple[int, ...]

    def __getitem__(self, dimension: int) -> int:
        return self.along[dimension]

    def offset_bytes(self, element: Sequence[int]) -> int:
        """From the first element to this one."""
        return sum(i * s for i, s in zip(element, self.along))

    def stepped(self, steps: Sequence[int]) -> Strides:
        """Of every steps[d]-th element along dimension d."""
        return Strides(tuple(s * k for s, k in zip(self.along, steps)))


def dense(shape: Sequence[int], item_bytes: int) -> Strides:
    """Of a tensor without gaps."""
    found: list[int] = []
    step = item_bytes
    for n in reversed(shape):
        found.append(step)
        step *= n
    return Strides(tuple(reversed(found)))
