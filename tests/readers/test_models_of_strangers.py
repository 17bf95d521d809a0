"""ONNX files of a few hundred bytes that mean gigabytes, or hours, or other people's files."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from scripts.onnx_builder import build_graph, build_model
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.frontend.read_onnx import model_files
from toolchain.judging import evaluation_data

HEAD = '<ir_version: 10, opset_import: ["" : 21, "local" : 1]> g (float[4] x) => (float[4] y) '


def save_model(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def refusal(path: Path, read=load_model) -> str:
    began = time.process_time()
    with pytest.raises(CompileError) as refused:
        read(path)
    assert time.process_time() - began < 5
    return str(refused.value)


def functions(count: int, calls: int, last: str) -> str:
    """f0 is `calls` times f1, and so on; the last one is an operator."""
    text = ""
    for i in range(count):
        inner = f"local.f{i + 1}" if i + 1 < count else last
        steps = " ".join(f"t{j + 1} = {inner}(t{j})" for j in range(calls))
        text += f'<domain: "local", opset_import: ["" : 21, "local" : 1]> f{i} (t0) => (t{calls}) {{ {steps} }}\n'
    return text


def test_functions_of_functions(tmp_path: Path) -> None:
    model = parser.parse_model(HEAD + "{ y = local.f0(x) }\n" + functions(7, 10, "Relu"))
    path = save_model(model, tmp_path)
    assert refusal(path) == f"{path}: has 10,000,000 nodes with its functions written out, 100,000 are the most"


def test_functions_within_bounds_are_written_out(tmp_path: Path) -> None:
    model = parser.parse_model(HEAD + "{ y = local.f0(x) }\n" + functions(2, 3, "Neg"))
    assert len(load_model(save_model(model, tmp_path)).nodes) == 9


def test_a_function_of_itself(tmp_path: Path) -> None:
    path = save_model(parser.parse_model(HEAD + "{ y = local.f0(x) }\n" + functions(2, 2, "local.f0")), tmp_path)
    assert refusal(path) == f'{path}: its function "f0" contains itself'


def test_an_input_of_gigabytes(tmp_path: Path) -> None:
    path = save_model(parser.parse_model(HEAD.replace("float[4]", "float[3,20000,20000]") + "{ y = Relu(x) }"), tmp_path)
    assert refusal(path) == 'input "x": has the shape [3, 20000, 20000]; 268,435,456 elements are the most'


def test_an_input_that_is_large_by_the_model_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_model(parser.parse_model(HEAD.replace("float[4]", "float[1,3,8,1000000]") + "{ y = Relu(x) }"), tmp_path)
    began = time.process_time()
    with pytest.raises(CompileError) as refused:
        build(path, BuildOptions("edge16"))
    assert str(refused.value) == (
        'input "x": has 24,000,000 elements by the model alone; 16,777,216 are the most\n'
        "  help: give data, --calib DATA, or confirm the shape, --shape x=1,3,8,1000000"
    )
    assert time.process_time() - began < 5
    monkeypatch.setattr(evaluation_data, "CLAIMED_ELEMENTS", 3)
    small = save_model(parser.parse_model(HEAD + "{ y = Relu(x) }"), tmp_path)
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    with pytest.raises(CompileError, match="has 4 elements by the model alone"):
        build(small, BuildOptions("edge16"))
    for confirmed in (BuildOptions("edge16", shapes={"x": (4,)}), BuildOptions("edge16", calibration=str(tmp_path / "x.npy"))):
        assert build(small, confirmed).data


def test_constants_that_are_computed(tmp_path: Path) -> None:
    """Check constants that are each within the bound of one tensor."""
    nodes = " ".join(f"c{i} = ConstantOfShape(n) r{i} = ReduceMax(c{i})" for i in range(9))
    text = "{ n = Constant<value = int64[1] {20000000}>() " + nodes + " y = Add(x, r8) }"
    message = refusal(save_model(parser.parse_model(HEAD + text), tmp_path))
    assert message == (
        "node ConstantOfShape_13 (ConstantOfShape): makes 80,000,000 bytes of constants; 536,870,912 more than the file holds are"
        " the most\n  help: make it an input of the model"
    )


@pytest.mark.parametrize("location", ["a\0b", "../secret.bin", "/etc/passwd", ""])
@pytest.mark.parametrize("read", [load_model, model_files])
def test_weights_in_other_peoples_files(location: str, read, tmp_path: Path) -> None:
    model = parser.parse_model(HEAD + "{ y = Add(x, w) }")
    weight = model.graph.initializer.add(name="w", dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    (tmp_path / "in").mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    shown = location.replace("\0", "\\x00")
    message = refusal(save_model(model, tmp_path / "in"), read)
    assert message == f'weight w: its external data "{shown}" is outside the folder of the model'


def test_a_file_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate((1 << 31) + 1)
    assert refusal(path) == f"{path}: holds more than 2,147,483,648 bytes, which are the most for such a file"


def test_a_device_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.foundation.atomic_files.STREAM_BYTES", 1 << 20)
    message = refusal(Path("/dev/zero"))
    assert message == "/dev/zero: holds more than 1,048,576 bytes, which are the most for such a file"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"type": 3, "s": b"x"}, 'its attribute "value" is STRING, Constant takes TENSOR'),
        ({"type": 99}, 'its attribute "value" is UNDEFINED, Constant takes TENSOR'),
    ],
)
def test_attributes_of_another_kind(change: dict, reason: str, tmp_path: Path) -> None:
    model = parser.parse_model(HEAD + "{ c = Constant<value = float[4] {1, 2, 3, 4}>() y = Add(x, c) }")
    data = model.SerializeToString()
    attribute = model.graph.node[0].attribute[0]
    if change["type"] == 99:  # protobuf itself takes no such value
        data = data.replace(b"\xa0\x01\x04", b"\xa0\x01\x63")
    else:
        attribute.ClearField("t")
        attribute.type, attribute.s = change["type"], change["s"]
        data = model.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    assert refusal(tmp_path / "m.onnx") == f"node Constant_0 (Constant): {reason}"


def chain(count: int, name: str = "") -> list[onnx.NodeProto]:
    return [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=name) for i in range(count)]


def model_of(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    return build_model(nodes, {"t0": [4]}, {f"t{len(nodes)}": [4]}, opset=21)


def test_nodes_in_the_worst_order_and_of_one_name(tmp_path: Path) -> None:
    """Sorting and naming take time in proportion to the nodes."""
    from toolchain.frontend.import_graph import sort_nodes

    graph = model_of(chain(20_000, "same")[::-1]).graph
    began = time.process_time()
    ordered = sort_nodes(graph, {"t0"}, {})
    assert time.process_time() - began < 5
    assert [n.outputs[0] for n in ordered] == [f"t{i + 1}" for i in range(20_000)]
    assert len({n.name for n in ordered}) == 20_000


def test_the_order_is_the_earliest_of_the_files(tmp_path: Path) -> None:
    from toolchain.frontend.import_graph import sort_nodes

    nodes = [
        helper.make_node("Add", ["b", "c"], ["d"], name="late"),
        helper.make_node("Relu", ["x"], ["b"], name="first"),
        helper.make_node("Neg", ["d"], ["e"], name="last"),
        helper.make_node("Relu", ["b"], ["c"], name="second"),
    ]
    graph = build_graph(nodes, {}, {})
    assert [n.name for n in sort_nodes(graph, {"x"}, {})] == ["first", "second", "late", "last"]


def test_a_long_cycle_is_told_in_a_line(tmp_path: Path) -> None:
    nodes = chain(20_000)
    nodes[0].input[0] = "t20000"
    message = refusal(save_model(model_of(nodes), tmp_path))
    assert message.startswith("the graph: has a cycle: ")
    assert len(message) < 1100
