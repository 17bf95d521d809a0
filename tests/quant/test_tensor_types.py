"""A type for each tensor: what the option and the parameters file say, what is refused, what the report tells."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from quant.file import Parameters, read_parameters, write_parameters
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.weight_scaling import WeightScaling
from quant.observe import Range
from scripts.onnx_builder import build_model
from tests.semantics.machines import int8_machine, make_mixed_machine, make_unsigned_machine
from toolchain.api import BuildOptions, build
from toolchain.codegen import Region
from toolchain.errors import CompileError, ConfigError
from toolchain.ir.graph import Quant
from toolchain.isa.constants import c_header
from toolchain.isa.manual import manual
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit.operator import get_forced_qparams
from toolchain.ops.softmax import Softmax
from toolchain.report.error_page import page, rows_text
from toolchain.report.layer_types import types_text
from toolchain.report.report_text import explain_text

MAP = [1, 4, 6, 6]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x -> Conv a -> Sigmoid s -> Conv b -> Add of a and b: y."""
    rng = np.random.default_rng(1)
    weights = {f"w{i}": rng.normal(0, 0.3, (4, 4, 1, 1)).astype(np.float32) for i in range(2)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="first"),
        helper.make_node("Sigmoid", ["a"], ["s"], name="function"),
        helper.make_node("Conv", ["s", "w1"], ["b"], name="second"),
        helper.make_node("Add", ["a", "b"], ["y"], name="sum"),
    ]
    path = tmp_path_factory.mktemp("types") / "net.onnx"
    onnx.save(build_model(nodes, {"x": MAP}, {"y": MAP}, weights), path)
    return path


def types_of(model: Path, *types: str, parameters: Path | None = None) -> dict[str, str]:
    """Return the types of the model's tensors without any fusion."""
    options = BuildOptions(make_mixed_machine(), types=types, parameters=None if parameters is None else str(parameters), level=0)
    graph = build(model, options).container.graph
    return {
        name.removesuffix("@nhwc"): t.dtype
        for name, t in graph.types.items()
        if t.quant is not None and "@" not in name.removesuffix("@nhwc")
    }


@pytest.mark.parametrize(
    ("overrides", "wide"),
    [
        ([], set()),
        (["a=int16"], {"a"}),
        (["first=int16"], {"a"}),
        (["Conv=int16"], {"a", "b"}),
        (["*=int16"], {"x", "a", "s", "b", "y"}),
        (["[ab]=int16", "b=int8"], {"a"}),
        (["*=int16", "*st*=int8"], {"x", "s", "b", "y"}),  # of a node, though it is a type of weights too
    ],
)
def test_names_are_tensors_nodes_operators_and_patterns(model: Path, overrides: list[str], wide: set[str]) -> None:
    type_by_tensor = types_of(model, *overrides)
    assert {name for name, dtype in type_by_tensor.items() if dtype == "int16"} >= wide
    assert all(type_by_tensor.get(name, "int8") == "int8" for name in {"x", "a", "s", "b", "y"} - wide)


def test_what_is_asked_of_a_tensor_behind_which_a_clamp_is_fused_is_what_that_makes(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    weights = {"w": np.random.default_rng(2).normal(0, 0.3, (4, 4, 1, 1)).astype(np.float32)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], name="conv"), helper.make_node("Relu", ["c"], ["y"], name="relu")]
    onnx.save(build_model(nodes, {"x": MAP}, {"y": MAP}, weights), path)
    assert types_of(path) == {"x": "int8", "y": "int8"}
    for overrides in (["c=int16"], ["conv=int16"], ["relu=int16"], ["c=int8", "y=int16"], ["y=int16", "c=int8"]):
        assert types_of(path, *overrides) == {"x": "int8", "y": "int16"}, overrides
    parameters = tmp_path / "p.yaml"
    ends = "".join(f"  {n}: {{low: -2, high: 2{', type: int16' if n == 'c' else ''}}}\n" for n in "xyc")
    parameters.write_text(f"version: 1\ntensors:\n{ends}")
    assert types_of(path, parameters=parameters) == {"x": "int8", "y": "int16"}


