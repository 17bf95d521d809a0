"""Models and options that are refused, with the exact text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import external_data_helper, helper, numpy_helper
from onnx_text import model, save

from scripts.onnx_builder import build_model
from toolchain.errors import CompileError
from toolchain.frontend import extract, load_model
from toolchain.frontend.convert import NO_STRINGS

RELU = "(float[N,3,H,W] x) => (float[N,3,H,W] y) { y = Relu(x) }"
NO_SHAPES: Mapping[str, tuple[int, ...]] = {}


def refusal(path: Path, shapes: Mapping[str, tuple[int, ...]] = NO_SHAPES) -> str:
    """The message, the folder of the test left out."""
    with pytest.raises(CompileError) as fault:
        load_model(path, shapes)
    return str(fault.value).replace(f"{path.parent}/", "").replace(str(path.parent.resolve()), "FOLDER")


DAMAGED = "is not an ONNX model, or is damaged or cut short\n  help: export or copy the file again"


def test_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.onnx") == "no.onnx: no such file or directory"


def test_directory(tmp_path: Path) -> None:
    folder = tmp_path / "m.onnx"
    folder.mkdir()
    assert refusal(folder) == "m.onnx: is a directory, not an ONNX file"


@pytest.mark.parametrize("content", [b"hello, I am no model at all\n", b"\x00" * 64, bytes(range(256))])
def test_garbage(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert refusal(path) == f"m.onnx: {DAMAGED}"


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")
    assert refusal(path) == "m.onnx: the file is empty"


def test_cut_short(tmp_path: Path) -> None:
    path = save(model("(float[1,3] x, float[3,400] w) => (float[1,400] y) { y = MatMul(x, w) }"), tmp_path)
    path.write_bytes(path.read_bytes()[:2000])
    assert refusal(path) == f"model.onnx: {DAMAGED}"


def test_empty_graph(tmp_path: Path) -> None:
    assert refusal(save(model("(float[1] x) => (float[1] x) { }"), tmp_path)) == "model.onnx: the graph has no nodes"


def test_no_outputs(tmp_path: Path) -> None:
    proto = model("(float[1] x) => (float[1] y) { y = Relu(x) }")
    del proto.graph.output[:]
    assert refusal(save(proto, tmp_path)) == "model.onnx: the graph has no outputs"


@pytest.mark.parametrize(
    ("opset", "reason"),
    [
        (
            6,
            "opset 6 is older than 7, the oldest that is read\n"
            "  help: export with opset 21, or convert with onnx.version_converter",
        ),
    ],
)
def test_old_opset(tmp_path: Path, opset: int, reason: str) -> None:
    path = save(model("(float[1] x) => (float[1] y) { y = Relu(x) }", opset), tmp_path)
    assert refusal(path) == f"model.onnx: {reason}"


def test_new_opset(tmp_path: Path) -> None:
    from toolchain.frontend.read_onnx import newest_opset

    path = save(model("(float[1] x) => (float[1] y) { y = Relu(x) }", 99), tmp_path)
    newest = newest_opset()
    assert newest >= 21
    assert refusal(path) == (
        f"model.onnx: opset 99 is newer than {newest}, the newest that the installed onnx and onnxruntime read\n"
        f"  help: export with opset {newest} or older, or upgrade both"
    )


def test_unknown_operator(tmp_path: Path) -> None:
    path = save(model("(float[1] x) => (float[1] y) { y = Frobnicate(x) }"), tmp_path)
    assert refusal(path) == "node Frobnicate_0 (Frobnicate): is not an ONNX operator"


def test_all_operators_that_are_none_are_told_at_once(tmp_path: Path) -> None:
    proto = model("(float[1] x) => (float[1] y) { a = Frobnicate(x) b = Gelu(a) c = Relu(b) d = Relu(c) y = Relu(d) }", 13)
    for node in proto.graph.node[2:4]:
        node.domain = "com.microsoft"
    proto.graph.node[4].attribute.append(helper.make_attribute("body", model("(float[1] x) => (float[1] y) { y = No(x) }").graph))
    assert refusal(save(proto, tmp_path)).split("\n") == [
        "node Frobnicate_0 (Frobnicate): is not an ONNX operator",
        "node Gelu_1 (Gelu): is not an operator of opset 13, which the model declares",
        'node Relu_2 (Relu): is no operator of "com.microsoft" that is read',
        'node Relu_3 (Relu): is no operator of "com.microsoft" that is read',
        "node No_0 (No): is not an ONNX operator",
        "  help: export the model with standard operators only (no runtime's optimisations, no custom operators)",
    ]


def test_operator_of_a_newer_opset(tmp_path: Path) -> None:
    path = save(model("(float[1] x) => (float[1] y) { y = Gelu(x) }", 13), tmp_path)
    assert refusal(path) == "node Gelu_0 (Gelu): is not an operator of opset 13, which the model declares"


def test_an_lstm_of_each_runs_ranges(tmp_path: Path) -> None:
    proto = model("(float[1] x) => (float[1] y) { y = Relu(x) }")
    (node,) = proto.graph.node
    node.domain, node.op_type, node.name = "com.microsoft", "DynamicQuantizeLSTM", "cell"
    assert refusal(save(proto, tmp_path)) == (
        "node cell (DynamicQuantizeLSTM): is onnxruntime's LSTM on codes whose ranges each run finds\n"
        '  help: quantize without it (op_types_to_quantize of quantize_dynamic without "LSTM"): in float it is quantized here'
    )


def test_unknown_domain(tmp_path: Path) -> None:
    proto = model("(float[1] x) => (float[1] y) { y = Relu(x) }")
    proto.graph.node[0].domain = "com.microsoft"
    proto.graph.node[0].name = "fused"
    assert refusal(save(proto, tmp_path)) == (
        'node fused (Relu): is no operator of "com.microsoft" that is read\n'
        "  help: export the model with standard operators only (no runtime's optimisations, no custom operators)"
    )


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        (
            {},
            'input "x": dimension 2 ("H") is dynamic: [N, 3, H, W]\n'
            "  help: bind it: --shape x=1,3,H,W, with a number in place of H and W",
        ),
        ({"z": (1, 3, 8, 8)}, '--shape z=1,3,8,8: the model has no input "z"\n  help: its inputs are x'),
        ({"x": (1, 3, 8)}, "--shape x=1,3,8: has rank 3, the input has rank 4: [N, 3, H, W]"),
        ({"x": (1, 4, 8, 8)}, "--shape x=1,4,8,8: dimension 1 is 3 in the model, it cannot become 4: [N, 3, H, W]"),
        ({"x": (1, 3, 0, 8)}, "--shape x=1,3,0,8: every dimension must be 1 or more"),
        ({"x": (1, 3, -1, 8)}, "--shape x=1,3,-1,8: every dimension must be 1 or more"),
    ],
)
def test_shapes(tmp_path: Path, shapes: Mapping[str, tuple[int, ...]], reason: str) -> None:
    assert refusal(save(model(RELU), tmp_path), shapes) == reason


def test_one_name_two_sizes(tmp_path: Path) -> None:
    path = save(model("(float[N,M] x, float[N,M] z) => (float[N,M] y) { y = Add(x, z) }"), tmp_path)
    reason = '--shape z=2,4: dimension "M" is 3 elsewhere and 4 here'
    assert refusal(path, {"x": (2, 3), "z": (2, 4)}) == reason


def test_input_without_shape(tmp_path: Path) -> None:
    proto = model(RELU)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    reason = 'input "x": the model gives it no shape\n  help: bind it: --shape x=1,3,224,224'
    assert refusal(save(proto, tmp_path)) == reason


def external(tmp_path: Path) -> Path:
    proto = model("(float[1,64] x, float[64,64] w) => (float[1,64] y) { y = MatMul(x, w) }")
    external_data_helper.convert_model_to_external_data(proto, location="weights.bin", size_threshold=0)
    onnx.save(proto, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_weights_that_were_left_out(tmp_path: Path) -> None:
    for path in sorted((Path(__file__).parents[2] / "examples" / "networks").glob("d*.graph.onnx")):
        thing, way_out = refusal(path).split("\n")
        assert thing.startswith("weight ") and thing.endswith(": has a shape and no values")
        assert "python fill_weights.py DEST beside them" in way_out
    proto = onnx.load(external(tmp_path))
    proto.graph.initializer[0].ClearField("raw_data")
    onnx.save(proto, tmp_path / "empty.onnx")
    assert refusal(tmp_path / "empty.onnx").startswith(
        "weight w: has a shape and no values\n  help: export the model with its weights; "
    )


def test_missing_external_data(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    assert refusal(path) == (
        'weight w: its external data file "weights.bin" is missing in FOLDER\n'
        "  help: copy it beside the model, or export with the weights inside"
    )


def test_short_external_data(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"\0" * 100)
    message = refusal(path)
    assert message.startswith('weight w: external data "weights.bin"'), message


def test_external_data_outside_the_folder(tmp_path: Path) -> None:
    proto = onnx.load(external(tmp_path), load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = "../weights.bin"
    path = save(proto, tmp_path)
    assert refusal(path) == 'weight w: its external data "../weights.bin" is outside the folder of the model'


def make_sparse(name: str) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.ones(2, np.float32), name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([0, 3]), "places"), [2, 2])


@pytest.mark.parametrize("in_branch", [False, True])
def test_a_sparse_initializer(in_branch: bool, tmp_path: Path) -> None:
    nodes = (
        "y = If (c) <then_branch = t () => (float[2,2] a) { a = MatMul(x, w) },"
        " else_branch = e () => (float[2,2] b) { b = Neg(x) }>"
        if in_branch
        else "y = MatMul(x, w)"
    )
    proto = model(f"(float[2,2] x, bool[1] c) => (float[2,2] y) {{ {nodes} }}", 17, {"c": True})
    graph = proto.graph.node[0].attribute[0].g if in_branch else proto.graph
    graph.sparse_initializer.append(make_sparse("w"))
    assert refusal(save(proto, tmp_path)) == "weight w: sparse initializers are not supported\n  help: export dense weights"


def test_a_sparse_constant(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["w"], "c", sparse_value=make_sparse(""))
    nodes = [constant, helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = save(build_model(nodes, {"x": [2, 2]}, {"y": [2, 2]}), tmp_path)
    assert refusal(path) == "node c: attribute sparse_value is a sparse tensor\n  help: export dense weights"


@pytest.mark.parametrize(("value", "kind"), [(np.nan, "NaN"), (np.inf, "Inf"), (-np.inf, "Inf")])
def test_weights_not_finite(tmp_path: Path, value: float, kind: str) -> None:
    weights = np.ones((3, 4), np.float32)
    weights[1, 2] = value
    path = save(model("(float[1,3] x, float[3,4] w) => (float[1,4] y) { y = MatMul(x, w) }", weights={"w": weights}), tmp_path)
    assert refusal(path) == f"weight w: holds {kind} in 1 of its 12 values\n  help: train or export the model again"


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (
            "a = Div(zeros, zeros) y = Add(x, a)",
            'node Div_0 (Div): makes NaN of constants ("zeros"); node Add_1 (Add) reads "a" with NaN in 3 of 3 values',
        ),
        (
            "a = Log(ones) b = Sub(a, ones) c = Sqrt(b) d = Neg(c) y = Max(x, d)",
            'node Sqrt_2 (Sqrt): makes NaN of constants ("b"); node Max_4 (Max) reads "d" with NaN in 3 of 3 values',
        ),
        (
            "q = QuantizeLinear(zeros, one) a = DequantizeLinear(q, one) b = Div(a, zeros) y = Mul(x, b)",
            'node Div_2 (Div): makes NaN of constants ("a", "zeros"); node Mul_3 (Mul) reads "b" with NaN in 3 of 3 values',
        ),
        (
            "a = If(yes) <then_branch = g () => (float[3] t) { t = Div(zeros, zeros) }, "
            "else_branch = g () => (float[3] e) { e = Identity(zeros) }> y = Add(x, a)",
            'node If_0 (If): makes NaN of constants ("yes"); node Add_1 (Add) reads "a" with NaN in 3 of 3 values',
        ),
    ],
)
def test_nan_that_folding_makes_is_refused_where_it_is_made(nodes: str, reason: str, tmp_path: Path) -> None:
    weights = {"zeros": np.zeros(3, np.float32), "ones": np.ones(3, np.float32), "one": np.float32(1), "yes": np.bool_(True)}
    graph = f"(float[3] x, float[3] zeros, float[3] ones, float one, bool yes) => (float[3] y) {{ {nodes} }}"
    way_out = "help: change these constants, or train or export the model again"
    assert refusal(save(model(graph, weights=weights), tmp_path)) == f"{reason}\n  {way_out}"


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Div(zeros, zeros) y = Relu(x)",
        "a = Div(zeros, zeros) b = IsNaN(a) c = Where(b, zeros, a) y = Add(x, c)",
        "a = Log(zeros) y = Add(x, a)",
    ],
)
def test_nan_that_nothing_reads_and_infinity_pass(nodes: str, tmp_path: Path) -> None:
    graph = f"(float[3] x, float[3] zeros) => (float[3] y) {{ {nodes} }}"
    load_model(save(model(graph, weights={"zeros": np.zeros(3, np.float32)}), tmp_path))


def test_unused_weights_may_be_anything(tmp_path: Path) -> None:
    proto = model("(float[1] x, float[1] w) => (float[1] y) { y = Relu(x) }", weights={"w": np.nan})
    assert not load_model(save(proto, tmp_path)).graph.constants


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (
            "(float[2,3] x, int64[2,3] z) => (float[2,3] y) { y = Add(x, z) }",
            'node Add_0 (Add): input 1 "z" is tensor(int64), the inputs before it are tensor(float)',
        ),
        (
            "(int64[2,3] x) => (int64[2,3] y) { y = Sigmoid(x) }",
            'node Sigmoid_0 (Sigmoid): input 0 "x" is tensor(int64), which Sigmoid does not take',
        ),
        (
            "(float[2,3] x, float[4,5] z) => (float[2,5] y) { y = MatMul(x, z) }",
            "node MatMul_0 (MatMul): its inputs do not fit it: Incompatible dimensions for matrix multiplication",
        ),
        (
            "(float[2,3] x) => (int64[2,3] y) { y = Relu(x) }",
            'output "y": is declared int64, but the nodes make it float32',
        ),
        ("(float[2,3] x) => (float[2,3] y) { y = Add(x) }", "node Add_0 (Add): has 1 inputs, 2 to 2 are allowed"),
        ('(float[2,3] x) => (float[2,3] y) { y = Transpose("") }', "node Transpose_0 (Transpose): lacks its input 0 (data)"),
        ("(bool c) => (float[2,3] y) { y = If(c) }", 'node If_0 (If): lacks its attribute "else_branch"'),
        (
            "(float[2,3] x) => (float y) <int64 i = {1}> { y = GatherND(x, i) }",
            'node GatherND_0 (GatherND): its indices "i" are a scalar; at least one dimension is needed',
        ),
        (
            "(float[2,3] x) => (float[2,3] y) { y = Hardmax<axis = 9>(x) }",
            "node Hardmax_0 (Hardmax): axis 9 is outside rank 2: -2 to 1",
        ),
        (
            "(float[2,3] x) => (float[2,3] y) { y = ReduceMax<noop_with_empty_axes = 4>(x) }",
            "node ReduceMax_0 (ReduceMax): noop_with_empty_axes=4: must be 0 or 1; the specification and onnxruntime do not "
            "agree what that is",
        ),
        ("(float[2,3] x) => (float[2,3] y) { y = Relu<alpha = 1.0>(x) }", 'node Relu_0 (Relu): has no attribute "alpha"'),
        ("(float[2,3] x) => (float[2,3] y) { y = Concat(x, x) }", 'node Concat_0 (Concat): lacks its attribute "axis"'),
        ("(float[2,3] x) => (float[2,3] y) { z = Relu(x) }", 'output "y": no node makes it'),
        ("(float[2,3] x) => (float[2,3] y) { y = Add(x, q) }", 'node Add_0 (Add): its input "q" is defined nowhere'),
        (
            "(float[2,3] x) => (float[2,3] y) { y = Relu(x) y = Tanh(x) }",
            'node Tanh_1 (Tanh): its output "y" is defined twice',
        ),
        (
            "(float[2,3] x) => (float[2,3] y) { a = Add(x, c) b = Relu(a) c = Tanh(b) y = Relu(c) }",
            "the graph: has a cycle: Add_0 <- Tanh_2 <- Relu_1 <- Add_0",
        ),
        (
            "(float[2,3] x) => (int64[2,N] y) { y = NonZero(x) }",
            'node NonZero_0 (NonZero): the shape [2, ?] of its output "y" depends on values\n'
            "  help: end the model before this node and do the rest outside",
        ),
        (
            "(float[2,3] x) => (float[2,3] z, bool[2,3] y) { z, y = Dropout(x) }",
            "node Dropout_0 (Dropout): its mask is used\n  help: export the model for inference (eval mode)",
        ),
        ("(string[2] x) => (string[2] y) { y = Identity(x) }", f'input "x": {NO_STRINGS}'),
        (
            "(float[2] x) => (string[2] y) { y = Cast<to = 8>(x) }",
            f'node Cast_0 (Cast): output "y": {NO_STRINGS}\n  help: end the model before this node and do the rest outside',
        ),
        (
            '(float[2] x) => (float[2] z) { s = Constant<value_strings = ["a", "b"]>() e = Equal(s, s) z = Cast<to = 1>(e) }',
            f"node Constant_0 (Constant): {NO_STRINGS}",
        ),
        (
            "(bfloat16[2] x) => (float[2] y) { y = Cast<to = 1>(x) }",
            'input "x": is bfloat16, of which onnxruntime takes and gives no arrays; put a Cast into the model',
        ),
        (
            "(float[2] x) => (uint4[2] y) { y = Cast<to = 21>(x) }",
            'output "y": is uint4, of which onnxruntime takes and gives no arrays; put a Cast into the model',
        ),
        ("(seq(float[2]) x) => (seq(float[2]) y) { y = Identity(x) }", 'input "x": is a sequence; only tensors can be inputs'),
        ("(map(int64, float[2]) x) => (float[2] y) { y = Identity(x) }", 'input "x": is a map; only tensors can be inputs'),
        (
            "(float[2,3] x) => (float[2,3] y) { s = SequenceConstruct(x) y = ConcatFromSequence<axis = 0>(s) }",
            'node SequenceConstruct_0 (SequenceConstruct): its output "s" is a sequence; only tensors are supported\n'
            "  help: end the model before this node and do the rest outside",
        ),
        (
            "(bool c, float[2] x) => (float[n] y) { y = If(c) "
            "<then_branch = t () => (float[2] a) { a = Relu(x) }, "
            "else_branch = e () => (float[4] b) { b = Concat<axis = 0>(x, x) }> }",
            'node If_0 (If): whether "y" is float32[2] or float32[4] depends on "c", known only when it runs\n'
            "  help: export the model for one case, with the condition fixed; --value NAME=V fixes an input",
        ),
        (
            "(float[1,2,4] x, float[2] w1, float[2] w2, float[2] w3, float[2] w4) => (float[1,2,4] y) "
            "{ y, m, v = BatchNormalization<training_mode = 1>(x, w1, w2, w3, w4) }",
            "node BatchNormalization_0 (BatchNormalization): is in training mode\n"
            "  help: export the model for inference (eval mode)",
        ),
    ],
)
def test_graphs(tmp_path: Path, graph: str, reason: str) -> None:
    assert refusal(save(model(graph), tmp_path)) == reason


def test_scale_of_every_place(tmp_path: Path) -> None:
    graph = (
        "(float[1,2,4] x, float[2,4] w1, float[2,4] w2, float[2,4] w3, float[2,4] w4) => (float[1,2,4] y) "
        "{ y = BatchNormalization<spatial = 0>(x, w1, w2, w3, w4) }"
    )
    assert refusal(save(model(graph, 7), tmp_path)) == (
        "node BatchNormalization_0 (BatchNormalization): "
        "has spatial = 0: a scale and bias for every place, not for every channel\n"
        "  help: export with opset 9 or newer"
    )


def test_negative_variance(tmp_path: Path) -> None:
    graph = (
        "(float[1,2,4] x, float[2] w1, float[2] w2, float[2] w3, float[2] w4) => (float[1,2,4] y) "
        "{ y = BatchNormalization(x, w1, w2, w3, w4) }"
    )
    reason = (
        'node BatchNormalization_0 (BatchNormalization): its variance "w4" is negative\n  help: train or export the model again'
    )
    assert refusal(save(model(graph, weights={"w4": [1, -1]}), tmp_path)) == reason


def test_absurd_size(tmp_path: Path) -> None:
    path = save(model("(float[1,1] x) => (float[a,b] y) { s = int64[2] {100000,100000} y = Expand(x, s) }"), tmp_path)
    assert refusal(path) == (
        'node Expand_0 (Expand): its output "y" would have the shape [100000, 100000]; 268,435,456 elements are the most'
    )


def test_names_that_are_not_text(tmp_path: Path) -> None:
    path = save(model("(float[1] x) => (float[1] longname) { longname = Relu(x) }"), tmp_path)
    path.write_bytes(path.read_bytes().replace(b"longname", b"\xfflngname"))
    assert refusal(path) == f"model.onnx: {DAMAGED}"


def test_attribute_without_value(tmp_path: Path) -> None:
    proto = model("(float[2] x) => (float[2] y) { y = LeakyRelu<alpha = 0.1>(x) }")
    proto.graph.node[0].attribute[0].ClearField("type")
    reason = 'node LeakyRelu_0 (LeakyRelu): its attribute "alpha" is UNDEFINED, LeakyRelu takes FLOAT'
    assert refusal(save(proto, tmp_path)) == reason


def test_extract_needs_its_inputs(tmp_path: Path) -> None:
    loaded = load_model(save(model("(float[2] x, float[2] z) => (float[2] y) { a = Relu(x) y = Add(a, z) }"), tmp_path))
    with pytest.raises(CompileError, match=r'^cannot cut the model at a: "z" is needed too$'):
        extract(loaded, ["a"], ["y"])
    with pytest.raises(CompileError, match=r'^the model has no tensor "b"$'):
        extract(loaded, ["b"], ["y"])
