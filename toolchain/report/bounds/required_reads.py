"""Find which elements of its operands a layer cannot do without, as the bounds of DRAM bytes need them (report.bounds.dram).

`reads_of` describes each operand's read. `get_required_elements` carries a requirement from a layer's output to an operand.
Nothing is claimed for operators that are unknown here, so that a bound stays a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np

from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.data_movement import IntegerConcat, ResizeNearest, Slice
from toolchain.ops.kit.operator import Layer, TiledOp
from toolchain.ops.kit.window import Window
from toolchain.ops.matrix_product import IntegerMatrixProduct
from toolchain.ops.permutation import Reshape, Transpose
from toolchain.ops.pool.integer_pool import IntegerAveragePool, IntegerMaxPool
from toolchain.ops.softmax import IntegerSoftmax
from toolchain.ops.tensor_scatter import PutRows, TakeRows


@dataclass(frozen=True)
class RequiredElements:
    """A lower bound of what is required of a tensor.

    `elements`: at least so many of its elements.
    `channels`: some elements of each channel (index of the last dimension) are required.
    `is_whole`: all elements are required.
    `parts`: requirements of slices of the tensor, by slice.
    """

    elements: int = 0
    channels: bool = False
    is_whole: bool = False
    parts: Mapping[Slice, RequiredElements] = field(default_factory=dict[Slice, "RequiredElements"])


@dataclass(frozen=True)
class Read:
    """The way in which a layer reads one activation.

    `elements`: number of its elements that the whole output is made of.
    `channels`: they include some of each channel.
    `even`: all elements of the activation have an equal part in those of the output.
    `mixes`: each output element is made of all channels of some pixel. `keeps`: it is made of its own channel.
    `passes`: a part of the output with n elements requires at least n of this activation.
    `part`: the slice that is all the layer reads; None: no slice.
    """

    elements: int
    channels: bool = True
    even: bool = False
    mixes: bool = False
    keeps: bool = False
    passes: bool = False
    part: Slice | None = None


@dataclass(frozen=True)
class WindowAxis:
    """A window over rows or columns.

    `touched`: number of input elements that some output reads.
    `taps`: number of kernel elements that meet some input element.
    `fewest`: number of taps that meet inputs at the output that meets fewest.
    `even`: inputs and outputs in equal shares of their lengths meet.
    """

    touched: int
    taps: int
    fewest: int
    even: bool


@lru_cache(maxsize=4096)
def axis_of(window: Window, outputs: int) -> WindowAxis:
    """Return the figures of a window along one axis with so many outputs."""
    met = window.elements(outputs)
    inside = met >= 0
    touched = np.zeros(window.size, bool)
    touched[met[inside]] = True
    return WindowAxis(int(touched.sum()), int(inside.any(0).sum()), int(inside.sum(1).min()), _is_even(met, window.size))


def _is_even(met: np.ndarray, inputs: int) -> bool:
    """Return whether each output meets all inputs whose share of the axis overlaps its own.

    `met`: [outputs, taps], -1 for padding.
    """
    outputs = len(met)
    output = np.arange(outputs, dtype=np.int64)
    first, last = output * inputs // outputs, -(-(output + 1) * inputs // outputs) - 1
    shared = (met >= first[:, None]) & (met <= last[:, None])
    return bool((shared.sum(1) == last - first + 1).all())


def window_of(layer: Layer, op: IntegerConvolution, axis: int) -> Window:
    """Return the window over rows (axis 0) or columns (axis 1) of a convolution's input."""
    size, kernel = (shape[1 + axis] for shape in (layer.input_type(0).shape, layer.constants[layer.node.inputs[1]].shape))
    return Window(size, kernel, op.strides[axis], op.dilations[axis], op.pads[axis])


def windows_of(layer: Layer) -> tuple[WindowAxis, WindowAxis] | None:
    """Return the windows of rows and columns over the first input, None where no windows slide over it."""
    op = layer.node.op
    _, rows, columns = (*layer.output.shape, 0, 0, 0)[:3]
    if isinstance(op, IntegerConvolution):
        down, across = (window_of(layer, op, axis) for axis in (0, 1))
        return axis_of(down, rows), axis_of(across, columns)
    if isinstance(op, IntegerAveragePool | IntegerMaxPool):
        _, height, width, _ = layer.input_type(0).shape
        down, across = op.geometry.axes(height, width)
        return axis_of(down, rows), axis_of(across, columns)
    return None


def reads_of(layer: Layer) -> Mapping[str, Read]:
    """Return how the layer reads each activation, by name; activations of unknown operators are left out."""
    op, inputs = layer.node.op, layer.node.inputs
    read_by_input: dict[str, Read] = {}
    if isinstance(op, IntegerConvolution):
        read_by_input[inputs[0]] = _read_window(layer, mixes=op.groups == 1)
        if op.residual is not None and inputs[3] != inputs[0]:
            read_by_input[inputs[3]] = _read_pointwise(layer, inputs[3])
    elif isinstance(op, IntegerAveragePool | IntegerMaxPool):
        read_by_input[inputs[0]] = _read_window(layer, mixes=False)
    elif isinstance(op, IntegerMatrixProduct):
        read_by_input |= {n: _product(layer, n, mixes=n == inputs[0]) for n in dict.fromkeys(inputs)}
    elif isinstance(op, IntegerSoftmax):
        read_by_input[inputs[0]] = Read(layer.output.elements, even=True, mixes=True)
    elif isinstance(op, TiledOp):
        read_by_input |= {n: _read_pointwise(layer, n) for n in layer.activations} if op.is_pointwise else {}
    else:
        read_by_input |= _read_moved(layer)
    return {n: read for n, read in read_by_input.items() if n in layer.activations}


