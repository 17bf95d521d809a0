"""Define the two forms of every operator of the chip: the float form is selected and quantized, the integer form is tiled and
run.

`passes.select` turns ONNX nodes into float operators (`FloatOp`), the meaning of a node in the chip's layout.
`passes.quantize` calls their `quantize`, which returns nodes of integer operators (`NpuOp`).
An integer operator has a numpy `reference` that defines its bits. The scheduler asks a `TiledOp` for tilings and their loop
nest, and a `MoveOp` for strided copies. Feature maps are channels-last: [n, h, w, c].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from toolchain.errors import InternalError
from toolchain.hw.chip import Chip
from toolchain.hw.chip_sections import FeatureMaps
from toolchain.ir.graph import Graph, Node, Operator, Quant, TensorType
from toolchain.machine import granule_of
from toolchain.machine.tensors import Strides, laid_bytes, make_strides
from toolchain.ops.kit.loops import LoopOrder
from toolchain.ops.kit.nest import Nest
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.tile import Box, Extent, FillBox, Move, Tiling
from toolchain.ops.kit.window import Window

Array = NDArray[Any]
OpT = TypeVar("OpT", bound=Operator)


@dataclass(frozen=True)
class Layer:
    """An integer node with what is known of its tensors: what its tilings, tile tasks and moves are computed from.

    `types`, `constants`: of the whole graph, by tensor.
    `feature_maps`: those of its tensors that lie in memory in granules, which are blocks of channels.
    `orders`: by tensor, the order of its dimensions in memory where it is not the usual one; None where no tensor has one.
    """

    node: Node
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    chip: Chip
    feature_maps: frozenset[str] = frozenset()
    orders: Mapping[str, tuple[int, ...]] | None = None

    @property
    def tiled(self) -> TiledOp:
        """The node's operator, which must be cut into tiles; InternalError where it is none."""
        return operator_of(self.node, TiledOp)

    @property
    def move_op(self) -> MoveOp:
        """The node's operator, which must move codes; InternalError where it is none."""
        return operator_of(self.node, MoveOp)

    @cached_property
    def loop_orders(self) -> tuple[LoopOrder, ...]:
        """The orders in which the loops of its tiles may stand."""
        return self.tiled.loop_orders(self)

    @cached_property
    def activations(self) -> tuple[str, ...]:
        """The node's inputs that are not constants, in order; a tensor that is read twice is there twice."""
        return tuple(n for n in self.node.inputs if n and n not in self.constants)

    def strides(self, box: Box) -> Strides:
        """Return where the elements of a tensor's box lie when the box is stored by itself, as tiles are."""
        return make_strides(
            box.size, self.types[box.tensor].item_bytes, self._maps(box.tensor), (self.orders or {}).get(box.tensor, ())
        )

    def box_bytes(self, box: Box) -> int:
        """Return the bytes that the box takes when it is stored by itself."""
        return laid_bytes(box.size, self.types[box.tensor].item_bytes, self._maps(box.tensor))

    def laid(self, tensor: str) -> Hashable:
        """Return a key that is equal for tensors whose equal boxes lie in the same way in memory."""
        tensor_type = self.types[tensor]
        return tensor_type.shape, tensor_type.dtype, tensor in self.feature_maps, (self.orders or {}).get(tensor, ())

    def _maps(self, tensor: str) -> FeatureMaps | None:
        return self.chip.layout.feature_maps if tensor in self.feature_maps else None

    def channel_step(self, *tensors: str) -> int:
        """Return the number of which cuts along the channels of these tensors must be multiples: a granule, or 1 without
        granules.
        """
        return granule_of(self.chip) if self.feature_maps.intersection(tensors) else 1

    def input_type(self, index: int) -> TensorType:
        return self.types[self.node.inputs[index]]

    @property
    def output(self) -> TensorType:
        return self.types[self.node.outputs[0]]

    def type_number(self, tensor: str) -> int:
        """Return the number by which machine operations name the type of the tensor's codes."""
        return self.chip.type_number(self.types[tensor].dtype)

    @property
    def output_number(self) -> int:
        return self.type_number(self.node.outputs[0])


