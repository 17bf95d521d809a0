"""Select MaxPool and AveragePool, and quantize them; the mean over rows and columns is the average over one window.

The divisor of a mean is in the requantization's scale, or in weights where that cannot express it. Classes follow `FloatOp`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, step_name
from toolchain.machine.parameters.description import OPEN_LIMIT
from toolchain.ops.convolution.integer_convolution import IntegerConvolution, exceeds_max_pad
from toolchain.ops.kit.operator import FloatOp, clamp_codes
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.requants import shift_zero_points
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.kit.window import pair_of
from toolchain.ops.pool.geometry import Geometry, Pads, Pair, all_windows_meet, window_counts
from toolchain.ops.pool.integer_pool import IntegerAveragePool, IntegerMaxPool

Bounds = tuple[float | None, float | None]


def beyond_pools(geometry: Geometry, channels: int, chip: Chip) -> str | None:
    """Return why the vector engine cannot pool such windows, whatever the type of their elements, or None.

    A window beyond half of the SRAM leaves no room for the output.
    """
    limits = chip.limits.pool
    window_bytes = math.prod(geometry.kernel) * min(channels, chip.lanes) * max(t.size_bytes for t in chip.code_types)
    if window_bytes > chip.sram.size // 2:
        return f"one window of {window_bytes} bytes fills more than half of memories.sram.size={chip.sram.size}"
    for what, value, limit, key in (
        ("kernel", geometry.kernel, limits.max_kernel, "limits.pool.max_kernel"),
        ("stride", geometry.strides, limits.max_stride, "limits.pool.max_stride"),
        ("dilation", geometry.dilations, limits.max_kernel, "limits.pool.max_kernel"),
    ):
        most, source = limit or (OPEN_LIMIT, OPEN_LIMIT), key if limit else "what an instruction can say"
        if value[0] > most[0] or value[1] > most[1]:
            return f"{what} {value[0]}x{value[1]} is larger than {source}={most[0]}x{most[1]}"
    return None


@dataclass(frozen=True)
class MaxPool(FloatOp):
    """A float max pool: the largest element of each window; padding never wins."""

    geometry: Geometry
    keeps_scale = True

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        """Return why the chip cannot pool; None: it can.

        Reasons are a missing max_pool, a window of padding alone, and a window beyond the limits.
        """
        if "max_pool" not in chip.functions:
            return f"{chip.key('vector')}.functions has no max_pool"
        _, *sizes, channels = graph.types[node.inputs[0]].shape
        if not all(all_windows_meet(self.geometry, axis, size, 0, size) for axis, size in enumerate(sizes)):
            return "a window lies in padding alone, whose largest element is the lowest float32"
        return beyond_pools(self.geometry, channels, chip)

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        return [Node(node.name, IntegerMaxPool(self.geometry), node.inputs, node.outputs, node.sources)]


@dataclass(frozen=True)
class AveragePool(FloatOp):
    """A float average pool. `count_padding`: padding counts as zeros. `activation`: bounds on the output.

    It runs on the vector engine, or as a depthwise convolution (`as_convolution`).
    """

    geometry: Geometry
    count_padding: bool
    activation: Bounds = (None, None)

    @property
    def takes_clamp(self) -> bool:
        return self.activation == (None, None)

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        """Return why the chip cannot average, neither as a convolution nor on the vector engine. None: it can.

        Reasons are a missing average_pool, a division by what is no power of two, and a window beyond the limits.
        """
        if self.as_convolution(graph.types[node.inputs[0]].shape[3], chip):
            return None
        if "average_pool" not in chip.functions:
            return f"{chip.key('vector')}.functions has no average_pool"
        _, height, width, channels = graph.types[node.inputs[0]].shape
        odd = [n for n in self._list_counts(height, width) if not divides(n, chip.numerics)]
        if odd:
            return f"windows of {', '.join(map(str, odd))} elements; numerics.scale.kind=pow2 divides by powers of two alone"
        return beyond_pools(self.geometry, channels, chip)

    def operand_types(self, node: Node, graph: Graph, chip: Chip) -> tuple[CodeType, ...]:
        """Return the types that arrays take where it runs as a convolution, else those of the vector engine."""
        return chip.array_types if self.as_convolution(graph.types[node.inputs[0]].shape[3], chip) else chip.operand_types

    def reads_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return whether the input may have 32-bit codes: only on the vector engine."""
        return not self.as_convolution(graph.types[node.inputs[0]].shape[3], chip)

    def makes_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return True: the output may have 32-bit codes."""
        return True

    def as_convolution(self, channels: int, chip: Chip) -> bool:
        """Return whether it runs as a depthwise convolution.

        It does where the vector engine cannot pool such windows or divide by their size. All windows must count equally many
        elements, and the padding must be within the array's limit.
        """
        uniform = self.count_padding or not any(self.geometry.pads)
        on_vector = "average_pool" in chip.functions and beyond_pools(self.geometry, channels, chip) is None
        exact = divides(math.prod(self.geometry.kernel), chip.numerics)
        beyond = exceeds_max_pad(self.geometry.pads, channels, channels, channels, chip)
        return uniform and not (on_vector and exact) and not beyond

    def _list_counts(self, height: int, width: int) -> list[int]:
        """Return the numbers of elements that windows count, rising, each once."""
        return sorted({int(v) for v in np.unique(window_counts(self.geometry, height, width, self.count_padding))})

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return one node: a depthwise convolution, or an `IntegerAveragePool` with a requantization for each number of
        elements.
        """
        x, y = scope.quant(node.inputs[0]), scope.quant(node.outputs[0])
        codes = scope.codes(node.outputs[0])
        low, high = clamp_codes(self.activation, y, codes)
        zeros = shift_zero_points((x.zero_point, y.zero_point), node, scope)
        _, height, width, channels = scope.graph.types[node.inputs[0]].shape
        if self.as_convolution(channels, scope.chip):
            return [self._convolution(node, scope, channels, zeros, low, high)]
        requants = tuple(
            (n, scope.requant(x.scale / (y.scale * n), "average_pool", codes, zeros[1], low, high, where=node.name))
            for n in self._list_counts(height, width)
        )
        op = IntegerAveragePool(self.geometry, self.count_padding, zeros[0], requants)
        return [Node(node.name, op, node.inputs, node.outputs, node.sources)]

    def _convolution(
        self, node: Node, scope: QuantContext, channels: int, zero_points: Sequence[int], low: int, high: int
    ) -> Node:
        """Return the average as a depthwise convolution of equal weights.

        `zero_points`: of input and output. `low`, `high`: clamp of the codes.
        """
        x, y = scope.quant(node.inputs[0]), scope.quant(node.outputs[0])
        g, (kh, kw), read = self.geometry, self.geometry.kernel, scope.codes(node.inputs[0])
        numerics = scope.numerics(node.inputs[0]).with_weights(scope.chip.weights_for(read)[0])
        weight, step = mean_weight(kh * kw, numerics)
        scale, codes = x.scale * step / y.scale, scope.codes(node.outputs[0])
        requant = scope.requant(scale, "convolution", codes, zero_points[1], low, high, where=node.name)
        op = IntegerConvolution(
            g.strides,
            g.pads,
            g.dilations,
            channels,
            zero_points[0],
            numerics.accumulator_bits,
            numerics.weight,
            requant,
            None,
            None,
        )
        weights = scope.constant(f"{node.name}.weights", np.full((channels, kh, kw, 1), weight, np.int8))
        zeros = scope.constant(f"{node.name}.bias", np.zeros(channels, np.int64))
        return Node(node.name, op, (node.inputs[0], weights, zeros), node.outputs, node.sources)


