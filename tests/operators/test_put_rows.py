"""Rows of a cache that slices and a Concat put where each run says: TensorScatter, whose cache stays in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.frontend import load_model, to_graph
from toolchain.frontend.read_onnx import newest_opset
from toolchain.isa import load_machine
from toolchain.ops.tensor_scatter import find_missing_row_support
from toolchain.runtime import Session

NUMBERS = "int64[1] zero = {0}, int64[1] axis = {2}, int64[1] ends = {1000}, int64[1] one = {1}"
JOIN = "present = Concat<axis = 2>(a, x, b) y = Neg(present)"
FORMS = {  # rows, the place's type, numbers, how it is written
    "one row": (
        1, "int64[1]", NUMBERS,
        f"a = Slice(past, zero, at, axis) next = Add(at, one) b = Slice(past, next, ends, axis) {JOIN}",
    ),
    "a scalar, as PyTorch writes it": (
        1, "int64", f"int64 more = {{1}}, {NUMBERS}",
        f"s = Unsqueeze(at, zero) a = Slice(past, zero, s, axis, one) n = Add(more, at) t = Unsqueeze(n, zero) "
        f"b = Slice(past, t, ends, axis, one) {JOIN}",
    ),
    "three rows": (
        3, "int32[1]", f"int64[1] three = {{3}}, int64[1] last = {{-1}}, {NUMBERS}".replace("axis = {2}", "axis = {-2}"),
        f"s = Cast<to = 7>(at) a = Slice(past, zero, s, axis) n = Add(s, three) b = Slice(past, n, ends, axis) {JOIN}",
    ),
}  # fmt: skip


def network(rows: int, place: str, numbers: str, body: str) -> onnx.ModelProto:
    cache = "float[1,2,96,32]"
    ports = f"(float[1,2,{rows},32] x, {place} at, {cache} past) => ({cache} y, {cache} present)"
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {ports} <{numbers}> {{ {body} }}')


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("machine", ["transformer64", "edge16"])
def test_rows_go_where_the_file_puts_them(machine: str, form: str, tmp_path: Path) -> None:
    rows, place, *_ = FORMS[form]
    if machine == "edge16" and rows > 1:
        return  # more rows than one go where a number says by base registers alone
    proto = network(*FORMS[form])
    onnx.save(proto, tmp_path / "n.onnx")
    rng, kind = np.random.default_rng(1), np.int32 if "32" in place else np.int64
    samples = [{"x": rng.uniform(-1, 1, (1, 2, rows, 32)).astype(np.float32), "at": np.full((1,) * place.count("["), p, kind)}
             for p in (0, 5, 96 - rows, 17, 5, 40)]  # fmt: skip
    np.savez(tmp_path / "data.npz", allow_pickle=False, **{n: np.stack([g[n] for g in samples]) for n in ("x", "at")})
    built = build(
        tmp_path / "n.onnx", BuildOptions(machine, str(tmp_path / "data.npz"), states=("past=present",), repair="none", level=2)
    )
    assert [state.output for _, state in built.container.states] == ["present"]
    if machine == "transformer64":
        assert {op for _, op, _ in built.container.fallbacks} <= {"Cast", "Reshape"}  # of the place
        assert built.figures["dram_write_bytes"] == 2 * 96 * 32 + 2 * rows * 32
    chip, reference = Session(built.data), Session(built.data, backend="reference")
    runner, past = onnxruntime.InferenceSession(proto.SerializeToString()), np.zeros((1, 2, 96, 32), np.float32)
    for feeds in samples:
        real, past = (np.asarray(v) for v in runner.run(["y", "present"], {**feeds, "past": past}))
        y, present = chip.run(["y", "present"], feeds)
        assert np.array_equal(y, reference.run(None, feeds)[0])
        assert np.abs(y - real).max() < 0.02 and np.abs(present - past).max() < 0.02


def test_rows_put_into_the_next_state_come_before_a_read_of_others(tmp_path: Path) -> None:
    numbers = NUMBERS.replace("ends =", "later = {40}, int64[1] ends =")
    body = FORMS["one row"][3].replace("past", "turned").replace("Neg(present)", "Neg(tail)")
    body = body.replace(" y =", " tail = Slice(present, later, ends, axis) y =")
    proto = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[1,2,1,32] x, int64[1] at, float[1,2,96,32] past) => '
        f"(float[1,2,56,32] y, float[1,2,96,32] present) <{numbers}> {{ turned = Neg(past) {body} }}"
    )
    onnx.save(proto, tmp_path / "n.onnx")
    x, at = np.random.default_rng(1).uniform(-1, 1, (5, 1, 2, 1, 32)).astype(np.float32), np.array([[0], [5], [95], [50], [40]])
    np.savez(tmp_path / "data.npz", allow_pickle=False, x=x, at=at)
    options = BuildOptions("transformer64", str(tmp_path / "data.npz"), states=("past=present",), repair="none", level=2)
    built = build(tmp_path / "n.onnx", options)
    chip, reference = Session(built.data), Session(built.data, backend="reference")
    for feeds in ({"x": row, "at": place} for row, place in zip(x, at)):
        for result, expected in zip(chip.run(["y", "present"], feeds), reference.run(["y", "present"], feeds)):
            assert np.array_equal(result, expected)


OTHERS = {
    "another length": ("next = Add(at, two)", "", ""),
    "a slice that is read too": ("next = Add(at, one)", "", "m = ReduceMax<keepdims = 0>(a) "),
    "of another tensor": ("next = Add(at, one)", "z = Relu(past) ", ""),
    "from another place": ("next = Add(at, one)", "other = Neg(at) ", ""),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_puts_no_rows_is_refused_as_before(name: str, tmp_path: Path) -> None:
    following, before, tail_nodes = OTHERS[name]
    source, last = "z" if "z =" in before else "past", "other" if "other" in before else "at"
    body = f"{before}{following} a = Slice(past, zero, {last}, axis) b = Slice({source}, next, ends, axis) {tail_nodes}{JOIN}"
    onnx.save(network(1, "int64[1]", f"int64[1] two = {{2}}, {NUMBERS}", body), tmp_path / "n.onnx")
    with pytest.raises(CompileError) as fault:
        load_model(tmp_path / "n.onnx")
    assert "node Slice_" in str(fault.value) and 'of its output "a" depends on values' in str(fault.value)
    assert 'of its output "b" depends on values' in str(fault.value)


@pytest.mark.skipif(newest_opset() < 24, reason="the installed onnxruntime reads no TensorScatter")
def test_rows_without_a_place_begin_at_a_constant_one() -> None:
    ports = "(float[1,2,8,4] cache, float[1,2,8,4] x) => (float[1,2,8,4] y)"
    text = f'<ir_version: 10, opset_import: ["" : 24]> g {ports} {{ y = TensorScatter(cache, x) }}'
    graph = to_graph(load_model(parser.parse_model(text)))
    assert find_missing_row_support(graph.nodes[0], graph, load_machine("transformer64").chip) == "its place is constant"