# By tensor the windows over its rows, or over its columns; none where all of it is read.
Windows = Mapping[str, Sequence[Window]]


class PerSample(NamedTuple):
    """The integer operator on one sample of a batch. `inputs`: those of the node that hold a part for each sample."""

    op: NpuOp
    inputs: tuple[str, ...]


class NpuOp(Operator, ABC):
    """An integer operator, a frozen dataclass. It computes on codes; scales are in its fields as multipliers, shifts and zero
    points.

    `NAME`, `VERSION`: identify it in compiled files, whatever the class is called and wherever it stands.
    The version rises when the meaning of its fields changes.
    `keeps_scale`: its output has the scale and zero point of its input.
    `takes_device_arrays`: its reference also computes arrays of other libraries (`quant.fixed_point.core.device_arrays`).
    """

    NAME: ClassVar[str]
    VERSION: ClassVar[int]
    keeps_scale: ClassVar[bool] = False
    takes_device_arrays: ClassVar[bool] = False

    @abstractmethod
    def reference(self, inputs: Sequence[Array]) -> Array:
        """Compute the output's codes from the inputs' codes, which stand in the node's order. This defines the operator's
        bits.
        """

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        """Return the operator on one of the `count` samples that its output holds along `axis`.

        The default None says that samples are not computed one by one, each from its own inputs.
        """
        return None


class TiledOp(NpuOp):
    """An integer operator that is cut into tiles, which pass through SRAM.

    `is_pointwise`: each output element is made of the elements at the same place of its activations.
    A class may define a method `tiling_key(self)`; the function `tiling_key` says what for.
    """

    is_pointwise: ClassVar[bool] = False

    def reads_granules(self, layer: Layer) -> bool:
        """Return whether its four-dimensional tensors may lie in granules, which are blocks of channels.

        Its operations then name surface strides, and its tiles begin on multiples of `layer.channel_step`.
        """
        return False

    @abstractmethod
    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        """Return the tilings worth trying, in the operator's order of preference. A tiling need not fit the SRAM."""

    @abstractmethod
    def loop_orders(self, layer: Layer) -> tuple[LoopOrder, ...]:
        """Return the orders in which the loops of its nest may stand, with the steps that each loop may take."""

    @abstractmethod
    def nest(self, layer: Layer, tiling: Tiling, extent: Extent | None = None) -> Nest:
        """Return the loop nest of a tiling, with the tile tasks at each point.

        `extent`: the part of the output that is made, None for all of it; only for operators whose `windows` are not None.
        """

    def count_kernel_parts(self, layer: Layer, tilings: Sequence[Tiling]) -> dict[Tiling, int]:
        """Return into how many parts a tile's sliding window is cut, by tiling. Each is an instruction that adds to the sums of
        the one before.
        """
        return dict.fromkeys(tilings, 1)

    def windows(self, layer: Layer, axis: int) -> Windows | None:
        """Return how rows (axis 1) or columns (axis 2) of an output [1, h, w, c] depend on those of the activations, by
        tensor.

        An activation with an empty sequence is read as a whole for every part.
        None: parts of the output cannot be made separately, so the operator is in no cascade.
        """
        return None

    def contiguous_dims(self, node: Node) -> Mapping[str, int]:
        """Return by tensor how many of its last dimensions must be contiguous in memory, for tensors whose other strides are
        free.

        A Transpose of the other dimensions next to such a tensor needs no copy. Tensors without an entry need the usual
        order.
        """
        return {}

    def overwritable(self, layer: Layer) -> tuple[str, ...]:
        """Return the activations in whose place the output may be stored.

        Each of their elements is read for the last time where the output's element at the same place is made.
        """
        return layer.activations if self.is_pointwise else ()


class RowIndex(NamedTuple):
    """An index of moves: a number, read at run time, by which rows they read or write are shifted along a dimension.

    `number`: the input of the node that holds the index, at most `limit`.
    `tensor`: the tensor whose rows are shifted, along dimension `axis`.
    """

    number: int
    tensor: str
    axis: int
    limit: int


