"""A type for each tensor: what the option and the parameters file say, what is refused, what the report tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.meaning.machines import int8_machine, mixed_machine
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError, ConfigError
from toolchain.isa.manual import c_header, manual


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x -> Conv a -> Sigmoid s -> Conv b -> Add of a and b: y."""
    rng = np.random.default_rng(1)
    weights = [numpy_helper.from_array(rng.normal(0, 0.3, (4, 4, 1, 1)).astype(np.float32), f"w{i}") for i in range(2)]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="first"),
        helper.make_node("Sigmoid", ["a"], ["s"], name="function"),
        helper.make_node("Conv", ["s", "w1"], ["b"], name="second"),
        helper.make_node("Add", ["a", "b"], ["y"], name="sum"),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 6, 6]) for n in ("x", "y")]
    path = tmp_path_factory.mktemp("types") / "net.onnx"
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def types_of(model: Path, *types: str, parameters: Path | None = None) -> dict[str, str]:
    """Of the model's tensors; nothing is fused."""
    options = BuildOptions(mixed_machine(), types=types, parameters=None if parameters is None else str(parameters), level=0)
    graph = build(model, options).container.graph
    return {
        name.removesuffix("@nhwc"): t.dtype
        for name, t in graph.types.items()
        if t.quant is not None and "@" not in name.removesuffix("@nhwc")
    }


@pytest.mark.parametrize(
    ("asked", "wide"),
    [
        ([], set()),
        (["a=int16"], {"a"}),
        (["first=int16"], {"a"}),
        (["Conv=int16"], {"a", "b"}),
        (["*=int16"], {"x", "a", "s", "b", "y"}),
        (["[ab]=int16", "b=int8"], {"a"}),
    ],
)
def test_names_are_tensors_nodes_operators_and_patterns(model: Path, asked: list[str], wide: set[str]) -> None:
    found = types_of(model, *asked)
    assert {name for name, dtype in found.items() if dtype == "int16"} >= wide
    assert all(found.get(name, "int8") == "int8" for name in {"x", "a", "s", "b", "y"} - wide)


def test_the_parameters_file_says_the_same(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    lines = [f'  "{n}": {{low: -2, high: 2{", type: int16" if n in "as" else ""}}}' for n in ("x", "a", "s", "b", "y")]
    path.write_text("\n".join(["version: 1", "tensors:", *lines, ""]))
    plain = tmp_path / "plain.yaml"
    plain.write_text(path.read_text().replace(", type: int16", ""))
    one = build(model, BuildOptions(mixed_machine(), parameters=str(path)))
    other = build(model, BuildOptions(mixed_machine(), parameters=str(plain), types=("a=int16", "s=int16")))
    neither = build(model, BuildOptions(mixed_machine(), parameters=str(plain)))
    assert one.data == other.data != neither.data
    again = types_of(model, "a=int8", parameters=path)  # the option counts
    assert (again["a"], again["s"]) == ("int8", "int16")


def test_bad_types_are_told_all_at_once(model: Path) -> None:
    asked = ("a", "a=int32", "z=int16", "=int16")
    with pytest.raises(CompileError) as caught:
        build(model, BuildOptions(mixed_machine(), types=asked))
    assert str(caught.value).splitlines() == [
        "--type a: must be NAME=TYPE, such as conv1=int16",
        "--type a=int32: edge16_mixed has int8, int16 activations (numerics.activation, numerics.more_activations)",
        "--type z=int16: the chip holds no such tensor, and the result of no such node",
        "--type =int16: must be NAME=TYPE, such as conv1=int16",
        "  help: the parameters file that scripts/calibrate.py writes lists the tensors",
    ]


def test_a_type_that_the_machine_has_not(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    entries = "".join(f"  {n}: {{low: -2, high: 2}}\n" for n in ("x", "s", "b", "y"))
    path.write_text(f"version: 1\ntensors:\n{entries}  a: {{low: -2, high: 2, type: int16}}\n")
    with pytest.raises(ConfigError) as caught:
        build(model, BuildOptions(int8_machine(), parameters=str(path)))
    said = "tensors.a.type: int16 where the machine has int8 activations; give one of these"
    assert str(caught.value) == f"{path}:7: {said}"


def test_explain_says_the_types_where_there_are_several(model: Path) -> None:
    rows = build(model, BuildOptions(mixed_machine(), types=("a=int16",))).figures["nodes"]
    said = {row["node"]: row["reason"] for row in rows}
    assert said["first"].endswith("codes: int8 to int16")
    assert all("codes:" not in row["reason"] for row in build(model, BuildOptions(int8_machine())).figures["nodes"])


def test_finer_codes_cost_what_the_array_and_the_bytes_say(model: Path) -> None:
    plain, wide = (build(model, BuildOptions(mixed_machine(), types=types)).figures for types in ((), ("*=int16",)))
    assert wide["dram_read_bytes"] > plain["dram_read_bytes"] and wide["cycles"] > plain["cycles"]


def test_manual_and_header_number_the_types() -> None:
    machine = mixed_machine()
    assert "- 1 int16, -32768 to 32767. A function's table has 513 entries of int16" in "\n".join(manual(machine).splitlines())
    assert "#define NPU_TYPE_INT8 0\n#define NPU_TYPE_INT16 1\n" in c_header(machine)
    assert "NPU_TYPE" not in c_header(int8_machine())


def test_the_remedy_of_a_coarse_layer_is_the_option(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=np.random.default_rng(0).normal(0, 1, (20, 4, 6, 6)).astype(np.float32))
    before = build(model, BuildOptions(mixed_machine(), calibration=str(data))).figures
    named = [part for worst in before["worst_layers"] for part in worst["remedy"].split(", or ") if part.startswith("--type ")]
    assert named
    types = tuple(part.removeprefix("--type ") for part in named)
    after = build(model, BuildOptions(mixed_machine(), calibration=str(data), types=types)).figures
    assert after["outputs"][0]["sqnr_db"] > before["outputs"][0]["sqnr_db"] + 1
    other = build(model, BuildOptions(int8_machine(), calibration=str(data))).figures["worst_layers"]
    assert not any("--type" in worst["remedy"] for worst in other)