def test_weights_of_products_have_the_names_of_the_file(tmp_path: Path) -> None:
    path, rng = tmp_path / "net.onnx", np.random.default_rng(2)
    arrays = [("fc.weight", (4, 4)), ("g.weight", (4, 4)), ("g.bias", (4,))]
    weights = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in arrays}
    nodes = [
        helper.make_node("MatMul", ["x", "fc.weight"], ["a"], name="fc"),
        helper.make_node("Gemm", ["a", "g.weight", "g.bias"], ["y"], name="g"),
    ]
    onnx.save(build_model(nodes, {"x": [2, 4]}, {"y": [2, 4]}, weights), path)
    assert weight_types_of(path, "fc.weight=int4") == {"fc": "int4", "g": "int8"}
    assert weight_types_of(path, "*.weight=int4") == {"fc": "int4", "g": "int4"}
    assert types_of(path, "fc*=int16") != types_of(path)  # a pattern that weights have too, of a type that only nodes can have
    with pytest.raises(CompileError) as caught:
        build(path, BuildOptions(make_mixed_machine("int32"), types=("g.bias=int4", "g.weight=int32", "fc.wieght=int4")))
    assert str(caught.value).splitlines()[:3] == [
        "--type g.bias=int4: no layer of the chip has such weights, or is such a node",
        "--type g.weight=int32: these are weights, edge16_mixed_int32 has int8, int4 (numerics.weight, numerics.more_weights); "
        "take one of these",
        '--type fc.wieght=int4: no layer of the chip has such weights, or is such a node; did you mean "fc.weight"?',
    ]


def weight_types_of(model: Path, *types: str, parameters: Path | None = None) -> dict[str, str]:
    """Return the types of the layers' weights."""
    options = BuildOptions(make_mixed_machine(), types=types, parameters=None if parameters is None else str(parameters))
    nodes = build(model, options).container.graph.nodes
    return {n.name: n.op.weight_type.value for n in nodes if isinstance(n.op, IntegerConvolution)}


@pytest.mark.parametrize(
    ("overrides", "narrow"),
    [
        ([], set()),
        (["w0=int4"], {"first"}),
        (["second=int4"], {"second"}),
        (["Conv=int4"], {"first", "second"}),
        (["w?=int4", "w1=int8"], {"first"}),
        (["first=int8", "w*=int4"], {"first", "second"}),
        (["Conv=int4", "Conv=int8"], {"first", "second"}),  # a node of a type that activations may have is its outputs
    ],
)
def test_weights_have_types_of_their_own(model: Path, overrides: list[str], narrow: set[str]) -> None:
    type_by_layer = weight_types_of(model, *overrides)
    assert {name for name, kind in type_by_layer.items() if kind == "int4"} == narrow
    assert set(type_by_layer) == {"first", "second"}


def test_the_parameters_file_says_the_types_of_weights(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    tensors = {n: Range(-2.0, 2.0) for n in ("x", "a", "s", "b", "y")}
    parameters = Parameters(tensors, weights={"first": WeightScaling(None)}, weight_types={"first": CodeType.INT4})
    write_parameters(path, parameters)
    assert '  "first": {scales: tensor, type: int4}\n' in path.read_text()
    assert read_parameters(path).quantization.weight_types == parameters.weight_types
    assert weight_types_of(model, parameters=path) == {"first": "int4", "second": "int8"}
    assert weight_types_of(model, "w0=int8", parameters=path) == {"first": "int8", "second": "int8"}  # the option counts
    with pytest.raises(ConfigError) as caught:
        build(model, BuildOptions(int8_machine(), parameters=str(path)))
    assert str(caught.value).endswith(
        "weights.first.type: int4 where the machine has int8 weights, and int16 in two planes; give one of these"
    )
    path.write_text(path.read_text().replace("scales: tensor, type: int4", ""))
    with pytest.raises(ConfigError, match=r"weights.first: needs scales, type or both"):
        read_parameters(path)


@pytest.mark.parametrize(("largest", "kind"), [(7, "int4"), (8, "int8"), (127, "int8")])
def test_codes_of_a_file_take_the_narrowest_type_that_holds_them(largest: int, kind: str, tmp_path: Path) -> None:
    codes = np.random.default_rng(3).integers(-largest, largest + 1, (4, 4, 1, 1)).astype(np.int8)
    codes[0, 0] = largest
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scale"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["y"], name="layer"),
    ]
    path = tmp_path / "net.onnx"
    onnx.save(build_model(nodes, {"x": MAP}, {"y": MAP}, {"codes": codes, "scale": np.float32(0.05)}), path)
    graph = build(path, BuildOptions(make_mixed_machine())).container.graph
    assert np.array_equal(graph.constants["layer.weights"].ravel(), codes.ravel())
    assert weight_types_of(path) == {"layer": kind}
    assert weight_types_of(path, "w=int8") == {"layer": "int8"}