class MoveOp(NpuOp):
    """An integer operator that only fills and copies: strided moves by DMA between the places of its tensors."""

    @abstractmethod
    def moves(self, layer: Layer) -> tuple[list[FillBox], list[Move]]:
        """Return the fills and the copies that together make the whole output; fills are done first."""

    def row_index(self, layer: Layer) -> RowIndex | None:
        """Return the index by which its moves that are `indexed` are shifted; None where no move is."""
        return None


class FloatOp(Operator, ABC):
    """A float operator on the chip's layout: what a node means, whether a chip runs it, and how it is quantized.

    `keeps_scale`: its output has the scale and zero point of its input.
    `one_type`: its output has codes of its input's type.
    """

    keeps_scale: ClassVar[bool] = False
    one_type: ClassVar[bool] = False

    @property
    def takes_clamp(self) -> bool:
        """True when a Relu or Clip behind it may become bounds on its own output: its class has a field `activation`."""
        return False

    def add_clamp(self, bounds: tuple[float | None, float | None]) -> FloatOp:
        """Return the operator with (low, high) as bounds on its own output, in place of the present ones. None is no bound."""
        return replace(cast(Any, self), activation=bounds)

    @property
    def brings(self) -> tuple[float, ...]:
        """The real numbers that it inserts among its input's codes where it keeps their scale, such as the value of a Pad."""
        return ()

    def own_scale(self, codes: CodeType) -> Quant | None:
        """Return the scale of its output in codes of this type where it can make no other; None where it takes any."""
        return None

    def get_effective_range(self, input_range: Range, y: Quant, codes: CodeType) -> Range:
        """Return the part of an operand's range that matters to the output; the default is all of it.

        Beyond its ends the output's codes, of qparams `y` and type `codes`, no longer change.
        """
        return input_range

    def reach(self, x: Range) -> tuple[float | None, float | None]:
        """Return (low, high) bounds of its output whatever the data, where its first operand lies in `x`. None: not known.

        The default is the bounds of the clamp that the operator holds.
        """
        return getattr(self, "activation", (None, None))

    def least_type(self, node: Node, graph: Graph, chip: Chip) -> CodeType | None:
        """Return the type that its output's codes need at least, whatever the user sets; None where any type holds the output."""
        return None

    def operand_types(self, node: Node, graph: Graph, chip: Chip) -> tuple[CodeType, ...]:
        """Return the types, apart from 32-bit ones, that its operands may have. Other operands are rescaled to the finest of
        these.
        """
        return chip.operand_types

    def reads_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return whether its operands may have 32-bit codes; where not, they are rescaled to narrower ones."""
        return self.keeps_scale

    def makes_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return whether its output may have 32-bit codes; where not, it makes narrower ones, which are rescaled."""
        return self.keeps_scale

    @abstractmethod
    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        """Return the reason why this chip cannot run the node, or None. The reason names the key of the machine file that
        would change it.
        """

    @abstractmethod
    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return the integer nodes that replace the node, in order. `scope` gives scales and types, and takes new constants
        and tensors.
        """


def operator_of(node: Node, kind: type[OpT]) -> OpT:
    """Return the node's operator, which must be of this kind. Raise InternalError where it is not."""
    if not isinstance(node.op, kind):
        raise InternalError(f"node {node.name}: {type(node.op).__name__} is no {kind.__name__}")
    return node.op


def sample_axis(shape: tuple[int, ...]) -> int | None:
    """Return the dimension along which a tensor may hold samples: the first of more than one element; None where there is
    none.
    """
    return next((i for i, n in enumerate(shape) if n > 1), None)


