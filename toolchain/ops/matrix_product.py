"""Select and compute the matrix product of two operands of which at most one is constant; batch dimensions broadcast as in
numpy.

The frontend turns products with one constant matrix into convolutions, so that a constant here is a stack of matrices.
Methods follow `FloatOp` and `TiledOp` in `ops.kit.operator`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quant.file_qparams import get_file_codes
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.sums.matmul import matmul
from quant.parameters import product_scale
from toolchain import machine
from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SRAM
from toolchain.ir.graph import Graph, Node, Quant
from toolchain.ops.kit.array_choice import add_dataflows, find_capable_arrays
from toolchain.ops.kit.box_tiles import constant_block
from toolchain.ops.kit.loops import LoopAxis, LoopOrder, one_by_one
from toolchain.ops.kit.nest import Nest, cut_axis, reduction_axis, uniform_axis
from toolchain.ops.kit.operator import Array, FloatOp, Layer, PerSample, TiledOp
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.requants import pair
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.kit.tile import Box, BoxLocation, Extent, TileTask, Tiling, halvings


@dataclass(frozen=True)
class MatrixProduct(FloatOp):
    """A float product a[..., m, k] b[..., k, n], each operand of at least two dimensions.

    It needs limits.matrix_product.computed_operand, and a way to load the second operand into the array's memory for weights.
    """

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        """Return why the chip cannot run it. None: it can.

        Reasons are a machine without computed operands, an operand of one dimension, and weights' memory that DMA does not
        fill.
        """
        limits = chip.limits.matrix_product
        if not limits.computed_operand:
            return "both operands are computed; limits.matrix_product.computed_operand is false"
        shapes = [graph.types[n].shape for n in node.inputs]
        if min(len(s) for s in shapes) < 2:
            return f"a one-dimensional operand {shapes}; reshape it to two dimensions"
        for unit in chip.workers("mac_array"):
            code = unit.roles["weights"]
            if code != SRAM and not chip.loaders(SRAM, code):
                return f"{unit.key}.memories.weights is {chip.spaces[code].key}, which {chip.key('dma')} does not fill from sram"
        return None

    def operand_types(self, node: Node, graph: Graph, chip: Chip) -> tuple[CodeType, ...]:
        """Return the types of activations that the array multiplies."""
        return tuple(codes for codes in chip.array_types if any(t.activation == codes for t in chip.array.types))

    def makes_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return True: the output may have 32-bit codes."""
        return True

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return a list of one `IntegerMatrixProduct`. A constant operand is registered with `scope` as codes."""
        names, (a, b) = zip(*(self._operand(i, node, scope) for i in range(2)))
        y = scope.quant(node.outputs[0])
        codes = scope.codes(node.outputs[0])
        low, high = codes.limits
        scale = product_scale(a.scale, b.scale, y.scale, scope.chip.numerics)
        requant = scope.requant(scale, "matrix_product", codes, y.zero_point, low, high, where=node.name)
        op = IntegerMatrixProduct(a.zero_point, b.zero_point, scope.chip.numerics.accumulator_bits, requant)
        return [Node(node.name, op, names, node.outputs, node.sources)]

    def _operand(self, index: int, node: Node, scope: QuantContext) -> tuple[str, Quant]:
        """Return the tensor and qparams of an operand.

        An activation stays as it is. A constant has its file's codes, or is quantized by its own range to codes of the
        other's type.
        """
        name, other = node.inputs[index], node.inputs[1 - index]
        value = scope.graph.constants.get(name)
        if value is None:
            return name, scope.quant(name)
        numerics = scope.numerics(other)
        operand = get_file_codes(value, scope.find_file_weights(node, product=True), numerics)
        if operand is None:
            quant = scope.constant_quant(value, other)
            operand = (
                np.clip(np.rint(value.astype(np.float64) / quant.scale) + quant.zero_point, *numerics.activation.limits),
                quant,
            )
        return scope.constant(f"{node.name}.{name}", operand[0].astype(numerics.activation.dtype)), operand[1]


@dataclass(frozen=True, eq=False)
class IntegerMatrixProduct(TiledOp):
    """A product on codes: requantize(sum (a - a_zero_point)(b - b_zero_point)), with one scale for all elements."""

    NAME = "MatrixProduct"
    VERSION = 2
    takes_device_arrays = True
    a_zero_point: int
    b_zero_point: int
    accumulator_bits: int
    requant: Requant

    def reference(self, inputs: Sequence[Array]) -> Array:
        a, b = inputs
        acc = matmul(a, b, a_zero_point=self.a_zero_point, b_zero_point=self.b_zero_point, accumulator_bits=self.accumulator_bits)
        return requantize(acc, self.requant, self.requant.dtype)

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        """Return the operator itself for one sample along `axis` of the output; None where samples are not made one by one.

        Rows may be the samples, columns may not. An operand with one element along `axis` serves all samples, as b does without
        that dimension. None: an operand with a part for each sample is constant, a has another rank, or a x a shares an operand.
        """
        a, b = layer.node.inputs
        rank, shape = len(layer.output.shape), layer.types[b].shape
        operand_axis = axis - (rank - len(shape))
        b_is_shared = axis == rank - 2 or operand_axis < 0 or shape[operand_axis] == 1
        if axis == rank - 1 or len(layer.types[a].shape) != rank or (b_is_shared and a == b):
            return None
        a_is_shared = layer.types[a].shape[axis] == 1
        counted = tuple(n for n, is_shared in ((a, a_is_shared), (b, b_is_shared)) if not is_shared)
        return None if any(n in layer.constants for n in counted) else PerSample(self, counted)

    def contiguous_dims(self, node: Node) -> Mapping[str, int]:
        """Return how many of the last dimensions must be contiguous: one of a and of the output, none of b."""
        a, b = node.inputs
        return {b: 0, a: 1, node.outputs[0]: 1}

    def tiling_key(self) -> Hashable:
        return ()

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        return add_dataflows(self._tilings(layer), find_capable_arrays(layer.chip))

    def _tilings(self, layer: Layer) -> Iterable[Tiling]:
        """Yield cuts of rows, columns, inner dimension and batches, from large tiles to small."""
        m, n = layer.output.shape[-2:]
        k = layer.input_type(0).shape[-1]
        mac, limits = layer.chip.array, layer.chip.limits.matrix_product
        for inner in halvings(min(k, limits.max_k or k), mac.rows * mac.depth):
            for columns in halvings(min(n, limits.max_n or n, mac.accumulators.entries), mac.columns):
                for rows in halvings(m):
                    if rows * columns > mac.accumulators.entries and rows > 1:
                        continue
                    for batches in self._batch_counts(layer) if inner == k else (1,):
                        yield Tiling(rows, 1, columns, inner, True, 0, batches)
                        yield Tiling(rows, 1, columns, inner, False, 0, batches)

    def _batch_counts(self, layer: Layer) -> list[int]:
        """Return how many products of the last batch dimension one operation may make: complete sums only."""
        return halvings(min((1, *layer.output.shape)[-3], layer.chip.limits.matrix_product.max_batches))

    def loop_orders(self, layer: Layer) -> tuple[LoopOrder, ...]:
        *batch, m, n = layer.output.shape
        rows, columns = LoopAxis("rows", m, "rows"), LoopAxis("channels", n, "channels")
        inner = LoopAxis("inner", layer.input_type(0).shape[-1], "inner")
        lead = (*one_by_one(batch[:-1], "outer"), *(LoopAxis("batches", size, "batches") for size in batch[-1:]))
        return LoopOrder((*lead, rows, columns, inner)), LoopOrder((*lead, columns, rows, inner), False)

    def nest(self, layer: Layer, tiling: Tiling, extent: Extent | None = None) -> Nest:
        """Return the nest of batches, of rows and columns in the tiling's order, and innermost of parts of the inner
        dimension.
        """
        *batch, m, n = layer.output.shape
        k = layer.input_type(0).shape[-1]
        lead = (*(uniform_axis(size) for size in batch[:-1]), *(cut_axis(size, tiling.batches) for size in batch[-1:]))
        rows, columns, inner = cut_axis(m, tiling.rows), cut_axis(n, tiling.channels), reduction_axis(k, tiling.inner)
        places = (rows, columns) if tiling.rows_outer else (columns, rows)

        def body(point: tuple[Any, ...]) -> tuple[TileTask]:
            first, second, part = point[-3:]
            r, c = (first, second) if tiling.rows_outer else (second, first)
            return (self._make_task(layer, point[:-3], r, c, part, part[0] > 0, sum(part) == k, tiling),)

        return Nest((*lead, *places, inner), body)

    def _make_task(
        self,
        layer: Layer,
        lead: tuple[Any, ...],
        rows: tuple[int, int],
        columns: tuple[int, int],
        inner: tuple[int, int],
        accumulate: bool,
        last: bool,
        tiling: Tiling,
    ) -> TileTask:
        """Return the tile task of one product: [rows, inner] by [inner, columns], of the batch at `lead`.

        `accumulate`: it adds to the sums of the task before. `last`: it writes the output.
        """
        a, b = layer.node.inputs
        a_region = _matrix_box(a, layer.types[a].shape, lead, rows, inner)
        b_region = _matrix_box(b, layer.types[b].shape, lead, inner, columns)._replace(role="weights")
        write = _matrix_box(layer.node.outputs[0], layer.output.shape, lead, rows, columns) if last else None
        r, batches = self.requant, lead[-1][1] if lead else 1

        constant = [n in layer.constants for n in (a, b)]

        def emit(moved: Sequence[BoxLocation], blocks: Sequence[int], out: BoxLocation | None) -> tuple[machine.MachineOp, ...]:
            multiplier, shift = pair(r)
            moving, fixed, regions = iter(moved), iter(blocks), (a_region, b_region)
            sites = [BoxLocation(next(fixed), layer.strides(box)) if c else next(moving) for box, c in zip(regions, constant)]
            named = (("a", a_region, sites[0]), ("b", b_region, sites[1]), ("output", write, out))
            strides = {f"{name}_batch_stride": _batch_stride(box, site) for name, box, site in named}
            return (
                machine.MatrixProduct(
                    a_address=sites[0].address,
                    a_row_stride=sites[0].strides[-2],
                    b_address=sites[1].address,
                    b_row_stride=sites[1].strides[-2],
                    b_column_stride=sites[1].strides[-1],
                    output_address=out.address if out else 0,
                    output_row_stride=out.strides[-2] if out else 0,
                    rows=rows[1],
                    inner=inner[1],
                    columns=columns[1],
                    a_zero_point=self.a_zero_point,
                    b_zero_point=self.b_zero_point,
                    output_zero_point=r.zero_point,
                    multiplier=multiplier,
                    shift=shift,
                    clamp_low=r.low,
                    clamp_high=r.high,
                    accumulate=int(accumulate),
                    emit=int(last),
                    batches=batches,
                    dataflow=tiling.dataflow,
                    a_type=layer.type_number(a),
                    b_type=layer.type_number(b),
                    output_type=layer.output_number,
                    **strides,
                ),
            )

        reads = tuple(box for box, c in zip((a_region, b_region), constant) if not c)
        constant_blocks = tuple(constant_block(layer, box) for box, c in zip((a_region, b_region), constant) if c)
        sums = () if last else (rows[1], columns[1])
        return TileTask(reads, constant_blocks, write, emit, (*tiling.variant, *sums))


def batch_variants(chip: Chip, nodes: Iterable[Node]) -> tuple[Chip, ...]:
    """Return the machine, and behind it a variant whose operations make one product each.

    There is no variant where limits.matrix_product.max_batches is 1, or where no node is an `IntegerMatrixProduct`.
    Several products in an operation may be slower, because their stores end later; the caller plans with both.
    """
    limits = chip.limits.matrix_product
    if limits.max_batches == 1 or not any(isinstance(node.op, IntegerMatrixProduct) for node in nodes):
        return (chip,)
    single = limits.model_copy(update={"max_batches": 1})
    return chip, chip.model_copy(update={"limits": chip.limits.model_copy(update={"matrix_product": single})})


def _matrix_box(name: str, shape: tuple[int, ...], lead: tuple[Any, ...], rows: tuple[int, int], columns: tuple[int, int]) -> Box:
    """Return the box of a matrix of an operand, whose batch dimensions of one broadcast.

    `lead`: the step of each batch dimension, of the last one (start, size).
    """
    spans = [*((i, 1) for i in lead[:-1]), *lead[-1:]]
    spans_by_dim = [(0, 1) if n == 1 else span for n, span in zip(shape, spans[len(spans) - (len(shape) - 2) :])]
    return Box(name, (*(s for s, _ in spans_by_dim), rows[0], columns[0]), (*(n for _, n in spans_by_dim), rows[1], columns[1]))


def _batch_stride(box: Box | None, site: BoxLocation | None) -> int:
    """Return the bytes between the matrices of neighbouring products; 0 where all products share one matrix."""
    return site.strides[-3] if box and site and (1, *box.size)[-3] > 1 else 0


def matrix_product(scope: SelectionContext) -> None:
    """Select a MatMul in the model's order of dimensions, with constants as they are. Refuse operands of one dimension."""
    if any(len(scope.shape(n)) < 2 for n in scope.node.inputs):
        return scope.refuse("a one-dimensional operand")
    values = [scope.value(n) for n in scope.node.inputs]
    read = (scope.read(n, "plain") if v is None else scope.constant(n, v) for n, v in zip(scope.node.inputs, values))
    return scope.emit(MatrixProduct(), tuple(read), "plain")


RULES = {"MatMul": Rule(matrix_product)}
