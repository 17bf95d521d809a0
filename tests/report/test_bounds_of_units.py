"""Bounds of units: what a layer's works take at least. On an array of one product, whose cycles are the products."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from tests.support.machine_variants import with_keys
from toolchain.api import BuildOptions, build
from toolchain.isa import load_machine


def _figures(
    weights: list[int], shape: list[int], limits: dict[str, Any], folder: Path, reduction: Any = "dense", **attributes: Any
) -> Mapping[str, Any]:
    """Return the figures of a convolution."""
    base = load_machine("edge16")
    engines, every = (base.chip.model_dump(mode="json")[name] for name in ("engines", "limits"))
    engines["mac"] |= {"rows": 1, "columns": 1, "depth": 1, "issue_cycles": 0, "accumulators": {"bits": 32, "entries": 64}}
    engines["mac"]["timing"] |= {"fold_cycles": 0, "reduction": reduction}
    machine = with_keys(base, engines=engines, limits={**every, "convolution": limits, "depthwise": limits})
    w = np.random.default_rng(0).standard_normal(weights).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    onnx.save(build_model([node], {"x": shape}, {"y": None}, {"w": w}), folder / "model.onnx")
    return build(folder / "model.onnx", BuildOptions(machine)).figures


def _array_cycles(figures: Mapping[str, Any]) -> int:
    return figures["bounds"]["regions"][0]["uses"]["mac"]


def test_parts_of_a_kernel_take_what_each_of_them_takes(tmp_path: Path) -> None:
    """4 x 4 taps in instructions of at most 3 x 3."""
    figures = _figures([4, 4, 4, 4], [1, 4, 11, 7], {"max_kernel": [3, 3]}, tmp_path)
    assert _array_cycles(figures) == 8 * 4 * 4 * 4 * 16


@pytest.mark.parametrize(("group", "wide"), [(1, 4), (1, 3), (3, 4)])
def test_parts_that_meet_padding_alone_may_be_left_out(group: int, wide: int, tmp_path: Path) -> None:
    """Kernels in instructions of one row, tiles of one row: of the first three rows 3, 2 and 1 of five taps lie on padding."""
    figures = _figures([6, 6 // group, 5, 4], [1, 6, 11, 8], {"max_kernel": [1, wide]}, tmp_path, pads=[3, 2, 0, 2], group=group)
    every = 9 * 4 * 6 * (6 // group)  # products with one row of the kernel at one row of the output
    assert 44 * every <= figures["cycles"] < 50 * every
    assert _array_cycles(figures) <= 44 * every
    assert _array_cycles(figures) == 44 * every or wide < 4 or group > 1


@pytest.mark.parametrize(("kernel", "dilation"), [(5, 3), (5, 4), (15, 1)])
def test_many_rows_beside_padding_leave_what_the_others_take(kernel: int, dilation: int, tmp_path: Path) -> None:
    """A depthwise window over one dimension, as long as it was."""
    far = dilation * (kernel // 2)
    attributes = {"pads": [far, 0, far, 0], "group": 64, "dilations": [dilation, 1]}
    padded = _array_cycles(_figures([64, 1, kernel, 1], [1, 64, 150, 1], {}, tmp_path, **attributes))
    bare = _array_cycles(_figures([64, 1, kernel, 1], [1, 64, 150, 1], {}, tmp_path, **{**attributes, "pads": [0, 0, 0, 0]}))
    assert bare <= padded <= bare * 150 / (150 - 2 * far)


def test_rows_of_a_stride_that_the_machine_has_not_are_made_one_by_one(tmp_path: Path) -> None:
    """Four taps at once, where tiles of several rows take one each, which fills a quarter of the reduction."""
    limits = {"max_stride": [1, 1]}
    figures = _figures([2, 1, 4, 1], [1, 2, 7, 7], limits, tmp_path, reduction=[[4, 1]], group=2, strides=[2, 1])
    assert _array_cycles(figures) <= figures["cycles"]
    assert _array_cycles(figures) < 2 * 2 * 7 * 2 * 4


def test_products_of_one_operation_overlap(tmp_path: Path) -> None:
    """transformer64 fills its array once for all products of a batch."""
    node, shape = helper.make_node("MatMul", ["a", "b"], ["y"]), [1, 4, 8, 8]
    onnx.save(build_model([node], {"a": shape, "b": shape}, {"y": shape}), tmp_path / "model.onnx")
    figures = build(tmp_path / "model.onnx", BuildOptions("transformer64")).figures
    (layer,) = (layer for layer in figures["layers"] if layer["op"] == "MatrixProduct")
    assert _array_cycles(figures) <= layer["cycles"] < 2 * _array_cycles(figures)
