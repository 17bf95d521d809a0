"""Lower one float operator to integer nodes: the context that its `quantize` sees, and the rescales around it.

`passes.quantize` calls `lower_node` for every chip node of a graph, with types and scales from `passes.assign`.
Repair calls it for single nodes (`node_scope`). A node that does not take or make codes of some type gets a Rescale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.core.scale import ScaleForm, choose_scale
from quant.observe import Range
from quant.parameters import activation_quant
from quant.repair.choices import AS_IN_THE_MODEL, NO_OFFSET, LayerParameters, Offset, Quantization
from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.ir.file_quantization import FileWeights, find_file_weights
from toolchain.ir.graph import Graph, Node, Quant, fresh_name
from toolchain.ops.kit.operator import FloatOp, operator_of, same_scale
from toolchain.ops.rescale import make_rescale_node

_INT32 = (-(2**31), 2**31 - 1)
# Rounding.DOUBLE_ROUND rounds a second time behind shifts above 31. Of scales near one, as pools and sums have them, that is off
# by up to a quarter of a code, always away from zero: there the multiplier gives up its last bits, of which 26 are left.
_ONCE, _COARSE, _CODES = 31, 2.0**-5, 1 << 16


@dataclass
class QuantizeContext:
    """The context of the nodes of one graph while they are quantized (`QuantContext` has the methods' contracts).

    The first ten fields are inputs, and `seen_as` is set once before the first node.
    `constants`, `inners`, `shapes` and `wider` gather what the nodes ask for.
    `types`, `quants`: by chip tensor. `layers`, `offsets`, `file_weights`, `weight_types`: by node.
    `compiler_weights`: nodes whose weights the compiler made.
    `ranges`: by chip tensor whose scale is not given, its calibrated range.
    `constants`: new constants. `inners`, `shapes`: tensors between the nodes of an operator, and shapes that were given.
    `wider`: by tensor, the values that operators ask its codes to hold.
    `seen_as`: by substitute type, the qparams of tensors in that type.
    `narrowed`: by tensor of the node at hand, the substitute type and qparams in which the node sees it.
    """

    graph: Graph
    chip: Chip
    types: Mapping[str, CodeType]
    quants: Mapping[str, Quant]
    layers: Mapping[str, LayerParameters]
    offsets: Mapping[str, Offset]
    file_weights: Mapping[str, FileWeights]
    weight_types: Mapping[str, CodeType]
    compiler_weights: Collection[str]
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    constants: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    inners: dict[str, tuple[Quant, CodeType]] = field(default_factory=dict[str, tuple[Quant, CodeType]])
    wider: dict[str, Range] = field(default_factory=dict[str, Range])
    seen_as: Mapping[CodeType, Mapping[str, Quant]] = field(default_factory=dict[CodeType, Mapping[str, Quant]])
    narrowed: Mapping[str, tuple[Quant, CodeType]] = field(default_factory=dict[str, tuple[Quant, CodeType]])
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        return self.graph.producers()

    def quant(self, tensor: str) -> Quant:
        """Return the scale and zero point in which the node at hand sees a tensor; for a constant, those of its own range."""
        if tensor in self.narrowed:
            return self.narrowed[tensor][0]
        if tensor in self.inners:
            return self.inners[tensor][0]
        value = self.graph.constants.get(tensor)
        return self.quants[tensor] if value is None else self.constant_quant(value, tensor)

    def codes(self, tensor: str) -> CodeType:
        """Return the type in which the node at hand sees a tensor; the machine's first for one without a type."""
        if tensor in self.narrowed:
            return self.narrowed[tensor][1]
        return self.inners[tensor][1] if tensor in self.inners else self.types.get(tensor, self.chip.code_types[0])

    def numerics(self, tensor: str) -> Numerics:
        return self.chip.numerics.of(self.codes(tensor))

    def own_name(self, name: str) -> str:
        return fresh_name(name, self.graph.types)

    def inner(self, tensor: str, quant: Quant, codes: CodeType, shape: tuple[int, ...] | None = None) -> str:
        """Register a tensor between the nodes of an operator, and return its name, unchanged."""
        self.inners[tensor] = quant, codes
        if shape is not None:
            self.shapes[tensor] = shape
        return tensor

    def has(self, tensor: str) -> bool:
        return tensor in self.inners

    def find_calibrated_range(self, tensor: str) -> Range | None:
        return self.ranges.get(tensor)

    def widen(self, tensor: str, values: Range) -> None:
        """Ask that the tensor's codes hold these values too; an earlier request for it is replaced."""
        self.wider[tensor] = values

    def layer(self, node: Node) -> LayerParameters:
        return self.layers.get(node.name, AS_IN_THE_MODEL)

    def weight_type(self, node: Node) -> CodeType | None:
        return self.weight_types.get(node.name)

    def has_compiler_weights(self, node: Node) -> bool:
        return node.name in self.compiler_weights

    def offset(self, node: Node) -> Offset:
        return self.offsets.get(node.name, NO_OFFSET)

    def constant_quant(self, value: np.ndarray, like: str) -> Quant:
        return activation_quant(Range.of(value), self.numerics(like))

    def find_file_weights(self, node: Node, *, product: bool = False) -> FileWeights | None:
        """Return how the file holds the node's constants that are weights of products, or that are not; None unless it is one
        answer.
        """
        matches = [s for s in find_file_weights(node, self.file_weights) if s.product is product]
        return matches[0] if len(matches) == 1 else None

    def constant(self, name: str, value: np.ndarray) -> str:
        """Register a constant under a name that is new to the graph, and return that name."""
        name = fresh_name(name, self.graph.types)
        self.constants[name] = value
        return name

    def requant(
        self,
        real_scale: Any,
        operation: str,
        codes: CodeType | None,
        zero_point: int,
        low: int,
        high: int,
        *,
        where: str,
        peak: Any = None,
    ) -> Requant:
        """Return the requantization of a real scale. Raise ScaleOutOfReach where the machine cannot express it.

        A scale beyond what the machine expresses takes its nearest where no output can tell.
        This is so where all sums are rounded to zero (`peak`: the largest magnitude of each), or the least sum saturates
        already.
        """
        numerics = self.chip.numerics
        form = numerics.scale
        if numerics.rounding_of(operation) is Rounding.DOUBLE_ROUND and high - low < _CODES and np.min(real_scale) >= _COARSE:
            form = replace(form, shift_max=min(form.shift_max, _ONCE))
        if not numerics.wraps:
            real_scale = _indistinguishable(np.asarray(real_scale, np.float64), form, zero_point, low, high, peak)
        try:
            scale = choose_scale(real_scale, form)
            limits = {"zero_point": zero_point, "low": low, "high": high}
            return numerics.requant(operation, scale.multiplier, scale.shift, **limits, codes=codes)
        except FixedPointError as fault:
            largest = float(np.max(real_scale)) / form.extremes[1]
            raise ScaleOutOfReach(f"{where}: {fault} (numerics.scale of {self.chip.name})", largest) from None

    def inner_requant(self, real_scale: Any, operation: str, *, where: str) -> Requant:
        """Return a requantization to int32, without zero point or clamp. Raise ScaleOutOfReach as `requant` does."""
        return self.requant(real_scale, operation, None, 0, *_INT32, where=where)


class ScaleOutOfReach(CompileError):
    """The error that a requantization needs a scale that the machine cannot express.

    `excess`: the needed scale divided by the machine's largest; below 1 where it is too small.
    """

    def __init__(self, message: str, excess: float):
        super().__init__(message)
        self.excess = excess


def _indistinguishable(real: np.ndarray, form: ScaleForm, zero_point: int, low: int, high: int, peak: Any) -> np.ndarray:
    """Return the scales, those beyond the machine's replaced by its nearest where no output can tell."""
    least, most = form.extremes
    nothing = False if peak is None else np.asarray(peak) * least < 0.25
    saturates = most >= max(high - zero_point, zero_point - low) - 1
    real = np.where((real < least) & (real > 0) & nothing, least, real)
    return np.where((real > most) & np.isfinite(real) & saturates, most, real)


def node_scope(
    graph: Graph,
    chip: Chip,
    types: Mapping[str, CodeType],
    quants: Mapping[str, Quant],
    quantization: Quantization,
    node: Node,
    chosen: LayerParameters,
) -> QuantizeContext:
    """Return the context of one chip node, as `quantize` would make it from these types, scales and choices.

    `chosen`: the node's parameters, in place of those that `quantization` has.
    `lower_node` with it returns what the whole graph's `quantize` makes of the node; new constants are in its `constants`.
    """
    scope = QuantizeContext(
        graph,
        chip,
        types,
        quants,
        {node.name: chosen},
        quantization.offsets,
        quantization.file_weights,
        quantization.weight_types,
        quantization.compiler_weights,
    )
    scope.seen_as = {
        target: {
            n: quants[inner]
            for n, codes in types.items()
            if codes in others and (inner := _get_substitute_name(n, target, graph)) in quants
        }
        for target, others in find_type_substitutes(graph, chip).items()
    }
    return scope


def find_type_substitutes(graph: Graph, chip: Chip) -> dict[CodeType, frozenset[CodeType]]:
    """Return which types some operator of the graph does not take, by the type that its operands have instead."""
    others_by_target = {finest(chip.operand_types): frozenset(codes for codes in chip.code_types if codes.is_wide)}
    for operand_types in {n.op.operand_types(n, graph, chip) for n in graph.nodes if isinstance(n.op, FloatOp)}:
        others = frozenset(codes for codes in chip.code_types if codes not in operand_types)
        others_by_target[finest(operand_types)] = others_by_target.get(finest(operand_types), frozenset()) | others
    return others_by_target


def lower_node(node: Node, scope: QuantizeContext) -> list[Node]:
    """Return the integer nodes that a chip node becomes.

    A tensor of a type that the node does not take or make is rescaled from or to one that it does.
    A tensor is rescaled once for all that read it, by the first reader.
    """
    op, output = operator_of(node, FloatOp), node.outputs[0]
    narrowed = _get_narrow_types(node, op, scope)
    scope.narrowed = narrowed
    integer_nodes = op.quantize(node, scope)
    scope.narrowed = {}
    names = {name: _get_substitute_name(name, codes, scope.graph) for name, (_, codes) in narrowed.items()}
    before: list[Node] = []
    for i, name in enumerate(dict.fromkeys(n for n in node.inputs if n in narrowed)):
        if names[name] not in scope.inners:
            before.append(make_rescale_node(f"{node.name}.narrow{i}", name, names[name], *narrowed[name], scope))
    after: list[Node] = []
    if output in narrowed:
        inner, (y, codes) = scope.inner(names[output], *narrowed[output]), (scope.quant(output), scope.codes(output))
        scope.shapes[inner] = scope.graph.types[output].shape
        after.append(make_rescale_node(f"{node.name}.widen", inner, output, y, codes, scope))
    return [*before, *(_rename_tensors(n, names) for n in integer_nodes), *after]


def _get_narrow_types(node: Node, op: FloatOp, scope: QuantizeContext) -> dict[str, tuple[Quant, CodeType]]:
    """Return the type of most bits for each tensor that the operator does not take or make in its type.

    The same type is taken for a wide tensor that was made in such codes, which hold all of it.
    """
    graph, chip = scope.graph, scope.chip
    tensors = [n for n in (*node.inputs, *node.outputs) if n and n not in graph.constants]
    reads, makes, operand_types = (
        op.reads_wide(node, graph, chip),
        op.makes_wide(node, graph, chip),
        op.operand_types(node, graph, chip),
    )
    can_be_narrow = not same_scale(op) and finest(operand_types).bits == finest(chip.operand_types).bits
    narrow_by_tensor: dict[str, tuple[Quant, CodeType]] = {}
    for name in tensors:
        codes, is_output = scope.codes(name), name in node.outputs
        if codes.is_wide and not (makes if is_output else reads and not (can_be_narrow and _is_made_narrow(name, scope))):
            target = finest(chip.operand_types if is_output else operand_types)
        elif not codes.is_wide and not is_output and codes not in operand_types:
            target = finest(operand_types)
        else:
            continue
        narrow_by_tensor[name] = scope.seen_as[target][name], target
    return narrow_by_tensor


def _is_made_narrow(name: str, scope: QuantizeContext) -> bool:
    """Return whether a wide tensor holds what its operator made in narrower codes, moved perhaps."""
    node = scope.producers.get(name)
    while node is not None and same_scale(node.op):
        node = scope.producers.get(node.inputs[0])
    return node is not None and isinstance(node.op, FloatOp) and not node.op.makes_wide(node, scope.graph, scope.chip)


def finest(types: Sequence[CodeType]) -> CodeType:
    """Return the type of most bits, the first of equal ones. Raise ValueError for an empty sequence."""
    return max(types, key=lambda t: t.bits)


def _get_substitute_name(tensor: str, codes: CodeType, graph: Graph) -> str:
    """Return the name of a tensor's form in another type."""
    return fresh_name(f"{tensor}@{codes}", graph.types)


def _rename_tensors(node: Node, names: Mapping[str, str]) -> Node:
    inputs, outputs = (tuple(names.get(n, n) for n in group) for group in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)
