"""Works on several arrays, vector engines and DMA engines: where they go, that they overlap, and what is left unused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from tests.support.example_networks import fill_network
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.errors import CompileError, InternalError
from toolchain.hw.cross_section_rules import find_broken_rules
from toolchain.hw.describe import chip_lines
from toolchain.isa import Machine, decode, load_machine
from toolchain.isa.encoding_needs import find_encoding_gaps
from toolchain.machine import Convolution, Copy, MachineOp, Space
from toolchain.report.report_text import layers_text, totals_text
from toolchain.runtime import Session, random_feeds, verify
from toolchain.schedule import region_planner
from toolchain.schedule.goals import BALANCED, OBJECTIVES, Goal, Objective
from toolchain.schedule.unit_choice import earliest


def edge16(engines: Mapping[str, Mapping[str, Any]], **sections: Mapping[str, Any]) -> Machine:
    """With two DMA channels and keys of engines and sections changed; an engine that it does not have starts as a copy of
    the one of its kind."""
    machine = load_machine("edge16")
    chip = machine.chip
    first = {e.kind: e for e in chip.engines.values()}
    changes = {"dma": {"channels": 2}, **engines}
    changed_engines = {
        n: chip.engines.get(n, first[c.get("kind", "mac_array")]).model_copy(update=dict(c)) for n, c in changes.items()
    }
    update: dict[str, Any] = {"engines": {**chip.engines, **changed_engines}}
    for name, keys in sections.items():
        update[name] = {**getattr(chip, name), **keys} if name == "memories" else getattr(chip, name).model_copy(update=keys)
    chip = chip.model_copy(update=update)
    assert not find_broken_rules(chip), find_broken_rules(chip)
    return replace(machine, chip=chip)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def save(path: Path, nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str], **weights: tuple) -> None:
    rng = np.random.default_rng(1)
    constants = {n: rng.normal(size=s).astype(np.float32) for n, s in weights.items()}
    input_shapes, output_shapes = (dict.fromkeys(names, (1, 32, 16, 16)) for names in (inputs, outputs))
    onnx.save(build_model(nodes, input_shapes, output_shapes, constants), path)


def convolution(x: str, w: str, y: str) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, w], [y], name=y, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def built(path: Path, machine: Machine, level: int = 2, goal: Goal = BALANCED) -> tuple[Build, list[MachineOp]]:
    """Compiled, and once more held against the reference; with the operations of its one region."""
    network = build(path, BuildOptions(machine, level=level, goal=goal))
    (region,) = network.container.segments
    assert isinstance(region, Region)
    _, difference = verify(
        Session(network.data, timing=True),
        Session(network.data, backend="reference"),
        random_feeds(network.container.inputs, seed=5),
    )
    assert difference is None
    return network, list(decode(region.program, machine.isa).ops)


def of_layer(network: Build, ops: Sequence[MachineOp], name: str) -> list[Convolution]:
    region = network.container.segments[0]
    assert isinstance(region, Region)
    layer = next(i for i, info in enumerate(region.layers) if name in info.sources)
    return [op for op, owner in zip(ops, region.op_layers) if owner == layer and isinstance(op, Convolution)]


def test_two_arrays_share_the_tiles_of_one_layer(model: Path) -> None:
    save(model, [convolution("x", "w", "y")], ["x"], ["y"], w=(32, 32, 3, 3))
    one, _ = built(model, edge16({}))
    two, ops = built(model, edge16({"mac": {"count": 2}}))
    assert {op.unit for op in ops if isinstance(op, Convolution)} == {0, 1}
    assert two.figures["cycles"] < 0.75 * one.figures["cycles"]
    assert (one.figures["arrays_overlap"], one.figures["layers"][0]["engine"]) == (0, "mac")
    assert two.figures["arrays_overlap"] > 0.6 and two.figures["layers"][0]["engine"] == "mac x2"
    assert {"mac0", "mac1"} <= {unit for unit, cycles in two.figures["busy_cycles"].items() if cycles}
    assert "two or more arrays at once in " in totals_text(two.figures)
    assert two.figures["roofline_cycles"] <= one.figures["roofline_cycles"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_goal_plans_for_all_arrays(objective: Objective, model: Path) -> None:
    save(model, [convolution("x", "w", "z"), convolution("z", "v", "y")], ["x"], ["y"], w=(16, 32, 3, 3), v=(16, 16, 3, 3))
    network, ops = built(model, edge16({"mac": {"count": 2}}), goal=Goal(objective))
    assert {op.unit for op in ops if isinstance(op, Convolution)} == {0, 1}
    assert network.figures["expected_cycles"] == pytest.approx(network.figures["cycles"], rel=0.05)


def test_tiles_without_a_unit_are_a_fault(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan whose tiles nobody gave to units would run them all on one."""
    save(model, [convolution("x", "w", "y")], ["x"], ["y"], w=(32, 32, 3, 3))
    monkeypatch.setattr(region_planner, "assign_units", lambda plan, *_: plan)
    with pytest.raises(InternalError, match=r"^layer y has 2 units for its tiles, and no tile has one of them$"):
        build(model, BuildOptions(edge16({"mac": {"count": 2}})))


