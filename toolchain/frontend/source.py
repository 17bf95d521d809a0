"""Run the user's own file in onnxruntime, with any of its tensors as outputs, before this frontend has changed anything.

Calibration and the comparison with float use it, so that a fault of the frontend cannot hide. From FIRST_CONSTANTS_IR on, an
initializer that is an input as well could be fed, so that onnxruntime does not fold it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from shutil import copyfileobj

import numpy as np
import onnx

from toolchain.frontend.bind_shapes import BoundInputs
from toolchain.frontend.convert import elem_type, type_of, value_info
from toolchain.frontend.expand_ml import drop_maps
from toolchain.frontend.model_source import ModelFile
from toolchain.frontend.read_onnx import graphs_of, inline_functions, parse
from toolchain.frontend.rounding_noise import ROUNDED, NoisyModel, add_rounding_noise
from toolchain.ir.float_submodel import FloatSubmodel
from toolchain.ir.graph import OnnxGraph, TensorType

FIRST_CONSTANTS_IR = 4


@dataclass(frozen=True)
class Source:
    """A model that onnxruntime runs as it was given.

    `file`: the model as it was given.
    `inputs`: types of the bound inputs.
    `types`: types of the tensors that its own nodes make.
    `constants`: those of these tensors that depend on no input.
    `outputs`: names of the model's outputs.
    `dims`: values of named dimensions.
    `rewritten`: the file's bytes cannot be run as they are.
    Reasons are functions to expand, inputs of size 0, initializers among the inputs, and products that may run in 8 bits.
    `fixed`: values of inputs that are constants here.
    They are fed, since onnxruntime may crash where it folds the branches that they decide.
    `part` and `make_noisy_model` take names of `types` and `outputs` alone.
    `cleared`: caches in which onnxruntime puts zeros at places that no token has reached, where nothing is defined.
    """

    file: ModelFile
    inputs: Mapping[str, TensorType]
    types: Mapping[str, TensorType]
    constants: frozenset[str]
    outputs: frozenset[str]
    dims: tuple[tuple[str, int], ...]
    rewritten: bool
    fixed: Mapping[str, np.ndarray]
    cleared: frozenset[str]

    def part(self, names: Sequence[str]) -> FloatSubmodel:
        """Return the file's model with the tensors `names` as outputs; other outputs of the model stay in it."""
        inner = [n for n in names if n not in self.outputs]
        unchanged = self.file.data if self.file.path is None else self.file.path
        model = unchanged if not self.rewritten and not inner else self._make_tapped_model(inner)
        return self._part(model, names)

    def make_noisy_model(self, names: Sequence[str], step: Callable[[str], float]) -> NoisyModel:
        """Return the same model with noise: every float tensor that depends on an input is moved by a relative `step`.

        `names`: tensors to be outputs, as in `part`. `step`: the relative size by element type.
        """
        proto = self._proto()
        computed = {n: t for n, t in self.types.items() if n not in self.constants and t.dtype in ROUNDED and t.elements}
        noise, numbers = add_rounding_noise(proto, computed, step)
        part = self._part(proto.SerializeToString() + self._taps([n for n in names if n not in self.outputs]), names)
        return NoisyModel(replace(part, inputs=(*part.inputs, noise)), noise, numbers)

    def _part(self, model: bytes | Path, names: Sequence[str]) -> FloatSubmodel:
        folder = "" if self.file.folder is None else str(self.file.folder)
        return FloatSubmodel(model, tuple(self.inputs), tuple(names), folder, self.dims, extra_inputs=self.fixed)

    def _taps(self, names: Sequence[str]) -> bytes:
        """Return a serialized ModelProto of nothing but these tensors as graph outputs. Appended to a model's bytes, it adds
        them.
        """
        taps = [onnx.helper.make_tensor_value_info(n, elem_type(self.types[n].dtype), None) for n in names]
        return onnx.ModelProto(graph=onnx.GraphProto(output=taps)).SerializeToString()

    def _make_tapped_model(self, names: Sequence[str]) -> bytes:
        """Return the serialized model with these tensors as further outputs, rewritten where it has to be."""
        more = self._taps(names)
        if self.rewritten:
            return self._proto().SerializeToString() + more
        # Messages of protobuf that stand one behind the other are one: their repeated fields go on.
        if self.file.path is None:
            return self.file.data + more
        model = BytesIO()
        with self.file.path.open("rb") as file:
            copyfileobj(file, model)
        model.write(more)
        return model.getvalue()  # without a copy: files of gigabytes are held once

    def _proto(self) -> onnx.ModelProto:
        """The file's model, without its external data; rewritten where it has to be."""
        proto = parse(self.file)
        if not self.rewritten:
            return proto
        if proto.functions:
            proto = inline_functions(proto, self.file)
        drop_maps(proto.graph)
        del proto.graph.input[:]
        types = {**self.inputs, **{name: type_of(value) for name, value in self.fixed.items()}}
        proto.graph.input.extend(value_info(n, types) for n in types)
        proto.ir_version = max(proto.ir_version, FIRST_CONSTANTS_IR)
        for coarse in _coarse_products(proto.graph):
            coarse.i = 0
        return proto


