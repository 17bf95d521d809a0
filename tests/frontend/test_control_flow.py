"""If, Loop and Scan whose course is known are what they come to, constants of their bodies there once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_text import model, save
from same_outputs import check_same

from scripts.onnx_builder import build_graph, build_model
from toolchain.errors import CompileError
from toolchain.frontend import NormalModel, load_model, unroll_control_flow
from toolchain.frontend.subgraphs import split_invariant

FLOAT, INT, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL


def info(name: str, kind: int, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def ops(loaded: NormalModel) -> list[str]:
    return [node.op.op_type for node in loaded.graph.nodes]


def loop(
    folder: Path,
    last: str = "3",
    state: bool = True,
    count: int | None = 4,
    count_is_input: bool = False,
    body_condition: bool = True,
) -> Path:
    """b = relu(a W) again and again, each b kept; it ends where the iteration's number is `last`."""
    nodes = [
        helper.make_node("Constant", [], ["last"], value_int=int(last)),
        helper.make_node("Less", ["i", "last"], ["d"]) if body_condition else helper.make_node("Identity", ["c"], ["d"]),
        helper.make_node("Transpose", ["weight"], ["turned"]),
        helper.make_node("MatMul", ["a", "turned"], ["product"]),
        helper.make_node("Relu", ["product"], ["b"], name="relu"),
        helper.make_node("Add", ["b", "x"], ["kept"]),
    ]
    weights = {"weight": np.random.default_rng(1).normal(0, 0.6, (6, 6)).astype(np.float32)}
    inputs, outputs = {"i": [], "c": [], "a": [2, 6]}, {"d": [], "b": [2, 6], "kept": [2, 6]}
    body = build_graph(nodes, inputs, outputs, weights, types={"i": INT, "c": BOOL, "d": BOOL})
    node = helper.make_node("Loop", ["n" if count is not None else "", "", "x"], ["y", "all"], name="again", body=body)
    shapes = {"x": [2, 6]} | ({"n": []} if count_is_input else {})
    constants = {} if count_is_input or count is None else {"n": np.asarray(count, np.int64)}
    return save(build_model([node], shapes, {"y": [2, 6], "all": None}, constants, opset=21, types={"n": INT}), folder)


@pytest.mark.parametrize(("count", "last", "times"), [(4, 9, 4), (7, 2, 3), (None, 4, 5), (1, 9, 1)])
def test_a_loop_runs_as_often_as_it_says(tmp_path: Path, count: int | None, last: int, times: int) -> None:
    loaded = check_same(loop(tmp_path, str(last), count=count))
    assert ops(loaded).count("Gemm") == times
    weights = {n.inputs[1] for n in loaded.graph.nodes if n.op.op_type == "Gemm"}
    assert all(name.startswith("again/turned/") for name in weights)  # of the one constant that all iterations read
    assert {s for n in loaded.graph.nodes for s in n.sources} == {"again"}


@pytest.mark.parametrize(
    ("count_is_input", "count", "reason"),
    [
        (True, 4, 'how often it runs depends on "n", known only when it runs'),
        (False, None, "runs more than 12 times; so often at most it is written out"),
        (False, 0, 'never runs, and nothing says what shape its output "all" has'),
    ],
)
def test_a_loop_of_which_it_is_not_known(
    tmp_path: Path, count_is_input: bool, count: int | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unroll_control_flow, "ITERATIONS", 12)
    path = loop(tmp_path, count=count, count_is_input=count_is_input, body_condition=count is not None)
    with pytest.raises(CompileError) as fault:
        load_model(path)
    assert str(fault.value).splitlines()[0] == f"node again (Loop): {reason}"


@pytest.mark.parametrize("count", [None, 10**9])
def test_a_loop_that_only_its_count_ends_is_refused_before_it_is_written_out(
    count: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*_: object) -> list[str]:
        raise AssertionError("written out")

    monkeypatch.setattr(unroll_control_flow._Body, "step", step)
    with pytest.raises(
        CompileError, match=r"^node again \(Loop\): runs more than 4,096 times; so often at most it is written out"
    ):
        load_model(loop(tmp_path, count=count, body_condition=False))


