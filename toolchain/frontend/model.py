"""The normalised model, and the way from a file to it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import onnx

from toolchain.frontend.bind_by_data import ModelData, import_bound_by_data
from toolchain.frontend.bind_shapes import bind_inputs
from toolchain.frontend.bind_values import Value, bind_values
from toolchain.frontend.canonicalize import canonicalize
from toolchain.frontend.cast_to_float32 import cast_to_float32
from toolchain.frontend.dequantize import dequantize_graph
from toolchain.frontend.export_onnx import subgraph, to_part, to_proto
from toolchain.frontend.import_graph import unique_name
from toolchain.frontend.promote_attributes import promote
from toolchain.frontend.read_onnx import NORMAL_OPSET, opset_of, read_model
from toolchain.frontend.sequence_lengths import length_warnings
from toolchain.frontend.source import Source, read_before, shared_tensors, source_of
from toolchain.ir.file_quantization import FileWeights
from toolchain.ir.float_submodel import FloatSubmodel
from toolchain.ir.graph import OnnxGraph, TensorType, fresh_name
from toolchain.ir.range_constraints import ClippedRange, Inner
from toolchain.ir.states import StatePair

T = TypeVar("T")
NO_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({})
NO_VALUES: Mapping[str, Value] = MappingProxyType({})


@dataclass(frozen=True)
class DecomposedModel:
    """Of a model with steps in the place of operators: `whole`, as it was before; `within`: what is measured of tensors between
    steps."""

    whole: onnx.ModelProto
    within: Mapping[str, ClippedRange]


@dataclass(frozen=True)
class NormalModel:
    """A model in normal form (docs/frontend.md). `graph` holds OnnxOp nodes whose parameters are still constant inputs, as in
    ONNX; `notes` say what was assumed on the way in, `warnings` what of that
    changes what the model does; `nodes` are (name, operator) of all nodes that the file has; `source` is
    the file itself, None where onnxruntime does not run it; `stored`: of a quantized model, by node, how it holds constants;
    weights: by node of the file, its constants of two dimensions and more that are no bias, by all their names there; own: of
    tensors that the file has under another shape, its name (`y` of `y/rows`), of those of a step what they are at all steps.

    undivided: the model before operators were taken apart into steps, None where none was; whole: nodes that could be, and why
    they were not; inner: tensors between steps whose range is not what calibration sees of them alone; finest: tensors between
    steps that have the finest codes of the machine where nobody says other; repeated: by tensor of a step of a
    sequence, the name of what it is at all steps, which are measured as one; first: states that go into a
    sequence; made_of: by constant of steps, the one of the model that it is a part of; steps_error: how far steps are from their
    operator in float, as a share of each number; states: inputs with the outputs that are
    these inputs of the next run, states_asked: those of them that somebody asked for, states_likely: pairs that are none unless
    somebody asks; alike: by tensor of a block that is like one before it, the tensor whose range is also its; bound:
    inputs of the file that somebody or the data bind to these values."""

    graph: OnnxGraph
    opset: int
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    nodes: tuple[tuple[str, str], ...] = ()
    source: Source | None = None
    stored: Mapping[str, FileWeights] = field(default_factory=dict[str, FileWeights])
    weights: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    own: Mapping[str, str] = field(default_factory=dict[str, str])
    undivided: NormalModel | None = None
    whole: Mapping[str, str] = field(default_factory=dict[str, str])
    inner: Mapping[str, Inner] = field(default_factory=dict[str, Inner])
    finest: frozenset[str] = frozenset()
    repeated: Mapping[str, str] = field(default_factory=dict[str, str])
    first: frozenset[str] = frozenset()
    made_of: Mapping[str, str] = field(default_factory=dict[str, str])
    steps_error: float = 0.0
    states: tuple[StatePair, ...] = ()
    states_asked: tuple[StatePair, ...] = ()
    states_likely: tuple[StatePair, ...] = ()
    alike: Mapping[str, str] = field(default_factory=dict[str, str])
    bound: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The same as ONNX: valid, static, every tensor typed; made when first asked for."""
        return to_proto(self.graph, self.opset)

    @property
    def divided(self) -> DecomposedModel | None:
        """For calibration; None where nothing was taken apart, and no state goes through a sequence."""
        within = {**{n: r for n, r in self.inner.items() if isinstance(r, ClippedRange)}, **self.over_sequences}
        return DecomposedModel((self.undivided or self).proto, within) if within or self.undivided is not None else None

    @property
    def fixed(self) -> frozenset[str]:
        """The tensors between steps that nobody measures."""
        return frozenset(n for n, r in self.inner.items() if not isinstance(r, ClippedRange))

    @property
    def over_sequences(self) -> dict[str, ClippedRange]:
        """Tensors that depend on all earlier steps of a sequence, with what their values lie in."""
        anything = ClippedRange(-math.inf, math.inf)
        steps = {n: replace(anything, as_one=one) for n, one in self.repeated.items() if n in self.types and n not in self.inner}
        measured = {n: r for n, r in self.inner.items() if isinstance(r, ClippedRange) and r.as_one}
        return self._with_states({**dict.fromkeys(sorted(self.first), anything), **steps, **measured}, anything)

    def _with_states(self, found: Mapping[str, ClippedRange], anything: ClippedRange) -> dict[str, ClippedRange]:
        """What a run leaves of a state is measured as what the next one reads."""
        all_ = dict(found)
        for pair in self.states:
            known = {all_[n].as_one for n in pair if n in all_} - {""}
            one = min(known, default=f"{pair.past}={pair.present}")
            all_ = {n: replace(r, as_one=one) if r.as_one in known else r for n, r in all_.items()}
            all_ |= {n: replace(all_.get(n, anything), as_one=one) for n in pair}
        return all_

    def name(self, tensor: str) -> str:
        """What people are told of a tensor: the file's name, where it has all elements of it."""
        return self.own.get(tensor, tensor)

    def by_name(self, said: Mapping[str, T]) -> dict[str, T]:
        """What is said of tensors of the graph, by their names in the file. Of the shapes that one of the file's has here the
        first counts: what only arranges a tensor keeps its codes."""
        order = {n: i for i, n in enumerate((*self.inputs, *(n for node in self.graph.nodes for n in node.outputs)))}
        found: dict[str, T] = {}
        for tensor in sorted(said, key=lambda n: order.get(n, len(order))):
            found.setdefault(self.name(tensor), said[tensor])
        return found

    def in_all_shapes(self, said: Mapping[str, T]) -> dict[str, T]:
        """What is said of the file's tensors, of their other shapes too where nothing is said of these."""
        return {**{t: said[own] for t, own in self.own.items() if own in said}, **said}

    def parts(self, names: Sequence[str]) -> Iterator[FloatSubmodel]:
        """Models that, run one behind the other, compute these tensors: the file's own as far as it has them, then what the
        normal form makes of them."""
        own = {} if self.source is None else self.source.types
        shared = shared_tensors(self.graph, own)
        rest = [n for n in names if n not in shared]
        read = read_before(self.graph, rest, shared)
        taken = tuple(dict.fromkeys(n for n in (*names, *read) if n in shared))
        if self.source is not None and taken:
            yield self.source.part(taken)
        if rest:
            yield self.normal_part(read, rest)

    def normal_part(self, inputs: Sequence[str], outputs: Sequence[str]) -> FloatSubmodel:
        """What the normal form makes of `inputs`."""
        return to_part(subgraph(self.graph, inputs, outputs), self.opset)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.graph.inputs

    @property
    def types(self) -> Mapping[str, TensorType]:
        return self.graph.types


