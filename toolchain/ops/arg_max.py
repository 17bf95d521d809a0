"""Select ArgMax, ArgMin and OneHot: positions along a dimension, as integers that the codes hold exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, Quant
from toolchain.ops.comparison import Compare, find_missing_function
from toolchain.ops.exact_integers import FINE, TRUTH, CodeOperand, CodeSteps, counting, counts_to
from toolchain.ops.kit.layout import axis_in, permute_to_layout
from toolchain.ops.kit.operator import FloatOp
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.permutation import Reshape
from toolchain.ops.pool.geometry import Geometry, Pair, over_one
from toolchain.ops.pool.integer_pool import IntegerMaxPool
from toolchain.ops.pool.select_pool import MaxPool
from toolchain.ops.where import Where


@dataclass(frozen=True)
class ArgMax(FloatOp):
    """A float operator for the position of the largest element under a window over one dimension.

    The output y[n, 0, 0, c] is the i of the largest x[n, i, 0, c], for a kernel of (length, 1).
    For a kernel of (1, length), y[n, h, 0, c] is that of x[n, h, i, c].
    `smallest`: take the smallest instead of the largest.
    `last`: take the last of equal elements, else the first.
    """

    kernel: Pair
    smallest: bool
    last: bool

    @property
    def length(self) -> int:
        """The number of positions along the dimension."""
        return prod(self.kernel)

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        """Return why the chip cannot run it: no type holds the positions, or it lacks broadcasts, the functions of the steps
        or the pool.
        """
        if self._type(chip) is None:
            types = ", ".join(chip.operand_types)
            return f"positions 0 to {self.length - 1}, more than codes of {types} hold (numerics.activation, more_activations)"
        if not chip.limits.elementwise.broadcast:
            return "each element is compared with the largest of all, which needs limits.elementwise.broadcast: true"
        compared = Compare("greater").find_unsupported_reason(node, graph, chip)
        return (
            compared
            or find_missing_function(("sub", "mul"), node, graph, chip)
            or MaxPool(self._all).find_unsupported_reason(node, graph, chip)
        )

    @property
    def _all(self) -> Geometry:
        """The window over all elements."""
        return Geometry(self.kernel, (1, 1), (0, 0, 0, 0))

    def _type(self, chip: Chip) -> CodeType | None:
        """Return the first type whose codes hold all positions; None where there is none."""
        symmetric = chip.numerics.symmetric_activations
        return next((t for t in chip.operand_types if self.length - 1 <= counts_to(t, symmetric)), None)

    def least_type(self, node: Node, graph: Graph, chip: Chip) -> CodeType | None:
        """Return the first type whose codes hold all positions."""
        return self._type(chip)

    def own_scale(self, codes: CodeType) -> Quant:
        """Return the scale by which codes count positions in ones."""
        return counting(codes, self.length - 1)

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return the steps: the extreme, a mask of where it lies, the mask times the positions, and the largest of that.

        For the first position, positions are counted from the end, and the result is subtracted from the last one.
        """
        steps = CodeSteps(node, scope)
        x, y = steps.read(node.inputs[0]), steps.output
        x = _negate(steps, x) if self.smallest else x
        below = steps.sum(
            "below", "sub", self._largest(steps, "largest", x), x, CodeOperand("", TRUTH, y.codes, ()), (0, 1), FINE
        )
        extreme_mask = steps.opposite("there", below, CodeOperand("", TRUTH, y.codes, ()))
        places = np.arange(self.length) if self.last else np.arange(self.length)[::-1]
        place_codes = steps.constant("places", places.reshape(1, *self.kernel, 1) + y.quant.zero_point, y.quant, y.codes)
        marked = steps.product("places", extreme_mask, place_codes, y)
        if self.last:
            self._largest(steps, "", marked)
            return steps.new_nodes
        end_distance = self._largest(steps, "from the end", marked)
        end = steps.constant("end", np.full((1, 1, 1, 1), self.length - 1 + y.quant.zero_point), y.quant, y.codes)
        steps.sum("", "sub", end, end_distance, y, (0, self.length - 1))
        return steps.new_nodes

    def _largest(self, steps: CodeSteps, what: str, x: CodeOperand) -> CodeOperand:
        """Add a max pool over all elements and return its output."""
        n, h, w, c = x.shape
        output_size = h - self.kernel[0] + 1, w - self.kernel[1] + 1
        return steps.add(what, IntegerMaxPool(self._all), (x.name,), x, (n, *output_size, c))