def test_convolutions_that_need_nothing_of_each_other_run_at_once(model: Path) -> None:
    """Each is one tile, so what overlaps is layers."""
    save(model, [convolution("x", "w", "y"), convolution("x", "v", "z")], ["x"], ["y", "z"], w=(32, 32, 3, 3), v=(32, 32, 3, 3))
    entries = load_machine("edge16").chip.array.accumulators.model_copy(update={"entries": 8192})
    limits = {"convolution": load_machine("edge16").chip.limits.convolution.model_copy(update={"max_width": 16})}
    network, ops = built(model, edge16({"mac": {"count": 2, "accumulators": entries}}, limits=limits), level=0)
    y, z = (of_layer(network, ops, name) for name in ("y", "z"))
    assert [len(y), len(z)] == [1, 1] and {y[0].unit, z[0].unit} == {0, 1}
    assert network.figures["arrays_overlap"] > 0.3


@pytest.mark.parametrize("level", [2, 3])
def test_works_that_add_to_the_same_sums_stay_on_one_array(model: Path, level: int) -> None:
    save(model, [convolution("x", "w", "y"), convolution("y", "w", "z")], ["x"], ["z"], w=(32, 32, 3, 3))
    chip = load_machine("edge16").chip
    limits = {"convolution": chip.limits.convolution.model_copy(update={"max_input_channels": 8})}
    entries = chip.array.accumulators.model_copy(update={"entries": 1024})
    machine = edge16({"mac": {"accumulators": entries}, "second": {"rows": 8, "accumulators": entries}}, limits=limits)
    _, ops = built(model, machine, level)
    open_chains: dict[int, int] = {}  # by array: works of its open chain
    for op in (op for op in ops if isinstance(op, Convolution)):
        assert op.accumulate == (open_chains.get(op.unit, 0) > 0)
        open_chains[op.unit] = 0 if op.emit else open_chains.get(op.unit, 0) + 1
    assert open_chains == {0: 0, 1: 0}


def test_an_array_without_a_post_never_gets_what_needs_it(model: Path) -> None:
    sigmoid = helper.make_node("Sigmoid", ["y"], ["s"], name="s")
    save(model, [convolution("x", "w", "y"), sigmoid, convolution("s", "w", "z")], ["x"], ["z"], w=(32, 32, 3, 3))
    _, ops = built(model, edge16({"second": {"post": ()}}))
    used = {(op.use_table, op.unit) for op in ops if isinstance(op, Convolution)}
    assert used == {(1, 0), (0, 0), (0, 1)}


