"""Maxima, means, softmax, norms and positions over any dimension leave their operands where they lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from quant.fidelity import sqnr_db
from tests.support.decompose_cases import decomposing, save_model
from toolchain.api import Build, BuildOptions, build
from toolchain.isa import load_machine
from toolchain.runtime import Session

EDGE16 = decomposing(load_machine("edge16"))
SHAPES = ((1, 4, 16, 24), (3, 16, 24))


def dims(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def behind_a_product(operator: str, shape: tuple[int, ...], kind: str = "float", output_shape: tuple[int, ...] = ()) -> str:
    """Return a graph with an operator on a product, whose result and whose input are in the model's order."""
    *batch, rows, columns = shape
    a, b = dims((*batch, rows, 8)), dims((*batch, 8, columns))
    return f"g (float[{a}] a, float[{b}] b) => ({kind}[{dims(output_shape or shape)}] y) {{ x = MatMul(a, b) y = {operator}(x) }}"


def compile_graph(graph: str, folder: Path, opset: int = 17) -> tuple[Build, float]:
    """Return the build with its SQNR against float, on the samples of its calibration."""
    path, data = save_model(graph, folder, samples=8, opset=opset)
    real = onnxruntime.InferenceSession(str(path))
    shapes = {i.name: i.shape for i in real.get_inputs()}
    rng = np.random.default_rng(3)
    arrays = {n: rng.normal(size=(8, *s)).astype(np.float32) for n, s in shapes.items()}
    np.savez(data, allow_pickle=False, **arrays)
    built = build(path, BuildOptions(EDGE16, calibration=str(data), repair="none"))
    feeds = [{n: x[i] for n, x in arrays.items()} for i in range(8)]
    session = Session(built.container, backend="reference")
    expected, got = (np.stack([np.asarray(run.run(None, f)[0], np.float64) for f in feeds]) for run in (real, session))
    return built, sqnr_db(expected, got)


def list_moves(built: Build) -> list[str]:
    assert not built.figures["fallbacks"]
    return [layer["name"] for layer in built.figures["layers"] if layer["engine"].startswith("dma")]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
def test_steps_of_a_softmax_move_nothing(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    for axis in range(-1, len(shape) - 1):
        built, db = compile_graph(behind_a_product(f"{kind}<axis={axis}>", shape), tmp_path)
        assert not list_moves(built), (axis, list_moves(built))
        assert db > (24 if kind == "Softmax" else 33), (axis, db)


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_of_a_norm_over_the_last_dimension_move_nothing(shape: tuple[int, ...], tmp_path: Path) -> None:
    *_, last = shape
    graph = behind_a_product("LayerNormalization", shape).replace("(x)", "(x, w)").replace(" {", f" <float[{last}] w> {{", 1)
    built, db = compile_graph(graph, tmp_path)
    assert not list_moves(built), list_moves(built)
    assert db > 25, db


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMean"])
def test_a_maximum_and_a_mean_over_one_dimension_move_nothing(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    for axis in range(len(shape)):
        few = tuple(1 if i == axis else n for i, n in enumerate(shape))
        built, db = compile_graph(behind_a_product(f"{kind}<axes=[{axis}]>", shape, output_shape=few), tmp_path)
        assert not list_moves(built), (axis, list_moves(built))
        assert db > 30, (axis, db)


@pytest.mark.parametrize("shape", SHAPES)
def test_positions_of_the_largest_move_nothing(shape: tuple[int, ...], tmp_path: Path) -> None:
    for axis in range(len(shape)):
        few = tuple(1 if i == axis else n for i, n in enumerate(shape))
        built, _ = compile_graph(behind_a_product(f"ArgMax<axis={axis}>", shape, "int64", few), tmp_path)
        assert not list_moves(built), (axis, list_moves(built))


def test_what_the_host_reads_is_turned_by_the_host(tmp_path: Path) -> None:
    """Rows of channels that the model gives out as channels of rows: the bytes stay where they are."""
    transposed_graph = behind_a_product("Transpose<perm=[0,3,1,2]>", (1, 6, 8, 4), output_shape=(1, 4, 6, 8))
    built, db = compile_graph(transposed_graph, tmp_path)
    assert not list_moves(built), list_moves(built)
    assert db > 30, db


def test_rows_of_what_the_host_makes_are_pooled_over_all_channels_at_once(tmp_path: Path) -> None:
    graph = "g (float[1,64,16,16] x) => (float[1,64,1,16] y) { y = ReduceMax<axes=[2]>(x) }"
    built, db = compile_graph(graph, tmp_path)
    (layer,) = built.figures["layers"]
    first, end = layer["operations"]
    assert end - first < 64
    assert db > 30, db
