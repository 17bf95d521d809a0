"""Sums behind the Reshapes of matrix products leave the array with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.compiler import select_model
from toolchain.frontend import load_model
from toolchain.ir.graph import Graph
from toolchain.isa import decode, load_machine
from toolchain.machine import Elementwise
from toolchain.ops.elementwise.select_elementwise import Binary
from toolchain.runtime import Session

FIRST = "p = MatMul(x, w)  s = Add(p, b)"
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def model(folder: Path, body: str, inputs: str = "float[2,20,24] x", output: str = "float[2,20,24] y") -> Path:
    rng = np.random.default_rng(3)
    proto = onnx.parser.parse_model(f"{HEAD} g ({inputs}) => ({output}) {{ {body} }}")
    arrays = {"w": rng.standard_normal((24, 24)) * 0.2, "v": rng.standard_normal((24, 24)) * 0.2, "b": rng.standard_normal(24)}
    used = {n for node in proto.graph.node for n in node.input}
    initializers = [onnx.numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items() if n in used]
    proto.graph.initializer.extend(initializers)
    onnx.save(proto, folder / "m.onnx")
    return folder / "m.onnx"


def built(path: Path) -> Build:
    """Build the model, check that it is as accurate as its codes, and return it; the build checks its bits."""
    rng = np.random.default_rng(4)
    names = [i.name for i in onnx.load(path).graph.input]
    samples: dict[str, Any] = {n: rng.standard_normal((4, 2, 20, 24)).astype(np.float32) for n in names}
    np.savez(path.parent / "data.npz", **samples)
    network_build = build(path, BuildOptions("edge16", calibration=str(path.parent / "data.npz"), repair="none"))
    feeds = {n: array[1] for n, array in samples.items()}
    assert min(ratios(network_build, path, feeds)) > 10**3
    return network_build


def ratios(network_build: Build, path: Path, feeds: dict[str, np.ndarray]) -> list[float]:
    """Return for each output the squares of float's numbers over those of the errors."""
    expected = map(np.asarray, onnxruntime.InferenceSession(path).run(None, feeds))
    actual = Session(network_build.container).run(None, feeds)
    return [float(np.sum(w**2) / np.sum((f - w) ** 2)) for f, w in zip(actual, expected)]


def sums(network_build: Build) -> int:
    """Operations of the vector engine."""
    regions = [s for s in network_build.container.segments if isinstance(s, Region)]
    ops = [op for r in regions for op in decode(r.program, network_build.container.machine.isa).ops]
    return sum(isinstance(op, Elementwise) for op in ops)


@pytest.mark.parametrize("last", ["y = Add(x, s)", "y = Add(s, x)", "t = Add(s, x)  y = Relu(t)"])
def test_a_residual_sum_leaves_the_array(tmp_path: Path, last: str) -> None:
    assert sums(built(model(tmp_path, f"{FIRST}  {last}"))) == 0


def test_a_sum_of_two_products_leaves_the_array(tmp_path: Path) -> None:
    assert sums(built(model(tmp_path, f"{FIRST}  q = MatMul(x, v)  y = Add(s, q)"))) == 0


@pytest.mark.parametrize(
    "last",
    [
        "t = Add(s, x)  u = Mul(s, t)  y = Add(u, x)",  # the product is read twice
        "m = ReduceMean <axes = [2]>(x)  y = Add(s, m)",  # what is added is smaller
    ],
)
def test_others_stay_on_the_vector_engine(tmp_path: Path, last: str) -> None:
    assert sums(built(model(tmp_path, f"{FIRST}  {last}"))) > 0


def test_an_output_of_another_shape_stays(tmp_path: Path) -> None:
    body = f"{FIRST}  r = Relu(s)  y = MatMul(r, v)"
    path = model(tmp_path, body, output="float[2,20,24] y, float[2,20,24] r")
    data = {"x": np.random.default_rng(5).standard_normal((2, 20, 24)).astype(np.float32)}
    assert min(ratios(build(path, BuildOptions("edge16", repair="none")), path, data)) > 10**2


def test_many_sums_rebuild_the_graph_no_more_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_nodes, rebuilt, counts = Graph.with_nodes, list[Graph[Any]](), list[int]()

    def note_rebuilt(graph: Graph[Any], *args: Any, **options: Any) -> Graph[Any]:
        rebuilt.append(graph)
        return with_nodes(graph, *args, **options)

    monkeypatch.setattr(Graph, "with_nodes", note_rebuilt)
    for layers in (2, 8):
        steps = (f"p{n} = MatMul(s{n}, w)  g{n} = Sigmoid(p{n})  s{n + 1} = Add(g{n}, s{n})" for n in range(layers))
        path = model(tmp_path, f"s0 = Relu(x)  {'  '.join(steps)}  y = Relu(s{layers})")
        rebuilt.clear()
        graph = select_model(load_model(path), load_machine("edge16")).graph
        assert sum(isinstance(node.op, Binary) for node in graph.nodes) == layers
        counts.append(len(rebuilt))
    assert counts[0] == counts[1]
