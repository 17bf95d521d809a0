"""Load an ONNX model into canonical form, and hold the result for all stages behind the frontend.

`load_model` runs the frontend's passes in order: read, bind inputs, import and fold, cast to float32, dequantize,
canonicalize.
Its result, a `NormalModel`, also keeps how the canonical form relates to the user's file: names, codes of constants, states.
`to_graph` hands the graph to the chip's passes, `parts` and `extract` hand float models to onnxruntime.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import onnx

from toolchain.frontend.bind_shapes import bind_inputs, length_warnings
from toolchain.frontend.bind_values import ModelData, Value, bind_values, import_bound_by_data
from toolchain.frontend.canonicalize import canonicalize
from toolchain.frontend.check_computed_constants import FileNode, check_computed_constants
from toolchain.frontend.convert import elem_type, type_of
from toolchain.frontend.dequantize import dequantize_graph
from toolchain.frontend.export_onnx import list_product_weights, subgraph, to_part, to_proto
from toolchain.frontend.import_graph import unique_name
from toolchain.frontend.infer import infer
from toolchain.frontend.model_source import ModelFile, model_file
from toolchain.frontend.plugin_nodes import check_domain_versions
from toolchain.frontend.promote_attributes import promote
from toolchain.frontend.read_onnx import NORMAL_OPSET, opset_of, read_model
from toolchain.frontend.source import Source, get_shared_tensors, read_before, source_of
from toolchain.ir.file_quantization import FileWeights
from toolchain.ir.float_submodel import FloatSubmodel
from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp, TensorType, distinctly_named, fresh_name
from toolchain.ir.range_constraints import ClippedRange, Inner
from toolchain.ir.states import StatePair

OTHERS = ("float16", "bfloat16", "float64")
TO = ("to", "dtype", "output_dtype")  # attributes that name the type of what a node makes
T = TypeVar("T")
NO_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({})
NO_VALUES: Mapping[str, Value] = MappingProxyType({})


@dataclass(frozen=True)
class DecomposedModel:
    """A model in which steps replaced operators, as calibration needs it.

    `original_model`: the model before that. It shows masks and scores, and need not hold the values of product weights.
    `within`: by tensor between steps, the limits that clip its calibrated range.
    """

    original_model: onnx.ModelProto
    within: Mapping[str, ClippedRange]


@dataclass(frozen=True)
class NormalModel:
    """A model in canonical form (docs/frontend.md), and how it relates to the user's file.

    `graph`: nodes hold OnnxOp whose constant parameters are still constant inputs, as in ONNX. `opset`: the nodes' operator
    set.
    `notes`: what was assumed on the way in. `warnings`: assumptions that change what the model does.
    `nodes`: (name, operator) of every node of the file.
    `source`: the file itself for onnxruntime, None where onnxruntime does not run it.
    `stored`: for a quantized file, by node, how it holds the node's constants.
    `weights`: by node of the file, the names of its constants of two or more dimensions, all names that each has there.
    `source_name_by_tensor`: for tensors that the file has in another shape, their name there (`y` for `y/rows`). For tensors
    of one step of a sequence, the name that they share at all steps.

    These fields are about operators that were decomposed into steps:
    `undivided`: the model before, None where no operator was decomposed.
    `reasons_undivided`: by node that stays whole although its operator can be decomposed, the reason.
    `inner`: by tensor between steps, where its range is from if not from calibration of it alone.
    `finest`: tensors between steps that have the machine's finest codes unless the user sets a type.
    `repeated`: by tensor of one step of a sequence, the name for all steps, which share one range.
    `first`: tensors of states that go into a sequence.
    `made_of`: by constant of steps, the model's constant that it is a part of.
    `steps_error`: how far steps are from their operator in float, as a share of each number.

    `states`: (input, output) pairs where the output is the input of the next run. `states_asked`: those that the user
    requested.
    `states_likely`: pairs that look like states but are kept as input and output unless the user requests them.
    `twin_by_tensor`: by tensor of a repeated block, the tensor of an earlier block with which it shares its range.
    `bound`: by input of the file that became a constant, its value.
    `plugin_nodes`: by node of the file whose operator a plug-in defines, the name of that plug-in.
    """

    graph: OnnxGraph
    opset: int
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    nodes: tuple[tuple[str, str], ...] = ()
    source: Source | None = None
    stored: Mapping[str, FileWeights] = field(default_factory=dict[str, FileWeights])
    weights: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    source_name_by_tensor: Mapping[str, str] = field(default_factory=dict[str, str])
    undivided: NormalModel | None = None
    reasons_undivided: Mapping[str, str] = field(default_factory=dict[str, str])
    inner: Mapping[str, Inner] = field(default_factory=dict[str, Inner])
    finest: frozenset[str] = frozenset()
    repeated: Mapping[str, str] = field(default_factory=dict[str, str])
    first: frozenset[str] = frozenset()
    made_of: Mapping[str, str] = field(default_factory=dict[str, str])
    steps_error: float = 0.0
    states: tuple[StatePair, ...] = ()
    states_asked: tuple[StatePair, ...] = ()
    states_likely: tuple[StatePair, ...] = ()
    twin_by_tensor: Mapping[str, str] = field(default_factory=dict[str, str])
    bound: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    plugin_nodes: Mapping[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The model as ONNX: valid, static, every tensor typed. It is made at the first access and kept."""
        return to_proto(self.graph, self.opset)

    @cached_property
    def structure(self) -> onnx.ModelProto:
        """`proto` without the values of product weights, which take no second copy of a large model; it cannot be run."""
        return to_proto(self.graph, self.opset, list_product_weights(self.graph))

    @property
    def decomposition(self) -> DecomposedModel | None:
        """The model before decomposition and the clipped ranges, for calibration.

        None where nothing was decomposed and no tensor has a clipped or shared range.
        """
        within = {**{n: r for n, r in self.inner.items() if isinstance(r, ClippedRange)}, **self.over_sequences}
        original = self.proto if self.undivided is None else self.undivided.structure
        return DecomposedModel(original, within) if within or self.undivided is not None else None

    @property
    def fixed(self) -> frozenset[str]:
        """The tensors between steps that are not calibrated, since their range is fixed."""
        return frozenset(n for n, r in self.inner.items() if not isinstance(r, ClippedRange))

    @property
    def over_sequences(self) -> dict[str, ClippedRange]:
        """The limits of the ranges of tensors that depend on earlier steps or earlier runs. Tensors of one `as_one` share a
        range.
        """
        anything = ClippedRange(-math.inf, math.inf)
        steps = {n: replace(anything, as_one=one) for n, one in self.repeated.items() if n in self.types and n not in self.inner}
        measured = {n: r for n, r in self.inner.items() if isinstance(r, ClippedRange) and r.as_one}
        return self._with_states({**dict.fromkeys(sorted(self.first), anything), **steps, **measured}, anything)

    def _with_states(self, range_by_tensor: Mapping[str, ClippedRange], anything: ClippedRange) -> dict[str, ClippedRange]:
        """Return the ranges with each state's output measured together with the input of the next run."""
        all_ = dict(range_by_tensor)
        for pair in self.states:
            shared_names = {all_[n].as_one for n in pair if n in all_} - {""}
            one = min(shared_names, default=f"{pair.past}={pair.present}")
            all_ = {n: replace(r, as_one=one) if r.as_one in shared_names else r for n, r in all_.items()}
            all_ |= {n: replace(all_.get(n, anything), as_one=one) for n in pair}
        return all_

    def name(self, tensor: str) -> str:
        """Return the name under which messages show a tensor: the file's, where the file has the same elements in another
        shape.
        """
        return self.source_name_by_tensor.get(tensor, tensor)

    def by_name(self, value_by_tensor: Mapping[str, T]) -> dict[str, T]:
        """Return values of graph tensors by the tensors' names in the file.

        Several tensors here may be one of the file in other shapes; the first in graph order counts, since reshaping keeps
        codes.
        """
        order = {n: i for i, n in enumerate((*self.inputs, *(n for node in self.graph.nodes for n in node.outputs)))}
        value_by_name: dict[str, T] = {}
        for tensor in sorted(value_by_tensor, key=lambda n: order.get(n, len(order))):
            value_by_name.setdefault(self.name(tensor), value_by_tensor[tensor])
        return value_by_name

    def in_all_shapes(self, value_by_tensor: Mapping[str, T]) -> dict[str, T]:
        """Return the values, extended to tensors that are one of the given tensors in another shape and have no value of
        their own.
        """
        return {
            **{
                t: value_by_tensor[source_name]
                for t, source_name in self.source_name_by_tensor.items()
                if source_name in value_by_tensor
            },
            **value_by_tensor,
        }

    def parts(self, names: Sequence[str]) -> Iterator[FloatSubmodel]:
        """Yield one or two models that, run one after the other, compute the tensors `names`.

        The first computes those that the file itself has, and what the second reads. The second computes the rest in
        canonical form.
        """
        source_types = dict[str, TensorType]() if self.source is None else self.source.types
        shared = get_shared_tensors(self.graph, source_types)
        rest = [n for n in names if n not in shared]
        read = read_before(self.graph, rest, shared)
        source_tensors = tuple(dict.fromkeys(n for n in (*names, *read) if n in shared))
        if self.source is not None and source_tensors:
            yield self.source.part(source_tensors)
        if rest:
            yield self.normal_part(read, rest)

    def normal_part(self, inputs: Sequence[str], outputs: Sequence[str]) -> FloatSubmodel:
        """Return the part of the canonical form that computes `outputs` from `inputs`."""
        return to_part(subgraph(self.graph, inputs, outputs), self.opset)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.graph.inputs

    @property
    def types(self) -> Mapping[str, TensorType]:
        return self.graph.types


