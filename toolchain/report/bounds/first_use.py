"""Find which layers must have ended before a layer's first operation, whatever the schedule (docs/bounds.md).

The release bound of a region's cycles (report.bounds.release_bound) is built on `find_ended_layers`. A layer's first operation
reads at least one element. That element is made of boxes of earlier tensors, and so on backwards. A layer has ended when such a
box is its whole output. Operators that are unknown here need nothing, so that a bound stays a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.data_movement import IntegerConcat, ResizeNearest, Slice
from toolchain.ops.kit.operator import Layer, TiledOp
from toolchain.ops.kit.window import Window
from toolchain.ops.matrix_product import IntegerMatrixProduct
from toolchain.ops.permutation import Reshape, Transpose
from toolchain.ops.pool.integer_pool import IntegerAveragePool, IntegerMaxPool
from toolchain.ops.softmax import IntegerSoftmax
from toolchain.report.bounds.required_reads import window_of

_SPAN = 64  # boxes that a walk back from one layer follows at most, so that its time does not grow with the network


@dataclass(frozen=True)
class ElementBox:
    """A lower bound of what is required of a tensor: at least so many indices along each axis, in all their combinations.

    `counts`: number of indices by axis.
    `runs`: by axis, whether these indices are neighbours.
    """

    counts: tuple[int, ...]
    runs: tuple[bool, ...]

    @property
    def elements(self) -> int:
        """Return the number of elements, the product of `counts`."""
        return int(np.prod(self.counts, dtype=np.int64))


def full_box(shape: Sequence[int]) -> ElementBox:
    """Return the box of all elements."""
    return ElementBox(tuple(shape), (True,) * len(shape))


def one_element(shape: Sequence[int]) -> ElementBox:
    """Return the box of one element."""
    return ElementBox((1,) * len(shape), (True,) * len(shape))


def find_ended_layers(layers: Sequence[Layer]) -> list[np.ndarray]:
    """Return for each layer the layers that must have ended before its first operation, as bool[layer].

    `layers`: all nodes of a region in topological order.
    """
    maker = {layer.node.outputs[0]: index for index, layer in enumerate(layers)}
    behind_full: list[np.ndarray] = []  # by layer: those that have ended when all of its output is there
    ended: list[np.ndarray] = []

    @lru_cache(maxsize=4096)  # walks of neighbouring layers ask for the same boxes, up to _SPAN a walk
    def operands_of(index: int, box: ElementBox) -> Mapping[str, ElementBox]:
        return operand_boxes(layers[index], box)

    for index, layer in enumerate(layers):
        ended.append(_walk_back(layers, maker, behind_full, _first_operands(layer), operands_of))
        full = _walk_back(layers, maker, behind_full, operands_of(index, full_box(layer.output.shape)), operands_of)
        full[index] = True
        behind_full.append(full)
    return ended


def _walk_back(
    layers: Sequence[Layer],
    maker: Mapping[str, int],
    behind_full: Sequence[np.ndarray],
    needs: Mapping[str, ElementBox],
    operands_of: Callable[[int, ElementBox], Mapping[str, ElementBox]],
) -> np.ndarray:
    """Return the layers that have ended when these boxes of tensors are there, as bool[layer].

    `maker`: index of the layer that makes a tensor.
    `behind_full`: by layer, bool[layer] of those that have ended when its whole output is there, itself included.
    `needs`: boxes by tensor.
    `operands_of`: returns the boxes of operands that a layer makes a box of its output of (`operand_boxes`).
    At most _SPAN boxes are followed. Those beyond end nothing.
    """
    ended = np.zeros(len(layers), bool)
    waiting: dict[int, ElementBox] = {maker[name]: box for name, box in needs.items() if name in maker}
    for _ in range(_SPAN):
        if not waiting:
            break
        latest = max(waiting)
        layer, box = layers[latest], waiting.pop(latest)
        if box.counts == tuple(layer.output.shape):
            ended |= np.pad(behind_full[latest], (0, len(layers) - len(behind_full[latest])))
            waiting = {at: other for at, other in waiting.items() if not ended[at]}
            continue
        for name, operand in operands_of(latest, box).items():
            at = maker.get(name)
            if at is not None and not ended[at] and (at not in waiting or operand.elements > waiting[at].elements):
                waiting[at] = operand
    return ended


def _first_operands(layer: Layer) -> Mapping[str, ElementBox]:
    """Return a box of one element for each operand that a layer's first operation reads; empty for unknown operators."""
    op, names = layer.node.op, layer.activations
    if isinstance(op, IntegerConvolution | IntegerAveragePool | IntegerMaxPool | IntegerSoftmax):
        names = layer.node.inputs[:1]  # an addend comes later
    elif not isinstance(op, IntegerMatrixProduct) and not (isinstance(op, TiledOp) and op.is_pointwise):
        return {}
    return {name: one_element(layer.types[name].shape) for name in names if name in layer.activations}


