"""Describe what a quantized model says: the scales of its activations, and how its file holds constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.ir.graph import Node, Quant

Array = NDArray[Any]
BITS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16}


@dataclass(frozen=True)
class FileQuant:
    """real = scale (code - zero_point), codes of `dtype`, saturated."""

    scale: float
    zero_point: int
    dtype: str

    @property
    def bits(self) -> int:
        return BITS[self.dtype]

    @property
    def low(self) -> int:
        """The least code."""
        return int(np.iinfo(self.dtype).min)

    def quant(self, low: int) -> Quant:
        """The same in codes of a type of as many bits whose least is `low`: the zero point is as far from that, exactly."""
        return Quant(self.scale, self.zero_point - self.low + low)

    def ends(self) -> tuple[float, float]:
        """The real values of the least and the largest code."""
        steps = self.low - self.zero_point
        return self.scale * steps, self.scale * (steps + 2**self.bits - 1)


@dataclass(frozen=True, eq=False)
class FileWeightGroups:
    """A set of weights whose neighbours along the reduction share a scale: real = scale x code + minimum.

    `codes`: int[o, k], k along the reduction.
    `scales`: float[o, g].
    `minima`: float[o, g] or None.
    `size`: weights in a group; the last group may be shorter.
    """

    codes: Array
    scales: Array
    minima: Array | None
    size: int

    def real(self) -> Array:
        """float64[o, k]."""
        minima = np.zeros((1, 1)) if self.minima is None else self._each(self.minima)
        return self.codes * self._each(self.scales) + minima

    def _each(self, values: Array) -> Array:
        """[o, g] -> float64[o, k]."""
        return np.repeat(values.astype(np.float64), self.size, 1)[:, : self.codes.shape[1]]


@dataclass(frozen=True, eq=False)
class FileWeights:
    """A constant as its file holds it: real = scales x codes, with codes less their zero points.

    `scales`: float64, one for all, or one for each channel; with groups, the largest of each channel.
    `least`, `largest`: least and largest code of each channel.
    `quant`: scale and zero point, where they are one for all and the type is an activation's.
    `bias`: float64[channels] or None, the real numbers of the int32 bias added to its products.
    `groups`: weights with scales of groups.
    `product`: the constant is the weights of a node that sums products.
    """

    scales: Array
    least: Array
    largest: Array
    quant: FileQuant | None = None
    bias: Array | None = None
    groups: FileWeightGroups | None = None
    product: bool = False

    @property
    def peaks(self) -> Array:
        """The largest magnitude of a code, for each channel."""
        return np.maximum(np.abs(self.least), np.abs(self.largest))


def make_file_weights(
    codes: Array, scales: Array, axis: int, quant: FileQuant | None = None, bias: Array | None = None
) -> FileWeights:
    """Return the file weights of a constant.

    `codes`: integers less their zero points.
    `scales`: one, or one for each index of `axis`, which counts channels.
    """
    rows = np.moveaxis(codes, axis, 0).reshape(codes.shape[axis], -1) if codes.ndim else codes.reshape(1, 1)
    least, largest = rows.min(1, initial=0), rows.max(1, initial=0)
    return FileWeights(scales.astype(np.float64).reshape(-1), least, largest, quant, bias)


def make_file_weight_groups(groups: FileWeightGroups) -> FileWeights:
    """Return the file weights of weights in groups."""
    least, largest = groups.codes.min(1, initial=0), groups.codes.max(1, initial=0)
    return FileWeights(groups.scales.astype(np.float64).max(1), least, largest, groups=groups)


def find_file_weights(node: Node[Any], stored: Mapping[str, FileWeights]) -> list[FileWeights]:
    """Return what is known of a node's constants.

    `stored`: by node of the model, or by name of one of several nodes that stand for it.
    """
    is_named_directly = node.name in stored and node.name not in node.sources
    return [stored[n] for n in ((node.name,) if is_named_directly else node.sources) if n in stored]