def test_repair_keeps_the_types_of_weights(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    rng = np.random.default_rng(0)
    similar_channels = rng.normal(0, 1, (40, 1, 6, 6)) + rng.normal(
        0, 0.1, (40, 4, 6, 6)
    )  # so that rounding one by one is not best
    np.savez(data, x=similar_channels.astype(np.float32))
    options = BuildOptions(make_mixed_machine(), calibration=str(data), types=("w0=int4",))
    plain, repaired = (build(model, replace(options, repair=effort)) for effort in ("none", "fast"))
    graphs = [each.container.graph for each in (plain, repaired)]
    for graph in graphs:
        assert {n.name: n.op.weight_type for n in graph.nodes if isinstance(n.op, IntegerConvolution)} == {
            "first": CodeType.INT4,
            "second": CodeType.INT8,
        }
    assert not np.array_equal(graphs[0].constants["first.weights"], graphs[1].constants["first.weights"])
    assert np.abs(graphs[1].constants["first.weights"]).max() <= 8


def test_narrow_weights_take_half_the_bytes(tmp_path: Path) -> None:
    weights = {"w": np.random.default_rng(2).normal(0, 0.3, (32, 32, 1, 1)).astype(np.float32)}
    nodes, shape, path = [helper.make_node("Conv", ["x", "w"], ["y"])], [1, 32, 2, 2], tmp_path / "net.onnx"
    onnx.save(build_model(nodes, {"x": shape}, {"y": shape}, weights), path)
    built = [build(path, BuildOptions(make_mixed_machine(), types=types)).container for types in ((), ("w=int4",))]
    plain, narrow = (sum(len(data) for s in c.segments if isinstance(s, Region) for _, data in s.constants) for c in built)
    assert plain - narrow == 32 * 32 // 2


def test_the_parameters_file_says_the_same(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    lines = [f'  "{n}": {{low: -2, high: 2{", type: int16" if n in "as" else ""}}}' for n in ("x", "a", "s", "b", "y")]
    path.write_text("\n".join(["version: 1", "tensors:", *lines, ""]))
    plain = tmp_path / "plain.yaml"
    plain.write_text(path.read_text().replace(", type: int16", ""))
    one = build(model, BuildOptions(make_mixed_machine(), parameters=str(path)))
    other = build(model, BuildOptions(make_mixed_machine(), parameters=str(plain), types=("a=int16", "s=int16")))
    neither = build(model, BuildOptions(make_mixed_machine(), parameters=str(plain)))
    assert one.data == other.data != neither.data
    again = types_of(model, "a=int8", parameters=path)  # the option counts
    assert (again["a"], again["s"]) == ("int8", "int16")


def test_bad_types_are_told_all_at_once(model: Path) -> None:
    overrides = ("a", "a=int32", "z=int16", "=int16", "w=int4", "s=int4")
    with pytest.raises(CompileError) as caught:
        build(model, BuildOptions(make_mixed_machine(), types=overrides))
    assert str(caught.value).splitlines() == [
        "--type a: must be NAME=TYPE, such as conv1=int16",
        "--type a=int32: edge16_mixed has int8, int16 activations (numerics.activation, numerics.more_activations) "
        "and int8, int4 weights (numerics.weight, numerics.more_weights); take one of these",
        "--type z=int16: the chip holds no such tensor and no such weights, nor the result of such a node",
        "--type =int16: must be NAME=TYPE, such as conv1=int16",
        '--type w=int4: no layer of the chip has such weights, or is such a node; did you mean "w1"?',
        "--type s=int4: no layer of the chip has such weights, and for activations edge16_mixed has int8, int16 "
        "(numerics.activation, numerics.more_activations); take one of these, a machine that has int4 there, "
        "or --host-node of what makes it",
        "  help: the parameters file that scripts/calibrate.py writes lists the tensors, --explain the nodes",
    ]


def test_int16_for_an_activation_of_a_machine_without_it_names_the_way_out(model: Path) -> None:
    """The machine edge16 has int16 for weights in two bit slices, so that the type itself is known there."""
    with pytest.raises(CompileError) as caught:
        build(model, BuildOptions("edge16", types=("a=int16",)))
    assert str(caught.value).splitlines()[0] == (
        "--type a=int16: no layer of the chip has such weights, and for activations edge16 has int8 "
        "(numerics.activation, numerics.more_activations); take one of these, a machine that has int16 there, "
        "or --host-node of what makes it"
    )


def test_a_type_that_the_machine_has_not(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    entries = "".join(f"  {n}: {{low: -2, high: 2}}\n" for n in ("x", "s", "b", "y"))
    path.write_text(f"version: 1\ntensors:\n{entries}  a: {{low: -2, high: 2, type: int16}}\n")
    with pytest.raises(ConfigError) as caught:
        build(model, BuildOptions(int8_machine(), parameters=str(path)))
    reason = "tensors.a.type: int16 where the machine has int8 activations; give one of these"
    assert str(caught.value) == f"{path}:7: {reason}"


def test_reports_say_the_types_of_each_layer(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=np.random.default_rng(0).normal(0, 1, (8, 4, 6, 6)).astype(np.float32))
    options = BuildOptions(make_mixed_machine(), calibration=str(data), types=("a=int16", "w1=int4"), error_report=True, level=0)
    built = build(model, options)
    keys = ("input_types", "output_types", "weight_type")
    expected = {
        "first": (["int8"], ["int16"], "int8"),
        "second": (["int8"], ["int8"], "int4"),
        "sum": (["int16", "int8"], ["int8"], None),
    }
    figures, errors = built.figures, built.errors
    assert errors is not None
    for name, key, rows in (
        ("layers", "name", figures["layers"]),
        ("nodes", "node", figures["nodes"]),
        ("errors", "layer", errors.as_json()["layers"]),
    ):
        types_by_row = {row[key]: tuple(row[k] for k in keys) for row in rows}
        assert {n: types_by_row[n] for n in expected} == expected, name
    texts = (explain_text(figures), rows_text(errors.rows), page(errors, "head"))
    for text in texts:
        for types_shown in ("int8 to int16; int8 weights", "int8 to int8; int4 weights", "int16, int8 to int8"):
            assert types_shown in text
        assert "types" in text
    input_row = next(row for row in errors.rows if row.layer is None)
    assert input_row.types.as_json() == {"input_types": [], "output_types": ["int8"], "weight_type": None}
    assert types_text(input_row.types.as_json()) == "int8"


def test_what_is_no_layer_has_no_types(model: Path) -> None:
    built = build(model, BuildOptions(int8_machine(), host_nodes=("function",)))
    row = next(row for row in built.figures["nodes"] if row["node"] == "function")
    assert (row["engine"], row["input_types"], row["output_types"], row["weight_type"]) == ("host", [], [], None)
    assert types_text(row) == ""


def test_wide_codes_are_symmetric_have_bits_to_spare_and_reach_arrays_in_planes_and_tables_as_narrower_ones(model: Path) -> None:
    built = build(model, BuildOptions(make_mixed_machine("int32"), types=("*=int32",), level=0))
    graph = built.container.graph
    named = {n.removesuffix("@nhwc"): t for n, t in graph.types.items() if t.quant is not None and "@int16" not in n}
    assert {n: t.dtype for n, t in named.items() if n in {"x", "a", "s", "b", "y"}} == dict.fromkeys("xasby", "int32")
    for name, kind in named.items():
        assert kind.quant is not None and kind.quant.zero_point == 0, name
    codes = [graph.types[n.inputs[0]].dtype for n in graph.nodes if isinstance(n.op, IntegerConvolution)]
    assert codes == ["int16", "int16", "int16"]  # x in two planes; what the function makes before it is widened in one
    rows = {row["node"]: row for row in built.figures["nodes"]}
    assert types_text(rows["first.upper"]) == "int16 to int32; int8 weights" and types_text(rows["first"]) == "int32 to int32"
    assert types_text(rows["second"]) == "int16 to int32; int8 weights"
    assert types_text(rows["sum"]) == "int32 to int32"
    reasons = [row["reason"] for row in built.figures["nodes"] if row["made_by"] != "model"]
    assert any(reason.startswith("made by the compiler: makes int16 codes of tensor x") for reason in reasons)
    assert any(reason.startswith("made by the compiler: makes int16 codes of what those leave of tensor x") for reason in reasons)
    assert "second.narrow0" not in rows


def test_a_function_of_codes_of_one_type_makes_wide_ones_by_way_of_another(model: Path) -> None:
    """Check a table from int8 to int8, whose codes become uint8 for the convolution after it and int32 for the tensor."""
    built = build(model, BuildOptions(make_unsigned_machine("int8", "int32"), types=("a=int8", "s=int32"), level=0))
    graph = built.container.graph
    assert graph.types["s"].dtype == "int32"
    assert [graph.types[n.inputs[0]].dtype for n in graph.nodes if isinstance(n.op, IntegerConvolution)] == ["uint8", "uint8"]
    for node in graph.nodes:
        requant = getattr(node.op, "requant", None)
        assert requant is None or requant.codes == graph.types[node.outputs[0]].dtype, node.name


def test_a_range_fills_a_sixteenth_of_wide_codes(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    kinds = "".join(f"  {n}: {{low: -2, high: 1{', type: int32' if n == 'a' else ''}}}\n" for n in "xasby")
    path.write_text(f"version: 1\ntensors:\n{kinds}")
    graph = build(model, BuildOptions(make_mixed_machine("int32"), parameters=str(path), level=0)).container.graph
    (quant,) = (t.quant for n, t in graph.types.items() if t.dtype == "int32" and t.quant is not None)
    assert quant is not None and (quant.zero_point, quant.scale) == (0, 2.0 / 2**27)
    edited = path.read_text().replace("a: {low: -2, high: 1,", "a: {scale: 1.0e-6, zero_point: 0,")
    path.write_text(edited)
    with pytest.raises(ConfigError) as caught:
        build(model, BuildOptions(make_mixed_machine("int32"), parameters=str(path)))
    reason = "tensors.a.scale: is not given for int32, of which narrower codes hold the range; give low and high"
    assert str(caught.value) == f"{path}:4: {reason}"


def test_finer_codes_cost_what_the_array_and_the_bytes_say(model: Path) -> None:
    plain, wide = (build(model, BuildOptions(make_mixed_machine(), types=types)).figures for types in ((), ("*=int16",)))
    assert wide["dram_read_bytes"] > plain["dram_read_bytes"] and wide["cycles"] > plain["cycles"]


def test_manual_and_header_number_the_types() -> None:
    machine = make_mixed_machine()
    assert (
        "- 1 int16, -32768 to 32767. A code of int16 takes 2 bytes, two's complement. A function's table has 513 entries of int16"
        in "\n".join(manual(machine).splitlines())
    )
    assert "Types of weights by their numbers: 0 int8, 1 int4." in manual(machine)
    assert re.search(r"_WEIGHT_TYPE_INT8 0\n#define \w+_WEIGHT_TYPE_INT4 1\n", c_header(machine))
    assert re.search(r"\w_TYPE_INT8 0\n#define \w+_TYPE_INT16 1\n", c_header(machine))
    assert "_TYPE" not in c_header(int8_machine())


def test_the_report_tells_the_range_of_the_codes_that_a_tensor_has(model: Path, tmp_path: Path) -> None:
    path, data = tmp_path / "p.yaml", tmp_path / "data.npz"
    ends = {"x": 4, "a": 4, "s": 1, "b": 30000, "y": 8}
    lines = [f'  "{n}": {{low: {-end}, high: {end}{", type: int16" if n == "b" else ""}}}' for n, end in ends.items()]
    path.write_text("\n".join(["version: 1", "tensors:", *lines, ""]))
    np.savez(data, x=np.random.default_rng(0).normal(0, 1, (20, 4, 6, 6)).astype(np.float32))
    figures = build(model, BuildOptions(make_mixed_machine(), calibration=str(data), parameters=str(path))).figures
    worst_layer = next(worst for worst in figures["worst_layers"] if worst["tensor"] == "b")
    assert worst_layer["why"].startswith("its codes cover [-3e+04, 3e+04]")


def test_the_remedy_of_a_coarse_layer_is_the_option(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=np.random.default_rng(0).normal(0, 1, (16, 4, 6, 6)).astype(np.float32))
    built = build(model, BuildOptions(make_mixed_machine(), calibration=str(data), error_report=True))
    before, errors = built.figures, built.errors
    assert errors is not None
    types = tuple(named for finding in errors.findings[:3] for advice in finding.advice for named in advice.types)
    assert types
    after = build(model, BuildOptions(make_mixed_machine(), calibration=str(data), types=types)).figures
    assert after["outputs"][0]["sqnr_db"] > before["outputs"][0]["sqnr_db"] + 1
    other = build(model, BuildOptions(int8_machine(), calibration=str(data), error_report=True)).errors
    assert other is not None and not any(r.types for finding in other.findings for r in finding.advice)


def test_an_operator_forces_no_scale_of_sums() -> None:
    forced = [get_forced_qparams(Softmax(), codes) for codes in (CodeType.INT8, CodeType.INT16, CodeType.INT32)]
    assert forced == [Quant(2.0**-8, -128), Quant(2.0**-15, 0), None]