def load_model(
    model: ModelFile | str | os.PathLike[str] | Any,
    shapes: Mapping[str, Sequence[int]] = NO_SHAPES,
    *,
    values: Mapping[str, Value] = NO_VALUES,
    static_ranges: bool = False,
    data: ModelData | None = None,
) -> NormalModel:
    """Read an ONNX model into canonical form. Raise CompileError, in one message, when the model cannot be used.

    `model`: a path, bytes, a ModelProto or an onnx_ir.Model.
    `shapes`: by input name, the full shape; inputs with open dimensions need one, or samples in `data`.
    `values`: by input name, the numbers that replace the input as a constant.
    `static_ranges`: whether ranges that a quantized file computes in each run are calibrated once instead.
    `data`: where samples lie; they give values to inputs that shapes depend on. None: there are none.
    """
    file = model_file(model)
    proto, rewritten, map_notes = read_model(file)
    check_domain_versions(proto)
    fixed = bind_values(proto.graph, values, shapes)
    free_shapes = {name: shape for name, shape in shapes.items() if name not in fixed}
    bound = bind_inputs(proto.graph, free_shapes)
    by_data = import_bound_by_data(proto, bound, data)
    static, graph = by_data.static, by_data.static.graph
    bound = bound.without(by_data.values)
    opset = max(NORMAL_OPSET, opset_of(proto))
    names: dict[str, int] = {}
    nodes = tuple((unique_name(n, i, names), n.op_type) for i, n in enumerate(proto.graph.node))
    origin_by_output = {n.output[0]: n.input[0] for n in proto.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")}
    weights = {name: _weights(n, graph.constants, origin_by_output) for (name, _), n in zip(nodes, proto.graph.node)}
    file_tensors = frozenset((*bound.types, *(o for n in proto.graph.node for o in n.output if o)))
    producers = {
        o: FileNode(name, op_type, tuple(n.input)) for (name, op_type), n in zip(nodes, proto.graph.node) for o in n.output
    }
    warnings = length_warnings(proto, graph, bound, free_shapes)
    constant_inputs = {**fixed, **by_data.values}
    runs_as_given = not static.plugin_nodes  # onnxruntime knows no operator of a plug-in
    source = source_of(file, proto, rewritten, bound, graph, constant_inputs) if runs_as_given else None
    del proto
    wide, notes = cast_to_float32(graph, opset)
    real = dequantize_graph(wide, opset, static_ranges)
    check_computed_constants(real.graph, producers, graph.constants)
    normal, source_name_by_tensor = canonicalize(real.graph, opset, file_tensors)
    used_names = file_tensors | normal.types.keys()
    steps = {n: fresh_name(one, used_names) for n, one in static.repeated.items() if n in normal.types}
    source_name_by_tensor |= {n: one for n, one in steps.items() if n not in file_tensors}
    notes_and_warnings = (*bound.notes, *by_data.notes, *map_notes, *notes, *real.notes), tuple(warnings)
    return NormalModel(
        normal,
        opset,
        *notes_and_warnings,
        nodes,
        source,
        real.stored,
        weights,
        source_name_by_tensor,
        repeated=steps,
        bound=constant_inputs,
        plugin_nodes=static.plugin_nodes,
    )


def _weights(node: onnx.NodeProto, constants: Mapping[str, np.ndarray], origin_by_output: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of a node's constants of two or more dimensions, with all names each has in the file.

    `origin_by_output`: by tensor, the one before it was rounded or stored as codes.
    """
    weight_names: list[str] = []
    for name in node.input[:2] if node.op_type == "Gemm" else node.input:
        names = [name]
        while names[-1] in origin_by_output:
            names.append(origin_by_output[names[-1]])
        if names[-1] in constants and constants[names[-1]].ndim > 1:
            weight_names += names
    return tuple(weight_names)


def to_graph(model: NormalModel) -> OnnxGraph:
    """Return the model's graph with constant parameters as attributes of its nodes; weights stay constant inputs."""
    return promote(model.graph)


def extract(model: NormalModel, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """Return the part of the canonical form that computes `outputs` from `inputs`, for onnxruntime.

    Raise CompileError when the outputs need further inputs.
    """
    return to_proto(subgraph(model.graph, inputs, outputs), model.opset)


def cast_to_float32(graph: OnnxGraph, opset: int) -> tuple[OnnxGraph, tuple[str, ...]]:
    """Return the graph with float32 in place of all other float types, and one note that says so, or none where there are no
    others.

    The model's inputs and outputs keep their types, behind and before a Cast.
    """
    other_dtypes = sorted({t.dtype for t in graph.types.values() if t.dtype in OTHERS})
    if not other_dtypes:
        return graph, ()
    narrow = {n for n in (*graph.inputs, *graph.outputs) if graph.types[n].dtype in OTHERS}
    names = {n: _fresh(f"{n}/float32", graph.types) for n in narrow}
    wide = {n: np.asarray(v, np.float32) if v.dtype.name in OTHERS else v for n, v in graph.constants.items()}
    constants = {names.get(n, n): v for n, v in wide.items()}
    types = {n: type_of(v) for n, v in constants.items()} | {n: graph.types[n] for n in graph.inputs}
    nodes: list[OnnxNode] = []

    def emit(node: OnnxNode) -> None:
        types.update(infer(node, types, constants, opset))
        nodes.append(node)

    for name in graph.inputs:
        if name in names:
            emit(_cast(name, names[name], "float32"))
    for node in graph.nodes:
        attributes = {k: _wide(v) if k in TO else v for k, v in node.op.attributes.items()}
        inputs, outputs = (tuple(names.get(n, n) for n in side) for side in (node.inputs, node.outputs))
        emit(replace(node, op=OnnxOp(node.op.op_type, attributes, node.op.domain), inputs=inputs, outputs=outputs))
    for name in graph.outputs:
        if name in names and name not in graph.inputs:
            emit(_cast(names[name], name, graph.types[name].dtype))
    note = f"the model computes in {', '.join(other_dtypes)}, which is taken as float32"
    return replace(graph, nodes=distinctly_named(nodes), types=types, constants=constants), (note,)


def _cast(x: str, y: str, dtype: str) -> OnnxNode:
    return Node(f"{y}/cast", OnnxOp("Cast", {"to": elem_type(dtype), "saturate": 1}), (x,), (y,), ())


def _wide(to: object) -> object:
    """Return an element type of ONNX, float32 in place of other floats."""
    other = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)
    return int(onnx.TensorProto.FLOAT) if to in other else to


def _fresh(base: str, types: Mapping[str, TensorType]) -> str:
    name, suffix = base, 2
    while name in types:
        name, suffix = f"{base}_{suffix}", suffix + 1
    return name
