"""Machines with rates for single functions of one number: which runs at which, what they lack, and that bits do not change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.errors import ConfigError
from toolchain.hw import read_source
from toolchain.hw.chip import Chip
from toolchain.hw.engines import FunctionRate
from toolchain.isa import Isa, Machine, decode, load_machine, make_default_table
from toolchain.isa.encoding_needs import find_encoding_gaps
from toolchain.isa.machine import read_table
from toolchain.machine import TABLE_FUNCTIONS, Convolution, MachineOp, Table, TableFunction, find_unsupported
from toolchain.ops.function_names import FUNCTION_NAMES
from toolchain.report.trace import trace_json
from toolchain.runtime import Session, random_feeds

COMMON = {"lanes": 16, "startup": 8}  # of edge16
SLOW = {"lanes": 2, "startup": 40}
OTHERS = dict.fromkeys(("add", "mul", "rescale"), COMMON)


def edge16(**functions: dict[str, int]) -> Machine:
    """Return the machine with these functions of its vector engine, and a table only where it is among them."""
    return with_engines({"vector": functions})


def with_engines(functions: dict[str, dict[str, dict[str, int]]], **mac: Any) -> Machine:
    """Return the machine with several vector engines.

    `functions`: functions of each vector engine.
    """
    machine = load_machine("edge16")
    engines = dict(machine.chip.engines)
    for name, rates in functions.items():
        function_rates = {f: FunctionRate.model_validate(rate) for f, rate in (OTHERS | rates).items()}
        engines[name] = engines["vector"].model_copy(update={"functions": function_rates})
    engines["mac"] = engines["mac"].model_copy(update=mac)
    machine = replace(machine, chip=machine.chip.model_copy(update={"engines": engines}))
    assert not find_encoding_gaps(machine.chip, machine.isa)
    return machine


def make_build(folder: Path, body: str, machine: Machine, opset: int = 20) -> tuple[Build, list[MachineOp]]:
    """The build of x [1, 8, 16, 32] -> y, and the operations of its regions. w: a convolution's weights."""
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g (float[1,8,16,32] x) => (float[1,8,16,32] y) {{ {body} }}'
    )
    if "w)" in body:
        weights = np.random.default_rng(2).normal(size=(8, 8, 1, 1)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(proto, folder / "m.onnx")
    built = build(folder / "m.onnx", BuildOptions(machine))
    regions = [s for s in built.container.segments if isinstance(s, Region)]
    return built, [op for region in regions for op in decode(region.program, machine.isa).ops]


def tables(ops: list[MachineOp]) -> set[str]:
    return {op.function.name.lower() for op in ops if isinstance(op, Table)}


def codes(built: Build) -> np.ndarray:
    session = Session(built.data)
    return session.run(None, random_feeds(session.get_inputs(), seed=3))[0]


def test_the_names_are_those_of_onnx() -> None:
    """Every function that a table can hold has a name of its own; no name is of none."""
    assert set(FUNCTION_NAMES.values()) == TABLE_FUNCTIONS.keys() - {"table"}
    assert {"hard_swish", "leaky_relu", "exp", "thresholded_relu"} <= TABLE_FUNCTIONS.keys()
    assert FUNCTION_NAMES.keys() <= {schema.name for schema in onnx.defs.get_all_schemas()}
    page = (Path(__file__).parents[2] / "docs" / "machine.md").read_text()
    assert not [name for name in TABLE_FUNCTIONS if f"`{name}`" not in page]


@pytest.mark.parametrize("body, function", [("y = Exp(x)", "exp"), ("y = HardSwish(x)", "hard_swish"), ("y = Gelu(x)", "gelu")])
def test_a_function_runs_at_its_own_rate(body: str, function: str, tmp_path: Path) -> None:
    plain, slow = edge16(table=COMMON), edge16(table=COMMON, **{function: SLOW})
    before, _ = make_build(tmp_path, body, plain)
    after, ops = make_build(tmp_path, body, slow)
    assert tables(ops) == {function}
    # 4,096 elements on two lanes, rather than on 16
    assert after.figures["cycles"] >= 2048 + 40 > before.figures["cycles"]
    assert np.array_equal(codes(before), codes(after))
    other, ops = make_build(tmp_path, "y = Tanh(x)", slow)
    assert tables(ops) == {"table"}
    assert other.figures["cycles"] == make_build(tmp_path, "y = Tanh(x)", plain)[0].figures["cycles"]


def test_time_of_one_operation_is_the_functions() -> None:
    chip = edge16(table=COMMON, exp=SLOW).chip
    op = Table(4, 5, 7, 0, 0, 0, 0, 0, 0, 0)
    assert op.demand(chip).compute_cycles == 8 + 9
    assert replace(op, function=TableFunction.EXP).demand(chip).compute_cycles == 40 + 70
    assert replace(op, function=TableFunction.TANH).demand(chip).compute_cycles == 8 + 9


def test_a_chain_runs_at_the_rate_of_table_unless_it_spells_a_function_out(tmp_path: Path) -> None:
    machine = edge16(table=COMMON, exp=SLOW, sigmoid=SLOW, swish=COMMON, mish=COMMON)
    assert tables(make_build(tmp_path, "a = Exp(x) y = Sigmoid(a)", machine)[1]) == {"table"}
    assert tables(make_build(tmp_path, "a = Sigmoid(x) y = Mul(a, x)", machine)[1]) == {"swish"}
    assert tables(make_build(tmp_path, "a = Softplus(x) b = Tanh(a) y = Mul(x, b)", machine)[1]) == {"mish"}


def test_a_machine_without_table_runs_only_what_it_lists(tmp_path: Path) -> None:
    machine = edge16(exp=COMMON, sigmoid=SLOW)
    built, ops = make_build(tmp_path, "y = Exp(x)", machine)
    assert (built.figures["fallbacks"], tables(ops)) == ([], {"exp"})
    refused, _ = make_build(tmp_path, "y = Tanh(x)", machine)
    assert [f["reason"] for f in refused.figures["fallbacks"]] == ["engines.vector.functions has neither tanh nor table"]
    scaled, _ = make_build(tmp_path, "c = Constant<value_float = 3.0>() a = Neg(x) b = Exp(a) y = Pow(b, c)", machine)
    reason_by_node = {f["node"]: f["reason"] for f in scaled.figures["fallbacks"]}
    assert set(reason_by_node.values()) == {
        "engines.vector.functions has neither neg nor table",
        "engines.vector.functions has no table",
    }


def test_a_clamp_that_no_layer_takes_in_needs_rescale_or_table(tmp_path: Path) -> None:
    machine = edge16(exp=COMMON, rescale=COMMON)
    built, _ = make_build(tmp_path, "a = Exp(x) b = Relu(x) y = Mul(a, b)", machine)
    assert built.figures["fallbacks"] == []
    data = json.loads(machine.chip.model_dump_json())
    del data["engines"]["vector"]["functions"]["rescale"]
    machine = replace(machine, chip=Chip.model_validate_json(json.dumps(data)))
    built, _ = make_build(tmp_path, "a = Exp(x) b = Relu(x) y = Mul(a, b)", machine)
    reasons = {f["reason"] for f in built.figures["fallbacks"]}
    assert reasons == {"engines.vector.functions has neither rescale nor table"}


def test_a_machine_without_table_takes_chains_apart(tmp_path: Path) -> None:
    machine = edge16(exp=COMMON, sigmoid=SLOW)
    built, ops = make_build(tmp_path, "a = Exp(x) y = Sigmoid(a)", machine)
    assert (built.figures["fallbacks"], tables(ops)) == ([], {"exp", "sigmoid"})
    built, ops = make_build(tmp_path, "a = Sigmoid(x) y = Mul(a, x)", machine)
    assert (built.figures["fallbacks"], tables(ops)) == ([], {"sigmoid"})
    x = random_feeds(Session(built.data).get_inputs(), seed=3)
    (value,) = x.values()
    expected = value / (1 + np.exp(-value))
    assert np.abs(codes(built) - expected).max() <= 0.02 * np.abs(expected).max()


def test_a_function_behind_an_array_costs_no_pass(tmp_path: Path) -> None:
    machine = with_engines({"vector": {"exp": SLOW}}, post=("table",))
    built, ops = make_build(tmp_path, "a = Conv(x, w) y = Exp(a)", machine)
    assert built.figures["fallbacks"] == [] and not tables(ops)
    assert {op.use_table for op in ops if isinstance(op, Convolution)} == {1}


def test_a_unit_gets_the_functions_that_it_has(tmp_path: Path) -> None:
    machine = with_engines({"vector": {"exp": COMMON}, "tables": {"table": SLOW}})
    _, ops = make_build(tmp_path, "y = Tanh(x)", machine)
    units = {op.unit_in(machine.chip).name for op in ops if isinstance(op, Table)}
    assert units == {"tables"}
    _, ops = make_build(tmp_path, "y = Exp(x)", machine)
    assert tables(ops) == {"exp"} and "vector" in {op.unit_in(machine.chip).name for op in ops if isinstance(op, Table)}


def test_what_is_said_of_it(tmp_path: Path) -> None:
    machine = edge16(table=COMMON, exp=SLOW)
    built, _ = make_build(tmp_path, "y = Exp(x)", machine)
    (row,) = built.figures["nodes"]
    assert row["reason"] == "engines.vector.functions.exp={lanes: 2, startup: 40}: the rate of this function"
    run = Session(built.data, timing=True).run_detailed(random_feeds(built.container.inputs))
    events = json.loads(trace_json(built.container, [s.simulation for s in run.segments]))["traceEvents"]
    assert {e["args"].get("function") for e in events if e.get("cat") == "table"} == {"exp"}
    built, _ = make_build(tmp_path, "y = Tanh(x)", machine)
    (row,) = built.figures["nodes"]
    reason = "engines.vector.functions.table={lanes: 16, startup: 8}: no single function with a rate of its own"
    assert row["reason"] == reason
    built, _ = make_build(tmp_path, "y = Tanh(x)", edge16(table=COMMON))
    assert built.figures["nodes"][0]["reason"] == ""


def test_programs_for_other_machines_are_refused() -> None:
    op = Table(1, 1, 1, 0, 0, 0, 0, 0, 0, 0, function=TableFunction.EXP)
    chip = edge16(sigmoid=COMMON).chip
    assert find_unsupported(op, chip) == "engines.vector.functions has neither exp nor table"
    assert find_unsupported(replace(op, function=TableFunction.TABLE), chip) == "engines.vector.functions has no table"
    assert find_unsupported(replace(op, function=99), chip) == "function=99 is no function of a table"
    assert find_unsupported(op, edge16(table=COMMON).chip) is None


@pytest.mark.parametrize("kind", ["descriptors", "registers"])
def test_bits_only_where_there_is_a_choice(kind: str) -> None:
    def field(machine: Machine) -> str:
        lines = make_default_table(machine.chip, kind).partition("\n  table:\n")[2].split("\n  signal:")[0]
        return next((line.strip() for line in lines.splitlines() if "function" in line), "")

    assert field(edge16(table=COMMON)) == ""
    assert "function: " in field(edge16(table=COMMON, exp=SLOW)) and "fixed" not in field(edge16(table=COMMON, exp=SLOW))
    assert field(edge16(exp=SLOW)) == f"fixed: {{function: {TableFunction.EXP.value}}}"


def test_a_table_of_an_instruction_set_without_the_bits_is_refused() -> None:
    machine = edge16(table=COMMON)
    table, _ = read_table(read_source(make_default_table(machine.chip), "first.yaml"))
    assert table is not None
    other = edge16(table=COMMON, exp=SLOW, abs=SLOW).chip
    ((path, reason),) = find_encoding_gaps(other, Isa(table, other))
    assert path == ("operations", "table")
    assert reason == (
        "has no bits for function, but this chip uses 0 to 15 (engines.vector.functions); give it 4 bits, or let "
        "python -m toolchain.isa FILE.yaml write a first table (docs/instructions.md)"
    )


def test_a_function_that_is_none_is_refused(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "hw_configs" / "edge16.yaml").read_text()
    changed = text.replace("      prelu: {", "      hardswish: {lanes: 4}\n      prelu: {")
    (tmp_path / "mine.yaml").write_text(changed)
    with pytest.raises(ConfigError) as refused:
        load_machine(str(tmp_path / "mine.yaml"))
    line = 1 + changed[: changed.index("hardswish")].count("\n")
    path = tmp_path / "mine.yaml"
    expected = f'{path}:{line}: engines.vector.functions.hardswish: no such function; did you mean "hard_swish"?'
    assert str(refused.value) == expected


def test_a_table_for_a_clamp_is_one_of_it(tmp_path: Path) -> None:
    """A machine that rescales takes a Relu for a clamp; one that does not may have it as a function."""
    machine = load_machine("edge16")
    vector = machine.chip.engines["vector"].model_copy(update={"functions": {"relu": FunctionRate.model_validate(SLOW)}})
    machine = replace(machine, chip=machine.chip.model_copy(update={"engines": {**machine.chip.engines, "vector": vector}}))
    built, ops = make_build(tmp_path, "y = Relu(x)", machine)
    assert (built.figures["fallbacks"], tables(ops)) == ([], {"relu"})