def test_an_input_that_is_a_value_says_how_often(tmp_path: Path) -> None:
    path = loop(tmp_path, "9", count_is_input=True)
    loaded = load_model(path, values={"n": ("2",)})
    assert ops(loaded).count("Gemm") == 2 and loaded.inputs == ("x",)


SCAN = """(float[5,2,3] x, float[2,4,3] z, float[2,3] s, float[1] u)
    => (float[2,3] t, float[1] v, float[2,5,3] y, float[4,1] k) {{
    t, v, y, k = Scan<num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [1, 0], scan_output_axes = [1, 0],
        scan_output_directions = [0, 1], body = b (float[2,3] a, float[1] e, float[2,3] p, float[2,3] q)
        => (float[2,3] c, float[1] f, float[2,3] o, float[1] g) {{ {body} }}>(s, u, x, z)
}}"""


def test_a_scan_of_several_states(tmp_path: Path) -> None:
    sums = "c0 = Tanh(a) c1 = Mul(c0, p) c = Add(c1, q) o = Identity(c) g = Neg(f)"
    largest = "m = ReduceMax<keepdims = 0>(c) m1 = Unsqueeze(m, zero) f = Add(e, m1)"
    body = sums.replace("o =", f"{largest} o =")
    text = SCAN.format(body=f"zero = Constant<value_ints = [0]>() {body}").replace("float[2,4,3] z", "float[2,5,3] z")
    loaded = check_same(save(model(text.replace("float[4,1] k", "float[5,1] k")), tmp_path))
    assert ops(loaded).count("Tanh") == 5


def test_a_scan_of_inputs_of_unlike_length(tmp_path: Path) -> None:
    body = "c0 = Tanh(a) c1 = Mul(c0, p) c = Add(c1, q) f = Neg(e) o = Identity(c) g = Neg(f)"
    with pytest.raises(CompileError, match="its inputs have 4 and 5 steps"):
        load_model(save(model(SCAN.format(body=body)), tmp_path))


def test_branches_may_call_their_tensors_alike(tmp_path: Path) -> None:
    each = "<then_branch = t () => (float[2] o) { m = Relu(x) o = Neg(m) }, else_branch = e () => (float[2] o) { o = Abs(x) }>"
    prelude = "c = Constant<value_int = 1>() d = Cast<to = 9>(c)"
    text = f"(float[2] x) => (float[2] y) {{ {prelude} a = If(d) {each} b = If(d) {each} y = Add(a, b) }}"
    assert sorted(ops(check_same(save(model(text), tmp_path)))) == ["Add", "Neg", "Relu"]


CHOSEN = {
    "a truth of each run": "t = ReduceMean(x) z = Constant<value_float = 0.0>() c = Greater(t, z)",
    "without dimensions": "a = Constant<value_ints = [0]>() t = ReduceMean<keepdims = 0>(x, a) z = Constant<value_float = 0.0>() "
    "c = Greater(t, z)",
}


@pytest.mark.parametrize("name", CHOSEN)
def test_branches_of_a_condition_that_is_not_known_are_both_computed(name: str, tmp_path: Path) -> None:
    """Check that both branches are computed and one is chosen for each output, where tensors of both have equal names."""
    then, other = "m = Relu(x) o = Neg(m) p = Abs(x)", "m = Abs(x) o = Tanh(m) p = Mul(m, m)"
    text = (
        f"(float[2] x) => (float[2] y, float[2] v) {{ {CHOSEN[name]} y, v = If(c) "
        "<then_branch = t () => (float[2] o, float[2] p) "
        f"{{ {then} }}, else_branch = e () => (float[2] o, float[2] p) {{ {other} }}> }}"
    )
    path = save(model(text), tmp_path)
    for x in ([0.5, 1.0], [-0.5, -1.0]):
        loaded = check_same(path, feeds={"x": np.array(x, np.float32)})
    assert ops(loaded).count("Where") == 2


