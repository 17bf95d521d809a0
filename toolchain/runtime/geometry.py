"""Warn of layers whose operations do not do the work of the layer's geometry: a size, a padding or a stride is wrong.

The session adds the warnings to a run of the simulator. Each layer of the integer graph says how many elements it makes, and
how many elements of its input meet its windows. The decoded operations of the layer say the same of themselves; both are
counted in closed form and compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toolchain import machine
from toolchain.codegen import Container, Region
from toolchain.machine.columns import Column, IntOrColumn
from toolchain.machine.operation import columns_of, group_by_unit
from toolchain.machine.window_rows import taps_met
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
from toolchain.ops.kit.operator import Layer
from toolchain.ops.lookup import Lookup
from toolchain.ops.matrix_product import IntegerMatrixProduct
from toolchain.ops.rescale import Rescale
from toolchain.ops.softmax import IntegerSoftmax
from toolchain.runtime.dead_store_warnings import windows_of

_POINTWISE = (IntegerBinary, IntegerSoftmax, Lookup, Rescale)
_COMPUTING = ("mac_array", "vector")  # kinds of units; the others move, and make no element


class LayerWork(NamedTuple):
    """The work of a layer or of operations, as counts.

    `elements`: elements that are made of the layer's tensor.
    `terms`: elements of the input that these are made of, each as often as it meets a window; padding is none.
    `rows`, `columns`: sums of the indices of the kernel's row and column that each term meets.
    """

    elements: IntOrColumn
    terms: IntOrColumn
    rows: IntOrColumn = 0
    columns: IntOrColumn = 0


def geometry_warnings(container: Container, region: Region, ops: machine.InstructionStream) -> tuple[str, ...]:
    """Return a sentence for each layer whose operations make other numbers of elements, or of other terms.

    A layer of an unknown operator, or with an unknown operation, is left out. All layers are left out where an edited listing
    does not name the layer of an operation.

    `ops`: the program's flow.
    """
    graph, chip = container.graph, container.machine.chip
    nodes = {node.name: node for node in graph.nodes}
    layers = [Layer(nodes[i.name], graph.types, graph.constants, chip) if i.name in nodes else None for i in region.layers]
    owners, windows = region.layers_of(ops), np.array([*map(_window, layers), (0, 0, 0)], np.int64)
    totals, unknown, cut = _totals(ops, owners, windows)
    cascaded, warnings = _find_cascaded_layers(ops, owners), list[str]()
    for index, layer in enumerate(layers):
        expected = None if layer is None or unknown & {index, -1} else _find_expected_work(layer)
        if expected is not None:
            done = LayerWork(*(int(total[index]) for total in totals))
            if index in cut:
                done = done._replace(rows=expected.rows, columns=expected.columns)
            # Layers of a cascade recompute what the next block of columns needs too, and leave out columns that nothing reads.
            if done != expected and not (index in cascaded and done.elements != expected.elements):
                warnings.append(_sentence(region.layers[index].name, region.layers[index].op, done, expected))
    return tuple(warnings)


def _sentence(name: str, op: str, done: LayerWork, expected: LayerWork) -> str:
    if done.elements != expected.elements:
        fault = f"write {done.elements} elements, its tensor has {expected.elements}"
    elif done.terms != expected.terms:
        fault = f"take {done.terms} elements of the input into their windows, padding left out, its geometry has {expected.terms}"
    else:
        fault = "have other elements of the kernel over padding than its geometry"
    return f"layer {name} ({op}): its operations {fault}; a size, a padding or a stride of one is wrong, or one is missing"


def _find_expected_work(layer: Layer) -> LayerWork | None:
    """Return the work of a layer by the integer graph; None where operations may do it in some other way."""
    op, elements = layer.node.op, math.prod(layer.output.shape)
    if isinstance(op, _POINTWISE):
        return LayerWork(elements, 0)
    if isinstance(op, IntegerMatrixProduct):
        return LayerWork(elements, elements * layer.input_type(0).shape[-1])
    windows = windows_of(layer)
    if windows is None:
        return None
    inner = layer.constants[layer.node.inputs[1]].shape[3] if isinstance(op, IntegerConvolution) else 1
    axes = ((n, w.kernel, w.stride, w.dilation, w.pad, w.size) for w, n in windows)
    return _make_window_work(elements, layer.output.shape[0] * layer.output.shape[3] * inner, *axes)


def _make_window_work(
    elements: IntOrColumn, each: IntOrColumn, vertical: tuple[IntOrColumn, ...], horizontal: tuple[IntOrColumn, ...]
) -> LayerWork:
    """Return the work of windows.

    `each`: terms of a tap and a pixel.
    `vertical`, `horizontal`: arguments of `taps_met`.
    """
    (rows, row_places), (columns, column_places) = taps_met(*vertical), taps_met(*horizontal)
    return LayerWork(elements, each * rows * columns, each * row_places * columns, each * rows * column_places)


def _window(layer: Layer | None) -> tuple[int, int, int]:
    """Return rows and columns of the layer's kernel and output channels of a group; zeros for a layer without windows."""
    windows = None if layer is None else windows_of(layer)
    if layer is None or windows is None:
        return 0, 0, 0
    return windows[0][0].kernel, windows[1][0].kernel, layer.output.shape[3] // getattr(layer.node.op, "groups", 1)


