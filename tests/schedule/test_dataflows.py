"""An array with several dataflows and depthwise modes: each layer runs by the one that is fastest for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.schedule.test_buffers import Make, Net, built, convolution, make, net
from toolchain.machine import Convolution, Depthwise, MatrixProduct, find_unsupported

__all__ = ["make", "net"]  # fixtures
CHOICE = "    more_dataflows: [ws, is]\n    more_depthwise: [column]\n"


def nodes() -> list[onnx.NodeProto]:
    """Long sums, one plane a channel, short sums, and two activations."""
    return [
        convolution("x", "w", "a"),
        convolution("a", "d", "b", group=32),
        onnx.helper.make_node("Conv", ["b", "v"], ["c"], name="c"),
        onnx.helper.make_node("MaxPool", ["c"], ["e"], kernel_shape=[8, 8], strides=[8, 8]),
        onnx.helper.make_node("Transpose", ["e"], ["f"], perm=[0, 1, 3, 2]),
        onnx.helper.make_node("MatMul", ["e", "f"], ["y"]),
    ]


def network(net: Net) -> Path:
    return net(nodes(), {"w": (32, 32, 3, 3), "d": (32, 1, 3, 3), "v": (16, 32, 1, 1)})


def test_each_layer_takes_the_fastest(make: Make, net: Net) -> None:
    path = network(net)
    one, ops = built(path, make())
    assert {op.dataflow for op in ops if isinstance(op, Convolution | Depthwise | MatrixProduct)} == {0}
    several, ops = built(path, make(mac=CHOICE))
    chosen = Counter(op.dataflow for op in ops if isinstance(op, Convolution | Depthwise | MatrixProduct))
    assert len(chosen) > 1
    assert several.figures["cycles"] < one.figures["cycles"]


def test_a_pair_that_no_array_has_is_not_tried(make: Make, net: Net) -> None:
    """One array has several dataflows and one depthwise mode, the other the reverse."""
    second = (
        "  more:\n    kind: mac_array\n    rows: 16\n    columns: 16\n    dataflow: os\n    more_depthwise: [column]\n"
        "    accumulators: {entries: 4096}\n    types: [{activation: int8, weight: int8}]\n    post: [table, add]\n"
    )
    _, ops = built(network(net), make(mac="    more_dataflows: [ws, is]\n", changes=[("  vector:\n", f"{second}  vector:\n")]))
    assert {op.unit for op in ops if isinstance(op, Convolution | Depthwise)} == {0, 1}


def test_a_dataflow_of_too_small_an_array_is_not_tried(make: Make, net: Net) -> None:
    """The array that has it holds the sums of none but the smallest tiles, which are made for the other one."""
    second = (
        "  more:\n    kind: mac_array\n    rows: 2\n    columns: 2\n    dataflow: os\n    more_dataflows: [ws]\n"
        "    accumulators: {entries: 4}\n    types: [{activation: int8, weight: int8}]\n    post: [table, add]\n"
    )
    _, ops = built(network(net), make(changes=[("  vector:\n", f"{second}  vector:\n")]))
    assert {op.dataflow for op in ops if isinstance(op, Convolution | Depthwise)} == {0}


def test_a_number_that_the_array_has_not_is_told(make: Make, net: Net) -> None:
    machine = make()
    _, ops = built(network(net), machine)
    first = next(op for op in ops if isinstance(op, Convolution))
    deep = next(op for op in ops if isinstance(op, Depthwise))
    product = next(op for op in ops if isinstance(op, MatrixProduct))
    reason = "dataflow=1, engines.mac.dataflow and more_dataflows name os"
    assert find_unsupported(replace(first, dataflow=1), machine.chip) == reason
    assert find_unsupported(replace(product, dataflow=1), machine.chip) == reason
    assert (
        find_unsupported(replace(deep, mode=1), machine.chip) == "mode=1, engines.mac.depthwise and more_depthwise name diagonal"
    )


if __name__ == "__main__":
    pytest.main([__file__])