def _negate(steps: CodeSteps, x: CodeOperand) -> CodeOperand:
    """Return -x, at a mirrored zero point."""
    low, high = x.codes.limits
    symmetric = steps.scope.chip.numerics.symmetric_activations
    mirror = Quant(x.quant.scale, 0 if symmetric else low + high - x.quant.zero_point)
    zero = steps.constant("0", np.full((), x.quant.zero_point), x.quant, x.codes)
    bounds = low - mirror.zero_point, high - mirror.zero_point
    return steps.sum("negative", "sub", zero, x, CodeOperand("", mirror, x.codes, ()), bounds)


def _position(smallest: bool) -> Callable[[SelectionContext], None]:
    """Return the rule of ArgMax or ArgMin."""

    def rule(scope: SelectionContext) -> None:
        x, y, attributes = scope.node.inputs[0], scope.node.outputs[0], scope.attributes
        shape, keeps_dims = scope.shape(x), bool(attributes.get("keepdims", 1))
        if not shape:
            return scope.refuse("the one place of a number")
        axis = int(attributes.get("axis", 0)) % len(shape)
        layout = scope.layout(x)
        if layout == "nhwc" and not keeps_dims and axis != 1:  # without the channels what is left is in the model's order
            layout = "plain"
        sizes, place = permute_to_layout(shape, layout), axis_in(axis, layout)
        outer, length, inner = prod(sizes[:place]), sizes[place], prod(sizes[place + 1 :])
        source, (wide, few, kernel) = scope.read(x, layout), over_one(outer, length, inner)
        view = scope.step("view", Reshape(wide), (source,), wide, like=source, sources=())
        op = ArgMax(kernel, smallest, bool(attributes.get("select_last_index", 0)))
        position_tensor = scope.add_main_step("position", op, (view,), few)
        target = layout if keeps_dims else "plain"
        return scope.emit(Reshape(permute_to_layout(scope.shape(y), target)), (position_tensor,), target, length - 1)

    return rule


def _one_hot(scope: SelectionContext) -> None:
    """Select a OneHot: on where an index equals the position along the new dimension, else off. Refuse computed depth or
    values.
    """
    x, depth, values = scope.node.inputs
    shape, length, value_pair = scope.shape(x), scope.value(depth), scope.value(values)
    if length is None or value_pair is None:
        return scope.refuse("its depth or its values are computed")
    if value_pair.dtype.name not in ("float32", "bool"):
        return scope.refuse(f"its values are {value_pair.dtype.name}, not float32 or bool")
    axis = int(scope.attributes.get("axis", -1)) % (len(shape) + 1)
    wide = (*shape[:axis], 1, *shape[axis:])
    places = np.arange(int(length.reshape(-1)[0])).reshape(-1, *(1,) * (len(shape) - axis))
    source = scope.read(x, "plain")
    view = scope.step("view", Reshape(wide), (source,), wide, like=source, sources=())
    place_constant = scope.constant(f"{scope.node.name}@places", places)
    c = scope.step("there", Compare("equal"), (view, place_constant), scope.shape(scope.node.outputs[0]))
    off, on = (scope.constant(f"{scope.node.name}@{name}", value_pair[i : i + 1]) for i, name in enumerate(("off", "on")))
    return scope.emit(Where(), (c, on, off), "plain")


RULES = {
    "ArgMax": Rule(_position(False), indices=True),
    "ArgMin": Rule(_position(True), indices=True),
    "OneHot": Rule(_one_hot, bools=True, indices=True),
}
