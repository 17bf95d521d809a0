"""Loading: where weights come from, what is bound and kept, the graph and the parts that come out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import external_data_helper, helper, numpy_helper
from onnx_text import model, save
from same_outputs import check_same, largest_error, random_inputs, session

from toolchain.frontend import extract, load_model, to_graph
from toolchain.frontend.convert import node_to_proto
from toolchain.ir.graph import Node, OnnxOp, TensorType, verify

NET = (
    "(float[N,3,H,W] x, float[8,3,3,3] w, float[8] w2, float[8] w3, float[8] w4, float[8] wv, float[8,4] w5) => (float[N,M] y) "
    "{ a = Conv<pads = [1,1,1,1]>(x, w) b = BatchNormalization(a, w2, w3, w4, wv) c = Relu(b) d = GlobalAveragePool(c) "
    "e = Flatten(d) y = MatMul(e, w5) }"
)
VARIANCE = {"wv": np.linspace(0.5, 2, 8)}


def name_nodes(proto: onnx.ModelProto) -> onnx.ModelProto:
    for node, name in zip(proto.graph.node, ("conv", "bn", "relu", "pool", "flatten", "fc")):
        node.name = name
    return proto


def test_whole_network(tmp_path: Path) -> None:
    path = save(name_nodes(model(NET, weights=VARIANCE)), tmp_path)
    loaded = check_same(path, {"x": (2, 3, 10, 12)})
    shown = [(n.name, n.op.op_type, n.sources) for n in loaded.graph.nodes]
    assert shown == [
        ("conv", "Conv", ("conv", "bn")),
        ("relu", "Relu", ("relu",)),
        ("pool", "ReduceMean", ("pool",)),
        ("flatten", "Reshape", ("flatten",)),
        ("fc", "Gemm", ("fc",)),
    ]
    assert loaded.types["x"] == TensorType((2, 3, 10, 12), "float32")
    assert loaded.types["y"] == TensorType((2, 4), "float32")
    assert loaded.notes == ()


def test_lone_batch_dimension_is_one(tmp_path: Path) -> None:
    path = save(model("(float[N,3] x, float[N,3] z) => (float[N,3] y) { y = Add(x, z) }"), tmp_path)
    loaded = load_model(path)
    assert loaded.types["x"].shape == (1, 3)
    assert loaded.types["z"].shape == (1, 3)
    assert loaded.notes == ('input "x": dimension 0 (N) is dynamic and not bound; taken as 1',)


def test_one_shape_binds_its_names_everywhere(tmp_path: Path) -> None:
    path = save(model("(float[N,M] x, float[N,M] z) => (float[N,M] y) { y = Add(x, z) }"), tmp_path)
    assert load_model(path, {"x": (4, 5)}).types["z"].shape == (4, 5)


def test_proto_is_valid_and_typed(tmp_path: Path) -> None:
    loaded = load_model(save(model(NET, weights=VARIANCE), tmp_path), {"x": (1, 3, 8, 8)})
    onnx.checker.check_model(loaded.proto, full_check=True)
    typed = {i.name for i in (*loaded.proto.graph.value_info, *loaded.proto.graph.output)}
    assert all(name in typed for node in loaded.proto.graph.node for name in node.output)


@pytest.mark.parametrize("opset", range(9, 22))
def test_every_opset(tmp_path: Path, opset: int) -> None:
    loaded = check_same(save(model(NET, opset, VARIANCE), tmp_path), {"x": (2, 3, 6, 5)})
    assert loaded.opset == 21
    assert [n.op.op_type for n in loaded.graph.nodes] == ["Conv", "Relu", "ReduceMean", "Reshape", "Gemm"]


def test_newest_opset(tmp_path: Path) -> None:
    from toolchain.frontend.read_onnx import newest_opset

    loaded = check_same(save(model(NET, newest_opset(), VARIANCE), tmp_path), {"x": (2, 3, 6, 5)})
    assert loaded.opset == newest_opset()
    onnx.checker.check_model(loaded.proto)


def test_external_data(tmp_path: Path) -> None:
    proto = model(NET, weights=VARIANCE)
    expected = load_model(save(proto, tmp_path, "inside.onnx"), {"x": (1, 3, 8, 8)})
    external_data_helper.convert_model_to_external_data(proto, location="weights.bin", size_threshold=0)
    onnx.save(proto, tmp_path / "model.onnx")
    loaded = load_model(tmp_path / "model.onnx", {"x": (1, 3, 8, 8)})
    assert (tmp_path / "weights.bin").stat().st_size > 0
    assert loaded.proto == expected.proto


def test_weights_in_constant_nodes(tmp_path: Path) -> None:
    proto = model(NET, weights=VARIANCE)
    nodes = [helper.make_node("Constant", [], [i.name], value=i) for i in proto.graph.initializer]
    nodes += list(proto.graph.node)
    del proto.graph.initializer[:], proto.graph.node[:]
    proto.graph.node.extend(nodes)
    loaded = check_same(save(proto, tmp_path), {"x": (1, 3, 8, 8)})
    assert [n.op.op_type for n in loaded.graph.nodes] == ["Conv", "Relu", "ReduceMean", "Reshape", "Gemm"]


def test_initializers_that_are_inputs_too(tmp_path: Path) -> None:
    proto = model("(float[1,3] x, float[3,4] w) => (float[1,4] y) { y = MatMul(x, w) }")
    proto.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3, 4]))
    assert load_model(save(proto, tmp_path)).graph.inputs == ("x",)


def test_nodes_in_any_order(tmp_path: Path) -> None:
    proto = model("(float[2] x) => (float[2] y) { a = Relu(x) b = Tanh(a) y = Exp(b) }")
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    assert [n.op.op_type for n in load_model(save(proto, tmp_path)).graph.nodes] == ["Relu", "Tanh", "Exp"]


def test_names_are_made_unique(tmp_path: Path) -> None:
    proto = model("(float[2] x) => (float[2] y) { a = Relu(x) b = Tanh(a) y = Exp(b) }")
    for node in proto.graph.node[:2]:
        node.name = "n"
    assert [n.name for n in load_model(save(proto, tmp_path)).graph.nodes] == ["n", "n_2", "Exp_2"]


def test_shape_arithmetic_folds(tmp_path: Path) -> None:
    graph = (
        "(float[N,4,H] x) => (float[a,b] y) { s = Shape(x) i = int64[1] {0} n = Gather(s, i) m = int64[1] {-1} "
        "t = Concat<axis = 0>(n, m) y = Reshape(x, t) }"
    )
    loaded = check_same(save(model(graph), tmp_path), {"x": (3, 4, 5)})
    assert [(n.op.op_type, n.op.attributes["shape"]) for n in to_graph(loaded).nodes] == [("Reshape", (3, 20))]


def test_known_branch_is_written_out(tmp_path: Path) -> None:
    graph = (
        "(float[N,4] x) => (float[a,b] y) { s = Shape(x) i = int64 {1} n = Gather(s, i) f = int64 {4} c = Equal(n, f) y = If(c) "
        "<then_branch = t () => (float[N,4] a) { q = Relu(x) a = Exp(q) }, else_branch = e () => (float[N,4] b) { b = Neg(x) }> }"
    )
    loaded = check_same(save(model(graph), tmp_path))
    assert [n.op.op_type for n in loaded.graph.nodes] == ["Relu", "Exp"]


def test_local_functions_are_written_out(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "own" : 1]> g (float[2,3] x) => (float[2,3] y) { y = own.twice(x) } '
        '<domain: "own", opset_import: ["" : 18]> twice (a) => (b) { c = Relu(a) b = Add(c, c) }'
    )
    loaded = check_same(save(proto, tmp_path))
    assert [n.op.op_type for n in loaded.graph.nodes] == ["Relu", "Add"]


PROMOTED: list[tuple[str, Mapping[str, Any]]] = [
    ("l = float {-1} h = float {2} y = Clip(x, l, h)", {"min": -1.0, "max": 2.0}),
    ("h = float {2} y = Clip(x, , h)", {"min": None, "max": 2.0}),
    ("s = int64[3] {2,-1,7} y = Reshape(x, s)", {"shape": (2, 36, 7)}),
    (
        "s = int64[2] {-3,1} e = int64[2] {99,-1} a = int64[2] {3,2} d = int64[2] {1,2} y = Slice(x, s, e, a, d)",
        {"starts": (1, 4), "ends": (8, 7), "axes": (2, 3), "steps": (2, 1)},
    ),
    ("p = int64[8] {0,0,1,2,0,0,3,4} y = Pad(x, p)", {"pads": (0, 0, 1, 2, 0, 0, 3, 4), "mode": "constant", "value": 0.0}),
    ("a = int64[2] {-1,2} y = ReduceMean(x, a)", {"axes": (2, 3), "keepdims": 1}),
    ("y = Softmax(x)", {"axis": 3}),
    ("y = LeakyRelu(x)", {"alpha": pytest.approx(0.01)}),
    ("y = Transpose(x)", {"perm": (3, 2, 1, 0)}),
    (
        "y = MaxPool<kernel_shape = [3,3], strides = [2,2], ceil_mode = 1>(x)",
        {
            "kernel_shape": (3, 3),
            "strides": (2, 2),
            "dilations": (1, 1),
            "pads": (0, 0, 0, 0),
            "ceil_mode": 0,
            "storage_order": 0,
        },
    ),
    (
        "y = MaxPool<kernel_shape = [2,2], strides = [2,2], ceil_mode = 1>(x)",
        {
            "kernel_shape": (2, 2),
            "strides": (2, 2),
            "dilations": (1, 1),
            "pads": (0, 0, 1, 1),
            "ceil_mode": 0,
            "storage_order": 0,
        },
    ),
    (
        "s = int64[4] {2,4,18,21} y = Resize<mode = 'nearest', nearest_mode = 'round_prefer_ceil'>(x, , , s)",
        {
            "scales": (1.0, 1.0, 2.0, 3.0),
            "sizes": None,
            "mode": "nearest",
            "nearest_mode": "floor",
            "coordinate_transformation_mode": "asymmetric",
        },
    ),
    (
        "s = int64[4] {2,4,5,21} r = float[8] {0,0,0,0,1,1,1,1} "
        "y = Resize<mode = 'linear', coordinate_transformation_mode = 'tf_crop_and_resize'>(x, r, , s)",
        {"scales": None, "sizes": (2, 4, 5, 21), "mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"},
    ),
]


@pytest.mark.parametrize(("body", "expected"), PROMOTED)
def test_parameters_become_attributes(tmp_path: Path, body: str, expected: Mapping[str, Any]) -> None:
    dims = "a,b,c" if "Reshape" in body else "a,b,c,d"
    loaded = check_same(save(model(f"(float[2,4,9,7] x) => (float[{dims}] y) {{ {body} }}"), tmp_path))
    (node,) = to_graph(loaded).nodes
    assert node.inputs == ("x",)
    attributes = dict(node.op.attributes)
    assert {k: attributes[k] for k in expected} == expected
    if node.op.op_type != "Resize":
        assert set(attributes) == set(expected)


def test_very_long_slices_backwards_stay(tmp_path: Path) -> None:
    body = "s = int64[2] {-3,-1} e = int64[2] {99,-9999} a = int64[2] {2,1} d = int64[2] {1,-1} y = Slice(x, s, e, a, d)"
    (node,) = to_graph(check_same(save(model(f"(float[1,1100,4] x) => (float[a,b,c] y) {{ {body} }}"), tmp_path))).nodes
    assert dict(node.op.attributes) == {"starts": (1099, 1), "ends": (-1101, 4), "axes": (1, 2), "steps": (-1, 1)}


def test_weights_stay_inputs(tmp_path: Path) -> None:
    graph = to_graph(load_model(save(name_nodes(model(NET, weights=VARIANCE)), tmp_path), {"x": (1, 3, 8, 8)}))
    assert not verify(graph)
    conv, *_, gemm = graph.nodes
    assert [graph.types[n].shape for n in conv.inputs] == [(1, 3, 8, 8), (8, 3, 3, 3), (8,)]
    assert [graph.constants[n].shape for n in gemm.inputs[1:]] == [(4, 8)]
    assert conv.op.attributes["pads"] == (1, 1, 1, 1)


def test_parts_run_one_after_another(tmp_path: Path) -> None:
    loaded = load_model(save(model(NET, weights=VARIANCE), tmp_path), {"x": (2, 3, 8, 8)})
    feeds = random_inputs(loaded)
    expected = session(loaded.proto.SerializeToString()).run(None, feeds)
    middle = loaded.graph.nodes[1].outputs[0]
    first, second = extract(loaded, ["x"], [middle]), extract(loaded, [middle], ["y"])
    onnx.checker.check_model(first, full_check=True)
    assert [i.name for i in second.graph.input] == [middle]
    between = session(first.SerializeToString()).run(None, feeds)
    assert largest_error(expected, session(second.SerializeToString()).run(None, {middle: between[0]})) < 1e-6


def test_same_bytes_in_two_processes(tmp_path: Path) -> None:
    path = save(model(NET, weights=VARIANCE), tmp_path)
    code = (
        "import sys, hashlib; from toolchain.frontend import load_model; m = load_model(sys.argv[1], {'x': (1, 3, 8, 8)}); "
        "print(hashlib.sha256(m.proto.SerializeToString(deterministic=True)).hexdigest())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code, str(path)], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


def test_importing_the_package_is_light() -> None:
    code = "import sys, toolchain.frontend; print('onnx' in sys.modules, 'onnxruntime' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert run.stdout.strip() == "False False"


def test_stored_constants_become_real_numbers(tmp_path: Path) -> None:
    """The scale of a stored constant is the user's: it stands beside what folding makes."""
    graph = "(float[1,3] x) => (float[1,4] y) { b = DequantizeLinear(q, s, z) y = MatMul(x, b) }"
    proto = model(graph)
    for name, value in (("q", np.ones((3, 4), np.int8)), ("s", np.float32(0.5)), ("z", np.int8(0))):
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    loaded = check_same(save(proto, tmp_path), allow_noise=True)  # onnxruntime rounds the activations of such a product
    assert [n.op.op_type for n in loaded.graph.nodes] == ["Gemm"]
    how = loaded.stored[loaded.graph.nodes[0].sources[0]]
    assert how.scales.tolist() == [0.5] and how.least.tolist() == [0] * 4 and how.peaks.tolist() == [1] * 4


def test_a_part_is_given_one_of_what_a_node_makes(tmp_path: Path) -> None:
    """The node is in it for what else it makes."""
    text = """(float[2,8] x) => (float[2,8] y) {
        q, s, z = DynamicQuantizeLinear(x) f = DequantizeLinear(q, s, z) g = Mul(f, s) y = Relu(g) }"""
    loaded = load_model(save(model(text), tmp_path))
    part = session(extract(loaded, ["x", "s"], ["y"]).SerializeToString())
    x, s = np.ones((2, 8), np.float32), np.array(0.5, np.float32)
    (y,) = part.run(None, {"x": x, "s": s})
    assert np.array_equal(np.asarray(y), np.full((2, 8), 255 * 0.5 * 0.5, np.float32))


def test_an_array_is_written_as_a_tensor() -> None:
    node = Node("n", OnnxOp("ConstantOfShape", {"value": np.array([2.5], np.float32)}), ("shape",), ("y",))
    (attribute,) = node_to_proto(node).attribute
    assert numpy_helper.to_array(attribute.t).tolist() == [2.5]
