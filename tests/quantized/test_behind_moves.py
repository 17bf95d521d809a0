"""A scale that the file gives behind a move of elements is the scale of what is moved."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from toolchain.api import BuildOptions, build
from toolchain.ir.graph import Quant
from toolchain.ops.elementwise.integer import IntegerBinary

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
