"""Compute with windows that slide over rows or columns: what convolution, depthwise and pooling tiles have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Taps(NamedTuple):
    """Elements of a kernel along one axis: `size` of them from `start` on, each `step` after the one before."""

    start: int
    size: int
    step: int = 1

    @property
    def slice(self) -> slice:
        """Return the elements as a slice of the kernel's axis."""
        return slice(self.start, self.start + (self.size - 1) * self.step + 1, self.step)


@dataclass(frozen=True)
class Window:
    """One axis of a sliding window over `size` elements, with `pad` virtual elements in front of the first.

    `kernel`: elements of the window, `dilation` apart. `stride`: elements from one output's window to the next.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    pad: int

    def get_input_span(self, start: int, count: int) -> tuple[int, int]:
        """Return (first, size) of the input elements that outputs [start, start + count) read, inside the input.

        Where they read only padding it is one element nearest to them.
        """
        first = start * self.stride - self.pad
        last = first + (count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
        first, last = max(0, first), min(self.size, last)
        return (first, last - first) if last > first else (min(max(first, 0), self.size - 1), 1)

    def part(self, taps: Taps) -> Window:
        """Return the window of these kernel elements alone, with the same number of outputs; `pad` may become negative."""
        return Window(self.size, taps.size, self.stride, self.dilation * taps.step, self.pad - taps.start * self.dilation)

    def meets(self, start: int, count: int) -> bool:
        """Return whether outputs [start, start + count) reach at least one position inside the input, not only padding."""
        first = start * self.stride - self.pad
        last = first + (count - 1) * self.stride + (self.kernel - 1) * self.dilation
        return last >= 0 and first < self.size

    def elements(self, outputs: int, start: int = 0) -> np.ndarray:
        """Return int[outputs, kernel]: the input element of each output and kernel element, -1 in padding.

        Outputs are [start, start + outputs).
        """
        positions = np.arange(start, start + outputs)[:, None] * self.stride - self.pad + np.arange(self.kernel) * self.dilation
        return np.where((positions >= 0) & (positions < self.size), positions, -1)

    def offset(self, start: int, first: int) -> tuple[int, int]:
        """Return (elements to skip, padding in front) for outputs from `start` on, where the available input begins at
        `first`.
        """
        begin = start * self.stride - self.pad - first
        return max(0, begin), max(0, -begin)


def output_size(size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> int:
    """Return the outputs of a window along one axis. `pads`: before and after; ceil_mode must have become padding already."""
    return (size + sum(pads) - (kernel - 1) * dilation - 1) // stride + 1


def pair_of(attributes: Mapping[str, Any], key: str) -> tuple[int, int]:
    """Return an ONNX attribute's values over rows and columns; (1, 1) where it is absent."""
    values = attributes.get(key) or (1, 1)
    return int(values[0]), int(values[1])