def _coarse_products(graph: onnx.GraphProto) -> list[onnx.AttributeProto]:
    """Return the attributes of products whose activations onnxruntime may round as it likes, in subgraphs too."""
    nodes = (n for n in graph.node if n.op_type == "MatMulNBits")
    inner = [a for n in graph.node for subgraph in graphs_of(n) for a in _coarse_products(subgraph)]
    return [a for n in nodes for a in n.attribute if a.name == "accuracy_level" and a.i] + inner


def source_of(
    file: ModelFile,
    proto: onnx.ModelProto,
    rewritten: bool,
    bound: BoundInputs,
    static: OnnxGraph,
    fixed: Mapping[str, np.ndarray],
) -> Source:
    """Return the source of a model that was read.

    `proto`: the model as read, without functions and maps.
    `rewritten`: functions were expanded in it, or maps made tensors. Other reasons to rewrite are found here.
    `bound`: the types of its inputs.
    `static`: its imported graph, tensors by the file's own names.
    `fixed`: inputs that are constants.
    """
    graph = proto.graph
    node_outputs = [n for node in graph.node for n in node.output if n in static.types]
    initializers = {i.name for i in graph.initializer} - fixed.keys()
    declared = {i.name: i.type.tensor_type.shape.dim for i in graph.input}
    empty = any(d.HasField("dim_value") and d.dim_value <= 0 for dims in declared.values() for d in dims)
    fed = proto.ir_version >= FIRST_CONSTANTS_IR and not initializers.isdisjoint(declared)
    dims = {d.dim_param: size for n, t in bound.types.items() for d, size in zip(declared[n], t.shape) if d.HasField("dim_param")}
    return Source(
        file,
        dict(bound.types),
        {n: static.types[n] for n in node_outputs},
        frozenset(n for n in node_outputs if n in static.constants),
        frozenset(o.name for o in graph.output),
        tuple(dims.items()),
        rewritten or empty or fed or bool(_coarse_products(graph)),
        fixed,
        frozenset(n for node in graph.node if node.op_type == "GroupQueryAttention" for n in node.output[1:3]),
    )


def get_shared_tensors(normal: OnnxGraph, source_types: Mapping[str, TensorType]) -> frozenset[str]:
    """Return the tensors that nodes of the canonical form make with the same name and type as the file's own.

    A node's outputs are shared together or not at all.
    """
    shared_names: set[str] = set()
    for node in normal.nodes:
        node_outputs = [n for n in node.outputs if n]
        if all(source_types.get(n) == normal.types[n] for n in node_outputs):  # or some would have to be read and made at once
            shared_names.update(node_outputs)
    return frozenset(shared_names)


def read_before(normal: OnnxGraph, names: Sequence[str], shared: frozenset[str]) -> tuple[str, ...]:
    """Return the inputs and shared tensors from which the canonical form computes these tensors, each once.

    A shared tensor among `names` is computed too: what its node reads is returned, not the tensor itself.
    """
    pending_tensors, read = set(names), dict[str, None]()
    for node in reversed(normal.nodes):
        if not pending_tensors.intersection(node.outputs):
            continue
        for name in node.inputs:
            if name in shared or name in normal.inputs:
                read[name] = None
            elif name:
                pending_tensors.add(name)
    return tuple(read)
