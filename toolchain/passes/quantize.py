"""From float operators with calibrated ranges to integer operators with explicit requantization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.errors import FixedPointError
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.core.scale import ScaleForm, choose_scale
from quant.observe import Range
from quant.parameters import activation_quant
from quant.repair.step import AS_IN_THE_MODEL, NO_OFFSET, LayerParameters, Offset, Quantization
from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.ir.graph import INNER, Graph, Node, OnnxOp, Origin, Quant, TensorType
from toolchain.ir.stored import Stored
from toolchain.ops.kit.operator import FloatOp, operator_of
from toolchain.passes.assign import adopted_parts, assign_quants, assign_types

_WIDEST = 2.0**8  # more would leave an 8-bit tensor no codes
_INT32 = (-(2**31), 2**31 - 1)


# Rounding.DOUBLE_ROUND rounds a second time behind shifts above 31. Of scales near one, as pools and sums have them, that is off
# by up to a quarter of a code, always away from zero: there the multiplier gives up its last bits, of which 26 are left.
_ONCE, _COARSE, _CODES = 31, 2.0**-5, 1 << 16


@dataclass
class _Scope:
    """What operators see while they are quantized; gathers the new constants."""

    graph: Graph
    chip: Chip
    types: Mapping[str, CodeType]
    quants: Mapping[str, Quant]
    layers: Mapping[str, LayerParameters]
    offsets: Mapping[str, Offset]
    held: Mapping[str, Stored]
    weight_types: Mapping[str, CodeType]
    ranges: Mapping[str, Range] = field(default_factory=dict)  # of the chip's tensors whose scale is not given
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    inners: dict[str, tuple[Quant, CodeType]] = field(default_factory=dict)  # tensors between the nodes of an operator
    wider: dict[str, Range] = field(default_factory=dict)

    def quant(self, tensor: str) -> Quant:
        if tensor in self.inners:
            return self.inners[tensor][0]
        value = self.graph.constants.get(tensor)
        return self.quants[tensor] if value is None else self.constant_quant(value, tensor)

    def codes(self, tensor: str) -> CodeType:
        return self.inners[tensor][1] if tensor in self.inners else self.types.get(tensor, self.chip.code_types[0])

    def numerics(self, tensor: str) -> Numerics:
        return self.chip.numerics.of(self.codes(tensor))

    def inner(self, tensor: str, quant: Quant, codes: CodeType) -> str:
        self.inners[tensor] = quant, codes
        return tensor

    def seen(self, tensor: str) -> Range | None:
        return self.ranges.get(tensor)

    def widen(self, tensor: str, values: Range) -> None:
        self.wider[tensor] = values

    def layer(self, node: Node) -> LayerParameters:
        return self.layers.get(node.name, AS_IN_THE_MODEL)

    def weight_type(self, node: Node) -> CodeType | None:
        return self.weight_types.get(node.name)

    def offset(self, node: Node) -> Offset:
        return self.offsets.get(node.name, NO_OFFSET)

    def constant_quant(self, value: np.ndarray, like: str) -> Quant:
        return activation_quant(Range.of(value), self.numerics(like))

    def stored(self, node: Node) -> Stored | None:
        found = [self.held[s] for s in node.sources or (node.name,) if s in self.held]
        return found[0] if len(found) == 1 else None

    def constant(self, name: str, value: np.ndarray) -> str:
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
        """Scales beyond what the machine expresses take its nearest where no output can tell: all are rounded to zero
        (`peak`: the largest magnitude of each sum), or the least sum saturates already."""
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
            raise _ScaleOutOfReach(f"{where}: {fault} (numerics.scale of {self.chip.name})", largest) from None

    def inner_requant(self, real_scale: Any, operation: str, *, where: str) -> Requant:
        return self.requant(real_scale, operation, None, 0, *_INT32, where=where)


class _ScaleOutOfReach(CompileError):
    """`excess`: by how much a requantization is above the largest that the machine has."""

    def __init__(self, said: str, excess: float):
        super().__init__(said)
        self.excess = excess


def _indistinguishable(real: np.ndarray, form: ScaleForm, zero_point: int, low: int, high: int, peak: Any) -> np.ndarray:
    least, most = form.extremes
    nothing = False if peak is None else np.asarray(peak) * least < 0.25
    saturates = most >= max(high - zero_point, zero_point - low) - 1
    real = np.where((real < least) & (real > 0) & nothing, least, real)
    return np.where((real > most) & np.isfinite(real) & saturates, most, real)


def quantize(graph: Graph, chip: Chip, given: Quantization) -> Graph:
    """graph: as selected and clamped, of a model that carries its factors already. Host nodes stay.

    Where a requantization would need a larger scale than the machine has, or an operator asks for it, the output takes a wider
    range. Raises CompileError: no scale that the machine has would do, or the tensor's scale is given.
    """
    calibrated = {n: r for n, (own, _) in graph.origins.items() if isinstance(r := given.ranges.get(own), Range)}
    adopted = adopted_parts([n for n in graph.nodes if not isinstance(n.op, OnnxOp)], graph)
    factors, asked, types = dict[str, float](), dict[str, Range](), assign_types(graph, chip, given.types)
    while True:
        quants = assign_quants(graph, chip, types, given.ranges, _widened(calibrated, factors, asked))
        scope = _Scope(graph, chip, types, quants, given.layers, given.offsets, given.held, given.weight_types, calibrated)
        try:
            integer = _quantized(graph, scope)
        except _Widen as wider:
            factors[wider.tensor] = factors.get(wider.tensor, 1.0) * wider.factor
            if factors[wider.tensor] > _WIDEST or wider.tensor not in calibrated:
                raise CompileError(str(wider)) from None
            continue
        before = dict(asked)
        for name, values in scope.wider.items():
            whole = adopted.get(name, name)
            if whole in calibrated:
                asked[whole] = asked.get(whole, calibrated[whole]).union(values)
        if asked == before:
            return integer


def _widened(calibrated: Mapping[str, Range], factors: Mapping[str, float], asked: Mapping[str, Range]) -> dict[str, Range]:
    found = dict(asked)
    for name, factor in factors.items():
        r = found.get(name, calibrated[name])
        found[name] = Range(r.low * factor, r.high * factor)
    return found


class _Widen(CompileError):
    """`tensor` needs a scale `factor` times larger, which the machine can be asked for."""

    def __init__(self, fault: _ScaleOutOfReach, tensor: str):
        super().__init__(str(fault))
        self.tensor, self.factor = tensor, float(2.0 ** np.ceil(np.log2(fault.excess)))


def node_scope(
    graph: Graph,
    chip: Chip,
    types: Mapping[str, CodeType],
    quants: Mapping[str, Quant],
    given: Quantization,
    node: Node,
    chosen: LayerParameters,
) -> _Scope:
    """What one chip node of `quantize`'s graph sees where its tensors have these types and scales and it has these parameters:
    its `quantize` then makes what that makes, with the new constants in `constants`."""
    return _Scope(graph, chip, types, quants, {node.name: chosen}, given.offsets, given.held, given.weight_types)


def _quantized(graph: Graph, scope: _Scope) -> Graph:
    quants = scope.quants
    adopted = adopted_parts([n for n in graph.nodes if not isinstance(n.op, OnnxOp)], graph)
    nodes: list[Node] = []
    origins: dict[str, Origin] = {}
    types: dict[str, TensorType] = {
        name: TensorType(graph.types[name].shape, scope.codes(name).value, quant) for name, quant in quants.items()
    }
    for node in graph.nodes:
        if isinstance(node.op, OnnxOp):
            nodes.append(node)
            continue
        try:
            made = operator_of(node, FloatOp).quantize(node, scope)
        except _ScaleOutOfReach as fault:
            if not 1 < fault.excess < np.inf:
                raise
            raise _Widen(fault, adopted.get(node.outputs[0], node.outputs[0])) from None
        _type_inner(made, node, types, origins, scope)
        nodes += made
    for name, value in scope.constants.items():
        types[name] = TensorType(value.shape, str(value.dtype))
    return graph.with_nodes(nodes, types, scope.constants, origins)


def _type_inner(made: list[Node], node: Node, types: dict[str, TensorType], origins: dict[str, Origin], scope: _Scope) -> None:
    """Tensors that quantization put between nodes: shape of their source."""
    for inner in made:
        name = inner.outputs[0]
        if name not in types:
            quant, codes = scope.inners[name]
            types[name] = TensorType(types[inner.inputs[0]].shape, codes.value, quant)
            origins[name] = Origin(scope.graph.origins[node.outputs[0]].tensor, INNER)
