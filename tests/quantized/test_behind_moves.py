"""A scale that the file gives behind a move of elements is the scale of what is moved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from toolchain.api import BuildOptions, build
from toolchain.ir.graph import Quant
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
from toolchain.runtime import Session

FILE_QUANT = Quant(0.0625, -3)
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4,6,6] x) => (float[n,m,a,b] y)
<float s = {{0.03125}}, int8 p = {{5}}, float t = {{0.0625}}, int8 q = {{-3}}, float[4,1,1] one = {{1., 2., -1., 0.5}},
 int64[4] shape = {{1, 8, 3, 6}}, int64[1] two = {{2}}, int64[1] from = {{1}}, int64[1] to = {{5}},
 float[4] twice = {{1., 1., 2., 2.}}>
{{
    a = QuantizeLinear(x, s, p)
    b = DequantizeLinear(a, s, p)
    c = Add(b, one)
    d = {move}
    e = QuantizeLinear(d, t, q)
    y = DequantizeLinear(e, t, q)
}}
"""
MOVES = {
    "Transpose": "Transpose<perm = [0,1,3,2]>(c)",
    "Reshape": "Reshape(c, shape)",
    "Slice": "Slice(c, from, to, two)",
    "MaxPool": "MaxPool<kernel_shape = [2,2]>(c)",
    "DepthToSpace": "DepthToSpace<blocksize = 2>(c)",
    "SpaceToDepth": "SpaceToDepth<blocksize = 2>(c)",
    "Resize": 'Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(c, , twice)',
}


@pytest.mark.parametrize("move", MOVES)
def test_what_is_moved_has_the_scale_given_behind_the_move(move: str, tmp_path: Path) -> None:
    onnx.save(parser.parse_model(MODEL.format(move=MOVES[move])), tmp_path / "m.onnx")
    built = build(tmp_path / "m.onnx", BuildOptions("edge16"))
    graph = built.container.graph
    add = next(n for n in graph.nodes if isinstance(n.op, IntegerBinary))
    assert graph.types[add.outputs[0]].quant == FILE_QUANT
    assert sum(isinstance(n.op, IntegerBinary) for n in graph.nodes) == 1  # nothing is rounded again


@pytest.mark.parametrize("move", ["Transpose", "Reshape", "DepthToSpace", "SpaceToDepth"])
def test_what_else_reads_the_moved_tensor_reads_it_unrounded(move: str, tmp_path: Path) -> None:
    """The file's codes behind the move end at 0.1. On a chip with finer codes an output beside the move keeps its values."""
    with_output = MODEL.replace("=> (float[n,m,a,b] y)", "=> (float[n,m,a,b] y, float[1,4,6,6] z)").replace(
        "{{0.0625}}", "{{0.0008}}"
    )
    text = with_output.format(move=MOVES[move]).replace("    e = Quant", "    z = Neg(c)\n    e = Quant")
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    x = np.random.default_rng(3).uniform(-3, 3, (8, 1, 4, 6, 6)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    session = Session(build(tmp_path / "m.onnx", BuildOptions("transformer64", calibration=str(tmp_path / "x.npz"))))
    exact = -np.rint(x[0] / 0.03125) * 0.03125 - np.array([1, 2, -1, 0.5]).reshape(4, 1, 1)
    np.testing.assert_allclose(session.run(["z"], {"x": x[0]})[0], exact, atol=0.01)