def _read_window(layer: Layer, mixes: bool) -> Read:
    """Return the read of the first input of a window operator. mixes: each output is made of all channels."""
    axes = windows_of(layer)
    assert axes is not None
    samples, _, _, channels = layer.input_type(0).shape
    even, some = all(axis.even for axis in axes), all(axis.fewest for axis in axes)
    return Read(samples * axes[0].touched * axes[1].touched * channels, True, even, mixes and some, some)


def _read_pointwise(layer: Layer, name: str) -> Read:
    """Return the read of an operand at the same place as the output, broadcast where it is smaller."""
    kind, shape = layer.types[name], layer.output.shape
    same = kind.shape == shape
    return Read(kind.elements, True, same, False, same or kind.shape[-1:] == shape[-1:], same)


def _product(layer: Layer, name: str, mixes: bool) -> Read:
    """Return a read of all of an operand; a product needs both operands whole."""
    kind = layer.types[name]
    return Read(kind.elements, True, kind.shape[:-2] == layer.output.shape[:-2], mixes, True)


def _read_moved(layer: Layer) -> dict[str, Read]:
    """Return the reads of a data-movement operator; empty for an unknown one."""
    op, inputs = layer.node.op, layer.node.inputs
    elements = [layer.types[n].elements for n in inputs]
    last = len(layer.output.shape) - 1
    if isinstance(op, Reshape):
        return {inputs[0]: Read(elements[0], True, True, False, layer.input_type(0).shape[-1:] == layer.output.shape[-1:], True)}
    if isinstance(op, Transpose):
        return {inputs[0]: Read(elements[0], True, True, False, op.perm[last] == last, True)}
    if isinstance(op, Slice):
        uncut = layer.input_type(0).shape[-1:] == layer.output.shape[-1:]
        return {inputs[0]: Read(layer.output.elements, uncut, False, False, uncut, True, op)}
    if isinstance(op, ResizeNearest):
        return {inputs[0]: Read(elements[0], True, True, False, True)}
    if isinstance(op, IntegerConcat):
        return {n: Read(size, True, False, False, op.axis == last) for n, size in zip(inputs, elements)}
    if isinstance(op, PutRows):
        return _put(layer, op)
    if isinstance(op, TakeRows):
        uncut = op.axis < len(layer.input_type(0).shape) - 1 and layer.input_type(0).shape[-1:] == layer.output.shape[-1:]
        return {inputs[0]: Read(layer.output.elements, uncut, False, False, uncut, True)}
    return {}


def _put(layer: Layer, op: PutRows) -> dict[str, Read]:
    """Return the reads of PutRows: all of the rows that are put, and of the cache as many as the rows leave.

    The place of the put rows is known in each run alone, so nothing is claimed for a part of the output. An op whose cache is
    its own rows gives nothing.
    """
    (cache, rows), uncut = layer.node.inputs[:2], op.axis < len(layer.output.shape) - 1
    covered = layer.types[rows].elements * (2 if op.again else 1)
    remaining_elements = max(0, layer.types[cache].elements - covered)
    read_by_input = {cache: Read(remaining_elements, uncut and remaining_elements > 0), rows: Read(layer.types[rows].elements)}
    return read_by_input if cache != rows else {}


def get_required_elements(required: RequiredElements, read: Read, elements: int) -> RequiredElements:
    """Return what is required of an activation that has `elements` elements.

    `required`: what is required of the layer's output.
    `read`: how the layer reads the activation.
    """
    parts = {} if read.part is None else {read.part: RequiredElements(required.elements, required.channels, required.is_whole)}
    if required.is_whole:
        return RequiredElements(read.elements, read.channels, read.elements >= elements, parts)
    if read.passes:
        return RequiredElements(min(required.elements, elements), required.channels and read.keeps and read.channels, parts=parts)
    return RequiredElements(0, required.channels and (read.keeps or read.mixes) and read.channels)


def join_required(one: RequiredElements, other: RequiredElements) -> RequiredElements:
    """Return a requirement that two consumers of one tensor make together.

    The larger count stands; channels or the whole are required if either needs them. Requirements of the same slice are joined.
    """
    parts = dict(one.parts)
    for part, part_required in other.parts.items():
        parts[part] = join_required(parts.get(part, RequiredElements()), part_required)
    return RequiredElements(
        max(one.elements, other.elements), one.channels or other.channels, one.is_whole or other.is_whole, parts
    )


def with_parts(required: RequiredElements, shape: Sequence[int]) -> RequiredElements:
    """Return the requirement of a tensor with those of its slices added up, for a tensor whose consumers are all known.

    Of slices that overlap only the first adds its elements. The result has no parts.

    `shape`: shape of the tensor.
    """
    if not required.parts:
        return required
    is_covered, met = np.zeros(shape, bool), np.zeros(shape[-1], bool)
    elements = whole_elements = 0
    for part, part_required in required.parts.items():
        index = tuple(slice(s, s + n * k, k) for s, n, k in zip(part.starts, part.shape, part.steps))
        met[index[-1]] |= part_required.channels
        if not is_covered[index].any():
            is_covered[index] = True
            elements += part_required.elements
            whole_elements += part_required.is_whole * prod(part.shape)
    return RequiredElements(
        max(required.elements, elements),
        required.channels or bool(met.all()),
        required.is_whole or whole_elements == is_covered.size,
    )
