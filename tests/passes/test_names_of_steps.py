"""Names that the compiler gives its own tensors may be names of the file: then its own are others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from quant.fidelity import sqnr_db
from toolchain.api import Build, BuildOptions, build
from toolchain.runtime import Session

# Functions behind moves of a convolution, sums behind its Reshapes, several moves in a row, types that differ, pads and joins.
NETS = {
    "lifted": "a = Conv(x, w) t = Transpose<perm=[0,2,3,1]>(a) s = Sigmoid(t) o = Relu(x)",
    "moves": "t = Transpose<perm=[0,2,3,1]>(x) r = Reshape(t, rows) u = Transpose<perm=[0,2,1]>(r) s = Exp(u) o = Neg(x)",
    "joined": "a = Conv(x, w) b = Sigmoid(x) s = Concat<axis=1>(a, b) o = Relu(x)",
    "padded": "a = Sigmoid(x) p = Pad(a, pads, one) s = MaxPool<kernel_shape=[2,2]>(p) o = Abs(x)",
    "powers": "a = Mul(x, x) m = ReduceMean<axes=[1], keepdims=1>(a) s = Div(x, m) o = Relu(x)",
}
CONSTANTS = {"w": (4, 4, 1, 1), "rows": [1, 16, 16], "pads": [0, 0, 1, 1, 0, 0, 1, 1], "one": 1.0}


def network(body: str, other: str, folder: Path) -> Path:
    """Save a network whose unrelated tensor `o` has another name.

    `other`: name of that tensor.
    """
    text = f'<ir_version: 8, opset_import: ["": 13]> g (float[1,4,4,16] x) => (float s, float o) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    used = {n for node in proto.graph.node for n in node.input}
    for name, value in CONSTANTS.items():
        drawn = np.random.default_rng(1).normal(0, 0.5, value) if isinstance(value, tuple) else np.asarray(value)
        kind = np.int64 if isinstance(value, list) else np.float32
        if name in used:
            proto.graph.initializer.append(numpy_helper.from_array(drawn.astype(kind), name))
    proto.graph.output[1].name = proto.graph.node[-1].output[0] = other
    onnx.save(proto, folder / "m.onnx")
    return folder / "m.onnx"


def built(model: Path, data: Path) -> Build:
    return build(model, BuildOptions("transformer64", str(data), types=("s=int16",), level=0))


@pytest.mark.parametrize("case", NETS)
def test_the_file_may_have_them(case: str, tmp_path: Path) -> None:
    x = np.random.default_rng(2).normal(0, 1, (17, 4, 4, 16)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x)
    plain = built(network(NETS[case], "o", tmp_path), tmp_path / "d.npz")
    chip_names = {n for n in plain.container.graph.types if "@" in n}
    taken_names = chip_names | {f"s@{what}" for what in ("early", "factors", "permuted")} | {"x@nhwc", "a@plain"}
    first: list[float] = []
    for other in ["o", *sorted(taken_names)]:
        path = network(NETS[case], other, tmp_path)
        network_build = built(path, tmp_path / "d.npz")
        expected = onnxruntime.InferenceSession(path).run(None, {"x": x[:1]})
        got = Session(network_build.data, backend="reference").run(None, {"x": x[:1]})
        levels = [sqnr_db(np.asarray(e), y) for e, y in zip(expected, got, strict=True)]
        first = first or levels
        assert levels == first, other
