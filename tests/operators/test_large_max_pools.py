"""A max pool that is larger than the machine's is a chain of small ones, whose padding each can say."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from quant.error import sqnr_db
from quant.fixed_point import max_pool
from tests.keyed import with_keys
from toolchain.api import BuildOptions, build
from toolchain.codegen import Region
from toolchain.isa import load_machine
from toolchain.ops.pool.geometry import Geometry
from toolchain.ops.pool.rules import split_max_pool
from toolchain.runtime import Session, random_feeds

CASES = [
    (kernel, limit, (top, left, bottom, right))
    for kernel, limit in (((1, 5), (2, 2)), ((5, 5), (3, 3)), ((4, 7), (2, 3)), ((13, 2), (4, 4)))
    for top, left, bottom, right in product(*({0, (kernel[side % 2] - 1) // 2, kernel[side % 2] - 1} for side in range(4)))
]


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_a_chain_is_the_pool_and_no_window_is_padding_alone(strides: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for kernel, limit, pads in CASES:
        x = rng.integers(-128, 128, (1, 15, 9, 2)).astype(np.int8)
        chain = split_max_pool(Geometry(kernel, strides, pads), limit)
        assert chain is not None and len(chain) > 1
        assert all(step.pads[side] < step.kernel[side % 2] <= limit[side % 2] for step in chain for side in range(4))
        y = x
        for step in chain:
            y = max_pool(y, kernel=step.kernel, strides=step.strides, pads=step.pads)
        np.testing.assert_array_equal(y, max_pool(x, kernel=kernel, strides=strides, pads=pads))


@pytest.mark.parametrize(
    ("kernel", "limit", "strides", "kernels"),
    [
        ((16, 16), (8, 8), (8, 8), [(8, 8), (2, 2)]),
        ((48, 1), (8, 8), (6, 6), [(6, 1), (4, 1), (2, 1)]),
        ((12, 3), (8, 8), (4, 4), [(4, 1), (3, 3)]),
    ],
)
def test_windows_side_by_side_are_those_of_windows_side_by_side(
    kernel: tuple[int, int], limit: tuple[int, int], strides: tuple[int, int], kernels: list[tuple[int, int]]
) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (1, 96, 96, 2)).astype(np.int8)
    chain = split_max_pool(Geometry(kernel, kernel, (0, 0, 0, 0)), limit, strides)
    assert chain is not None and [step.kernel for step in chain] == [step.strides for step in chain] == kernels
    y = x
    for step in chain:
        y = max_pool(y, kernel=step.kernel, strides=step.strides, pads=step.pads)
    np.testing.assert_array_equal(y, max_pool(x, kernel=kernel, strides=kernel, pads=(0, 0, 0, 0)))


def test_a_maximum_over_more_than_a_window_holds_is_on_the_chip(tmp_path: Path) -> None:
    """48 as 8 windows of 6; 47, which has no factors, as neighbouring windows; and side by side over rows and columns."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 48, 47])
    sizes = {"rows": [1, 4, 1, 47], "columns": [1, 4, 48, 1], "tiles": [1, 4, 3, 2]}
    nodes = [
        helper.make_node("ReduceMax", ["x", "two"], ["rows"]),
        helper.make_node("ReduceMax", ["x", "three"], ["columns"]),
        helper.make_node("MaxPool", ["x"], ["tiles"], kernel_shape=[16, 16], strides=[16, 16]),
    ]
    axes = [numpy_helper.from_array(np.array([axis]), name) for axis, name in ((2, "two"), (3, "three"))]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in sizes.items()]
    graph = helper.make_graph(nodes, "maxima", [x], outputs, axes)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), tmp_path / "m.onnx")
    base = load_machine("edge16")
    limits = base.chip.limits.model_dump(mode="json")
    limits["pool"] = {**limits["pool"], "max_kernel": [8, 8], "max_stride": [8, 8]}
    built = build(tmp_path / "m.onnx", BuildOptions(with_keys(base, limits=limits)))
    assert all(isinstance(segment, Region) for segment in built.container.segments)
    session = Session(built.container)
    feeds = random_feeds(built.container.inputs, seed=7)
    float_outputs = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"]).run(list(sizes), feeds)
    for got, real in zip(session.run(list(sizes), feeds), float_outputs):
        assert sqnr_db(np.asarray(real), got) > 30
