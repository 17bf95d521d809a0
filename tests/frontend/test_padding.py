"""Pads whose value the data never has: it is kept, unless nothing can see it."""

from __future__ import annotations

from pathlib import Path

import pytest
from chip_against_file import against_file
from onnx_text import model, save

from toolchain.ops.pool.geometry import Geometry, all_windows_meet

MAP = "(float[1,3,6,7] x) => (float[a,b,c,d] y) {{ p = int64[8] {{0,0,1,2,0,0,1,0}} v = float {{{value}}} r = Relu(x) {tail} }}"
UNFUSED = [
    (
        "(float[1,3,4] x) => (float[a,b,c] y) {{ p = int64[6] {{0,0,1,0,0,1}} v = float {{{value}}} r = Relu(x) {tail} }}",
        "y = Pad(r, p, v)",
    ),
    (MAP, "y = Pad(r, p, v)"),
    (MAP, "q = Pad(r, p, v) y = AveragePool<kernel_shape = [2,2]>(q)"),
    (MAP, "q = Pad(r, p, v) y = MaxPool<kernel_shape = [1,1]>(q)"),  # a window over the padding alone
    (MAP, "q = Pad(r, p, v) z = MaxPool<kernel_shape = [3,1]>(q) y = Concat<axis = 2>(q, z)"),  # another reader
    (MAP, "q = Pad(r, p, v) z = MaxPool<kernel_shape = [3,3], pads = [1,0,1,0]>(q) y = Concat<axis = 3>(q, z)"),
    (MAP, "k = Concat<axis = 1>(r, r) q = Pad(k, p, v) t = Neg(q) y = Mul(t, q)"),
]


@pytest.mark.parametrize("machine", ["edge16", "ws8_pow2", "wide32_w4a16"])
@pytest.mark.parametrize("value", [-1.25, 6.5])
@pytest.mark.parametrize(("graph", "tail"), UNFUSED)
def test_the_value_is_kept(graph: str, tail: str, value: float, machine: str, tmp_path: Path) -> None:
    path = save(model(graph.format(value=value, tail=tail)), tmp_path)
    against_file(path, machine, least_db=22.0 if machine == "ws8_pow2" else 35.0)


@pytest.mark.parametrize("value", ["0", "0.5"])
def test_a_value_within_the_range_costs_nothing(value: str, tmp_path: Path) -> None:
    path = save(model(MAP.format(value=value, tail="y = Pad(r, p, v)")), tmp_path)
    assert [layer["op"] for layer in against_file(path).figures["layers"]].count("Rescale") == 0


HIDDEN = [
    ("-inf", "q = Pad(r, p, v) y = MaxPool<kernel_shape = [3,3], strides = [2,2]>(q)"),
    ("-3.4028235e38", "q = Pad(r, p, v) y = MaxPool<kernel_shape = [3,3], strides = [2,2]>(q)"),
    (
        "-inf",
        "q = Pad(r, p, v) k = MaxPool<kernel_shape = [3,3]>(q) m = MaxPool<kernel_shape = [3,4]>(q) y = Concat<axis = 3>(k, m)",
    ),
    ("-inf", "q = Pad(r, p, v) y = MaxPool<kernel_shape = [3,4], pads = [0,1,1,0]>(q)"),
    ("-10000", "q = Pad(r, p, v) y = MaxPool<kernel_shape = [3,3], strides = [2,2]>(q)"),
    ("-1e30", "q = Pad(r, p, v) y = MaxPool<kernel_shape = [3,3], strides = [2,2]>(q)"),
]


@pytest.mark.parametrize("machine", ["edge16", "ws8_pow2"])
@pytest.mark.parametrize(("value", "tail"), HIDDEN)
def test_a_value_that_never_wins_takes_no_range(value: str, tail: str, machine: str, tmp_path: Path) -> None:
    built = against_file(save(model(MAP.format(value=value, tail=tail)), tmp_path), machine, least_db=35.0)
    assert not built.figures["fallbacks"]


@pytest.mark.parametrize(
    ("geometry", "start", "met"),
    [
        (Geometry((3, 1), (1, 1), (0, 0, 0, 0)), 2, True),
        (Geometry((2, 1), (1, 1), (0, 0, 0, 0)), 2, False),
        (Geometry((2, 1), (1, 1), (0, 0, 0, 0), (2, 1)), 2, True),
        (Geometry((2, 1), (3, 1), (0, 0, 0, 0)), 1, True),
        (Geometry((2, 1), (1, 1), (1, 0, 0, 0)), 1, False),
    ],
)
def test_windows_that_meet_the_data(geometry: Geometry, start: int, met: bool) -> None:
    assert all_windows_meet(geometry, 0, 8, start, 8 - 2 * start) is met
