"""Sessions of onnxruntime that compute sums, of one thread each."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


@lru_cache(maxsize=6)
def product_session(signed: bool, inputs: int) -> Any:
    """Return the session of a MatMulInteger with inputs a, b (2), a, b, za (3) or a, b, za, zb (4)."""
    from onnx import TensorProto, helper

    right = TensorProto.INT8 if signed else TensorProto.UINT8
    kinds = {"a": TensorProto.UINT8, "b": right, "za": TensorProto.UINT8, "zb": right}
    names = list(kinds)[:inputs]
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", names, ["y"])],
        "product",
        [helper.make_tensor_value_info(name, kinds[name], None) for name in names],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
    )
    return single_thread_session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=8))


def single_thread_session(model: Any) -> Any:
    """An onnxruntime session on the CPU with one thread. model: an ONNX ModelProto."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
