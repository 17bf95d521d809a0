"""Graphs as text: every stage reads back as the same graph, a pass runs from text, and edits that make no sense are refused."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.commands import run
from tests.support.example_networks import FOLDER, fill_network
from toolchain.api import BuildOptions, Session, build
from toolchain.cli.dumps import array_file
from toolchain.errors import CompileError, ConfigError
from toolchain.export.onnx_view import onnx_view
from toolchain.ir.graph import Graph, Node, OnnxOp, Operator, TensorType
from toolchain.ir.parse_text import StageGraph, classes_of, parse_graph
from toolchain.ir.text import Arrays, GraphDump, print_graph
from toolchain.passes.merge_transposes import merge_transposes
from toolchain.passes.pass_options import PassOptions
from toolchain.passes.stage_file import STARTS, blame_start, read_stage

CLASSES = classes_of(Operator)
STEPS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4,6,6] x, float[1,4,6,6] "other input") => (float[1,24,6] y)
<float[4,4,3,3] w = {WEIGHTS}, int64[3] shape = {1, 24, 6}> {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    s = Sigmoid(c)
    d = Mul(c, s)
    e = Add(d, "other input")
    r = Reshape(e, shape)
    n = CumSum(r, one)
    y = Softmax(n)
}
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution, a table, a sum, a softmax, and a node of the host between them."""
    weights = np.random.default_rng(3).standard_normal(144).round(3)
    text = STEPS.replace("WEIGHTS", ", ".join(map(str, weights))).replace('"other input"', "other")
    model = onnx.parser.parse_model(text.replace("int64[3] shape", "int64 one = {1}, int64[3] shape"))
    path = tmp_path_factory.mktemp("stages") / "n.onnx"
    onnx.save(model, path)
    return path


def stages_of(model: Path, machine: str) -> dict[str, GraphDump]:
    dumps: dict[str, GraphDump] = {}
    build(
        model,
        BuildOptions(machine, repair="none"),
        lambda s, text: dumps.update({s: text} if isinstance(text, GraphDump) else {}),
    )
    return dumps


def read_back(dump: GraphDump) -> StageGraph:
    arrays: Arrays = {}
    return parse_graph(dump.print_text(arrays), "g", CLASSES, arrays)


@pytest.mark.parametrize("machine", ["edge16", "transformer64", "wide32_w4a16"])
def test_every_stage_reads_back_as_the_same_graph(network: Path, machine: str) -> None:
    stages = stages_of(network, machine)
    assert [name for name in stages if name in STARTS] == list(STARTS)
    for dump in stages.values():
        require_same(read_back(dump).graph, dump.graph)


def require_same(read: Graph, graph: Graph) -> None:
    """The texts are equal, with all arrays by their content, and every part has its class."""
    arrays: tuple[Arrays, Arrays] = {}, {}
    assert print_graph(read, "", arrays[0]) == print_graph(graph, "", arrays[1])
    assert arrays[0].keys() == arrays[1].keys()
    for one, other in zip(read.nodes, graph.nodes, strict=True):
        assert (type(one.op), one.inputs, one.sources) == (type(other.op), other.inputs, other.sources)
    assert read.types == graph.types and read.origins == dict(graph.origins) and read.states == graph.states


@pytest.mark.parametrize("domain", ["com.microsoft", "my:ops", "a+b.c", "has space", ""])
def test_operators_of_any_domain_and_attributes_of_any_kind_read_back(domain: str) -> None:
    values = (3, 2.5, 'a "quoted" text, with <brackets>', (1, 2), (0.5,), ("x y", "<z>"), np.arange(4), np.arange(20.0))
    attributes = {f"a{i}": value for i, value in enumerate(values)}
    kind = TensorType((2,), "float32")
    node = Node("n", OnnxOp("Op", attributes, domain), ("x",), ("y",), ())
    graph = Graph(name="g", inputs=("x",), outputs=("y",), nodes=(node,), types={"x": kind, "y": kind}, constants={})
    arrays: Arrays = {}
    read = parse_graph(print_graph(graph, "compose", arrays), "g", CLASSES, arrays).graph
    require_same(read, graph)
    (op,) = (one.op for one in read.nodes)
    assert (op.domain, op.op_type) == (domain, "Op")
    for name, value in attributes.items():
        assert np.array_equal(op.attributes[name], value) and type(op.attributes[name]) is type(value)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [p.name.removesuffix(".graph.onnx") for p in sorted(FOLDER.glob("*.graph.onnx"))])
