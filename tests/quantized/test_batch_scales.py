"""A constant of a MatMul whose matrices have a scale each, or a scale a column: the chip keeps the file's codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.quantized.forms import float32_machine, on_kernels
from toolchain.api import BuildOptions, build
from toolchain.ir.graph import MAX_PARTS
from toolchain.runtime import Session

Shape = tuple[int, ...]
STEP = 0.047
TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[{x}] x) => (float[{y}] y)
  <float s = {{0.02}}, float o = {{{step}}}, int8 z = {{3}}> {{
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear<axis = {axis}>(w, t)
    m = MatMul({operands}) r = QuantizeLinear(m, o, z) y = DequantizeLinear(r, o, z) }}"""
CASES: dict[str, tuple[Shape, Shape, int, bool]] = {  # x, the constant, the dimension of its scales, whether it is on the left
    "a matrix each": ((2, 3, 4), (2, 4, 5), 0, False),
    "of four dimensions": ((2, 3, 6, 4), (2, 3, 4, 5), 1, False),
    "the first of two": ((2, 3, 6, 4), (2, 3, 4, 5), 0, False),
    "one x for all": ((1, 1, 6, 4), (1, 3, 4, 5), 1, False),
    "x of fewer dimensions": ((6, 4), (3, 4, 5), 0, False),
    "x of more dimensions": ((2, 3, 6, 4), (3, 4, 5), 0, False),
    "on the left": ((2, 3, 4, 5), (1, 3, 6, 4), 1, True),
    "a scale a column": ((2, 3, 4), (2, 4, 5), 2, False),
    "a scale a column of four dimensions": ((2, 3, 6, 4), (1, 3, 4, 5), 3, False),
}


def file_of(x: Shape, w: Shape, axis: int, constant_is_first: bool, folder: Path) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    y = np.matmul(np.zeros(w if constant_is_first else x), np.zeros(x if constant_is_first else w)).shape
    shapes = {k: ",".join(map(str, v)) for k, v in {"x": x, "y": y}.items()}
    proto = onnx.parser.parse_model(TEXT.format(**shapes, step=STEP, axis=axis, operands="e, d" if constant_is_first else "d, e"))
    constants = {
        "w": rng.integers(-63, 64, w).astype(np.int8),
        "t": np.geomspace(0.002, 0.05, w[axis]).astype(np.float32),
    }
    proto.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items())
    onnx.save(proto, folder / "m.onnx")
    return proto


@pytest.mark.parametrize("case", CASES)
def test_the_files_codes_are_kept(case: str, tmp_path: Path) -> None:
    """Check that the file's codes are kept.
    When the machine requantized them to one scale, a third of the outputs were up to five steps off.
    """
    proto = file_of(*CASES[case], tmp_path)
    x = np.random.default_rng(1).normal(size=CASES[case][0]).astype(np.float32)
    np.save(tmp_path / "x.npy", x[None])
    built = build(tmp_path / "m.onnx", BuildOptions(float32_machine(), calibration=str(tmp_path / "x.npy")))
    assert built.figures["host"]["macs"] == 0
    assert not [n for n in built.notes if "rounded anew" in n]
    (expected,), (got,) = on_kernels(proto, {"x": x}, fused=False), Session(built.data, backend="reference").run(None, {"x": x})
    off = np.abs(np.rint((np.asarray(expected, np.float64) - got) / STEP))
    assert off.max() <= 1 and np.mean(off > 0) <= 0.02, (off.max(), np.mean(off > 0))


def test_of_more_matrices_than_a_concat_stands_for_a_note_says_it(tmp_path: Path) -> None:
    file_of((MAX_PARTS + 1, 3, 4), (MAX_PARTS + 1, 4, 5), 0, False, tmp_path)
    notes = build(tmp_path / "m.onnx", BuildOptions("edge16")).notes
    why = "weights of 1 layer are rounded anew, edge16 has one scale for a constant that has matrices of its own along a batch"
    assert sum(why in n for n in notes) == 1


def test_scales_along_what_is_summed_over_are_noted(tmp_path: Path) -> None:
    file_of((6, 4), (4, 5), 0, False, tmp_path)
    notes = build(tmp_path / "m.onnx", BuildOptions("edge16")).notes
    why = "weights of 1 layer are rounded anew, no machine has scales along what products sum over, nor in blocks of kernels"
    assert notes.count(why) == 1
