"""Providers of onnxruntime get the options under which their float32 is float32."""

from __future__ import annotations

from typing import Any

import onnxruntime
import pytest
from onnx import TensorProto, helper

from toolchain.inference import CPU, open_model, session_options


def test_products_on_a_gpu_are_not_rounded_to_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    original, requested = onnxruntime.InferenceSession, list[Any]()

    def open_on_cpu(*arguments: Any, providers: list[Any], **options: Any) -> Any:
        requested.append(providers)
        return original(*arguments, providers=[*CPU], **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_on_cpu)
    open_model(model, session_options(optimized=True), providers=["CUDAExecutionProvider", *CPU])
    open_model(model, session_options(optimized=True))
    assert requested == [[("CUDAExecutionProvider", {"use_tf32": "0"}), *CPU], [*CPU]]