def load_model(
    path: str | os.PathLike[str],
    shapes: Mapping[str, Sequence[int]] = NO_SHAPES,
    *,
    values: Mapping[str, Value] = NO_VALUES,
    static_ranges: bool = False,
    data: ModelData | None = None,
) -> NormalModel:
    """`shapes`: input name -> its whole shape; values: input name -> the numbers that it is from now on; static_ranges: as in
    `dequantized`; data: where samples lie, by which inputs are bound that shapes depend on.
    CompileError, in one message, when the model cannot be used."""
    proto, inlined = read_model(path)
    fixed = bind_values(proto.graph, values, shapes)
    said = {name: shape for name, shape in shapes.items() if name not in fixed}
    bound = bind_inputs(proto.graph, said)
    by_data = import_bound_by_data(proto, bound, data)
    static, graph = by_data.static, by_data.static.graph
    bound = bound.without(by_data.values)
    opset = max(NORMAL_OPSET, opset_of(proto))
    names: dict[str, int] = {}
    nodes = tuple((unique_name(n, i, names), n.op_type) for i, n in enumerate(proto.graph.node))
    held = {n.output[0]: n.input[0] for n in proto.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")}
    weights = {name: _weights(n, graph.constants, held) for (name, _), n in zip(nodes, proto.graph.node)}
    made = frozenset((*bound.types, *(o for n in proto.graph.node for o in n.output if o)))
    warnings = length_warnings(proto, graph, bound, said)
    constant_inputs = {**fixed, **by_data.values}
    source = source_of(Path(path), proto, inlined, bound, graph, constant_inputs)
    del proto
    wide, notes = cast_to_float32(graph, opset)
    real = dequantize_graph(wide, opset, static_ranges)
    normal, own = canonicalize(real.graph, opset, made)
    taken = made | normal.types.keys()
    steps = {n: fresh_name(one, taken) for n, one in static.repeated.items() if n in normal.types}
    own |= {n: one for n, one in steps.items() if n not in made}
    told = (*bound.notes, *by_data.notes, *notes, *real.notes), tuple(warnings)
    return NormalModel(normal, opset, *told, nodes, source, real.stored, weights, own, repeated=steps, bound=constant_inputs)


def _weights(node: onnx.NodeProto, constants: Mapping[str, np.ndarray], held: Mapping[str, str]) -> tuple[str, ...]:
    """held: by tensor, what it is before it is rounded, or as codes."""
    found: list[str] = []
    for name in node.input[:2] if node.op_type == "Gemm" else node.input:
        names = [name]
        while names[-1] in held:
            names.append(held[names[-1]])
        if names[-1] in constants and constants[names[-1]].ndim > 1:
            found += names
    return tuple(found)


def to_graph(model: NormalModel) -> OnnxGraph:
    """Nodes hold OnnxOp with their constant parameters as attributes; weights stay constant inputs."""
    return promote(model.graph)


def extract(model: NormalModel, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """The part of the model between these tensors, for onnxruntime. CompileError when it needs more inputs."""
    return to_proto(subgraph(model.graph, inputs, outputs), model.opset)