def operand_boxes(layer: Layer, box: ElementBox) -> Mapping[str, ElementBox]:
    """Return the boxes of activations that a box of a layer's output is made of, by name; unknown ones are left out."""
    op, inputs = layer.node.op, layer.node.inputs
    boxes: dict[str, ElementBox | None] = {}
    if isinstance(op, IntegerConvolution):
        windows = window_of(layer, op, 0), window_of(layer, op, 1)
        boxes[inputs[0]] = _window_box(layer, windows, box, _read_channels(layer, op, box.counts[3]))
        if op.residual is not None and inputs[3] != inputs[0]:
            boxes[inputs[3]] = _align_box(layer, inputs[3], box)
    elif isinstance(op, IntegerAveragePool | IntegerMaxPool):
        _, height, width, _ = layer.input_type(0).shape
        boxes[inputs[0]] = _window_box(layer, op.geometry.axes(height, width), box, box.counts[3])
    elif isinstance(op, IntegerMatrixProduct):
        boxes |= _product_boxes(layer, box)
    elif isinstance(op, IntegerSoftmax):
        boxes[inputs[0]] = ElementBox((*box.counts[:-1], layer.output.shape[-1]), (*box.runs[:-1], True))
    elif isinstance(op, TiledOp):
        boxes |= {name: _align_box(layer, name, box) for name in layer.activations} if op.is_pointwise else {}
    else:
        boxes |= _find_moved_boxes(layer, box)
    return {name: one for name, one in boxes.items() if one is not None and name in layer.activations}


def _read_channels(layer: Layer, op: IntegerConvolution, channels: int) -> int:
    """Return how many input channels so many output channels of a convolution read at least."""
    inner, outputs = layer.input_type(0).shape[3] // op.groups, layer.output.shape[3] // op.groups
    return inner * -(-channels // outputs)


def _window_box(layer: Layer, windows: tuple[Window, Window], box: ElementBox, channels: int) -> ElementBox | None:
    """Return the box of a window operator's input; None where the windows of some outputs meet padding alone."""
    rows, columns = (
        count_met(window, outputs, count, run)
        for window, outputs, count, run in zip(windows, layer.output.shape[1:3], box.counts[1:3], box.runs[1:3])
    )
    if not rows or not columns:
        return None
    runs = tuple(window.dilation == 1 and window.stride <= window.kernel for window in windows)
    return ElementBox((box.counts[0], rows, columns, channels), (True, *runs, True))


@lru_cache(maxsize=65536)
def count_met(window: Window, outputs: int, count: int, run: bool) -> int:
    """Return the fewest input elements that any `count` of the outputs meet; `run`: the outputs are neighbours."""
    met = window.elements(outputs)
    if count == outputs:
        return len(np.unique(met[met >= 0]))
    if run and window.dilation == 1 and window.stride <= window.kernel:
        start = np.arange(outputs - count + 1) * window.stride - window.pad
        end = start + (count - 1) * window.stride + window.kernel
        return max(0, int((np.minimum(end, window.size) - np.maximum(start, 0)).min()))
    return int((met >= 0).sum(1).min())


def _align_box(layer: Layer, name: str, box: ElementBox) -> ElementBox | None:
    """Return the box at the same place of an operand that is broadcast; None where it has more dimensions than the output."""
    shape, output = layer.types[name].shape, layer.output.shape
    skipped = len(output) - len(shape)
    if skipped < 0:
        return None
    counts = tuple(box.counts[skipped + axis] if size == output[skipped + axis] else 1 for axis, size in enumerate(shape))
    return ElementBox(counts, box.runs[skipped:])


def _product_boxes(layer: Layer, box: ElementBox) -> dict[str, ElementBox | None]:
    """Return the rows of the first operand, and all of a reduction of the second where it is needed whole."""
    first, second = layer.node.inputs[:2]
    shape = layer.types[first].shape
    boxes: dict[str, ElementBox | None] = {}
    if len(shape) == len(layer.output.shape) and shape[:-1] == layer.output.shape[:-1]:
        boxes[first] = ElementBox((*box.counts[:-1], shape[-1]), (*box.runs[:-1], True))
    if second != first and box.counts == tuple(layer.output.shape):
        boxes[second] = full_box(layer.types[second].shape)
    return boxes


def _find_moved_boxes(layer: Layer, box: ElementBox) -> dict[str, ElementBox | None]:
    """Return the boxes of activations that a box of a data-movement operator's output is made of; empty where nothing is
    known."""
    op, inputs = layer.node.op, layer.node.inputs
    shape = layer.input_type(0).shape
    if isinstance(op, Reshape):
        return {inputs[0]: _undo_reshape(shape, layer.output.shape, box)}
    if isinstance(op, Transpose):
        axes = [op.perm.index(axis) for axis in range(len(shape))]
        return {inputs[0]: ElementBox(tuple(box.counts[a] for a in axes), tuple(box.runs[a] for a in axes))}
    if isinstance(op, Slice):
        return {inputs[0]: ElementBox(box.counts, tuple(run and step == 1 for run, step in zip(box.runs, op.steps)))}
    if isinstance(op, ResizeNearest):
        return {inputs[0]: ElementBox(tuple(-(-count // k) for count, k in zip(box.counts, op.factors)), box.runs)}
    if isinstance(op, IntegerConcat) and box.counts[op.axis] == layer.output.shape[op.axis]:
        sizes = {name: layer.types[name].shape[op.axis] for name in inputs}
        return {
            name: ElementBox((*box.counts[: op.axis], size, *box.counts[op.axis + 1 :]), box.runs) for name, size in sizes.items()
        }
    return {}


def _undo_reshape(shape: Sequence[int], output: Sequence[int], box: ElementBox) -> ElementBox:
    """Return the box under the shape before a Reshape; one element where the Reshape changes more than dimensions of size 1."""
    if box.counts == tuple(output):
        return full_box(shape)
    wide_axes = [axis for axis, size in enumerate(output) if size != 1]
    if [output[axis] for axis in wide_axes] != [size for size in shape if size != 1]:
        return one_element(shape)
    axes = iter(wide_axes)
    sources = [next(axes) if size != 1 else None for size in shape]
    return ElementBox(
        tuple(1 if axis is None else box.counts[axis] for axis in sources),
        tuple(axis is None or box.runs[axis] for axis in sources),
    )