def test_a_branch_within_a_branch(tmp_path: Path) -> None:
    inner = "o = If(d) <then_branch = f () => (float[2] i) { i = Abs(x) }, else_branch = g () => (float[2] j) { j = Tanh(x) }>"
    text = (
        "(float[2] x, bool c, bool d) => (float[2] y) { y = If(c) <then_branch = t () => (float[2] o) "
        f"{{ {inner} }}, else_branch = e () => (float[2] p) {{ p = Neg(x) }}> }}"
    )
    path, x = save(model(text), tmp_path), np.array([0.5, -1.0], np.float32)
    for c in (False, True):
        for d in (False, True):
            check_same(path, feeds={"x": x, "c": np.array(c), "d": np.array(d)})


UNTIL = """(float[2] x, float last{more}) => (float[2] y, int64 n) {{
    n0 = Constant<value_int = 0>() most = Constant<value_int = 5>() one = Constant<value_int = 1>()
    a = Constant<value_ints = [0]>()
    y, n = Loop<body = b (int64 i, bool c, float[2] s, int64 k) => (bool d, float[2] t, int64 l) {{
        t = Add(s, x) l = Add(k, one) m = ReduceSum<keepdims = 0>(t, a) d = Less(m, last) }}>({count}, {first}, x, n0)
}}"""


@pytest.mark.parametrize("first", ["", "go"])
def test_a_loop_that_may_end_before_its_count(first: str, tmp_path: Path) -> None:
    """Check that the results of a loop stay unchanged after it ends early."""
    path = save(model(UNTIL.format(more=", bool go" if first else "", count="most", first=first)), tmp_path)
    for last in (0.0, 2.5, 100.0):
        for go in (False, True):
            feeds = {"x": np.array([0.25, 0.5], np.float32), "last": np.array(last, np.float32)}
            check_same(path, feeds=feeds | ({"go": np.array(go)} if first else {}))


@pytest.mark.parametrize(
    ("count", "changed", "reason"),
    [
        ("", "", 'whether it goes on depends on "again/0/d", known only when it runs'),
        ("most", "kept", 'how many values it keeps depends on "again/0/d", known only when it runs'),
    ],
)
def test_a_loop_that_ends_nobody_knows_when(count: str, changed: str, reason: str, tmp_path: Path) -> None:
    proto = model(UNTIL.format(more="", count=count, first=""))
    (node,) = (n for n in proto.graph.node if n.op_type == "Loop")
    node.name = "again"
    if changed:
        node.attribute[0].g.output.add().CopyFrom(info("m", FLOAT, []))
        node.output.append("kept")
    with pytest.raises(CompileError) as fault:
        load_model(save(proto, tmp_path))
    assert str(fault.value).splitlines()[0] == f"node again (Loop): {reason}"


def test_an_output_left_out_is_no_tensor_that_changes() -> None:
    nodes = [
        helper.make_node("Dropout", ["x"], ["a", ""], "changes"),
        helper.make_node("GRU", ["c", "w", "r"], ["", "b"], "stays", hidden_size=2),
        helper.make_node("Relu", ["b"], ["d"], "behind"),
    ]
    graph = build_graph(nodes, {"x": [1]}, {"a": [1], "d": [1, 1, 2]})
    once, each = split_invariant(graph)
    assert [n.name for n in once.node] == ["stays", "behind"] and [n.name for n in each.node] == ["changes"]


def test_a_branch_that_draws_is_drawn_in_each_iteration() -> None:
    draw = build_graph([helper.make_node("RandomNormal", [], ["r"], "draw", shape=[1])], {}, {"r": [1]})
    node = helper.make_node("If", ["c"], ["y"], "if", then_branch=draw, else_branch=draw)
    once, each = split_invariant(build_graph([node], {}, {"y": [1]}))
    assert not once.node and [n.name for n in each.node] == ["if"]