def sample_shape(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the shape of one of the `count` samples that a tensor holds. Raise ValueError where it holds no such number."""
    axis = sample_axis(shape)
    if axis is None or shape[axis] % count:
        raise ValueError(f"a tensor of shape {shape} does not hold {count} samples")
    return (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])


def per_sample(layer: Layer, count: int) -> PerSample | None:
    """Return the layer's operator on one of the `count` samples that its output holds along its `sample_axis`.

    None: the samples are not computed one by one, each from its own inputs, or there are not so many.
    """
    op, axis = layer.node.op, sample_axis(layer.output.shape)
    if not isinstance(op, NpuOp) or axis is None or layer.output.shape[axis] % count:
        return None
    return op.per_sample(layer, axis, count)


def split_per_sample(op: NpuOp, layer: Layer, axis: int, source_axis: int | None = None) -> PerSample | None:
    """Return the operator itself as its own form for one sample, or None.

    It is so where every activation has as many elements along its sample axis as the output has along `axis`.
    `source_axis`: the sample axis that activations must have; None: `axis`.
    """
    size, where = layer.output.shape[axis], axis if source_axis is None else source_axis
    shapes = [layer.types[n].shape for n in layer.activations]
    return PerSample(op, layer.activations) if all(sample_axis(s) == where and s[where] == size for s in shapes) else None


def same_scale(op: Operator) -> bool:
    """Return whether the operator's output has the scale and zero point of its input; False for operators of ONNX."""
    return isinstance(op, FloatOp | NpuOp) and op.keeps_scale


def one_type(op: Operator) -> bool:
    """Return whether the operator's output has codes of its input's type."""
    return isinstance(op, FloatOp) and op.one_type


def get_forced_qparams(op: Operator, codes: CodeType) -> Quant | None:
    """Return the qparams of a node's output where its operator can make no others in this type, else None.

    Codes of 32 bits are rescaled from narrower ones, at any scale, so for them the answer is None.
    """
    return op.own_scale(codes) if isinstance(op, FloatOp) and not codes.is_wide else None


def get_inserted_values(op: Operator) -> tuple[float, ...]:
    """Return the real numbers that an operator, whose output has its input's codes, inserts among them; () for others."""
    return op.brings if isinstance(op, FloatOp) else ()


def tiling_key(layer: Layer) -> Hashable:
    """Return a key: layers of equal keys and equal tensor types have the same tilings at the same costs.

    A class that defines a method `tiling_key` itself names the fields on which tilings, tile tasks and cycles depend.
    For all others, subclasses of such a class too, all fields count, and which inputs are constants.
    """
    op = layer.node.op
    key_method = vars(type(op)).get("tiling_key")
    if key_method is not None:
        return type(op), key_method(op)
    return type(op), _by_value(op), tuple(n for n in layer.node.inputs if n in layer.constants)


def _by_value(value: Any) -> Hashable:
    """Return a hashable key of a value: equal for equal values, or the object's identity where its type cannot be compared."""
    kind = cast(Hashable, type(value))
    if isinstance(value, np.ndarray):
        array = cast(Array, value)
        return array.dtype.str, array.shape, array.tobytes()
    if isinstance(value, tuple | list):
        return kind, *(_by_value(v) for v in cast(Sequence[Any], value))
    if is_dataclass(value):
        return type(value), *(_by_value(getattr(value, f.name)) for f in fields(value))
    if value is None or isinstance(value, bool | int | float | str | bytes | Enum):
        return type(value), repr(value)
    return id(value)


def clamp_codes(bounds: tuple[float | None, float | None], quant: Quant, codes: CodeType) -> tuple[int, int]:
    """Return the bounds of a fused Relu or Clip as (low, high) codes: rounded, and cut to the limits of the type.

    `bounds`: real numbers, None for no bound. Raise InternalError where the low one is above the high one.
    """
    low, high = codes.limits
    if bounds[0] is not None and bounds[1] is not None and bounds[0] > bounds[1]:
        raise InternalError(f"a clamp from {bounds[0]:g} to {bounds[1]:g}")

    def code(real: float) -> int:
        return int(np.clip(np.rint(real / quant.scale) + quant.zero_point, *codes.limits))

    if bounds[0] is not None:
        low = max(low, code(bounds[0]))
    if bounds[1] is not None:
        high = min(high, code(bounds[1]))
    return low, high