def test_what_only_a_smaller_array_can_do_goes_there(model: Path) -> None:
    """Post and depthwise modes of no array are taken together: the table runs on the second, the sum apart."""
    relu = helper.make_node("Sigmoid", ["y"], ["s"], name="s")
    add = helper.make_node("Add", ["s", "x"], ["z"], name="z")
    save(model, [convolution("x", "w", "y"), relu, add], ["x"], ["z"], w=(32, 32, 3, 3))
    network, ops = built(model, edge16({"mac": {"post": ("add",)}, "second": {"rows": 8, "columns": 8, "post": ("table",)}}))
    assert {(op.use_table, op.use_add, op.unit) for op in ops if isinstance(op, Convolution)} == {(1, 0, 1)}
    assert [layer["op"] for layer in network.figures["layers"]] == ["Convolution", "Binary"]
    reasons = [row["reason"] for row in network.figures["nodes"] if row["node"] == "z"]
    assert "engines.mac, engines.second.post has no add on an array that can do the rest" in reasons[0]


def test_a_vector_engine_gets_what_it_has_a_function_for(model: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "u"], ["m"], name="m"), helper.make_node("Sigmoid", ["m"], ["y"], name="y")]
    save(model, nodes, ["x", "u"], ["y"])
    functions = load_machine("edge16").chip.of_kind("vector")[0].vector.functions
    tables = {"kind": "vector", "functions": {"table": functions["table"]}}
    _, ops = built(model, edge16({"tables": tables}))
    used = {(op.NAME, op.unit_in(edge16({"tables": tables}).chip).name) for op in ops if op.ENGINE == "vector"}
    assert ("elementwise", "tables") not in used and used >= {("elementwise", "vector"), ("table", "tables")}


def test_a_work_goes_where_it_ends_first() -> None:
    fast, slow = edge16({"second": {"rows": 4}}).chip.of_kind("mac_array")
    assert earliest({fast: (40, 0), slow: (40, 0)}) is fast
    assert earliest({fast: (40, 20), slow: (40, 0)}) is slow  # the other has just been busy
    assert earliest({fast: (50, 0), slow: (40, 40)}) is slow


def test_engines_that_programs_cannot_use_are_named(model: Path) -> None:
    save(model, [convolution("x", "w", "y")], ["x"], ["y"], w=(32, 32, 3, 3))
    memories = load_machine("edge16").chip.memories
    array = load_machine("edge16").chip.array
    private_memory = memories["sram"].model_copy(update={"private_to": "core"})
    core = {"count": 2, "memories": array.memories.model_copy(update={"input": "tile"})}
    with_core = edge16({"core": core}, memories={"tile": private_memory})
    chip = with_core.chip
    assert [u.name for u in chip.workers("mac_array")] == ["mac"] and [u.number for u in chip.workers("mac_array")] == [2]
    reason = "engines.core.memories.input is tile, compiled programs have it in sram"
    assert chip.unused == {"core": reason}
    assert chip.macs_per_cycle == load_machine("edge16").chip.macs_per_cycle == 256
    assert (
        f"# peak: 256 MAC a cycle, 128 GMAC/s\n# not in the peak: engines.core, {reason}\n" in "\n".join(chip_lines(chip)) + "\n"
    )
    alone = {k: v for k, v in chip.engines.items() if k != "mac"}
    with pytest.raises(CompileError, match=f"^edge16: nothing that multiplies can be used: {reason}$"):
        build(model, BuildOptions(replace(with_core, chip=chip.model_copy(update={"engines": alone}))))


def test_an_array_that_the_program_leaves_idle_is_not_in_the_utilization(model: Path) -> None:
    nodes = [convolution("x", "w", "a"), helper.make_node("Sigmoid", ["a"], ["y"], name="s")]
    save(model, nodes, ["x"], ["y"], w=(32, 32, 3, 3))
    one, ops = built(model, edge16({}))
    two, same = built(model, edge16({"plain": {"post": ()}}))  # the table rides on the convolution: `plain` cannot make it
    assert (len(ops), one.figures["cycles"]) == (len(same), two.figures["cycles"])
    assert (one.figures["used_arrays"], one.figures["idle_arrays"]) == (["mac"], [])
    assert (two.figures["used_arrays"], two.figures["idle_arrays"]) == (["mac"], ["plain"])
    assert two.figures["mac_utilization"] == one.figures["mac_utilization"] > 0.3
    assert layers_text(two.figures) == layers_text(one.figures)
    assert "MAC utilization is of mac: no operation of the program runs on plain" in totals_text(two.figures)
    assert "utilization is of" not in totals_text(one.figures)


