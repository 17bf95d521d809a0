"""Arrays that take some types only, and functions of vector engines whose rate depends on the type."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

from scripts.onnx_builder import build_model
from tests.semantics.machines import make_mixed_machine, make_paired_machine
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.hw.engines import FunctionRate
from toolchain.machine.demand_columns import demands
from toolchain.machine.operations.elementwise import Elementwise, ElementwiseKind
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.runtime import Session

BOTH = (("int8", "int8"), ("int8", "int4"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x -> Conv a -> Sigmoid s -> Conv y."""
    rng = np.random.default_rng(3)
    weights = {f"w{i}": rng.normal(0, 0.3, (4, 4, 3, 3)).astype(np.float32) for i in range(2)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["a"], ["s"], name="function"),
        helper.make_node("Conv", ["s", "w1"], ["y"], name="second", pads=[1, 1, 1, 1]),
    ]
    path = tmp_path_factory.mktemp("pairs") / "net.onnx"
    onnx.save(build_model(nodes, {"x": [1, 4, 6, 6]}, {"y": [1, 4, 6, 6]}, weights), path)
    return path


def _decibels(path: Path, data: bytes) -> float:
    feeds = {"x": np.random.default_rng(9).normal(size=(1, 4, 6, 6)).astype(np.float32)}
    expected = np.asarray(onnxruntime.InferenceSession(path).run(None, feeds)[0], np.float64)
    error = Session(data).run(None, feeds)[0] - expected
    return float(10 * np.log10((expected**2).sum() / (error**2).sum()))


def test_an_array_sees_what_it_takes_of_tensors_of_another_type(model: Path) -> None:
    built = build(model, BuildOptions(make_paired_machine(BOTH), types=("*=int16",)))
    graph = built.container.graph
    read = [graph.types[n.inputs[0]].dtype for n in graph.nodes if isinstance(n.op, IntegerConvolution)]
    assert read == ["int8", "int8"]
    assert graph.types["y"].dtype == "int16"
    assert "first.narrow0" in {row["node"] for row in built.figures["nodes"]}
    eight = build(model, BuildOptions(make_paired_machine(BOTH)))
    sixteen = build(model, BuildOptions(make_mixed_machine(), types=("*=int16",)))
    low, between, high = (_decibels(model, b.data) for b in (eight, built, sixteen))
    assert low + 1 < between < high - 1, (low, between, high)


def test_each_layer_runs_on_an_array_that_takes_its_types(model: Path) -> None:
    machine = make_paired_machine(BOTH, (("int16", "int8"), ("int16", "int4")))
    built = build(model, BuildOptions(machine, types=("a=int16", "s=int16")))
    graph = built.container.graph
    read = [graph.types[n.inputs[0]].dtype for n in graph.nodes if isinstance(n.op, IntegerConvolution)]
    assert read == ["int8", "int16"]
    rows = {row["node"]: row for row in built.figures["nodes"]}
    assert (rows["first"]["engine"], rows["second"]["engine"]) == ("mac0", "mac1")


def test_weights_have_the_first_type_that_goes_with_the_input(model: Path) -> None:
    machine = make_paired_machine((("int8", "int8"), ("int16", "int4")))
    graph = build(model, BuildOptions(machine, types=("a=int16", "s=int16"))).container.graph
    weights = [n.op.weight_type for n in graph.nodes if isinstance(n.op, IntegerConvolution)]
    assert weights == ["int8", "int4"]


def test_a_pair_that_is_asked_for_and_not_there_is_refused(model: Path) -> None:
    machine = make_paired_machine((("int8", "int8"), ("int16", "int4")))
    with pytest.raises(CompileError) as fault:
        build(model, BuildOptions(machine, types=("second=int4",)))
    reason = "engines.mac0.types has int8 activations with int8 weights; ask for one of these"
    assert str(fault.value) == f"node second: int4 weights and an input of int8: {reason}"


@pytest.mark.parametrize(
    ("arrays", "rescale", "message"),
    [
        ((BOTH,), False, "numerics.more_activations.0: int16: {} has no pair with it, and engines.vector.functions no rescale"),
        (((("int8", "int8"), ("int16", "int8")),), True, "numerics.more_weights.0: int4: {} has no pair with it"),
        (((("int16", "int8"), ("int8", "int4")),), True, "{}: has no {activation: int8, weight: int8}, the first types"),
        (
            (BOTH, (("uint8", "int8"),)),
            True,
            "engines.mac1.types: has no {activation: int8, weight: int8}, the types of numerics",
        ),
    ],
)
def test_what_a_machine_must_have(arrays: tuple[tuple[tuple[str, str], ...], ...], rescale: bool, message: str) -> None:
    with pytest.raises(ValueError) as fault:
        make_paired_machine(*arrays, rescale=rescale)
    assert message.replace("{}", "engines.mac0.types") in str(fault.value)


def _add(**types: int) -> Elementwise:
    values = dict.fromkeys((f.name for f in fields(Elementwise)), 0) | {"height": 1, "width": 1, "channels": 64}
    return Elementwise(**{**values, "kind": ElementwiseKind.ADD, "a_channel_stride": 1, "b_channel_stride": 1, **types})


@pytest.mark.parametrize(("types", "lanes"), [({}, 16), ({"a_type": 1}, 4), ({"b_type": 1}, 4), ({"output_type": 1}, 4)])
def test_the_operand_of_fewest_lanes_counts(types: dict[str, int], lanes: int) -> None:
    chip = make_mixed_machine().chip
    vector = chip.of_kind("vector")[0].vector
    functions = {**vector.functions, "add": FunctionRate(lanes=16, startup=3, type_lanes={"int16": 4})}
    chip = chip.model_copy(update={"engines": {**chip.engines, "vector": vector.model_copy(update={"functions": functions})}})
    chip = type(chip).model_validate_json(chip.model_dump_json())
    op = _add(**types)
    assert op.demand(chip).compute_cycles == 3 + 64 // lanes
    mixed = demands([_add(), op, op], chip).compute_cycles
    assert mixed.tolist() == [3 + 4, 3 + 64 // lanes, 3 + 64 // lanes]


def test_a_pool_that_is_a_convolution_sees_what_arrays_take(tmp_path: Path) -> None:
    """A mean over more than the vector engine can divide by runs on the array."""
    body = "(float[1,4,9,7] x) => (float[1,4,1,1] y) { y = GlobalAveragePool(x) }"
    path = tmp_path / "pool.onnx"
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {body}'), path)
    machine = make_paired_machine((("int8", "int4"), ("int8", "int8")))
    functions = {n: r for n, r in machine.chip.of_kind("vector")[0].vector.functions.items() if n != "average_pool"}
    vector = machine.chip.of_kind("vector")[0].vector.model_copy(update={"functions": functions})
    data = machine.chip.model_copy(update={"engines": {**machine.chip.engines, "vector": vector}}).model_dump_json()
    machine = replace(machine, chip=type(machine.chip).model_validate_json(data))
    graph = build(path, BuildOptions(machine, types=("*=int16",))).container.graph
    (read,) = [graph.types[n.inputs[0]].dtype for n in graph.nodes if isinstance(n.op, IntegerConvolution)]
    assert read == "int8"
