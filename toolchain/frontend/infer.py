"""Infer what one ONNX node yields: output types by ONNX's rules, and values by onnxruntime where all inputs are constant.

The import, the rewrite rules and the decompositions use it for each node that they add. All shapes must be static.
A NodeFault is a CompileError that names the node or nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import ceil, prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from toolchain.errors import CompileError, first_line, is_out_of_memory
from toolchain.foundation.inference import InferenceError, open_model, session_options
from toolchain.foundation.type_guards import is_array, is_list
from toolchain.frontend.check_nodes import SAME, check
from toolchain.frontend.convert import NO_STRINGS, dtype_name, elem_type, node_to_proto, type_of, type_proto
from toolchain.frontend.errors import refuse_node
from toolchain.frontend.read_onnx import opset_with
from toolchain.input_limits import TENSOR_ELEMENTS
from toolchain.ir.graph import OnnxNode, TensorType

MAX_DATA = 4096  # elements; larger constants never decide a shape
RANDOM = frozenset(("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"))
SAME_SHAPE = frozenset(("GroupNormalization",))  # onnx derives nothing for them
COUNTED = frozenset(("NonZero", "Compress", "Range"))  # whose outputs are as long as their inputs' values say
NOT_FOLDED = frozenset(("QuantizeLinear", "DequantizeLinear"))  # they say how a constant is stored; folding would lose that
CEIL_OPSET = 22  # before it, onnx counts a last window of a pool that lies in the end padding; onnxruntime never makes it
MOST_SIZE = 2**63 - 1  # that ONNX can say of a dimension
END_HERE = "end the model before this node and do the rest outside"


def schema_of(node: OnnxNode, opset: int) -> onnx.defs.OpSchema:
    """Return the ONNX schema of the node's operator at this opset, or at the first that has it. Raise NodeFault where there
    is none.
    """
    domain = node.op.domain
    try:
        version = opset_with([node.op.op_type], opset) if domain == "" else ml_opset_for([node.op.op_type])
        return onnx.defs.get_schema(node.op.op_type, version, domain)
    except onnx.defs.SchemaError as fault:
        raise refuse_node(node, f"is not an operator of opset {opset}") from fault


def is_onnx_operator(op_type: str) -> bool:
    """Return whether any opset of ONNX has an operator of this name."""
    return onnx.defs.has(op_type)


def infer(
    node: OnnxNode, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray], opset: int
) -> dict[str, TensorType]:
    """Return the type of each named output. The node's inputs are checked first (`check_inputs`, `check_nodes.check`).

    Raise NodeFault on a type error, and on a shape that depends on values.
    `types`: of the inputs. `constants`: values of those inputs that are known.
    """
    schema = schema_of(node, opset)
    check_inputs(node, schema, types)
    check(node, types, constants)
    data = {
        name: numpy_helper.from_array(constants[name], name)
        for name in node.inputs
        if name in constants and constants[name].size <= MAX_DATA
    }
    input_types = {name: type_proto(types[name]) for name in node.inputs if name}
    rule = schema_of(node, max(opset, CEIL_OPSET)) if node.op.attributes.get("ceil_mode") else schema
    imports = [helper.make_opsetid("", opset_with([node.op.op_type], opset))]
    counted = infer_counted_type(node, types, constants)
    if counted is not None:
        return {node.outputs[0]: static_type(node, node.outputs[0], type_proto(counted))}
    try:
        inferred_types = shape_inference.infer_node_outputs(rule, node_to_proto(node), input_types, data, opset_imports=imports)
    except Exception as fault:
        raise refuse_node(node, f"its inputs do not fit it: {inference_fault(fault)}") from fault
    if not all(has_shape(inferred_types.get(n)) for n in node.outputs if n):
        infer_shapes = infer_by_run if node.op.domain else infer_by_body
        inferred_types |= infer_shapes(node, input_types, data, opset)
    output_types = {name: static_type(node, name, inferred_types.get(name)) for name in node.outputs if name}
    if not node.op.domain and node.op.op_type == "ConvTranspose":
        return {node.outputs[0]: spread_type(node, types, output_types)}
    if not node.op.domain and node.op.op_type == "Resize":
        return {node.outputs[0]: infer_scaled_type(node, types[node.inputs[0]], constants, output_types)}
    return output_types


def infer_counted_type(node: OnnxNode, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray]) -> TensorType | None:
    """Return the output's type of a NonZero, Compress or Range whose constants say how many elements it has; else None."""
    op_type = node.op.op_type
    if node.op.domain or op_type not in COUNTED:
        return None
    x, values = types[node.inputs[0]], [constants.get(n) for n in node.inputs]
    if op_type == "NonZero" and values[0] is not None:
        return TensorType((max(values[0].ndim, 1), int(np.count_nonzero(values[0]))), "int64")
    if op_type == "Compress" and values[1] is not None:
        shape, axis = (x.elements,) if "axis" not in node.op.attributes else x.shape, node.op.attributes.get("axis", 0)
        if values[1].ndim != 1 or not -len(shape) <= axis < len(shape):
            return None  # onnx refuses it
        selected_count = int(np.count_nonzero(values[1][: shape[axis]]))
        return TensorType(tuple(selected_count if i == axis % len(shape) else d for i, d in enumerate(shape)), x.dtype)
    if op_type == "Range" and all(v is not None and v.size == 1 for v in values):
        start, limit, delta = (float(v.item()) for v in values if v is not None)
        steps = (limit - start) / delta if delta else np.inf
        return TensorType((min(max(ceil(steps), 0), MOST_SIZE),), x.dtype) if np.isfinite(steps) else None
    return None


