"""Define the two forms of every operator: the float form is selected and quantized, the integer form is tiled and run.

A float operator (`FloatOp`) is the meaning of a model node in the chip's layout; `quantize` turns it into integer nodes.
An integer operator (`NpuOp`) has a numpy `reference` that defines its bits.
It has either a tile space (`tilings`, `nest`) or a list of strided moves (`moves`).
Feature maps are channels-last: [n, h, w, c].
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
    """An integer node with what is known of its tensors: what tilings and works are computed from."""

    node: Node
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    chip: Chip
    feature_maps: frozenset[str] = frozenset()  # those of its tensors that lie in granules of channels
    orders: Mapping[str, tuple[int, ...]] | None = None  # of those of its tensors that have a `View.order`

    @property
    def tiled(self) -> TiledOp:
        """The operator of a node that is cut into tiles."""
        return operator_of(self.node, TiledOp)

    @property
    def move_op(self) -> MoveOp:
        """The operator of a node that moves codes."""
        return operator_of(self.node, MoveOp)

    @cached_property
    def loop_orders(self) -> tuple[LoopOrder, ...]:
        """The orders in which the loops of its tiles may stand."""
        return self.tiled.loop_orders(self)

    @cached_property
    def activations(self) -> tuple[str, ...]:
        """The inputs that are not constants, in order."""
        return tuple(n for n in self.node.inputs if n and n not in self.constants)

    def strides(self, box: Box) -> Strides:
        """Return the strides of a tensor's box by itself, as it passes through a memory of the chip."""
        return make_strides(
            box.size, self.types[box.tensor].item_bytes, self._maps(box.tensor), (self.orders or {}).get(box.tensor, ())
        )

    def box_bytes(self, box: Box) -> int:
        """Return the bytes of the box in a memory of the chip."""
        return laid_bytes(box.size, self.types[box.tensor].item_bytes, self._maps(box.tensor))

    def laid(self, tensor: str) -> Hashable:
        """Equal for tensors of which equal boxes lie alike."""
        tensor_type = self.types[tensor]
        return tensor_type.shape, tensor_type.dtype, tensor in self.feature_maps, (self.orders or {}).get(tensor, ())

    def _maps(self, tensor: str) -> FeatureMaps | None:
        return self.chip.layout.feature_maps if tensor in self.feature_maps else None

    def channel_step(self, *tensors: str) -> int:
        """Cuts along the channels of these tensors lie on multiples of it: operands begin with whole granules."""
        return granule_of(self.chip) if self.feature_maps.intersection(tensors) else 1

    def input_type(self, index: int) -> TensorType:
        return self.types[self.node.inputs[index]]

    @property
    def output(self) -> TensorType:
        return self.types[self.node.outputs[0]]

    def type_number(self, tensor: str) -> int:
        """Under which operations name the type of the tensor's codes."""
        return self.chip.type_number(self.types[tensor].dtype)

    @property
    def output_number(self) -> int:
        return self.type_number(self.node.outputs[0])


# By tensor the windows over its rows, or over its columns; none where all of it is read.
Windows = Mapping[str, Sequence[Window]]


class PerSample(NamedTuple):
    """The operator on one sample of a batch, and the inputs that have each sample's own values."""

    op: NpuOp
    inputs: tuple[str, ...]


class NpuOp(Operator, ABC):
    """An integer operator: a dataclass. Its arrays are codes; scales live in its parameters.

    `NAME`, `VERSION`: identify it in compiled files and outlast the class's own name and place.
    The version rises when the meaning of its fields changes.
    `keeps_scale`: its output has the codes of its input.
    `takes_device_arrays`: its reference computes arrays of other libraries too (quant.fixed_point.core.device_arrays).
    """

    NAME: ClassVar[str]
    VERSION: ClassVar[int]
    keeps_scale: ClassVar[bool] = False
    takes_device_arrays: ClassVar[bool] = False

    @abstractmethod
    def reference(self, inputs: Sequence[Array]) -> Array:
        """Compute the operator's bits: codes of the inputs, in the node's order, to codes of the output."""

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        """Return the operator on one of the `count` samples that its output holds along `axis`.

        None: they are not made one by one, each from its own.
        """
        return None