def test_channels_of_unequal_rate_are_dealt_loads_by_rate(model: Path) -> None:
    """The fastest first; the slowest stores; one that does not reach the dram has nothing to do."""
    save(model, [convolution("x", "w", "y")], ["x"], ["y"], w=(256, 32, 3, 3))
    dma = {"kind": "dma", "channels": 1}
    machine = edge16(
        {
            "dma": {"channels": 2, "bytes_per_cycle": 2.0},
            "quick": {**dma, "bytes_per_cycle": 8.0},
            "inner": {**dma, "memories": ("sram",)},
            "mac": {"rows": 1},
        }
    )
    assert [u.name for u in machine.chip.channels] == ["quick0", "dma0", "dma1"]
    assert machine.chip.unused == {"inner": "engines.inner.memories has no dram: compiled programs move between dram and sram"}
    onnx_model = onnx.load(model)
    onnx_model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 256
    onnx.save(onnx_model, model)
    network, ops = built(model, machine)
    names = [u.name for u in machine.chip.of_kind("dma")]
    moved: dict[str, int] = {}
    for op in ops:
        if isinstance(op, Copy) and op.source_space == Space.DRAM:
            moved[names[op.channel]] = moved.get(names[op.channel], 0) + op.inner_bytes * op.count0 * op.count1 * op.count2
    assert moved.keys() == {"quick0", "dma0"} and moved["quick0"] > 2 * moved["dma0"]
    assert {names[op.channel] for op in ops if isinstance(op, Copy) and op.destination_space == Space.DRAM} == {"dma1"}
    assert "engine inner is not used: engines.inner.memories has no dram" in totals_text(network.figures)


@pytest.mark.parametrize("semaphores", [64, 14])
def test_many_units_of_few_semaphores(model: Path, semaphores: int) -> None:
    """12 queues: not all of their rings can be compared."""
    nodes = [convolution("x", "w", "y"), helper.make_node("Sigmoid", ["x"], ["s"], name="s")]
    save(model, nodes, ["x"], ["y", "s"], w=(32, 32, 3, 3))
    machine = edge16({"mac": {"count": 6}, "vector": {"count": 4}}, sync={"semaphores": semaphores})
    network, ops = built(model, machine)
    assert len({op.unit for op in ops if isinstance(op, Convolution)}) > 2
    assert network.figures["arrays_overlap"] > 0


def test_a_table_without_bits_for_the_unit_is_named() -> None:
    machine = edge16({"mac": {"count": 2}})
    faults = find_encoding_gaps(machine.chip, load_machine("ethos_u55_256").isa)
    assert any("has no bits for unit, but this chip uses 0 to 1 (units mac0, mac1)" in reason for _, reason in faults)


@pytest.mark.parametrize(
    ("network", "limit"), [("dscnn_kws", 0.78), pytest.param("resnet8_cifar", 0.815, marks=pytest.mark.exhaustive)]
)
def test_a_second_array_helps_a_real_network(network: str, limit: float, model: Path) -> None:
    """An array of 8x8 beside one of 16x16 leaves at most `limit` of the cycles, and an equal one 0.55.

    Used as well as one alone, 16x16 and 8x8 take 256 / 320 = 0.80 of its cycles. ResNet-8 takes 0.812: both programs do 80 % of
    the products of their peak. It takes 0.805 with whole blocks of constants fetched ahead. The plan with halves is
    expected to be faster, as it is over the golden programs in the mean (docs/bounds.md). DS-CNN takes 0.777, as a smaller
    array fills and drains in fewer cycles a fold.
    """
    onnx.save(fill_network(network), model)
    engines: list[Mapping[str, Mapping[str, Any]]] = [{}, {"mac": {"count": 2}}, {"small": {"rows": 8, "columns": 8}}]
    one, equal, smaller = (build(model, BuildOptions(edge16(extra_engines))).figures for extra_engines in engines)
    assert equal["cycles"] < 0.55 * one["cycles"] and equal["arrays_overlap"] >= 0.9
    assert smaller["cycles"] < limit * one["cycles"] and smaller["arrays_overlap"] >= 0.8