def infer_scaled_type(
    node: OnnxNode, x: TensorType, constants: Mapping[str, np.ndarray], inferred_types: Mapping[str, TensorType]
) -> TensorType:
    """Return the type of a Resize of `x` by scales; that of `inferred_types` where no constant says them.

    Sizes are products in float32, as in onnxruntime, where 10 x 0.7 is 7.
    The onnx package multiplies in float64, where the float32 number 0.7 makes 6 of 10.
    """
    a = node.op.attributes
    scales = constants.get(node.inputs[2]) if len(node.inputs) == 3 else None
    if scales is None or scales.dtype != np.float32 or a.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return inferred_types[node.outputs[0]]
    sizes = list(x.shape)
    for axis, scale in zip(a.get("axes") or range(len(sizes)), scales):
        sizes[axis] = int(np.float32(sizes[axis]) * scale)
    return TensorType(tuple(sizes), inferred_types[node.outputs[0]].dtype)


def spread_type(node: OnnxNode, types: Mapping[str, TensorType], inferred_types: Mapping[str, TensorType]) -> TensorType:
    """Return the type of a ConvTranspose: that of `inferred_types`, except where attributes give the output's size.

    The onnx package stops at sizes below the input's, and adds output_padding to the sizes of SAME.
    The specification and onnxruntime do not.
    """
    a, x = node.op.attributes, types[node.inputs[0]].shape
    size = tuple(a.get("output_shape") or ())
    if not size and a.get("auto_pad", "NOTSET") in SAME:
        size = tuple(n * s for n, s in zip(x[2:], a.get("strides") or (1,) * len(x[2:])))
    if not size:
        return inferred_types[node.outputs[0]]
    channels = types[node.inputs[1]].shape[1] * a.get("group", 1)
    return TensorType((x[0], channels, *size), types[node.inputs[0]].dtype)


def has_shape(type_proto: onnx.TypeProto | None) -> bool:
    """Return whether the type is that of a tensor with a rank."""
    return type_proto is not None and type_proto.HasField("tensor_type") and type_proto.tensor_type.HasField("shape")


def infer_by_body(
    node: OnnxNode, input_types: Mapping[str, onnx.TypeProto], data: Mapping[str, onnx.TensorProto], opset: int
) -> dict[str, onnx.TypeProto]:
    """Return the output types of an operator that onnx defines by other operators, inferred through those.

    The answer is empty where inference fails.
    """
    if node.op.op_type in SAME_SHAPE:
        return {node.outputs[0]: input_types[node.inputs[0]]}
    inputs = [helper.make_value_info(n, t) for n, t in input_types.items() if n not in data]
    outputs = [onnx.ValueInfoProto(name=n) for n in node.outputs if n]
    graph = helper.make_graph([node_to_proto(node)], "body", inputs, outputs, list(data.values()))
    try:
        inferred_model = shape_inference.infer_shapes(model_of(graph, opset), strict_mode=True, data_prop=True)
    except Exception as fault:
        if is_out_of_memory(fault):
            raise
        return {}  # the shape stays unknown, which is refused with its own message
    return {o.name: o.type for o in inferred_model.graph.output if o.HasField("type")}