def test_stages_of_example_networks_read_back(name: str, tmp_path: Path) -> None:
    onnx.save(fill_network(name), tmp_path / "n.onnx")
    for dump in stages_of(tmp_path / "n.onnx", "transformer64" if "bert" in name else "edge16").values():
        require_same(read_back(dump).graph, dump.graph)


@pytest.mark.parametrize("stage", STARTS)
def test_a_build_from_a_stage_gives_the_same_bytes(network: Path, stage: str) -> None:
    usual = build(network, BuildOptions("edge16", repair="none"))
    started = build(network, BuildOptions("edge16", passes=PassOptions(start=read_back(stages_of(network, "edge16")[stage]))))
    assert started.data == usual.data


def test_an_edited_graph_is_what_is_built(network: Path) -> None:
    """The last convolution's clamp is lowered to code 5: no larger code comes out of it."""
    arrays: Arrays = {}
    text = stages_of(network, "edge16")["fuse"].print_text(arrays)
    edited = text.replace("high=127", "high=5")
    assert edited != text
    outputs: list[np.ndarray] = []
    for one in (text, edited):
        built = build(network, BuildOptions("edge16", passes=PassOptions(start=parse_graph(one, "g", CLASSES, arrays))))
        feeds = {name: np.random.default_rng(1).standard_normal((1, 4, 6, 6)).astype(np.float32) for name in ("x", "other")}
        outputs.append(Session(built).run(None, feeds)[0])
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3


def test_a_pass_runs_from_text() -> None:
    """A Transpose that moves a dimension of size 1 alone becomes a Reshape."""
    text = """
graph g (x) -> (y)
  tensor x: int8[1, 2, 3]
  a: int8[1, 3, 2] = Transpose<perm=(0, 2, 1)>(x)  node first from first
  y: int8[3, 1, 2] = Transpose<perm=(1, 0, 2)>(a)  node second from second
  origin x: x inner
  origin a: a inner
  origin y: y inner
"""
    graph = merge_transposes(parse_graph(text, "g", CLASSES, {}).graph)
    assert [line.strip() for line in print_graph(graph).splitlines()[3:4]] == [
        "y: int8[3, 1, 2] = Reshape<shape=(3, 1, 2)>(a)  node second from second"
    ]


FAULTS = [
    ("graph g", "grap g", r"g: does not begin with 'graph'"),
    (
        "= onnx.Relu<>",
        "= Relu<>",
        r"g, line 3: Relu is no operator of the chip; of ONNX's the domain stands in front",
    ),
    ("-> (y)", "-> (y", r"g, line 1: ends early; , is expected"),
    ("float32[1, 2]\n", "float32[1, two]\n", r"g, line 2: two is no whole number"),
    ("node r", "nod r", r"g, line 3: nod stands where node is expected"),
    ("(x)  node", "(x)  node r from r r", r"g, line 3: r stands where , is expected"),
    ("-> (y)", "-> (y) z", r"g, line 1: z stands behind the end of its statement"),
    ("float32[1, 2]\n", "float32[1, 2] 3\n", r"g, line 2: 3 stands behind the end of its statement"),
    ("@KEY", "@0123456789abcdef", r"line 4: array @0123456789abcdef is not in the \.npz file beside the text"),
    ("  constant", "  %constant", r"g, line 4: '%constant c: float32' is not understood"),
    ("  y:", r'  "\q":', r'g, line 3: "\\q" is no text in quotes as JSON has it'),
    ("onnx.Relu<>(x)", "Reshape<shape=(1) (2)>(x)", r"g, line 3: Reshape: has 2 values for 1 fields"),
    (
        "float32[1, 2]\n",
        "int8[1, 2] {scale -0.5, zero point 3}\n",
        r"g, line 2: scale -0.5 is not a finite number above 0",
    ),
    ("float32[1, 2]\n", "int8[1, 2] {scale nan, zero point 3}\n", r"g, line 2: scale nan is not a finite number above 0"),
    ("  y:", "  x:", r"g, line 3: tensor x is defined a second time"),
    ("  y:", "graph h (x) -> (y)\n  y:", r"g, line 3: a second graph begins; keep the one to start from"),
]