def _totals(ops: Sequence[machine.MachineOp], owners: Column, windows: Column) -> tuple[LayerWork, set[int], set[int]]:
    """Return the work of all operations by layer, the layers with operations of unknown work, and those with partial kernels.

    In the second set -1 means that an operation has no layer. Partial kernels are operations on a part of the kernel.

    `owners`: layer of each operation; `windows`: rows of `_window` by layer, the last for operations without one.
    """
    totals, unknown, cut = LayerWork(*np.zeros((4, len(windows)), np.int64)), set[int](), set[int]()
    for members in (m for m in group_by_unit(ops).values() if ops[m[0]].ENGINE in _COMPUTING):
        layers, op = owners[members], columns_of([ops[i] for i in members])
        height, width, group_outputs = windows[layers].T
        op_work = _count_work(op, group_outputs)
        unknown.update(layers[layers < 0].tolist() if op_work is not None else layers.tolist())
        for total, part in zip(totals, op_work or ()):
            np.add.at(total, layers, part)
        if isinstance(op, machine.WindowOp):
            cut.update(layers[(op.kernel_height < height) | (op.kernel_width < width)].tolist())
    return totals, unknown, cut


def _count_work(op: machine.MachineOp, group_outputs: Column) -> LayerWork | None:
    """Return the work of operations of one class as columns; None where it is not known. group_outputs: of the layer of each
    operation."""
    if isinstance(op, machine.Elementwise | machine.Table | machine.Emit):
        return LayerWork(op.height * op.width * op.channels, 0)
    if isinstance(op, machine.Softmax):
        return LayerWork(op.rows * op.columns, 0)
    if isinstance(op, machine.MatrixProduct):
        sums = op.batches * op.rows * op.columns
        return LayerWork(op.emit * sums, sums * op.inner)
    if isinstance(op, machine.Pool):
        return _make_window_work(op.pixels() * op.channels, op.channels, op.window_rows(), op.window_columns())
    if not isinstance(op, machine.WeightedWindowOp):
        return None
    each = op.outputs()
    if isinstance(op, machine.Convolution):
        # Neighbouring groups in one operation: all but one in so many products are by the zeros between groups.
        each = each * op.input_channels // np.maximum(1, each // np.maximum(1, group_outputs))
    return _make_window_work(op.emit * op.pixels() * op.outputs(), each, op.window_rows(), op.window_columns())


def _find_cascaded_layers(ops: Sequence[machine.MachineOp], owners: Column) -> set[int]:
    """Return the layers whose operations run again behind those of another layer, as those of a cascade do."""
    visited, again, before = set[int](), set[int](), -1
    for op, layer in zip(ops, owners.tolist()):
        if layer != before and op.ENGINE in _COMPUTING:
            (again if layer in visited else visited).add(layer)
            before = layer
    return again
