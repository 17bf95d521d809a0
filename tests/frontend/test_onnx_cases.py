"""onnx's own node test cases, for the operators that matter here: the same outputs before and after the frontend."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case import node as node_cases
from onnx.backend.test.case.test_case import TestCase
from onnx_text import save
from same_outputs import check_same

from toolchain.frontend.read_onnx import newest_opset

MODULES = (
    *("add", "averagepool", "batch_normalization", "clip", "concat", "conv", "convtranspose", "div", "flatten", "gather", "gemm"),
    *("globalaveragepool", "globalmaxpool", "hardsigmoid", "hardswish", "leakyrelu", "matmul", "max", "maxpool", "mean", "min"),
    *("mul", "pad", "pow", "prelu", "reducemean", "reducesum", "relu", "reshape", "resize", "sigmoid", "slice", "softmax"),
    *("split", "squeeze", "sub", "sum", "tanh", "transpose", "unsqueeze", "upsample"),
)
REFUSED = ("training_mode", "zero_size", "empty_set")


def cases() -> list[TestCase]:
    """Return the ONNX test cases; only these modules are imported, since all of them take ten seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in MODULES:
            importlib.import_module(f"onnx.backend.test.case.node.{name}")
    cases_by_name = {c.name: c for c in node_cases._NodeTestCases}
    return [cases_by_name[name] for name in sorted(cases_by_name)]


def with_constants(proto: onnx.ModelProto, values: list[np.ndarray]) -> onnx.ModelProto:
    """Every input but the first made an initializer."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    names = [i.name for i in proto.graph.input][1:]
    del fixed.graph.input[1:]
    fixed.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in zip(names, values[1:]))
    return fixed


def usable(proto: onnx.ModelProto, values: list[Any]) -> bool:
    if not all(isinstance(v, (np.ndarray, np.generic)) and v.dtype.kind in "fiub" for v in values) or not np.size(values[0]):
        return False
    opset = next(o.version for o in proto.opset_import if not o.domain)
    return 9 <= opset <= newest_opset() and not any(n.domain or n.op_type == "Optional" for n in proto.graph.node)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_same_as_before(tmp_path: Path) -> None:
    checked = 0
    for case in cases():
        if case.model is None or not case.data_sets:
            continue
        inputs = [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in case.data_sets[0][0]]
        if any(word in case.name for word in REFUSED) or not usable(case.model, inputs):
            continue
        proto = with_constants(case.model, inputs)
        feeds = {proto.graph.input[0].name: inputs[0]}
        tolerance = 2e-3 if inputs[0].dtype == np.float16 else 1e-4
        try:
            check_same(save(proto, tmp_path), feeds=feeds, tolerance=tolerance)
        except Exception as fault:
            if "NOT_IMPLEMENTED" in str(fault):
                continue  # onnxruntime has no kernel for the original
            raise AssertionError(f"{case.name}: {fault}") from fault
        checked += 1
    assert checked > 150