class TiledOp(NpuOp):
    """An operator that is cut into tiles that pass through SRAM. A class may have a method `tiling_key` too: see the function.

    `is_pointwise`: each element of its output is made of those at the same place of its activations.
    """

    is_pointwise: ClassVar[bool] = False

    def reads_granules(self, layer: Layer) -> bool:
        """Return whether its tensors of four dimensions may lie in granules of channels.

        Its operations then name surface strides, and its tiles begin on multiples of `layer.channel_step`.
        """
        return False

    @abstractmethod
    def tilings(self, layer: Layer) -> Iterable[Tiling]: ...

    @abstractmethod
    def loop_orders(self, layer: Layer) -> tuple[LoopOrder, ...]:
        """The orders in which the loops of its nest may stand, with the steps of each."""

    @abstractmethod
    def nest(self, layer: Layer, tiling: Tiling, extent: Extent | None = None) -> Nest:
        """Return the loop nest of a tiling.

        `extent`: the part of the output that is made, None: all of it; for operators that have windows.
        """

    def count_kernel_parts(self, layer: Layer, tiling: Tiling) -> int:
        """Return how many instructions a tile takes for the elements of a window, each adding to the sums of the one before."""
        return 1

    def windows(self, layer: Layer, axis: int) -> Windows | None:
        """Return how rows (axis 1) or columns (axis 2) of an output [1, h, w, c] depend on those of the activations.

        None: parts of the output cannot be made separately.
        """
        return None

    def contiguous_dims(self, node: Node) -> Mapping[str, int]:
        """Return the tensors that its operations access whatever the strides of their dimensions.

        Each has the number of last dimensions that must be neighbours: a Transpose next to such a tensor need not move it.
        """
        return {}

    def overwritable(self, layer: Layer) -> tuple[str, ...]:
        """The activations of which each element is read last where that of the output is made: this may lie in their place."""
        return layer.activations if self.is_pointwise else ()


class RowIndex(NamedTuple):
    """An index of moves that read or write `tensor`.

    The moves lie so many rows of dimension `axis` further as input `number` says, `limit` at most.
    """

    number: int
    tensor: str
    axis: int
    limit: int


class MoveOp(NpuOp):
    """Fills and strided copies between where its tensors lie."""

    @abstractmethod
    def moves(self, layer: Layer) -> tuple[list[FillBox], list[Move]]: ...

    def row_index(self, layer: Layer) -> RowIndex | None:
        """Return the row index of its indexed moves; None where it has none."""
        return None


class FloatOp(Operator, ABC):
    """Float operator on the chip's layout. keeps_scale: its output has the codes of its input; one_type: codes of its type."""

    keeps_scale: ClassVar[bool] = False
    one_type: ClassVar[bool] = False

    @property
    def takes_clamp(self) -> bool:
        """True when bounds can ride on its own output: it has a field `activation`."""
        return False

    def add_clamp(self, bounds: tuple[float | None, float | None]) -> FloatOp:
        """Return the operator with bounds on its own output; for operators that take them."""
        return replace(cast(Any, self), activation=bounds)

    @property
    def brings(self) -> tuple[float, ...]:
        """The real numbers that it puts among its input's codes where it keeps their scale."""
        return ()

    def own_scale(self, codes: CodeType) -> Quant | None:
        """Return the scale of its output in codes of this type, where it makes no other."""
        return None

    def get_effective_range(self, input_range: Range, y: Quant, codes: CodeType) -> Range:
        """The part of what is seen of an operand beyond whose ends the output's codes, `y` of the type `codes`, stay the same."""
        return input_range

    def reach(self, x: Range) -> tuple[float | None, float | None]:
        """Return the bounds of its output whatever the data, where its first operand lies in `x`; None: not known."""
        return getattr(self, "activation", (None, None))

    def least_type(self, node: Node, graph: Graph, chip: Chip) -> CodeType | None:
        """Return the type of its output's codes where narrower ones cannot hold the output, whatever the user sets."""
        return None

    def operand_types(self, node: Node, graph: Graph, chip: Chip) -> tuple[CodeType, ...]:
        """Return the types, other than wide ones, that its operands may have; others are rescaled to the finest of these."""
        return chip.operand_types

    def reads_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return whether its operands may have wide codes; where not, they are rescaled to narrower ones."""
        return self.keeps_scale

    def makes_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return whether its output may have wide codes; where not, it makes narrower ones, which are rescaled."""
        return self.keeps_scale

    @abstractmethod
    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        """The reason why this chip cannot run the node, or None. Names the key of the YAML that would change it."""

    @abstractmethod
    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """The integer nodes in its place."""


