"""Define what a float operator may ask and add while `passes.quantize` lowers its node to integer nodes.

`passes.quantize_context.QuantizeContext` is the implementation.
"""

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
    """The context of an operator's `quantize`: types and scales of activations, choices of repair, and where new tensors go.

    `graph`: with float operators; its constants are float.
    """

    chip: Chip
    graph: Graph

    def quant(self, tensor: str) -> Quant:
        """Return the scale and zero point of a tensor; for a constant, those of its own range."""
        ...

    def own_name(self, name: str) -> str:
        """Return `name`, or one like it that no tensor of the graph has, for a tensor that the operator adds."""
        ...

    def find_calibrated_range(self, tensor: str) -> Range | None:
        """Return the range that calibration found; None where the scale is given, or calibration did not see the tensor."""
        ...

    def widen(self, tensor: str, values: Range) -> None:
        """Ask that the tensor's codes hold these values too; the graph is then quantized again with the wider range.

        A later request for the tensor replaces an earlier one.
        """
        ...

    def layer(self, node: Node) -> LayerParameters:
        """Return the parameters that repair chose for a node with weights; by default they say that float weights are rounded."""
        ...

    def weight_type(self, node: Node) -> CodeType | None:
        """Return the weight type that the user set for a node with weights; None where none is set."""
        ...

    def has_compiler_weights(self, node: Node) -> bool:
        """Return whether the compiler made the node's weights, as those of a Resize, so that they are not the model's."""
        ...

    def offset(self, node: Node) -> Offset:
        """Return by how much repair moves the zero points of a node's operands and output away from those of the tensors."""
        ...

    def codes(self, tensor: str) -> CodeType:
        """Return the type of a tensor's codes, as this node sees them."""
        ...

    def numerics(self, tensor: str) -> Numerics:
        """Return the machine's arithmetic with codes of the tensor's type."""
        ...

    def constant_quant(self, value: Array, like: str) -> Quant:
        """Return the scale of a constant operand, by its own range, in codes of the type of the tensor `like`."""
        ...

    def inner(self, tensor: str, quant: Quant, codes: CodeType, shape: tuple[int, ...] | None = None) -> str:
        """Register a tensor between the nodes that an operator becomes, and return its name `tensor`.

        `shape`: None: that of the first input of the node that makes it.
        """
        ...

    def has(self, tensor: str) -> bool:
        """Return whether `inner` has registered a tensor of this name, by this or an earlier node."""
        ...

    def find_file_weights(self, node: Node, *, product: bool = False) -> FileWeights | None:
        """Return how a quantized model's file holds the node's constants; None where it does not say, or says several things.

        `product`: True for weights of a sum of products, False for the operand of another node.
        """
        ...

    def constant(self, name: str, value: Array) -> str:
        """Register an integer constant and return its name, which may differ from `name`."""
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
        """Return a requantization to codes of the type `codes`. Raise CompileError where the machine cannot express the
        scale.

        `real_scale`: the input's scale divided by the output's, one or one for each channel.
        `operation`: which rounding of `numerics.per_op` holds.
        `zero_point`, `low`, `high`: of the output; results are clamped to low..high.
        `where`: names the node in messages.
        `peak`: largest magnitude of each sum, so that a scale too small to be expressed may do where all are rounded to zero.
        """
        ...

    def inner_requant(self, real_scale: Any, operation: str, *, where: str) -> Requant:
        """Return a requantization inside an operator, to int32, without zero point or clamp. Raise CompileError as `requant`
        does.
        """
        ...