# Of each stage: what is edited, into what, and what is said of it.
DAMAGES = [
    ("fuse", "strides=(1, 1), pads=(1", "strides=(0, 1), pads=(1", "strides (0, 1): must be whole numbers of 1 or more"),
    ("fuse", "strides=(1, 1), pads=(1", "strides=(2, 1), pads=(1", "a kernel of (3, 3) gives 3 rows, the output has 6"),
    ("fuse", "strides=(1, 1), pads=(1", "strides=(1), pads=(1", "strides (1): must be 2 values in brackets, each a whole number"),
    ("fuse", "pads=(1, 1, 1, 1)", "pads=(-1, 1, 1, 1)", "pads (-1, 1, 1, 1): must be whole numbers of 0 or more"),
    ("fuse", "dilations=(1, 1), groups=1", "dilations=(1, 1), groups=3", "groups 3: must divide the 4 channels of x@nhwc"),
    ("fuse", "kernel=(1, 6)", "kernel=(1, -6)", "Geometry: kernel (1, -6): must be whole numbers of 1 or more"),
    ("fuse", "zero point 26}", "zero point 230}", "zero point 230 is no code of int8, which has -128 to 127"),
    ("fuse", "a_zero_point=-1", "a_zero_point=-9991", "is no code of int8"),
    ("fuse", "function=exp", "function=tahn", "Lookup: function tahn: must be None or one of abs, acos"),
    ("fuse", "perm=(0, 3, 1, 2)", "perm=(0, 3, 1, 5)", "Transpose: perm (0, 3, 1, 5): must hold each of 0 to 3 once"),
    (
        "fuse",
        "perm=(0, 3, 1, 2)",
        "perm=(0, 1, 2, 3)",
        "gives int8[1, 6, 6, 4] of int8[1, 6, 6, 4], the output is int8",
    ),
    ("fuse", "shape=(1, 24, 6)", "shape=(1, 24, 7)", "shape (1, 24, 7): is not (1, 24, 6), the shape of its output"),
    ("fuse", "kind=sub", "kind=sbu", "IntegerBinary: kind sbu: must be one of add, sub, mul, prelu"),
    ("fuse", "accumulator_bits=32", "accumulator_bits=0", "accumulator_bits=0; must be 2..64"),
    ("fuse", "weight_type=int8", "weight_type=int9", "weight_type int9: must be one of int4, int8"),
    ("fuse", "left_shift=20", "left_shift=99", "left_shift 99: must be at most 31"),
    ("fuse", " e: int8[1, 6, 6, 4]", " e: int7[1, 6, 6, 4]", "int7 is no type of elements"),
    ("fuse", " e: int8[1, 6, 6, 4]", " e: int8[1, 6, -6, 4]", "dimension -6 is below 0"),
    ("fuse", '(n, "y: max")', "(n)", "cannot be computed of int8[1, 24, 6], which do not fit its fields or each other"),
    ("fuse", "zero_point=-128, low=", "zero_point=-810, low=", "zero_point -810: must be -128 to 127, the codes of int8"),
    ("select", "function=(exp", "function=(tahn", "Unary: function tahn: must be one of x, add"),
    ("select", "function=(exp, (x))", "function=3", "Unary: function 3: is a number, not a function of x"),
    ("select", "function=(exp, (x))", "function=(exp, (x), 2)", "Unary: function exp: must have 1 arguments, has 2"),
    ("select", "activation=(None, None)", "activation=(3, 1)", "activation (3, 1): the least value is above the largest"),
    ("select", "kind=add", "kind=dad", "Binary: kind dad: must be one of add"),
    ("compose", "CumSum<axis=1", "CumSum<axis=7", "CumSum: axis 7: must be -3 to 3"),
    ("compose", "strides=(1, 1)", "strides=(0, 0)", "Conv: strides (0, 0): must be whole numbers of 1 or more"),
    ("compose", "group=1", "group=0", "Conv: group 0: must be whole numbers of 1 or more"),
    ("compose", "axes=(2)", "axes=(5)", "ReduceMax: axis 5: must be -3 to 3"),
    ("compose", "onnx.Add", "onnx.Tahn", "onnx.Tahn: is no operator of ONNX"),
]


@pytest.fixture(scope="module")
def edge16_stages(network: Path) -> dict[str, GraphDump]:
    return stages_of(network, "edge16")


