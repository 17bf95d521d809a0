"""Parts of a Concat that nothing else reads are rounded once, to the whole's codes, also where they are moved on their way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from toolchain.api import Build, BuildOptions, build
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.data_movement import IntegerConcat
from toolchain.ops.rescale import Rescale

TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[1,4,6,6] x) => ({outputs}) <int64[3] shape = {{1, 5, -1}}> {{
  a = Conv<kernel_shape = [1,1]>(x, w) b = Conv<kernel_shape = [2,2], strides = [2,2]>(x, v)
  c = Reshape(a, shape) d = Reshape(b, shape) y = Concat<axis = 2>(c, d) {more} }}"""


def built(folder: Path, outputs: str = "float[1,5,45] y", more: str = "") -> Build:
    rng, proto = np.random.default_rng(0), parser.parse_model(TEXT.format(outputs=outputs, more=more))
    weights = {"w": rng.normal(size=(5, 4, 1, 1)), "v": 9 * rng.normal(size=(5, 4, 2, 2))}
    proto.graph.initializer.extend(numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items())
    onnx.save(proto, folder / "m.onnx")
    np.save(folder / "x.npy", rng.normal(size=(20, 1, 4, 6, 6)).astype(np.float32))
    return build(folder / "m.onnx", BuildOptions("edge16", str(folder / "x.npy"), repair="none", host_ports=False))


def scales(built: Build) -> list[float]:
    graph = built.container.graph
    concat_qparams = next(graph.types[n.outputs[0]].quant for n in graph.nodes if isinstance(n.op, IntegerConcat))
    assert concat_qparams is not None
    quants = [graph.types[n.outputs[0]].quant for n in graph.nodes if isinstance(n.op, IntegerConvolution)]
    return [q.scale / concat_qparams.scale for q in quants if q is not None]


def test_a_part_behind_a_reshape_takes_the_wholes_scale(tmp_path: Path) -> None:
    built_network = built(tmp_path)
    assert scales(built_network) == [1, 1]
    assert not any(isinstance(n.op, Rescale) for n in built_network.container.graph.nodes)


@pytest.mark.parametrize(("read", "shape"), [("a", "1,5,6,6"), ("c", "1,5,36")])
def test_not_where_something_else_reads_it_on_its_way(read: str, shape: str, tmp_path: Path) -> None:
    built_network = built(tmp_path, f"float[1,5,45] y, float[{shape}] z", f"z = Relu({read})")
    first, second = scales(built_network)
    assert first < 0.5 and second == 1