def operator_of(node: Node, kind: type[OpT]) -> OpT:
    """The node's operator, which is of this kind where the compiler is sound. Raises InternalError where it is not."""
    if not isinstance(node.op, kind):
        raise InternalError(f"node {node.name}: {type(node.op).__name__} is no {kind.__name__}")
    return node.op


def sample_axis(shape: tuple[int, ...]) -> int | None:
    """The dimension along which a tensor may hold samples, each a run of its own: the first of more than one element."""
    return next((i for i, n in enumerate(shape) if n > 1), None)


def sample_shape(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The shape of one of the `count` samples that a tensor holds. Raises ValueError where it holds no such number."""
    axis = sample_axis(shape)
    if axis is None or shape[axis] % count:
        raise ValueError(f"a tensor of shape {shape} does not hold {count} samples")
    return (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])


def per_sample(layer: Layer, count: int) -> PerSample | None:
    """Return the layer on one of the `count` samples that its output holds.

    None: the samples are not made one by one, each from its own, or the class has no method `per_sample(layer, axis, count)`.
    `axis`: of the output's samples.
    """
    op, axis = layer.node.op, sample_axis(layer.output.shape)
    if not isinstance(op, NpuOp) or axis is None or layer.output.shape[axis] % count:
        return None
    return op.per_sample(layer, axis, count)


def split_per_sample(op: NpuOp, layer: Layer, axis: int, source_axis: int | None = None) -> PerSample | None:
    """Split operators whose activations all have the output's length along the samples, at `source_axis` if that is another
    axis."""
    size, where = layer.output.shape[axis], axis if source_axis is None else source_axis
    shapes = [layer.types[n].shape for n in layer.activations]
    return PerSample(op, layer.activations) if all(sample_axis(s) == where and s[where] == size for s in shapes) else None


def same_scale(op: Operator) -> bool:
    """True for operators whose output has the codes of their input."""
    return isinstance(op, FloatOp | NpuOp) and op.keeps_scale


def one_type(op: Operator) -> bool:
    """True for operators whose output has codes of their input's type."""
    return isinstance(op, FloatOp) and op.one_type


def get_forced_qparams(op: Operator, codes: CodeType) -> Quant | None:
    """Return the qparams of its output, for operators that make no other; wide codes are made of narrower ones, at any scale."""
    return op.own_scale(codes) if isinstance(op, FloatOp) and not codes.is_wide else None


def get_inserted_values(op: Operator) -> tuple[float, ...]:
    """The real numbers that an operator whose output has its input's codes puts among them."""
    return op.brings if isinstance(op, FloatOp) else ()


def tiling_key(layer: Layer) -> Hashable:
    """Return a key such that layers of equal keys and equal tensor types share tilings and their costs.

    A class with a method `tiling_key` of its own names the parameters on which tilings, tasks and cycles depend.
    Of its constants only the shapes count. For other classes, heirs too, all parameters count, and which constants.
    """
    op = layer.node.op
    key_method = vars(type(op)).get("tiling_key")
    if key_method is not None:
        return type(op), key_method(op)
    return type(op), _by_value(op), tuple(n for n in layer.node.inputs if n in layer.constants)


def _by_value(value: Any) -> Hashable:
    """Equal for equal values; what cannot be compared is equal to itself alone."""
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
    """Real bounds of a fused Relu or Clip, low not above high -> (low, high) codes of the type."""
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