@pytest.mark.parametrize(("stage", "old", "new", "message"), DAMAGES)
def test_senseless_fields_are_named_with_their_line(
    edge16_stages: dict[str, GraphDump], tmp_path: Path, stage: str, old: str, new: str, message: str
) -> None:
    arrays: Arrays = {}
    text = edge16_stages[stage].print_text(arrays)
    assert old in text
    (tmp_path / "constants.npz").write_bytes(array_file(arrays))
    (tmp_path / "g.txt").write_text(text)
    assert read_stage(tmp_path / "g.txt").stage == stage
    (tmp_path / "g.txt").write_text(damaged := text.replace(old, new, 1))
    line = next(n for n, (a, b) in enumerate(zip(damaged.splitlines(), text.splitlines()), 1) if a != b)
    with pytest.raises(CompileError, match=re.escape(message)) as refusal:
        read_stage(tmp_path / "g.txt")
    assert str(refusal.value).startswith(f"{tmp_path}/g.txt, line {line}: ")


@pytest.mark.parametrize("stage", ["compose", "fuse"])
def test_an_edited_node_of_the_host_is_refused(network: Path, edge16_stages: dict[str, GraphDump], stage: str) -> None:
    arrays: Arrays = {}
    text = edge16_stages[stage].print_text(arrays)
    start = parse_graph(text.replace("exclusive=0", "exclusive=1"), "g", CLASSES, arrays)
    with pytest.raises(CompileError, match=r"node CumSum_5 runs on the host, where it is onnx\.CumSum<axis=1, exclusive=0"):
        build(network, BuildOptions("edge16", passes=PassOptions(start=start)))


def small_text() -> tuple[str, Arrays]:
    types = {"x": TensorType((1, 2), "float32"), "y": TensorType((1, 2), "float32"), "c": TensorType((3, 3), "float32")}
    constants = {"c": np.arange(9, dtype=np.float32).reshape(3, 3)}
    graph = Graph("g", (Node("r", OnnxOp("Relu"), ("x",), ("y",)),), ("x",), ("y",), types, constants)
    arrays: Arrays = {}
    return print_graph(graph, "", arrays), arrays


@pytest.mark.parametrize(("old", "new", "message"), FAULTS)
def test_what_is_not_understood_is_named(old: str, new: str, message: str) -> None:
    text, arrays = small_text()
    old = old.replace("KEY", next(iter(arrays)))
    assert old in text
    with pytest.raises(CompileError, match=message):
        parse_graph(text.replace(old, new), "g", CLASSES, arrays)


def test_an_array_of_other_content_is_refused() -> None:
    text, arrays = small_text()
    with pytest.raises(CompileError, match="is not the one that the text means"):
        parse_graph(text, "g", CLASSES, {key: value + 1 for key, value in arrays.items()})


def test_names_of_any_kind_read_back() -> None:
    names = ["a b", "node", "graph", "None", '"', "é", "x:y", "->", "1", "", "tensor", "\\", "from", "inf"]
    used = [name for name in names if name]
    types = {name: TensorType((), "float32") for name in used}
    links = pairwise(used)
    nodes = tuple(Node(f"{b} node", OnnxOp("Relu", {"mode": b}), (a, ""), (b,), (a, b)) for a, b in links)
    graph = Graph("a graph", nodes, (used[0],), (used[-1],), types, {})
    assert parse_graph(print_graph(graph), "g", CLASSES, {}).graph.nodes == graph.nodes


def test_a_part_that_occurs_twice_reads_back() -> None:
    part = ((1, 2), (3, "four"))
    graph = Graph("g", (Node("r", OnnxOp("Relu", {"a": (part, (part, 5))}), ("x",), ("y",)),), ("x",), ("y",), {}, {})
    text = print_graph(graph)
    assert "#1=" in text
    assert parse_graph(text, "g", CLASSES, {}).graph.nodes == graph.nodes


def edits(text: str, count: int) -> Iterator[str]:
    """Texts with a word or mark deleted, doubled or exchanged with another."""
    rng = np.random.default_rng(5)
    words = text.split(" ")
    for _ in range(count):
        place, other = rng.integers(len(words), size=2)
        middle = [words[place]] * int(rng.integers(3)) if rng.random() < 0.6 else [words[other]]
        yield " ".join([*words[:place], *middle, *words[place + 1 :]])


def test_edited_texts_end_in_a_sentence(network: Path) -> None:
    """Whatever is edited: the parser and the build raise CompileError or nothing."""
    arrays: Arrays = {}
    text = stages_of(network, "edge16")["fuse"].print_text(arrays)
    parsed: list[StageGraph] = []
    for edited in edits(text, 300):
        with suppress(CompileError):
            parsed.append(parse_graph(edited, "g", CLASSES, arrays))
    assert 10 < len(parsed) < 290
    for start in parsed[:12]:
        with suppress(CompileError):
            build(network, BuildOptions("edge16", passes=PassOptions(start=start)))


