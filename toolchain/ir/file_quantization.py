"""Describe what a file that is quantized already says: the scales of its activations, and how it holds constants as codes.

The frontend makes these values while it turns the file into a float graph; quantization reads them to keep the file's codes.
"""

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
    """The quantization that a file gives an activation: real = scale * (code - zero_point), codes saturated to those of
    `dtype`.

    `dtype`: int8, uint8, int16 or uint16.
    """

    scale: float
    zero_point: int
    dtype: str

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return BITS[self.dtype]

    @property
    def low(self) -> int:
        """The least code of `dtype`."""
        return int(np.iinfo(self.dtype).min)

    def quant(self, low: int) -> Quant:
        """Return scale and zero point of the same real values in codes of a type of as many bits whose least code is `low`."""
        return Quant(self.scale, self.zero_point - self.low + low)

    def ends(self) -> tuple[float, float]:
        """Return the real values of the least and the largest code."""
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
        """Return the real numbers, float64[o, k]."""
        minima = np.zeros((1, 1)) if self.minima is None else self._each(self.minima)
        return self.codes * self._each(self.scales) + minima

    def _each(self, values: Array) -> Array:
        """Return a value for each weight: [o, g] -> float64[o, k]."""
        return np.repeat(values.astype(np.float64), self.size, 1)[:, : self.codes.shape[1]]


@dataclass(frozen=True, eq=False)
class FileWeights:
    """A summary of a constant as its file holds it, without its codes: real = scales * codes, codes less their zero points.

    `scales`: float64, one for all, or one for each channel; with groups, the largest of each channel.
    `least`, `largest`: least and largest code of each channel, never above or below 0.
    `quant`: scale and zero point where they are one for all and the type is an activation's, else None.
    `bias`: float64[channels], the real numbers of the int32 bias that the file adds to its products, or None.
    `groups`: codes and scales of weights that are quantized in groups, else None.
    `product`: whether the constant is the weights of a node that sums products.
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
    """Return the file weights of a constant. `product` and `groups` of the result are left unset.

    `codes`: integers less their zero points, of a type that holds minus their least.
    `scales`: one, or one for each index of `axis`, the dimension of channels. A scalar is one channel.
    `quant`, `bias`: as in `FileWeights`.
    """
    rows = np.moveaxis(codes, axis, 0).reshape(codes.shape[axis], -1) if codes.ndim else codes.reshape(1, 1)
    least, largest = rows.min(1, initial=0), rows.max(1, initial=0)
    return FileWeights(scales.astype(np.float64).reshape(-1), least, largest, quant, bias)


def make_file_weight_groups(groups: FileWeightGroups) -> FileWeights:
    """Return the file weights of weights that are quantized in groups, which the result holds; its scale is each channel's
    largest.
    """
    least, largest = groups.codes.min(1, initial=0), groups.codes.max(1, initial=0)
    return FileWeights(groups.scales.astype(np.float64).max(1), least, largest, groups=groups)


def find_file_weights(node: Node[Any], stored: Mapping[str, FileWeights]) -> list[FileWeights]:
    """Return the file weights of a node's constants; the list is empty where the file holds none as codes.

    `stored`: by name of a node of the model, or of one of several nodes that a rewrite put in its place.
    A node has the entries of its sources, in their order. If `stored` has an entry by its own name, which is none of its
    sources, it has that alone.
    """
    is_named_directly = node.name in stored and node.name not in node.sources
    return [stored[n] for n in ((node.name,) if is_named_directly else node.sources) if n in stored]
