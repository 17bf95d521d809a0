"""Convert between ONNX protobufs and the project's nodes, types and arrays.

`FLOATS` and `INTEGERS` are names of numpy types; `ARRAYS` adds bool: the types that numpy and onnxruntime hand to each other.
Types are numpy names (`TensorType.dtype`), also of those that only ml_dtypes has, such as bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.errors import CompileError
from toolchain.foundation.type_guards import is_array, is_tuple
from toolchain.frontend.errors import refuse
from toolchain.ir.graph import Node, OnnxNode, OnnxOp, TensorType

FLOATS, INTEGERS = ("float16", "float32", "float64"), tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
NO_STRINGS = (
    "tensors of strings are not supported; cut off the nodes that read or make them (onnx.utils.extract_model), "
    "and run these in onnxruntime beside the chip"
)
_NO_VALUES = (
    "export the model with its weights; for the graphs of examples/networks, python fill_weights.py DEST beside them "
    "writes copies with random weights"
)
ARRAYS = frozenset((*FLOATS, *INTEGERS, "bool"))
_PLAIN = (int, float, str, bytes)  # types of attributes, or of their elements, of which equal ones are made once


def node_from_proto(proto: onnx.NodeProto, name: str) -> OnnxNode:
    """Return the node under this name, with itself as its source.

    Attributes of strings become str, lists tuples, tensors numpy arrays; subgraphs stay protobufs. The domain "ai.onnx"
    becomes "". Raise CompileError as `attribute_value` does.
    """
    attributes = {a.name: attribute_value(a, name) for a in proto.attribute}
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    return Node(name, OnnxOp(proto.op_type, attributes, domain), tuple(proto.input), tuple(proto.output), (name,))


def attribute_value(attribute: onnx.AttributeProto, node_name: str) -> Any:
    """Return an attribute's value as str, int, float, numpy array, GraphProto, or a tuple of values.

    Bytes that are not UTF-8 become replacement characters. Raise CompileError for sparse tensors, types, attributes without
    a kind, and references to a function's attribute; `node_name` names the node in it.
    """
    if attribute.ref_attr_name:
        reason = f'attribute {attribute.name} stands for "{attribute.ref_attr_name}" of a function, and the node is in none'
        raise refuse(f"node {node_name}", reason, "export the model again")
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, onnx.TensorProto):
        return array_from_proto(value, f"node {node_name}: attribute {attribute.name}")
    if isinstance(value, (str, int, float, onnx.GraphProto)):
        return value
    if isinstance(value, onnx.SparseTensorProto):
        raise refuse(f"node {node_name}", f"attribute {attribute.name} is a sparse tensor", "export dense weights")
    if value is None or isinstance(value, onnx.TypeProto):
        raise refuse(f"node {node_name}", f"attribute {attribute.name} is of a kind that is not supported")
    return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)


def array_from_proto(proto: onnx.TensorProto, thing: str) -> np.ndarray:
    """Return the values of a tensor, also of strings. Raise CompileError where it has none, or not as many as its shape says.

    Values in external files must be loaded before. `thing`: names the tensor in messages.
    """
    if not _has_values(proto):
        raise refuse(thing, "has a shape and no values", _NO_VALUES)
    try:
        return numpy_helper.to_array(proto)
    except (ValueError, TypeError, KeyError, RuntimeError) as fault:
        raise refuse(thing, f"its data cannot be read: {fault}") from fault


def _has_values(proto: onnx.TensorProto) -> bool:
    """Return whether a tensor holds values, or needs none because a dimension is 0."""
    fields = (proto.float_data, proto.int32_data, proto.int64_data, proto.double_data, proto.uint64_data, proto.string_data)
    return 0 in proto.dims or bool(proto.raw_data) or any(fields)


def node_to_proto(node: OnnxNode) -> onnx.NodeProto:
    """Return the ONNX node, with attributes sorted by name. Its sources are not written."""
    attributes = {k: numpy_helper.from_array(v) if is_array(v) else v for k, v in node.op.attributes.items()}
    proto = onnx.NodeProto(op_type=node.op.op_type, name=node.name, domain=node.op.domain)
    proto.input.extend(node.inputs)
    proto.output.extend(node.outputs)
    proto.attribute.extend(make_attribute(k, v) for k, v in sorted(attributes.items()))
    return proto


def make_attribute(name: str, value: Any) -> onnx.AttributeProto:
    """Return the attribute, of the kind that onnx infers from the value; an empty tuple becomes a list of integers.

    Equal attributes may be one object, so callers copy it before they change it.
    """
    if type(value) in _PLAIN or (is_tuple(value) and all(type(v) in _PLAIN for v in value)):
        return _make_plain_attribute(name, value, repr(value))
    return helper.make_attribute(name, value)


@lru_cache(maxsize=4096)
def _make_plain_attribute(name: str, value: Any, text: str) -> onnx.AttributeProto:
    """Return the attribute of a number, a text or a tuple of these. `text`: its repr, as 1, 1.0 and True are equal keys."""
    if value == ():
        return helper.make_attribute(name, [], attr_type=onnx.AttributeProto.INTS)
    return helper.make_attribute(name, value)


def array_dtype(dtype: str) -> str:
    """Return `dtype`. Raise CompileError for an element type of which onnxruntime takes and gives no arrays."""
    if dtype not in ARRAYS:
        raise CompileError(f"is {dtype}, of which onnxruntime takes and gives no arrays; put a Cast into the model")
    return dtype


def dtype_name(elem_type: int) -> str:
    """Return numpy's name of an ONNX element type. Raise CompileError for no type of ONNX, and for strings."""
    if elem_type == onnx.TensorProto.STRING:
        raise CompileError(NO_STRINGS)
    if elem_type not in helper.get_all_tensor_dtypes():
        raise CompileError(f"element type {elem_type} is not one of ONNX")
    return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type)).name


def elem_type(dtype: str) -> int:
    """Return the ONNX element type (an int of TensorProto.DataType) of a numpy type name."""
    return helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype))


def numpy_dtype(name: str) -> np.dtype:
    """Return the numpy type, also of names that only ml_dtypes knows (bfloat16, int4...). Raise AttributeError for others."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # comes with onnx

        return np.dtype(getattr(ml_dtypes, name))


@lru_cache(maxsize=4096)
def type_proto(t: TensorType) -> onnx.TypeProto:
    """Return the ONNX tensor type of this shape and element type, one object for equal types, which nobody may change."""
    return helper.make_tensor_type_proto(elem_type(t.dtype), t.shape)


def type_of(array: np.ndarray) -> TensorType:
    """Return the shape and element type of an array."""
    return TensorType(tuple(int(d) for d in array.shape), array.dtype.name)


def value_info(name: str, types: Mapping[str, TensorType]) -> onnx.ValueInfoProto:
    """Return the ONNX declaration of the tensor `name`. Raise KeyError where `types` lacks it."""
    return helper.make_value_info(name, type_proto(types[name]))