def test_classes_have_one_name_each() -> None:
    def classes(kind: type) -> Iterator[type]:
        yield kind
        for one in kind.__subclasses__():
            yield from classes(one)

    for kind in classes(Operator):
        if kind.__name__ in CLASSES:
            assert CLASSES[kind.__name__] is kind


def test_a_stage_is_shown_as_onnx(network: Path) -> None:
    dump = stages_of(network, "edge16")["fuse"]
    model = onnx_view(dump.graph, dump.stage)
    convolution = next(node for node in model.graph.node if node.op_type == "IntegerConvolution")
    attributes = {one.name: onnx.helper.get_attribute_value(one) for one in convolution.attribute}
    assert convolution.domain == "npu" and attributes["pads"] == [1, 1, 1, 1] and b"multiplier=" in attributes["requant"]
    kind = dump.graph.types[convolution.output[0]]
    assert kind.quant is not None and f"scale {kind.quant.scale!r}".encode() in attributes["output_types"]
    assert len(model.graph.quantization_annotation) == sum(t.quant is not None for t in dump.graph.types.values())
    assert {n.name for n in model.graph.node} == {n.name for n in dump.graph.nodes}


def test_large_integers_are_text_in_onnx() -> None:
    types = {name: TensorType((1,), "int64") for name in ("x", "y")}
    node = Node("n", OnnxOp("Pad", {"value": 1 << 70, "none": None, "flags": (True, 2), "empty": ()}), ("x",), ("y",))
    proto = onnx_view(Graph("g", (node,), ("x",), ("y",), types, {}), "").graph.node[0]
    values = {one.name: onnx.helper.get_attribute_value(one) for one in proto.attribute}
    assert values == {"value": str(1 << 70).encode(), "flags": [1, 2], "empty": b"()", "output_types": b"int64[1]"}


def test_command_line(network: Path, tmp_path: Path) -> None:
    first = run(f"npu-build {network} --hw edge16 --repair none -o {tmp_path}/a.npu --dump-after fuse --dump-dir {tmp_path}")
    assert first.code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["05-fuse.onnx", "05-fuse.txt", "a.npu", "constants.npz"]
    again = f"npu-build {network} --hw edge16 -o {tmp_path}/b.npu --start-from {tmp_path}/05-fuse.txt"
    assert run(again).code == 0
    assert (tmp_path / "a.npu").read_bytes() == (tmp_path / "b.npu").read_bytes()
    refusals = {
        " --repair fast": "start-from: the graph behind fuse is quantized already; leave out --repair fast",
        " --entry a:x=1,4,6,6 --entry b:x=1,4,6,6": "start-from: is the graph of one set of shapes; leave out --entry",
        " --type c=int16": "start-from: the graph behind fuse is quantized already; leave out --type c=int16",
        " --quant q.yaml": "start-from: the graph behind fuse is quantized already; leave out --quant q.yaml",
        "x": "no such file or directory",
    }
    for more, sentence in refusals.items():
        refused = run(again + more)
        assert refused.code == 2 and sentence in refused.err, refused.err
    observer = run(again + " --observer percentile")
    assert observer.code == 2 and "--start-from: the graph behind fuse is quantized already; leave out --observer" in observer.err
    missing = run(f"{again} --calib {tmp_path}/none.npz")
    assert missing.code == 2 and missing.err.startswith(f"{tmp_path}/none.npz: no such file")
    (tmp_path / "edited.txt").write_text("graph g stage fuse (x) -> (y")
    edited = run(again.replace("05-fuse", "edited"))
    assert edited.code == 2 and edited.err.startswith(f"{tmp_path}/edited.txt, line 1: ends early")
    (tmp_path / "constants.npz").unlink()
    refused = run(again)
    assert refused.code == 2 and "is not in the .npz file beside the text" in refused.err


