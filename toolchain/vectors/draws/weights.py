"""Describe a window operation of an instruction case (`Window`), and place its weights as the machine stores them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point import WeightGroups
from toolchain.hw.unit_map import Unit
from toolchain.ops.kit.grouped_weights import lay_groups
from toolchain.ops.kit.requants import pack_dense, pack_weights
from toolchain.vectors.case_builder import CaseBuilder, NotApplicable

Array = NDArray[Any]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """A convolution, depthwise operation or pool of an instruction case. Pairs are (height, width).

    `size`: of the input. `output`: size of the output. `inputs`, `outputs`: channels.
    `pad`: (top, left). `group`: weights that share a scale, 0: none do.
    `input_type`, `output_type`, `weight_type`, `unit`: the machine's numbers of them.
    `accumulate`, `emit`: whether it adds to kept sums, and whether it writes its output (1) or keeps the sums (0).
    `extra_fields`: values by parameter name of the operation, which override those derived from the others.
    """

    size: Pair = (5, 6)
    inputs: int = 3
    outputs: int = 5
    kernel: Pair = (3, 3)
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    pad: Pair = (1, 1)
    output: Pair = (5, 6)
    input_type: int = 0
    output_type: int = 0
    weight_type: int = 0
    group: int = 0
    unit: int = 0
    accumulate: int = 0
    emit: int = 1
    extra_fields: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]


def _random_weights(bench: CaseBuilder, number: int, shape: Pair) -> Array:
    """Return random weights int8[shape] of the type of this number; about a third are the least or the largest code."""
    codes = bench.chip.weight_types[number]
    values = bench.rng.integers(codes.low, codes.high, shape, np.int64, endpoint=True)
    ends = bench.rng.integers(0, 6, shape)
    return np.select([ends == 0, ends == 1], [codes.low, codes.high], values).astype(np.int8)


def place_dense_weights(bench: CaseBuilder, unit: Unit, w: Window, weights: Array | None) -> int:
    """Place the weights of a convolution, int8[outputs, inner], None: random, and return their address.

    Weights in groups get random scales and minima. Raise NotApplicable where the machine has no such groups.
    """
    chip, inner = bench.chip, w.taps * w.inputs
    codes = chip.weight_types[w.weight_type]
    rows = _random_weights(bench, w.weight_type, (w.outputs, inner)) if weights is None else weights
    if not w.group:
        return bench.block(unit.roles["weights"], pack_dense(rows, codes, chip))
    keys, shape = unit.array.groups, (w.outputs, -(-inner // w.group))
    if keys is None:
        raise NotApplicable("no weights in groups")
    scales = bench.rng.integers(0, 1 << keys.scale_bits, shape).astype(np.int32)
    half = 1 << max(keys.minimum_bits - 1, 0)
    minima = bench.rng.integers(-half, half, shape).astype(np.int32) if keys.minimum_bits else None
    part_bytes = w.group * codes.bits // 8
    packed = np.frombuffer(pack_weights(rows, codes), np.uint8).reshape(w.outputs, -1)
    return bench.block(unit.roles["weights"], lay_groups(packed, WeightGroups(w.group, scales, minima), part_bytes, keys))


def place_depthwise_weights(bench: CaseBuilder, unit: Unit, w: Window, weights: Array | None) -> int:
    """Place the weights of a depthwise operation, int8[taps, channels], None: random, and return their address."""
    rows = _random_weights(bench, w.weight_type, (w.taps, w.outputs)) if weights is None else weights
    return bench.block(unit.roles["weights"], pack_weights(rows, bench.chip.weight_types[w.weight_type]))
