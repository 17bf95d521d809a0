"""Norms that models write out, on the chip's integers against onnxruntime on the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from quant.fidelity import sqnr_db
from quant.float_session import open_session
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.runtime import Session

MOMENTS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,8,16] x) => (float[1,8,16] y) <float[16,16] u, float[16] w, float[16] b> {
    k = Constant<value_ints = [2]>()
    e = Constant<value_float = 0.001>()
    h = MatMul(x, u)
    m = ReduceMean<axes = [2]>(h)
    q = Mul(h, h)
    n = ReduceMean<axes = [2]>(q)
    mm = Mul(m, m)
    v = Sub(n, mm)
    s = Add(v, e)
    r = Sqrt(s)
    i = Reciprocal(r)
    g = Mul(i, w)
    END
    y = MatMul(z, u)
}
"""
MEAN_SQUARE = (
    MOMENTS[: MOMENTS.index("    m =")]
    + """    q = Mul(h, h)
    n = ReduceMean<axes = [2]>(q)
    s = Add(n, e)
    r = Sqrt(s)
    END
    y = MatMul(z, u)
}
"""
)
ENDS = {
    "TensorFlow": "a = Mul(h, g)\n c = Mul(m, g)\n d = Sub(b, c)\n z = Add(a, d)",
    "JAX": "d = Sub(h, m)\n a = Mul(d, g)\n z = Add(a, b)",
}


ROOT_MEAN_SQUARE = {
    "Div": "a = Div(h, r)\n z = Mul(a, w)",
    "Llama": "i = Reciprocal(r)\n a = Mul(h, i)\n z = Mul(w, a)",
}
NORMS = [(MOMENTS, end, "LayerNormalization") for end in ENDS.values()] + [
    (MEAN_SQUARE, end, "RMSNormalization") for end in ROOT_MEAN_SQUARE.values()
]


def written(graph: str, end: str, folder: Path) -> np.ndarray:
    """m.onnx and its data c.npz in the folder; gives the data."""
    rng = np.random.default_rng(0)
    model = parser.parse_model(graph.replace("k = Constant<value_ints = [2]>()\n", "").replace("END", end))
    del model.graph.initializer[:]
    weights = {"u": rng.normal(0, 0.3, (16, 16)), "w": rng.uniform(0.5, 2, 16), "b": rng.normal(0, 0.5, 16)}
    model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items())
    onnx.save(model, folder / "m.onnx")
    # rows of very unlike size: one scale for all of a mean of squares says nothing of the small ones
    x = (rng.normal(0, 1, (6, 1, 8, 16)) * np.geomspace(0.5, 4, 8)[:, None]).astype(np.float32)
    np.savez(folder / "c.npz", x=x)
    return x


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize(("graph", "end", "op"), NORMS, ids=[*ENDS, *ROOT_MEAN_SQUARE])
def test_a_norm_that_is_written_out_keeps_its_bits(graph: str, end: str, op: str, tmp_path: Path) -> None:
    x = written(graph, end, tmp_path)
    built = build(tmp_path / "m.onnx", BuildOptions("edge16", calibration=str(tmp_path / "c.npz")))
    assert [f["op"] for f in built.figures["fallbacks"]] == [op]
    session, exact = Session(built.data, backend="reference"), open_session(str(tmp_path / "m.onnx"))
    expected = np.stack([exact.run(None, {"x": one})[0] for one in x])
    actual = np.stack([session.run(None, {"x": one})[0] for one in x])
    assert sqnr_db(expected, actual) > 25


@pytest.mark.parametrize("end", ENDS)
def test_types_know_a_norm_that_is_written_out_by_its_operator(end: str, tmp_path: Path) -> None:
    """Check that a type names the steps of the norm and nothing around it; --explain and the JSON say so."""
    written(MOMENTS, ENDS[end], tmp_path)
    rows_by_types = {}
    for types in ((), ("LayerNormalization=int16",), ("LayerN*=int16",)):
        options = BuildOptions("transformer64", calibration=str(tmp_path / "c.npz"), types=types, level=0)
        built = build(tmp_path / "m.onnx", options)
        rows_by_types[types] = [(layer["op"], layer["output_types"]) for layer in built.figures["layers"] if layer["sources"]]
        assert not built.figures["fallbacks"]
    plain, fine, pattern = rows_by_types.values()
    assert all(output_types == ["int8"] for _, output_types in plain)
    products = [output_types for op, output_types in fine if op == "Convolution"]
    assert products[0] == products[-1] == ["int8"] and fine == pattern
    assert sum(output_types == ["int16"] for _, output_types in fine) > len(fine) / 2
    with pytest.raises(CompileError, match=r'^--type LayerNormalisation=int16: .*; did you mean "LayerNormalization"\?'):
        options = BuildOptions("transformer64", calibration=str(tmp_path / "c.npz"), types=("LayerNormalisation=int16",))
        build(tmp_path / "m.onnx", options)