def split_max_pool(geometry: Geometry, limit: Pair, max_stride: Pair | None = None) -> list[Geometry] | None:
    """Split a large max pool into a chain of small ones; None where dilation or a limit of 1 prevents that.

    Max over k is max over k2 of max over k1, where k1 + k2 - 1 = k.
    Where windows lie side by side, k1 k2 = k, and the strides of all are their kernels.
    Otherwise all but the last have stride 1.
    Each takes the padding that its window reaches, less than its kernel, before the next has any.
    Positions beyond a stage with full padding are padding alone.
    """
    if geometry.dilations != (1, 1) or min(limit) < 2:
        return None
    if geometry.strides == geometry.kernel and not any(geometry.pads):
        rows, columns = (_factors(k, min(limit[i], max_stride[i] if max_stride else k)) for i, k in enumerate(geometry.kernel))
        if rows and columns:
            count = max(len(rows), len(columns))
            kernels = zip(*([1] * (count - len(each)) + each for each in (rows, columns)))
            return [Geometry((down, across), (down, across), (0, 0, 0, 0)) for down, across in kernels]
    chain: list[Geometry] = []
    kh, kw = geometry.kernel
    while kh > limit[0] or kw > limit[1]:
        step = (min(kh, limit[0]), min(kw, limit[1]))
        chain.append(Geometry(step, (1, 1), (0, 0, 0, 0)))
        kh, kw = kh - step[0] + 1, kw - step[1] + 1
    chain.append(Geometry((kh, kw), geometry.strides, (0, 0, 0, 0)))
    return _distribute_pads(chain, geometry.pads)


def _factors(size: int, most: int) -> list[int]:
    """Return factors of a size, each no larger than `most`; empty where it has none such."""
    factors: list[int] = []
    while size > most:
        factor = next((f for f in range(most, 1, -1) if size % f == 0), None)
        if factor is None:
            return []
        factors.append(factor)
        size //= factor
    return [*factors, size]


