"""Products in other words are matrix products and convolutions that the chip has, and mean in onnxruntime what they meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from chip_against_file import against_file
from onnx_text import model, save
from same_outputs import check_same

from toolchain.ir.graph import verify

EINSUMS = {
    "matrices": ("float[4,6] x, float[6,5] z", "ij,jk->ik", "MatMul Relu"),
    "without an arrow": ("float[4,6] x, float[6,5] z", "ij,jk", "MatMul Relu"),
    "constant": ("float[2,4,6] x, float[6,5] w", "bij,jk->bik", "Reshape Gemm Relu Reshape"),
    "samples": ("float[2,4,6] x, float[2,6,5] z", "bij,bjk->bik", "MatMul Relu"),
    "order of the other": ("float[2,4,6] x, float[2,5,6] z", "bij,bkj->bki", "Transpose MatMul Relu"),
    "outer": ("float[4] x, float[5] z", "i,j->ij", "Reshape Reshape MatMul Relu"),
    "by element": ("float[4,5] x, float[5,4] z", "ij,ji->ji", "Transpose Mul Relu"),
    "rows by a vector": ("float[4,5] x, float[4] z", "ij,i->ij", "Reshape Mul Relu"),
    "all": ("float[4,5] x, float[4,5] z", "ij,ij->", "Reshape Reshape MatMul Relu Reshape"),
    "two summed": ("float[2,3,4] x, float[3,4,5] z", "aij,ijk->ak", "Reshape Reshape MatMul Relu"),
    "heads": ("float[1,4,2,6] x, float[1,5,2,6] z", "bqhd,bkhd->bhqk", "Transpose Transpose Reshape Reshape MatMul Relu Reshape"),
    "dots": ("float[2,3,4,5] x, float[2,3,5,6] z", "...ij,...jk->...ik", None),
    "one for all": ("float[2,3,4] x, float[1,4,5] z", "bij,bjk->bik", None),
    "diagonal": ("float[4,4] x, float[4,3] z", "ii,ij->j", None),
    "three": ("float[4,3] x, float[3,5] z, float[5,2] t", "ij,jk,kl->li", None),
    "summed by itself": ("float[4,3] x, float[5,2] z", "ij,kl->ki", None),
    "trace": ("float[4,4] x", "ii->", None),
    "turned": ("float[4,3] x", "ij->ji", "Transpose Relu"),
    "as it is": ("float[4,3] x", "ij->ij", "Relu"),
}


@pytest.mark.parametrize("name", EINSUMS)
def test_einsum(name: str, tmp_path: Path) -> None:
    inputs, equation, expected = EINSUMS[name]
    operands = ", ".join(part.split()[1] for part in inputs.split(", "))
    path = save(model(f"({inputs}) => (float[] y) {{ e = Einsum<equation = '{equation}'>({operands}) y = Relu(e) }}"), tmp_path)
    loaded = check_same(path)
    assert not verify(loaded.graph)
    kinds = [node.op.op_type for node in loaded.graph.nodes]
    assert "Einsum" not in kinds and expected in (None, " ".join(kinds))


WINDOWS = {
    "flat in time": ("float[1,3,4,6,5] x, float[4,3,1,3,3] w, float[4] w1", "pads = [0,1,1,0,1,1]"),
    "flat in time, strides": ("float[2,3,5,7,6] x, float[4,3,1,3,2] w", "strides = [2,2,1], pads = [1,0,1,0,0,1]"),
    "flat in space": ("float[1,3,6,4,5] x, float[4,3,3,1,1] w", "pads = [1,0,0,1,0,0], dilations = [2,1,1]"),
    "flat in rows": ("float[1,3,6,4,5] x, float[4,3,3,1,2] w", "strides = [1,2,1]"),
    "flat in columns": ("float[1,3,6,4,5] x, float[4,3,2,3,1] w", "pads = [0,1,1,1,1,0]"),
    "rows alone": ("float[1,3,4,5,6] x, float[4,3,1,3,1] w", "dilations = [1,2,1]"),
    "columns alone": ("float[1,4,4,5,6] x, float[4,1,1,1,3] w", "group = 4"),
    "one place": ("float[2,3,4,5,6] x, float[4,3,1,1,1] w, float[4] w1", "strides = [1,2,1]"),
    "no flat one": ("float[1,2,5,6,6] x, float[4,2,3,3,2] w, float[4] w1", "strides = [2,1,1], pads = [1,1,0,1,1,1]"),
    "computed": ("float[1,4,6,6] x, float[5,4,1,1] z, float[5] b", ""),
    "computed, windows": ("float[1,4,7,6] x, float[5,4,3,3] z", "pads = [1,0,1,1], strides = [2,1], dilations = [1,2]"),
    "computed, each channel": ("float[1,4,7,6] x, float[4,1,3,3] z", "group = 4"),
    "computed, one dimension": ("float[1,4,9] x, float[5,4,3] z", "pads = [1,1]"),
    "computed bias": ("float[1,4,6,6] x, float[5,4,3,3] w, float[5] b", ""),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions_run_on_the_chip(name: str, tmp_path: Path) -> None:
    inputs, attributes = WINDOWS[name]
    attribute_text = f"<{attributes}>" if attributes else ""
    operands = ", ".join(part.split()[1] for part in inputs.split(", "))
    path = save(model(f"({inputs}) => (float[] y) {{ y = Conv{attribute_text}({operands}) }}"), tmp_path)
    assert not verify(check_same(path).graph)
    built = against_file(path)
    assert {node["engine"] for node in built.figures["nodes"]}.isdisjoint({"host"}) and built.figures["macs"] > 0


def test_a_norm_behind_three_dimensions_is_in_their_weights(tmp_path: Path) -> None:
    graph = (
        "(float[1,3,4,6,5] x, float[4,3,1,3,3] w, float[4] w1, float[4] w2, float[4] w3) => (float[] y) { c = Conv(x, w) "
        "v = float[4] {1,2,3,4} b = BatchNormalization(c, w1, w2, w3, v) y = Relu(b) }"
    )
    loaded = check_same(save(model(graph), tmp_path))
    assert not {"Mul", "Add", "BatchNormalization"} & {node.op.op_type for node in loaded.graph.nodes}


SCATTERS = {
    "rows": ("float[5,3] x, float[2,3] z", "i = int64[2,1] {1,3}", "ScatterND", ""),
    "rows backwards": ("float[5,3] x, float[2,3] z", "i = int64[2,1] {-1,1}", "ScatterND", ""),
    "elements of a column": ("float[4,3] x, float[2] z", "i = int64[2,2] {1,2,2,2}", "ScatterND", ""),
    "one element": ("float[4,3] x, float[1] z", "i = int64[1,2] {2,1}", "ScatterND", ""),
    "all": ("float[2,3] x, float[2,3] z", "i = int64[2,1] {0,1}", "ScatterND", ""),
    "added": ("float[5,3] x, float[2,3] z", "i = int64[2,1] {1,3}", "ScatterND", "reduction = 'add'"),
    "the larger": ("float[5,3] x, float[2,3] z", "i = int64[2,1] {0,4}", "ScatterND", "reduction = 'max'"),
    "twice at one place": ("float[5,3] x, float[2,3] z", "i = int64[2,1] {2,2}", "ScatterND", ""),
    "columns": ("float[2,5] x, float[2,2] z", "i = int64[2,2] {4,1,4,1}", "ScatterElements", "axis = 1"),
    "fewer rows": ("float[3,5] x, float[2,2] z", "i = int64[2,2] {4,1,4,1}", "ScatterElements", "axis = 1"),
    "any": ("float[3,4] x, float[1,4] z", "i = int64[1,4] {1,0,2,1}", "ScatterElements", "axis = 0"),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scattered_updates_run_on_the_chip(name: str, tmp_path: Path) -> None:
    inputs, places, operator, attributes = SCATTERS[name]
    attribute_text = f"<{attributes}>" if attributes else ""
    body = f"{places} a = Relu(x) b = Relu(z) y = {operator}{attribute_text}(a, i, b)"
    path = save(model(f"({inputs}) => (float[] y) {{ {body} }}"), tmp_path)
    assert not verify(check_same(path).graph)
    assert "host" not in {node["engine"] for node in against_file(path).figures["nodes"]}


def test_tiles_of_dimensions_larger_than_one_run_on_the_chip(tmp_path: Path) -> None:
    path = save(model("(float[2,3,1,4] x) => (float[] y) { a = Relu(x) r = int64[4] {1,2,3,2} y = Tile(a, r) }"), tmp_path)
    assert not verify(check_same(path).graph)
    assert "host" not in {node["engine"] for node in against_file(path).figures["nodes"]}
