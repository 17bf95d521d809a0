"""Edits of a stage's text that fit neither the model nor the machine are refused in a sentence with no word of Python's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.commands import run
from tests.ir.test_graph_text import CLASSES, STEPS, small_text, stages_of
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError, InternalError, ProgramError
from toolchain.ir.graph import Graph
from toolchain.ir.parse_text import MOST_LEVELS, StageGraph, parse_graph
from toolchain.ir.text import Arrays, GraphDump
from toolchain.passes.pass_options import PassOptions
from toolchain.passes.stage_file import blame_start
from toolchain.repair import calibrate_network

# Of each stage: what is edited, into what, and what is said of it.
EDITS = [
    ("fuse", "accumulator_bits=32", "accumulator_bits=24", "g, line 6: IntegerConvolution: accumulator_bits 24: must be 32, as"),
    ("quantize", "accumulator_bits=32", "accumulator_bits=33", "IntegerConvolution: accumulator_bits 33: must be 32, as"),
    ("fuse", "origin n: n plain", "origin n: zz plain", "--start-from: the origin of n is zz plain, that of this build n plain"),
    ("quantize", "origin x@nhwc: x nhwc", "origin x@nhwc: x zz", "the origin of x@nhwc is x zz, that of this build x nhwc"),
    ("select", "origin n: n plain", "origin n: other nhwc", "the origin of n is other nhwc, that of this build n plain"),
    ("select", "  origin n: n plain\n", "", "--start-from: tensor n has no origin; it is n plain"),
    ("fuse", "  origin c:", "  origin v: zz plain\n  origin c:", "the origin of v is zz plain, and the model has no tensor zz"),
    ("fuse", "  origin c:", "  origin v: x zz\n  origin c:", "of v is x zz: its layout must be one of plain, nhwc, inner"),
    ("select", "  origin c:", "  origin w@nhwc: r nhwc\n  origin c:", "is [1, 24, 6] in the model's order; w@nhwc is"),
    ("select", "tensor x@nhwc: float32[1, 6", "tensor x@nhwc: float32[3, 6", "is [1, 4, 6, 6] in the model's order; x@nhwc is"),
    ("fuse", "node Reshape_4 from Reshape_4", "node Reshape_4 from zz", "line 8: node Reshape_4 is from zz, and the"),
    ("compose", "node Mul_2 from Sigmoid_1, Mul_2", "node Mul_2 from Sigmoid_1, zz", "node Mul_2 is from zz, and the model has"),
    ("fuse", "tensor other: float32[1, 4, 6, 6]", "tensor other: float32[1, 4, 6, 2]", "input other has the shape [1, 4, 6, 2],"),
    ("compose", '"y: x - max": float32[1, 24, 6]', '"y: x - max": float32[1, 3, 6]', "gives float32[1, 24, 6] for y: x - max"),
    ("compose", "axes=(2), keepdims=1>(n)", "axes=int16, keepdims=1>(n)", "ReduceMax: has attributes that are none of"),
    ("compose", "axes=(2), keepdims=1>(n)", "axes=(), keepdims=1>(n)", "ReduceMax: gives float32["),
    ("compose", "strides=(1, 1)>(x, w)", "strides=16>(x, w)", "Conv: has attributes that are none of ONNX's, or in another form"),
    ("compose", "(1, 1), group=1, ker", "(1), group=1, ker", "node Conv_0 (Conv): its inputs do not fit it: "),
    ("compose", 'name=exp>("y: x - max")', "name=exp>(e)", "Unary: gives [1, 4, 6, 6] of float32[1, 4, 6, 6], the output is"),
    ("select", 'name=exp>("y: x - max")', "name=exp>(e)", "Unary: gives [1, 6, 6, 4] of float32[1, 6, 6, 4], the output is"),
    ("select", "(d, other@nhwc)", "(d, d, w@nhwc)", "Binary: cannot be computed of float32[1, 6, 6, 4], float32[1, 6, 6"),
]  # fmt: skip


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = np.random.default_rng(3).standard_normal(144).round(3)
    text = STEPS.replace("WEIGHTS", ", ".join(map(str, weights))).replace('"other input"', "other")
    path = tmp_path_factory.mktemp("stages") / "n.onnx"
    onnx.save(onnx.parser.parse_model(text.replace("int64[3] shape", "int64 one = {1}, int64[3] shape")), path)
    return path


@pytest.fixture(scope="module")
def stages(network: Path) -> dict[str, GraphDump]:
    return stages_of(network, "edge16")


@pytest.mark.parametrize(("stage", "old", "new", "message"), EDITS)
def test_what_fits_neither_model_nor_machine_is_named(
    network: Path, stages: dict[str, GraphDump], stage: str, old: str, new: str, message: str
) -> None:
    arrays: Arrays = {}
    text = stages[stage].print_text(arrays)
    assert old in text
    start = parse_graph(text.replace(old, new, 1), "g", CLASSES, arrays)
    with pytest.raises(CompileError, match=re.escape(message)) as refusal:
        build(network, BuildOptions("edge16", passes=PassOptions(start=start)))
    assert not re.search(r"\w+Error\b|numpy|object|broadcast", str(refusal.value))


def test_a_tensor_of_the_model_may_have_another_name(network: Path, stages: dict[str, GraphDump]) -> None:
    arrays: Arrays = {}
    text = stages["select"].print_text(arrays).replace("other@nhwc", "renamed")
    assert "origin renamed: other nhwc" in text
    start = parse_graph(text, "g", CLASSES, arrays)
    assert "renamed" in build(network, BuildOptions("edge16", passes=PassOptions(start=start))).container.graph.types


# Of a product x [2, 4, 6] by w [2, 6, 4]: what takes the place of its operands, and what is said of it.
PRODUCTS = [
    ("(x, x)", "cannot be computed of float32[2, 4, 6], float32[2, 4, 6], whose shapes do not fit each other"),
    ("(w, x)", "MatrixProduct: gives [2, 6, 6] of float32[2, 6, 4], float32[2, 4, 6], the output is float32[2, 4, 4]"),
]


@pytest.mark.parametrize(("operands", "message"), PRODUCTS)
def test_products_that_do_not_fit_are_named(tmp_path: Path, operands: str, message: str) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,4,6] x, float[2,6,4] w) => (float[2,4,4] y) { y = MatMul(x, w) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "n.onnx")
    arrays: Arrays = {}
    stage = stages_of(tmp_path / "n.onnx", "transformer64")["select"].print_text(arrays)
    assert ">(x, w)" in stage
    start = parse_graph(stage.replace(">(x, w)", f">{operands}"), "g", CLASSES, arrays)
    with pytest.raises(CompileError, match=re.escape(message)):
        build(tmp_path / "n.onnx", BuildOptions("transformer64", passes=PassOptions(start=start)))


# What is edited in the text of a Relu, into what, and what is said of it.
VALUES = [
    ("onnx.Relu<>", f"onnx.Relu<a={'(' * 3000}1{')' * 3000}>", f"g, line 3: a value has more than {MOST_LEVELS} levels"),
    ("onnx.Relu<>", f"onnx.Relu<a=({'#1=(' + '(' * 150}1{')' * 151}, {'(' * 150}#1{')' * 150})>", "has more than 200 levels"),
    ("onnx.Relu<>", "onnx.Relu<a=(1, #9)>", "g, line 3: #9 stands for a part, and no part before it is #9="),
    ("onnx.Relu<>(x)", "Reshape<form=(1, 2)>(x)", "g, line 3: Reshape: has no field form; its fields are shape"),
    ("onnx.Relu<>(x)", "Reshape<>(x)", "g, line 3: Reshape: lacks shape"),
    ("<float32[3, 3] ", "<float32[3, 2] ", "beside the text is float32[3, 3]"),
    ("onnx.Relu<>", "onnx.Relu<a=<int8[2] 1, 2, 3>>", "<int8[2] 1, 2, 3>: its elements are not as many as its shape says"),
    ("onnx.Relu<>", "onnx.Relu<a=<int8[1] x>>", "<int8[1] x>: its elements are not as many as its shape says, or none of int8"),
    ("onnx.Relu<>(x)", "Lookup<table=3, function=exp>(x)", "Lookup: table 3: must be a"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), VALUES)
def test_values_are_refused_in_words_of_the_text(old: str, new: str, message: str) -> None:
    text, arrays = small_text()
    assert old in text
    with pytest.raises(CompileError, match=re.escape(message)):
        parse_graph(text.replace(old, new), "g", CLASSES, arrays)


def test_a_name_of_two_nodes_is_refused_with_its_line() -> None:
    text, arrays = small_text()
    line = "  y: float32[1, 2] = onnx.Relu<>(x)  node r\n"
    message = "g, line 4: node r is defined a second time, first in g, line 3; give it another name"
    with pytest.raises(CompileError, match=f"^{message}$"):
        parse_graph(text.replace(line, line + line.replace("y:", "z:")), "g", CLASSES, arrays)


def test_of_many_faults_of_a_graph_three_are_named(network: Path, stages: dict[str, GraphDump]) -> None:
    arrays: Arrays = {}
    text = stages["select"].print_text(arrays)
    for read in ("c", "e", "r", "n", "e@plain"):
        text = text.replace(f"({read})  node", f"(no_{read})  node")
    start = parse_graph(text, "g", CLASSES, arrays)
    with pytest.raises(CompileError, match=r"^--start-from: the graph is not sound: [^;]+; [^;]+; [^;]+; and \d+ more$"):
        build(network, BuildOptions("edge16", passes=PassOptions(start=start)))


@pytest.mark.parametrize("stage", ["compose", "clamps"])
@pytest.mark.parametrize("option", [{"repair": "fast"}, {"observer": "auto"}])
def test_repair_does_not_work_on_a_text(stages: dict[str, GraphDump], stage: str, option: dict[str, str]) -> None:
    arrays: Arrays = {}
    start = parse_graph(stages[stage].print_text(arrays), "g", CLASSES, arrays)
    with pytest.raises(CompileError, match="start-from: repair works on the model, not on a text; leave out --"):
        BuildOptions("edge16", calibration="x.npz", passes=PassOptions(start=start), **option)  # type: ignore[arg-type]


def test_a_build_from_a_text_is_not_repaired(
    network: Path, stages: dict[str, GraphDump], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate_network, "BY_DEFAULT", "fast")
    arrays: Arrays = {}
    samples = np.random.default_rng(2).standard_normal((2, 32, 1, 4, 6, 6)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=samples[0], other=samples[1])
    start = parse_graph(stages["clamps"].print_text(arrays), "g", CLASSES, arrays)
    options = BuildOptions("edge16", calibration=str(tmp_path / "d.npz"), passes=PassOptions(start=start))
    assert build(network, options).figures["repair"] is None


def test_schedules_and_stages_are_pointed_to_their_options(network: Path, tmp_path: Path) -> None:
    line = f"npu-build {network} --hw edge16 -o {tmp_path}/a.npu"
    assert run(f"{line} --dump-schedule {tmp_path}/a.sched --dump-after all --dump-dir {tmp_path}").code == 0
    refused, listing = run(f"{line} --start-from {tmp_path}/07-program.txt"), f"{tmp_path}/07-program.txt"
    reason = "is a listing of programs, with which no build begins; npu-dis --assemble takes it"
    assert (refused.code, refused.err) == (2, f"{listing}: {reason}\n")
    refused, reason = run(f"{line} --schedule {listing}"), "is a listing of programs, not a schedule; npu-dis --assemble takes it"
    assert (refused.code, refused.err) == (2, f"{listing}: {reason}\n")
    refused = run(f"{line} --start-from {tmp_path}/a.sched")
    assert (refused.code, refused.err) == (
        2,
        f"{tmp_path}/a.sched: is a schedule, not the graph of a stage; give it to --schedule\n",
    )
    refused, text = run(f"{line} --schedule {tmp_path}/05-fuse.txt"), f"{tmp_path}/05-fuse.txt"
    assert (refused.code, refused.err) == (2, f"{text}: is the graph of a stage, not a schedule; give it to --start-from\n")


def raise_foreign() -> None:
    np.add(np.zeros((2, 3)), np.zeros(2))


def raise_ours() -> None:
    raise InternalError("what was built is broken")


def raise_of_file() -> None:
    raise ProgramError("segment 2 reads tensor zz")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (raise_foreign, r" \(test_edited_stages.py, line \d+, does not expect it\)"),
        (raise_ours, r" \(test_edited_stages.py, line \d+, does not expect it\)"),
        (raise_of_file, ": segment 2 reads tensor zz"),
    ],
)
def test_other_faults_of_an_edited_graph_have_one_sentence(fault: Callable[[], None], words: str) -> None:
    sentence = f"--start-from: the graph behind fuse cannot be compiled as it is edited{words}; undo edits one by one until it is"
    with pytest.raises(CompileError, match=f"^{sentence}$"), blame_start(StageGraph("fuse", Graph("g", (), (), (), {}, {}))):
        fault()
