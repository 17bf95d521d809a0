"""Define what an operator knows and may ask for while it is quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.requant import Requant
from quant.observe import Range
from quant.repair.choices import LayerParameters, Offset
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, Quant

if TYPE_CHECKING:
    from toolchain.ir.file_quantization import FileWeights

Array = NDArray[Any]


class QuantContext(Protocol):
    """A view of quantization: types, float constants, the scale of every activation; and where results go."""

    chip: Chip
    graph: Graph

    def quant(self, tensor: str) -> Quant: ...

    def own_name(self, name: str) -> str:
        """`name`, or one like it that no tensor of the network has: what its nodes put between them is called so."""
        ...

    def find_calibrated_range(self, tensor: str) -> Range | None:
        """The range that calibration found; None where the scale is given, or calibration did not see the tensor."""
        ...

    def widen(self, tensor: str, values: Range) -> None:
        """Asks that the codes of an operator's output hold these values too."""
        ...

    def layer(self, node: Node) -> LayerParameters:
        """Return the chosen parameters of a node with weights: empty where they are rounded as they are."""
        ...

    def weight_type(self, node: Node) -> CodeType | None:
        """Return the weight type that the user set for a node with weights."""
        ...

    def has_compiler_weights(self, node: Node) -> bool:
        """Return whether the compiler makes the node's weights, as those of a Resize."""
        ...

    def offset(self, node: Node) -> Offset:
        """Return the difference between a sum's zero points and its tensors'."""
        ...

    def codes(self, tensor: str) -> CodeType:
        """The type of an activation."""
        ...

    def numerics(self, tensor: str) -> Numerics:
        """The machine's arithmetic where codes are of the tensor's type."""
        ...

    def constant_quant(self, value: Array, like: str) -> Quant:
        """The scale of a constant operand, by its own range, in codes of the type of the tensor `like`."""
        ...

    def inner(self, tensor: str, quant: Quant, codes: CodeType, shape: tuple[int, ...] | None = None) -> str:
        """Register a tensor between the nodes that an operator becomes and return its name.

        `shape`: where it differs from that of its source.
        """
        ...

    def has(self, tensor: str) -> bool:
        """Return whether earlier nodes have inserted such a tensor."""
        ...

    def find_file_weights(self, node: Node, *, product: bool = False) -> FileWeights | None:
        """Find how a quantized model's file holds the node's constants; None where it does not say.

        `product`: the weights of a sum of products, else the operand of another node.
        """
        ...

    def constant(self, name: str, value: Array) -> str:
        """Registers an integer constant and gives its name."""
        ...

    def requant(
        self,
        real_scale: Any,
        operation: str,
        codes: CodeType,
        zero_point: int,
        low: int,
        high: int,
        *,
        where: str,
        peak: Any = None,
    ) -> Requant:
        """Return a requantization.

        `codes`: type of the output.
        """
        ...

    def inner_requant(self, real_scale: Any, operation: str, *, where: str) -> Requant:
        """A requantization inside an operator, to int32: no zero point, no clamp."""
        ...
