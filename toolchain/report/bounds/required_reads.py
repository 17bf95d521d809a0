"""Which elements of its operands a layer cannot do without: what bounds of bytes are made of. Of operators that are not known
here nothing is asserted, so that a bound stays one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np

from toolchain.ops.convolution.integer import IntegerConvolution
from toolchain.ops.data_movement import IntegerConcat, ResizeNearest, Slice
from toolchain.ops.kit.operator import Layer, TiledOp
from toolchain.ops.kit.window import Window
from toolchain.ops.matrix_product import IntegerMatrixProduct
from toolchain.ops.permutation import Reshape, Transpose
from toolchain.ops.pool.integer import IntegerAveragePool, IntegerMaxPool
from toolchain.ops.softmax import IntegerSoftmax
from toolchain.ops.tensor_scatter import PutRows, TakeRows


@dataclass(frozen=True)
class RequiredElements:
    """Of a tensor: so many elements at least. channels: of each channel (index of the last dimension) some; whole: all. parts:
    what is needed of slices of it."""

    elements: int = 0
    channels: bool = False
    whole: bool = False
    parts: Mapping[Slice, RequiredElements] = field(default_factory=dict[Slice, "RequiredElements"])


@dataclass(frozen=True)
class Read:
    """How a layer reads one activation. elements: that all of its output is made of. channels: among them some of each channel;
    even, mixes, keeps: as `reload_bound.Edge` has them. passes: as many are needed as of the output, if that is not needed whole.
    part: all that is read."""

    elements: int
    channels: bool = True
    even: bool = False
    mixes: bool = False
    keeps: bool = False
    passes: bool = False
    part: Slice | None = None


@dataclass(frozen=True)
class WindowAxis:
    """A window over rows or columns. touched: elements that some output reads; taps: elements of the kernel that meet some;
    fewest: that the output which meets fewest does; even: inputs and outputs in equal shares of their lengths meet."""

    touched: int
    taps: int
    fewest: int
    even: bool


@lru_cache(maxsize=4096)
def axis_of(window: Window, outputs: int) -> WindowAxis:
    """Of one axis."""
    met = window.elements(outputs)
    inside = met >= 0
    touched = np.zeros(window.size, bool)
    touched[met[inside]] = True
    return WindowAxis(int(touched.sum()), int(inside.any(0).sum()), int(inside.sum(1).min()), _is_even(met, window.size))


def _is_even(met: np.ndarray, inputs: int) -> bool:
    """Whether each output meets all inputs whose share of the axis overlaps its own. met: [outputs, taps], -1 for padding."""
    outputs = len(met)
    output = np.arange(outputs, dtype=np.int64)
    first, last = output * inputs // outputs, -(-(output + 1) * inputs // outputs) - 1
    shared = (met >= first[:, None]) & (met <= last[:, None])
    return bool((shared.sum(1) == last - first + 1).all())


def window_of(layer: Layer, op: IntegerConvolution, axis: int) -> Window:
    """Over rows (0) or columns (1) of a convolution's input."""
    size, kernel = (shape[1 + axis] for shape in (layer.input_type(0).shape, layer.constants[layer.node.inputs[1]].shape))
    return Window(size, kernel, op.strides[axis], op.dilations[axis], op.pads[axis])


def windows_of(layer: Layer) -> tuple[WindowAxis, WindowAxis] | None:
    """Of rows and columns of the first input, where windows slide over it."""
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
    """By activation; those of which nothing is known are left out."""
    op, inputs = layer.node.op, layer.node.inputs
    found: dict[str, Read] = {}
    if isinstance(op, IntegerConvolution):
        found[inputs[0]] = _windowed(layer, mixes=op.groups == 1)
        if op.residual is not None and inputs[3] != inputs[0]:
            found[inputs[3]] = _alike(layer, inputs[3])
    elif isinstance(op, IntegerAveragePool | IntegerMaxPool):
        found[inputs[0]] = _windowed(layer, mixes=False)
    elif isinstance(op, IntegerMatrixProduct):
        found |= {n: _product(layer, n, mixes=n == inputs[0]) for n in dict.fromkeys(inputs)}
    elif isinstance(op, IntegerSoftmax):
        found[inputs[0]] = Read(layer.output.elements, even=True, mixes=True)
    elif isinstance(op, TiledOp):
        found |= {n: _alike(layer, n) for n in layer.activations} if op.is_pointwise else {}
    else:
        found |= _moved(layer)
    return {n: read for n, read in found.items() if n in layer.activations}


def _windowed(layer: Layer, mixes: bool) -> Read:
    axes = windows_of(layer)
    assert axes is not None
    samples, _, _, channels = layer.input_type(0).shape
    even, some = all(axis.even for axis in axes), all(axis.fewest for axis in axes)
    return Read(samples * axes[0].touched * axes[1].touched * channels, True, even, mixes and some, some)


def _alike(layer: Layer, name: str) -> Read:
    kind, shape = layer.types[name], layer.output.shape
    same = kind.shape == shape
    return Read(kind.elements, True, same, False, same or kind.shape[-1:] == shape[-1:], same)


def _product(layer: Layer, name: str, mixes: bool) -> Read:
    """Of both operands all."""
    kind = layer.types[name]
    return Read(kind.elements, True, kind.shape[:-2] == layer.output.shape[:-2], mixes, True)


def _moved(layer: Layer) -> dict[str, Read]:
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
    """Of rows put among others all, and of the others those that stay. Which are put is a number of each run, so that of a part
    of them nothing is known."""
    (cache, rows), uncut = layer.node.inputs[:2], op.axis < len(layer.output.shape) - 1
    covered = layer.types[rows].elements * (2 if op.again else 1)
    kept = max(0, layer.types[cache].elements - covered)
    found = {cache: Read(kept, uncut and kept > 0), rows: Read(layer.types[rows].elements)}
    return found if cache != rows else {}


def get_required_elements(needed: RequiredElements, read: Read, elements: int) -> RequiredElements:
    """Of an activation with so many elements, where so much is needed of what a layer makes of it."""
    parts = {} if read.part is None else {read.part: RequiredElements(needed.elements, needed.channels, needed.whole)}
    if needed.whole:
        return RequiredElements(read.elements, read.channels, read.elements >= elements, parts)
    if read.passes:
        return RequiredElements(min(needed.elements, elements), needed.channels and read.keeps and read.channels, parts=parts)
    return RequiredElements(0, needed.channels and (read.keeps or read.mixes) and read.channels)


def needed_together(one: RequiredElements, other: RequiredElements) -> RequiredElements:
    """Of a tensor that two layers read."""
    parts = dict(one.parts)
    for part, needed in other.parts.items():
        parts[part] = needed_together(parts.get(part, RequiredElements()), needed)
    return RequiredElements(max(one.elements, other.elements), one.channels or other.channels, one.whole or other.whole, parts)


def with_parts(needed: RequiredElements, shape: Sequence[int]) -> RequiredElements:
    """Of a tensor of this shape all of whose readers are known: slices that share no element add up."""
    if not needed.parts:
        return needed
    taken, met = np.zeros(shape, bool), np.zeros(shape[-1], bool)
    elements = whole = 0
    for part, own in needed.parts.items():
        index = tuple(slice(s, s + n * k, k) for s, n, k in zip(part.starts, part.shape, part.steps))
        met[index[-1]] |= own.channels
        if not taken[index].any():
            taken[index] = True
            elements += own.elements
            whole += own.whole * prod(part.shape)
    return RequiredElements(
        max(needed.elements, elements), needed.channels or bool(met.all()), needed.whole or whole == taken.size
    )