def infer_by_run(
    node: OnnxNode, input_types: Mapping[str, onnx.TypeProto], data: Mapping[str, onnx.TensorProto], opset: int
) -> dict[str, onnx.TypeProto]:
    """Return the output types that a run of the node on zeros in onnxruntime shows. It is for operators of other domains.

    The answer is empty where onnxruntime does not run the node.
    """
    feeds = {n: numpy_helper.to_array(data[n]) if n in data else _zeros(t) for n, t in input_types.items()}
    try:
        values = _run_outputs(node, feeds, opset)
    except InferenceError:
        return {}  # the shape stays unknown, which is refused with its own message
    return {n: _type_of_value(value) for n, value in values.items() if is_array(value)}


def _zeros(tensor: onnx.TypeProto) -> np.ndarray:
    shape = [d.dim_value for d in tensor.tensor_type.shape.dim]
    return np.zeros(shape, helper.tensor_dtype_to_np_dtype(tensor.tensor_type.elem_type))


def _type_of_value(value: np.ndarray) -> onnx.TypeProto:
    if value.dtype.kind in "OSU":
        return helper.make_tensor_type_proto(onnx.TensorProto.STRING, value.shape)
    return type_proto(type_of(value))


def check_inputs(node: OnnxNode, schema: onnx.defs.OpSchema, types: Mapping[str, TensorType]) -> None:
    """Raise NodeFault where the number or types of the inputs, or the names of attributes, are not those of the schema."""
    check_complete(node, schema)
    for name in node.op.attributes:
        if name not in schema.attributes:
            raise refuse_node(node, f'has no attribute "{name}"')
    bound: dict[str, str] = {}
    for index, name in enumerate(node.inputs):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if not name:
            continue
        type_text = f"tensor({onnx.TensorProto.DataType.Name(elem_type(types[name].dtype)).lower()})"
        if type_text not in formal.types:
            raise refuse_node(node, f'input {index} "{name}" is {type_text}, which {node.op.op_type} does not take')
        if formal.is_homogeneous and bound.setdefault(formal.type_str, type_text) != type_text:
            raise refuse_node(node, f'input {index} "{name}" is {type_text}, the inputs before it are {bound[formal.type_str]}')


def check_complete(node: OnnxNode, schema: onnx.defs.OpSchema) -> None:
    """Raise NodeFault unless the node has as many inputs as its operator takes and every required attribute."""
    if not schema.min_input <= len(node.inputs) <= schema.max_input:
        raise refuse_node(node, f"has {len(node.inputs)} inputs, {schema.min_input} to {schema.max_input} are allowed")
    for index, formal in enumerate(schema.inputs[: schema.min_input]):
        if not node.inputs[index] and formal.option == onnx.defs.OpSchema.FormalParameterOption.Single:
            raise refuse_node(node, f"lacks its input {index} ({formal.name})")
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in node.op.attributes:
            raise refuse_node(node, f'lacks its attribute "{name}"')


def inference_fault(fault: Exception) -> str:
    """Return the text of an error of onnx without its prefix, as in `[ShapeInferenceError] (op_type:Conv, node name: x): `."""
    return re.sub(r"^\[\w+\] (\(op_type:.*?\): )?(\[\w+\] )?", "", first_line(fault))


def static_type(node: OnnxNode, name: str, type_proto: onnx.TypeProto | None) -> TensorType:
    """Return the type of an output as onnx infers it. Raise NodeFault where it is no tensor of a known shape and usable size."""
    if type_proto is not None and type_proto.WhichOneof("value") not in (None, "tensor_type"):
        kind = str(type_proto.WhichOneof("value")).removesuffix("_type")
        raise refuse_node(node, f'its output "{name}" is a {kind}; only tensors are supported', END_HERE)
    if type_proto is None or not has_shape(type_proto):
        raise refuse_node(node, f'the shape of its output "{name}" is not known before it runs', END_HERE)
    dims = type_proto.tensor_type.shape.dim
    if not all(d.HasField("dim_value") for d in dims):
        shown = ", ".join(str(d.dim_value) if d.HasField("dim_value") else "?" for d in dims)
        raise refuse_node(node, f'the shape [{shown}] of its output "{name}" depends on values', END_HERE)
    shape = tuple(d.dim_value for d in dims)
    if min(shape, default=0) < 0:
        raise refuse_node(node, f'its output "{name}" would have the shape {list(shape)}: its input is too small for it')
    if prod(max(size, 1) for size in shape) > TENSOR_ELEMENTS:  # what is read of such a file counts so
        raise refuse_node(
            node, f'its output "{name}" would have the shape {list(shape)}; {TENSOR_ELEMENTS:,} elements are the most'
        )
    try:
        return TensorType(shape, dtype_name(type_proto.tensor_type.elem_type))
    except CompileError as fault:
        raise refuse_node(node, f'output "{name}": {fault}', END_HERE) from fault


