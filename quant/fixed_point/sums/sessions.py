"""Opens sessions of onnxruntime that compute sums, on one thread of the CPU."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx
    import onnxruntime

_UINT8, _INT8, _INT32 = 2, 3, 6  # element types, source: TensorProto.DataType in onnx.proto


@lru_cache(maxsize=6)
def product_session(signed: bool, inputs: int) -> onnxruntime.InferenceSession:
    """Return the cached session of a MatMulInteger with inputs a, b (2), a, b, za (3) or a, b, za, zb (4).

    `signed`: b is int8, else uint8. The other inputs are uint8 (zb as b), the output y is int32, and shapes are free.
    """
    return single_thread_session(make_product_model(signed, inputs))


def make_product_model(signed: bool, inputs: int) -> bytes:
    """Return the model of `product_session`, encoded here because importing onnx takes 0.1 CPU s (docs/simulator.md).

    Field numbers of each message are those of onnx.proto.
    """
    right = _INT8 if signed else _UINT8
    types = {"a": _UINT8, "b": right, "za": _UINT8, "zb": right}
    names = list(types)[:inputs]
    node = (
        b"".join(_encode_field(1, name.encode()) for name in names) + _encode_field(2, b"y") + _encode_field(4, b"MatMulInteger")
    )
    graph = _encode_field(1, node) + _encode_field(2, b"product")
    graph += b"".join(_encode_field(11, _encode_value_info(name, types[name])) for name in names)
    graph += _encode_field(12, _encode_value_info("y", _INT32))
    return _encode_field(1, 8) + _encode_field(7, graph) + _encode_field(8, _encode_field(1, b"") + _encode_field(2, 10))


def _encode_value_info(name: str, element_type: int) -> bytes:
    """Encode a ValueInfoProto of a tensor without a shape."""
    return _encode_field(1, name.encode()) + _encode_field(2, _encode_field(1, _encode_field(1, element_type)))


def _encode_field(number: int, value: int | bytes) -> bytes:
    """Encode a field of a protobuf message: a number, or bytes after their length.

    Source: https://protobuf.dev/programming-guides/encoding.
    """
    if isinstance(value, int):
        return _encode_varint(number << 3) + _encode_varint(value)
    return _encode_varint(number << 3 | 2) + _encode_varint(len(value)) + value


def _encode_varint(value: int) -> bytes:
    """Encode a non-negative number in groups of 7 bits, the least first."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def single_thread_session(model: onnx.ModelProto | bytes) -> onnxruntime.InferenceSession:
    """Return an onnxruntime session on the CPU with one thread.

    `model`: an ONNX ModelProto, or its bytes.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