def test_what_repair_added_on_the_host_is_no_part_of_another_build(tmp_path: Path) -> None:
    """Repair scales the rows of a product, and the host undoes it. A build without it has no such node on the host."""
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,8] y)'
    dense = "h = MatMul(x, w) r = Relu(h) p = MatMul(r, v) q = Mul(p, thousand) e = Exp(p) y = Concat<axis=1>(e, q)"
    proto = onnx.parser.parse_model(f"{head} {{ {dense} }}")
    rng = np.random.default_rng(1)
    for name, value in {"w": rng.standard_normal((4, 16)), "v": rng.standard_normal((16, 4)) / 4, "thousand": 1000.0}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value, np.float32), name))
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(2).standard_normal((32, 1, 4)).astype(np.float32))
    first = f"npu-build {tmp_path}/m.onnx --hw edge16 -o {tmp_path}/a.npu --calib {tmp_path}/d.npz --dump-dir {tmp_path}"
    again = f"npu-build {tmp_path}/m.onnx --hw edge16 -o {tmp_path}/b.npu --start-from {tmp_path}/05-fuse.txt"
    assert run(f"{first} --dump-after fuse --repair fast").code == 0
    refused = run(again)
    assert refused.code == 2 and not (tmp_path / "b.npu").exists()
    assert "runs on the host, where the model has no tensor p/rows/without factors; edit the model, or" in refused.err
    assert run(f"{first} --dump-after fuse --repair none").code == 0
    assert run(again).code == 0
    assert run(f"{again} --calib {tmp_path}/d.npz").code == 0
    assert (tmp_path / "a.npu").read_bytes() == (tmp_path / "b.npu").read_bytes()


def test_dumps_overwrite_no_input(network: Path, tmp_path: Path) -> None:
    """The edited text, its arrays, calibration data, and a model that has the name of a view."""
    build_line = f"npu-build {network} --hw edge16 -o {tmp_path}/a.npu --dump-after fuse --dump-dir {tmp_path}"
    assert run(f"{build_line} --repair none").code == 0
    start = tmp_path / "05-fuse.txt"
    start.write_bytes(edited := start.read_bytes() + b"\n")
    (tmp_path / "start.txt").write_bytes(edited)
    lines = {
        f"{build_line} --start-from {start}": f"the dump of fuse {start}: is the same file as --start-from",
        f"{build_line} --start-from {tmp_path}/start.txt": f"{tmp_path}/constants.npz: is the same file as --start-from",
        f"{build_line} --calib {tmp_path}/constants.npz": f"{tmp_path}/constants.npz: is the same file as --calib",
        build_line.replace(str(network), f"{tmp_path}/05-fuse.onnx"): f"{tmp_path}/05-fuse.onnx: is the same file as the model",
    }
    for line, sentence in lines.items():
        refused = run(line)
        assert refused.code == 2 and sentence in refused.err, refused.err
    assert run(f"{build_line.replace('after fuse', 'after schedule')} --start-from {start}").code == 0  # has no arrays
    assert start.read_bytes() == edited


def test_a_lack_of_memory_is_not_the_graphs_fault() -> None:
    start = StageGraph("fuse", Graph("g", (), (), (), {}, {}))
    for fault in (MemoryError(), ConfigError(["mine.yaml: no such key"]), FileNotFoundError(2, "no such file", "x.npz")):
        with pytest.raises(type(fault)), blame_start(start):
            raise fault
    with (
        pytest.raises(CompileError, match="--start-from: the graph behind fuse cannot be compiled as it is edited"),
        blame_start(start),
    ):
        raise KeyError("x")


def test_the_graph_of_another_model_is_refused(network: Path) -> None:
    start = read_back(stages_of(network, "edge16")["select"])
    other = start._replace(graph=replace(start.graph, outputs=("z",)))
    with pytest.raises(CompileError, match="start-from: outputs of the graph are z, those of the model y"):
        build(network, BuildOptions("edge16", passes=PassOptions(start=other)))


def test_a_normal_form_is_no_start(network: Path, tmp_path: Path) -> None:
    arrays: Arrays = {}
    (tmp_path / "n.txt").write_text(stages_of(network, "edge16")["normal"].print_text(arrays))
    (tmp_path / "constants.npz").write_bytes(array_file(arrays))
    with pytest.raises(CompileError, match=r"is the graph of stage normal; a build can begin behind compose, select"):
        read_stage(tmp_path / "n.txt")


def npy_bytes(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("damage", [lambda _: b"junk", lambda data: data[:-30], lambda _: npy_bytes(np.zeros(3))])
def test_damaged_arrays_beside_a_stage_are_dumped_again(network: Path, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    arrays: Arrays = {}
    (tmp_path / "n.txt").write_text(stages_of(network, "edge16")["select"].print_text(arrays))
    (tmp_path / "constants.npz").write_bytes(damage(array_file(arrays)))
    with pytest.raises(CompileError) as refused:
        read_stage(tmp_path / "n.txt")
    way_out = "dump the stage again with npu-build --dump-after, and take the constants.npz of that build"
    assert str(refused.value).startswith(f"{tmp_path}/constants.npz: ") and str(refused.value).endswith(f"; {way_out}")