def _distribute_pads(chain: Sequence[Geometry], pads: Pads) -> list[Geometry]:
    """Return the chain with these pads dealt out; what no window reaches goes to the first."""
    remaining_pads = list(pads)
    pads_by_step: list[list[int]] = []
    for step in chain:
        pads_by_step.append([min(remaining_pads[side], step.kernel[side % 2] - 1) for side in range(4)])
        remaining_pads = [rest - part for rest, part in zip(remaining_pads, pads_by_step[-1])]
    pads_by_step[0] = [part + rest for part, rest in zip(pads_by_step[0], remaining_pads)]
    return [replace(step, pads=(part[0], part[1], part[2], part[3])) for step, part in zip(chain, pads_by_step)]


def mean_over_space(height: int, width: int, axes: tuple[int, ...]) -> AveragePool:
    """Return the average over rows (1), columns (2) or both of [n, h, w, c], whose dimensions are kept."""
    kernel = (height if 1 in axes else 1, width if 2 in axes else 1)
    return AveragePool(Geometry(kernel, (1, 1), (0, 0, 0, 0)), False)


def _geometry(scope: SelectionContext) -> Geometry | None:
    """Return the node's window over rows and columns; None where it has other dimensions or ceil_mode."""
    a = scope.attributes
    kernel = a.get("kernel_shape")
    if kernel is None or len(kernel) != 2 or a.get("ceil_mode", 0):
        return None
    top, left, bottom, right = (int(p) for p in a.get("pads", (0, 0, 0, 0)))
    height, width = pair_of(a, "kernel_shape")
    down, across = pair_of(a, "dilations")
    dilations = (down if height > 1 else 1, across if width > 1 else 1)
    return Geometry((height, width), pair_of(a, "strides"), (top, left, bottom, right), dilations)


def max_pool(scope: SelectionContext) -> None:
    """Select a MaxPool, as several where its window is beyond the machine's. Refuse indices and windows not over rows and
    columns.
    """
    geometry = _geometry(scope)
    if geometry is None or len([o for o in scope.node.outputs if o]) > 1:
        return scope.refuse("windows that are not over rows and columns, or indices asked for")
    source, last = smaller_windows(scope, scope.read(scope.node.inputs[0], "nhwc"), geometry)
    return scope.emit(MaxPool(last), (source,), "nhwc")


def smaller_windows(scope: SelectionContext, source: str, geometry: Geometry) -> tuple[str, Geometry]:
    """Add all but the last of the pools into which one beyond the machine's windows is split; return the tensor and the last
    window.

    A pool that need not, or cannot, be split is returned as it is.
    """
    limits, chain = scope.chip.limits.pool, [geometry]
    beyond = ((limits.max_kernel, geometry.kernel), (limits.max_stride, geometry.strides))
    if limits.max_kernel and any(most and (size[0] > most[0] or size[1] > most[1]) for most, size in beyond):
        chain = split_max_pool(geometry, limits.max_kernel, limits.max_stride) or chain
    for i, step in enumerate(chain[:-1]):
        n, h, w, c = scope.types[source].shape
        (top, left, bottom, right), (kh, kw), (down, across) = step.pads, step.kernel, step.strides
        shape = (n, (h + top + bottom - kh) // down + 1, (w + left + right - kw) // across + 1, c)
        name = scope.inner(f"stage{i}", shape)
        scope.nodes.append(Node(step_name(scope.node.name, f"stage{i}"), MaxPool(step), (source,), (name,), scope.node.sources))
        source = name
    return source, chain[-1]


def average_pool(scope: SelectionContext) -> None:
    """Select an AveragePool. Refuse windows that are not over rows and columns."""
    geometry = _geometry(scope)
    if geometry is None:
        return scope.refuse("windows that are not over rows and columns")
    op = AveragePool(geometry, bool(scope.attributes.get("count_include_pad", 0)))
    return scope.emit(op, (scope.read(scope.node.inputs[0], "nhwc"),), "nhwc")


RULES = {"MaxPool": Rule(max_pool, "nhwc"), "AveragePool": Rule(average_pool, "nhwc")}


def divides(count: int, numerics: Numerics) -> bool:
    """Return whether a requantization can divide by `count`: a scale that is a power of two would be up to 41 % off."""
    return numerics.scale.kind != "pow2" or count & (count - 1) == 0


def mean_weight(count: int, numerics: Numerics) -> tuple[int, float]:
    """Return the code of each element's weight 1 / count, and the real value of a step of the weighted sum.

    The code is 1 where the requantization divides; else the largest whose sums fit the accumulators, at a power of two.
    """
    if divides(count, numerics):
        return 1, 1 / count
    widest = 1 << max(t.bits for t in numerics.types)  # a code less its zero point
    room = numerics.largest_sum // (count * widest)
    most = max(1, min(numerics.weight.high, room))
    step = 2.0 ** -math.floor(math.log2((most + 0.5) * count))
    return max(1, round(1 / (step * count))), step
