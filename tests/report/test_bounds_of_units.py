"""Bounds of units: what a layer's works take at least."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.keyed import with_keys
from toolchain.api import BuildOptions, build
from toolchain.isa import load_machine


def test_parts_of_a_kernel_take_what_each_of_them_takes(tmp_path: Path) -> None:
    """An array of one product, so that its cycles are the products: 4 x 4 taps in instructions of at most 3 x 3."""
    base = load_machine("edge16")
    engines, limits = (base.chip.model_dump(mode="json")[name] for name in ("engines", "limits"))
    engines["mac"] |= {"rows": 1, "columns": 1, "depth": 1, "issue_cycles": 0}
    machine = with_keys(base, engines=engines, limits={**limits, "convolution": {"max_kernel": [3, 3]}})
    w = np.random.default_rng(0).standard_normal((4, 4, 4, 4)).astype(np.float32)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 4, 11, 7]), ("y", None)))
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "cut", [x], [y], [numpy_helper.from_array(w, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    figures = build(tmp_path / "model.onnx", BuildOptions(machine)).figures
    products, folds = 8 * 4 * 4 * 4 * 16, 4 * 8 * 4 * 4  # of each of four parts
    assert products <= figures["bounds"]["regions"][0]["uses"]["mac"] <= products + 3 * folds