def foldable(node: OnnxNode, constants: Mapping[str, np.ndarray]) -> bool:
    """Return whether all inputs of the node are constant and its operator may be folded: not random, and no QDQ operator."""
    op_type = node.op.op_type
    return op_type not in RANDOM and op_type not in NOT_FOLDED and all(n in constants for n in node.inputs if n)


def evaluate(node: OnnxNode, constants: Mapping[str, np.ndarray], opset: int) -> dict[str, np.ndarray]:
    """Return the values of every named output, computed by onnxruntime; a Constant's is its own.

    Raise NodeFault when onnxruntime cannot run the node.

    `constants`: values of all inputs.
    """
    if node.op.op_type == "Constant":
        return {node.outputs[0]: constant_value(node)}
    try:
        return run_node(node, constants, opset)
    except InferenceError as fault:
        raise refuse_node(node, f"cannot be computed from its constant inputs: {fault.reason}") from fault


def run_node(node: OnnxNode, constants: Mapping[str, np.ndarray], opset: int) -> dict[str, np.ndarray]:
    """Return the values of every named output for these inputs. Raise InferenceError where onnxruntime cannot run the node.

    `constants`: values of all inputs.
    """
    return {name: np.asarray(value) for name, value in _run_outputs(node, constants, opset).items()}


def _run_outputs(node: OnnxNode, constants: Mapping[str, np.ndarray], opset: int) -> dict[str, Any]:
    """Return the named outputs as onnxruntime gives them: arrays, or sequences and maps. Raise InferenceError."""
    names = [n for n in dict.fromkeys(node.inputs) if n]
    outputs = [n for n in node.outputs if n]
    inputs = [onnx.helper.make_value_info(n, type_proto(type_of(constants[n]))) for n in names]
    graph = helper.make_graph([node_to_proto(node)], "fold", inputs, [onnx.ValueInfoProto(name=n) for n in outputs])
    model = model_of(graph, opset)
    session = open_model(model.SerializeToString(), session_options(optimized=False))
    return dict(zip(outputs, session.run(outputs, {n: constants[n] for n in names})))


def constant_value(node: OnnxNode) -> np.ndarray:
    """Return the value of a Constant node. Raise NodeFault for strings and sparse tensors."""
    if len(node.op.attributes) != 1:
        raise refuse_node(node, "needs exactly one attribute, its value")
    key, value = next(iter(node.op.attributes.items()))
    dtype = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}.get(key)
    if key == "value":
        return value
    if key in ("value_string", "value_strings"):
        raise refuse_node(node, NO_STRINGS)
    if dtype is None:
        raise refuse_node(node, "sparse tensors are not supported as constants")
    return np.asarray(value, dtype)


def ml_opset_for(op_types: Iterable[str]) -> int:
    """Return the opset of ai.onnx.ml for these operators: 5, or 3 where an operator is deprecated in that."""
    return 3 if any(onnx.defs.get_schema(op_type, 5, "ai.onnx.ml").deprecated for op_type in op_types) else 5


def model_of(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    """Return a model of the graph with the oldest IR version that this opset allows, at least 10 (four-bit types)."""
    opsets = [helper.make_opsetid("", opset_with((n.op_type for n in graph.node), opset))]
    if any(n.domain == "ai.onnx.ml" for n in graph.node):
        opsets.append(helper.make_opsetid("ai.onnx.ml", ml_opset_for(n.op_type for n in graph.node if n.domain == "ai.onnx.ml")))
    opsets += [helper.make_opsetid(d, 1) for d in sorted({n.domain for n in graph.node} - {"", "ai.onnx", "ai.onnx.ml"})]
    ir_version = max(10, helper.find_min_ir_version_for(opsets, ignore_unknown=True))
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, producer_name="npu-toolchain")


def defaults(node: OnnxNode, opset: int) -> dict[str, Any]:
    """Return the default of each attribute of the node's operator that has one."""
    default_by_name: dict[str, Any] = {}
    for name, attribute in schema_of(node, opset).attributes.items():
        if attribute.default_value.type:
            value: Any = onnx.helper.get_attribute_value(attribute.default_value)
            default_by_name[name] = tuple(map(_text, value)) if is_list(value) else _text(value)
    return default_by_name


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
