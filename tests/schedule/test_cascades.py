"""Layers in turns where they save cycles: bytes of DRAM, what plans expect, what else reads the program."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import helper

from bench.make_mobilenet_chain import bodies
from scripts.onnx_builder import build_model
from tests.support.force_cascades import force_cascade_plans
from tests.support.machine_variants import with_keys, with_sram
from tests.support.record_plans import record_region_plans
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError
from toolchain.isa import Machine, load_machine
from toolchain.machine import Space
from toolchain.schedule.goals import CYCLES, Goal
from toolchain.schedule.layer_grouping import GroupingSearch
from toolchain.schedule.plan import PlannedRegion
from toolchain.schedule.region_planner import RegionPlanner
from toolchain.schedule.text import print_schedule


class Built(NamedTuple):
    figures: Mapping[str, Any]
    plans: list[PlannedRegion]


def _built(model: onnx.ModelProto, machine: Machine, folder: Path, level: int = 2, goal: Goal = CYCLES) -> Built:
    """The build compares its program with the integer reference, bit for bit."""
    onnx.save(model, folder / "model.onnx")
    with record_region_plans() as plans:
        figures = build(folder / "model.onnx", BuildOptions(machine, level=level, goal=goal)).figures
    return Built(figures, plans)


@cache
def _bodies_on_edge16(kib: float) -> Built:
    with TemporaryDirectory() as folder:
        return _built(bodies(), with_sram("edge16", kib), Path(folder))


def _dram_bytes(built: Built) -> int:
    return built.figures["dram_read_bytes"] + built.figures["dram_write_bytes"]


def _layer_by_layer(model: onnx.ModelProto, machine: Machine, folder: Path) -> Built:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RegionPlanner, "group_cascades", lambda self, plan: plan)
        return _built(model, machine, folder)


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        pytest.param("edge16", 96, marks=pytest.mark.exhaustive),
        ("edge16", 128),
        ("wide32_w4a16", 128),
        ("ethos_u55_256", 64),
    ],
)
def test_wide_tensors_between_layers_stay_on_the_chip(name: str, kib: int, tmp_path: Path) -> None:
    machine = with_sram(name, kib)
    cascaded = _bodies_on_edge16(kib) if name == "edge16" else _built(bodies(), machine, tmp_path)
    alone = _layer_by_layer(bodies(), machine, tmp_path)
    assert _dram_bytes(cascaded) < 0.4 * _dram_bytes(alone)
    assert cascaded.figures["cycles"] < alone.figures["cycles"]
    expected = sum(plan.cycles for plan in cascaded.plans)
    assert expected == pytest.approx(cascaded.figures["cycles"], rel=0.03)


def test_cascades_of_the_last_round_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a search that may plan the cascades of one path alone."""
    search = GroupingSearch.best
    monkeypatch.setattr(GroupingSearch, "best", lambda grouping, near, rounds: search(grouping, near, 1))
    assert all(plan.cascades for plan in _built(bodies(1, 14, 8, 48), with_sram("edge16", 16), tmp_path).plans)


def _sound(samples: int) -> onnx.ModelProto:
    """Three 1-D convolutions over one channel."""
    rng, nodes, weights = np.random.default_rng(0), list[onnx.NodeProto](), dict[str, np.ndarray]()
    for number, (outputs, inputs) in enumerate([(16, 1), (16, 16), (8, 16)]):
        weights[f"w{number}"] = rng.normal(0, (5 * inputs) ** -0.5, (outputs, inputs, 5)).astype(np.float32)
        nodes.append(helper.make_node("Conv", [f"x{number}", f"w{number}"], [f"c{number}"], f"conv{number}", pads=[2, 2]))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"x{number + 1}"], f"relu{number}"))
    return build_model(nodes, {"x0": [1, 1, samples]}, {"x3": [1, 8, samples]}, weights)


@pytest.mark.parametrize("name", ["edge16", "ethos_u55_256"])
def test_layers_over_one_dimension_are_a_cascade(name: str, tmp_path: Path) -> None:
    """Each byte of DRAM is moved once, and the host turns what comes and goes."""
    network = _built(_sound(16_000), with_sram(name, 64), tmp_path)
    assert _dram_bytes(network) < 1.15 * network.figures["dram_bound_bytes"]
    assert [layer["op"] for layer in network.figures["layers"]] == ["Convolution"] * 3


def _two_arrays(sram_bytes: int, entries: int | None = None) -> Machine:
    """edge16 with memories twice as fast. entries: of the accumulators of the second array, where it is of another kind."""
    description = load_machine("edge16").chip.model_dump(mode="json")
    for memory in description["memories"].values():
        memory.update({rate: 2 * memory[rate] for rate in ("read_bytes_per_cycle", "write_bytes_per_cycle")})
    description["memories"]["sram"].update(size=sram_bytes, banks=16)
    mac = description["engines"]["mac"]
    if entries is None:
        mac["count"] = 2
    else:
        description["engines"]["small"] = {**mac, "accumulators": {**mac["accumulators"], "entries": entries}}
    return with_keys(load_machine("edge16"), memories=description["memories"], engines=description["engines"])


@pytest.mark.parametrize("size", [14, pytest.param(28, marks=pytest.mark.exhaustive)])
def test_two_arrays_that_write_parts_of_one_tensor_do_not_wait_for_each_other(size: int, tmp_path: Path) -> None:
    """Nor is what repeats given to one of them alone, where the other is still busy with the layer before."""
    network = _built(bodies(3, size, 64, 128), _two_arrays(512 * 1024), tmp_path)
    assert sum(plan.cycles for plan in network.plans) == pytest.approx(network.figures["cycles"], rel=0.06)
    assert network.figures["arrays_overlap"] > 0.8


def test_tasks_of_a_cascade_are_shared_out_to_two_arrays(tmp_path: Path) -> None:
    network = _built(bodies(2, 28, 32, 128), _two_arrays(64 * 1024), tmp_path)
    (plan,) = network.plans
    inside = [layer for cascade in plan.cascades for layer in cascade.layers]
    assert len(inside) >= 5 and all(len(set(layer.units)) == 2 for layer in inside)
    assert network.figures["arrays_overlap"] > 0.6
    assert plan.cycles == pytest.approx(network.figures["cycles"], rel=0.03)


@pytest.mark.parametrize("entries", [1024, 2048])
def test_layers_of_a_cascade_run_on_the_arrays_that_have_room_for_all_their_stripes(entries: int, tmp_path: Path) -> None:
    """The first stripe of a layer has the halo of those behind it besides: more sums than a small array holds, which could have
    run every other one."""
    network = _built(bodies(2, 28, 32, 128), _two_arrays(64 * 1024, entries), tmp_path)
    (plan,) = network.plans
    units = [{unit.name for unit in layer.assigned} for cascade in plan.cascades for layer in cascade.layers]
    assert {"mac"} in units and {"mac", "small"} in units


@pytest.mark.parametrize("arrays", [1, 2])
def test_where_rows_alone_do_not_fit_blocks_of_channels_go_through_all_rows(arrays: int, tmp_path: Path) -> None:
    """The build compares the program with the integer reference bit for bit."""
    machine = with_sram("edge16", 32) if arrays == 1 else _two_arrays(32 * 1024)
    blocks = _bodies_on_edge16(32) if arrays == 1 else _built(bodies(1), machine, tmp_path)
    alone = _layer_by_layer(bodies(3 - arrays), machine, tmp_path)
    (plan,) = blocks.plans
    assert any(cascade.stripes.sweep.channels for cascade in plan.cascades)
    assert _dram_bytes(blocks) < 0.6 * _dram_bytes(alone)
    assert blocks.figures["cycles"] < alone.figures["cycles"]


def _strip(width: int, layers: int = 4, stride: int = 1) -> onnx.ModelProto:
    """Convolutions of 3 x 3 over 8 channels of a low and wide image, with a product of two of them in between."""
    rng, nodes, weights, x = np.random.default_rng(0), list[onnx.NodeProto](), dict[str, np.ndarray](), "x"
    for number in range(layers):
        weights[f"w{number}"] = rng.normal(0, 0.15, (8, 3 if number == 0 else 8, 3, 3)).astype(np.float32)
        strides = [stride, stride] if number == 0 else [1, 1]
        nodes.append(helper.make_node("Conv", [x, f"w{number}"], [f"c{number}"], f"conv{number}", pads=[1] * 4, strides=strides))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"], f"relu{number}"))
        x = f"r{number}"
        if number == 2:
            nodes.append(helper.make_node("Mul", [x, "r1"], ["s"], "product"))
            x = "s"
    return build_model(nodes, {"x": [1, 3, 16, width]}, {x: [1, 8, 16 // stride, width // stride]}, weights)


def _slow(kib: float, name: str = "edge16") -> Machine:
    """With a DRAM of a byte a cycle, for which it pays to make columns twice."""
    machine = with_sram(name, kib)
    memories = machine.chip.model_dump(mode="json")["memories"]
    memories["dram"] |= {"read_bytes_per_cycle": 1.0, "write_bytes_per_cycle": 1.0}
    return with_keys(machine, memories=memories)


@pytest.mark.parametrize("stride", [1, 2])
def test_where_rows_do_not_fit_blocks_of_columns_go_through_all_rows(stride: int, tmp_path: Path) -> None:
    """The build compares the program with the integer reference bit for bit."""
    model, machine = _strip(320 * stride, stride=stride), _slow(8)
    blocks, alone = _built(model, machine, tmp_path), _layer_by_layer(model, machine, tmp_path)
    (plan,) = blocks.plans
    assert any(cascade.stripes.sweep.columns for cascade in plan.cascades)
    assert blocks.figures["warnings"] == []  # of columns that are made twice
    assert _dram_bytes(blocks) < 0.5 * _dram_bytes(alone)
    assert blocks.figures["cycles"] < alone.figures["cycles"]
    assert plan.cycles == pytest.approx(blocks.figures["cycles"], rel=0.035)  # bursts of copies are counted in the mean


def test_a_schedule_of_blocks_of_columns_is_printed_and_taken_back(tmp_path: Path) -> None:
    model, file, machine = tmp_path / "model.onnx", tmp_path / "given.sched", _slow(8)
    onnx.save(_strip(320), model)
    planned = build(model, BuildOptions(machine))
    text = print_schedule(planned.schedule)
    (loop,) = {line.strip() for line in re.findall(r"^  for columns by \d+", text, re.MULTILINE)}
    file.write_text(text)
    assert build(model, BuildOptions(machine, schedule=str(file))).data == planned.data
    file.write_text(text.replace(loop, "for columns by 320"))
    with pytest.raises(CompileError, match="for columns by 320: take fewer than 320"):
        build(model, BuildOptions(machine, schedule=str(file)))
    file.write_text(text.replace(loop, "for columns by 10"))  # by hand
    build(model, BuildOptions(machine, schedule=str(file)))


@pytest.mark.parametrize("kib", [39.5, 64])
def test_loads_go_ahead_of_shifts_and_of_the_block_before(kib: float) -> None:
    """Both in the program and in what the plan expects, which was 4 to 6 % too much where they did not."""
    built = _bodies_on_edge16(kib)
    (plan,) = built.plans
    assert any(cascade.stripes.sweep.channels for cascade in plan.cascades)
    assert plan.cycles == pytest.approx(built.figures["cycles"], rel=0.02)


def test_a_schedule_of_blocks_is_printed_and_taken_back(tmp_path: Path) -> None:
    model, file, machine = tmp_path / "model.onnx", tmp_path / "given.sched", with_sram("edge16", 32)
    onnx.save(bodies(), model)
    planned = build(model, BuildOptions(machine))
    text = print_schedule(planned.schedule)
    assert "for channels by 32" in text and "for rows by 14" in text
    file.write_text(text)
    assert build(model, BuildOptions(machine, schedule=str(file))).data == planned.data
    file.write_text(text.replace("  for channels by 32     ", "  for channels by 20     ", 1))
    with pytest.raises(CompileError, match="for channels by 20: take a multiple of 16 below 192"):
        build(model, BuildOptions(machine, schedule=str(file)))


def test_what_blocks_of_channels_read_is_brought_once_where_bytes_count(tmp_path: Path) -> None:
    """What layers between the blocks hand on in DRAM goes there once and comes once; all else moves once."""
    model, machine, file = tmp_path / "model.onnx", with_sram("edge16", 32), tmp_path / "given.sched"
    onnx.save(bodies(), model)
    built = build(model, BuildOptions(machine, goal=Goal("traffic")))
    between = 2 * 192 * 28 * 28
    assert built.figures["dram_read_bytes"] + built.figures["dram_write_bytes"] == 72_576 + 2 * between
    text = print_schedule(built.schedule)
    assert "ring input 0 in sram slots all" in text
    file.write_text(text)
    assert build(model, BuildOptions(machine, schedule=str(file))).data == built.data


@pytest.mark.parametrize("kib", [64, 128])
def test_every_byte_is_moved_once_where_a_cascade_has_the_wide_tensors(kib: int, tmp_path: Path) -> None:
    """In less SRAM where the bytes are what counts."""
    few = kib == 64
    network = _built(bodies(), with_sram("edge16", kib), tmp_path, goal=Goal("traffic")) if few else _bodies_on_edge16(kib)
    assert _dram_bytes(network) == network.figures["dram_bound_bytes"] == 72_576


def test_what_is_spilled_between_cascades_lives_as_long_as_they_run(tmp_path: Path) -> None:
    """The build compares bits: a cascade reads a spilled tensor until its end, while it writes the next."""
    network = _built(bodies(3, channels=80, wide=160), with_sram("edge16", 64), tmp_path)
    assert len(network.plans[0].cascades) > 1
    assert network.plans[0].spilled


def test_constants_that_stay_have_room_in_the_rings_of_units_that_take_them_in_any_order(tmp_path: Path) -> None:
    """The second array has its weights in a memory of its own; of 16 and 8 channels it may take the 16 last."""
    base = load_machine("edge16")
    engines, memories = (base.chip.model_dump(mode="json")[name] for name in ("engines", "memories"))
    memories["own"] = {**memories["sram"], "size": 16384, "private_to": "extra"}
    memories["sram"]["size"] = 28672
    engines["extra"] = {**engines["mac"], "memories": {"weights": "own", "parameters": "own"}}
    rng = np.random.default_rng(0)
    shapes = {"w": (40, 8, 3, 3), "v": (24, 40, 3, 3)}
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    nodes = [helper.make_node("Conv", [a, b], [c], pads=[1] * 4) for a, b, c in (("x", "w", "h"), ("h", "v", "y"))]
    model = build_model(nodes, {"x": [1, 8, 24, 24]}, {"y": None}, weights)
    counts: Counter[str] = Counter()
    with force_cascade_plans(counts):
        (plan,) = _built(model, with_keys(base, memories=memories, engines=engines), tmp_path).plans
    assert counts["cascades"] and counts["in turns on several units"]
    rings = [r for planned in plan.layers for r in planned.rings if r.copies > 1]
    assert {slot.space for slot in rings if slot.of_constants} > {int(Space.SRAM)}
    assert all(len(set(slot.sizes)) == 1 for slot in rings)


def test_cycles_of_layers_of_a_cascade_are_those_of_all_their_stripes() -> None:
    figures = _bodies_on_edge16(64).figures
    cycles = [layer["cycles"] for layer in figures["layers"]]
    assert sum(cycles) == figures["cycles"]
    assert all(c > 0.1 * figures["cycles"] for c in cycles)


def _branches() -> onnx.ModelProto:
    """A strided convolution, two branches of it joined, a residual sum over that, a pool."""
    rng = np.random.default_rng(1)
    nodes, weights = list[onnx.NodeProto](), dict[str, np.ndarray]()

    def conv(x: str, y: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        w = rng.standard_normal((outputs, inputs, kernel, kernel)) / np.sqrt(inputs * kernel * kernel)
        weights[y + "_w"] = w.astype(np.float32)
        pads = [kernel // 2] * 4
        nodes.append(helper.make_node("Conv", [x, y + "_w"], [y], y, kernel_shape=[kernel] * 2, pads=pads, strides=[stride] * 2))

    conv("x", "a", 3, 48, 3, 2)
    conv("a", "left", 48, 24, 1)
    conv("a", "right", 48, 24, 3)
    nodes.append(helper.make_node("Concat", ["left", "right"], ["both"], "both", axis=1))
    conv("both", "c", 48, 48, 3)
    nodes.append(helper.make_node("Add", ["c", "a"], ["sum"], "sum"))
    nodes.append(helper.make_node("Relu", ["sum"], ["relu"], "relu"))
    nodes.append(helper.make_node("MaxPool", ["relu"], ["pool"], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]))
    conv("pool", "y", 48, 16, 1)
    return build_model(nodes, {"x": [1, 3, 64, 64]}, {"y": [1, 16, 16, 16]}, weights, opset=13)


@pytest.mark.parametrize(
    ("name", "kib"), [("wide32_w4a16", 96), ("nvdla_small", 64), pytest.param("ethos_u65_512", 96, marks=pytest.mark.exhaustive)]
)
def test_branches_sums_and_pools_are_a_cascade(name: str, kib: int, tmp_path: Path) -> None:
    machine = with_sram(name, kib)
    cascaded, alone = _built(_branches(), machine, tmp_path), _layer_by_layer(_branches(), machine, tmp_path)
    assert any(plan.cascades for plan in cascaded.plans)
    assert cascaded.figures["cycles"] < alone.figures["cycles"]
    assert _dram_bytes(cascaded) < 1.02 * _dram_bytes(alone)  # cycles are what is compared


def test_lower_levels_go_layer_by_layer(tmp_path: Path) -> None:
    assert not any(plan.cascades for plan in _built(bodies(), with_sram("edge16", 64), tmp_path, level=1).plans)


@pytest.mark.parametrize(("name", "kib", "channels"), [("edge16", 6, 16), ("nvdla_small", 8, 12)])
def test_kept_rows_may_have_columns_that_nothing_reads(name: str, kib: int, channels: int, tmp_path: Path) -> None:
    """Rows are moved whole, of which strides pass over columns; with granules of channels, of which the last may not be full."""
    rng = np.random.default_rng(0)
    shapes = {"w": (channels, 8, 3, 3), "v": (8, channels, 3, 1)}
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["h", "v"], ["y"], strides=[1, 3]),
    ]
    model = build_model(nodes, {"x": [1, 8, 24, 9]}, {"y": [1, 8, 22, 3]}, weights)
    counts: Counter[str] = Counter()
    with force_cascade_plans(counts):
        built = _built(model, with_sram(name, kib), tmp_path)
    assert counts["cascades"]
    assert not built.figures["warnings"]


@pytest.mark.parametrize(("channels", "groups", "kib"), [(64, 32, 10), (48, 3, 10), (48, 6, 10)])
def test_convolutions_in_groups_are_a_cascade(channels: int, groups: int, kib: int, tmp_path: Path) -> None:
    """In blocks of channels only where those are whole groups; the build compares bits."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((channels, channels // groups, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Conv", ["p", "w"], ["h"], pads=[1] * 4, group=groups),
        helper.make_node("Sigmoid", ["h"], ["y"]),
    ]
    model = build_model(nodes, {"x": [1, channels, 16, 16]}, {"y": None}, {"w": w})
    counts: Counter[str] = Counter()
    with force_cascade_plans(counts):
        _built(model, with_sram("edge16", kib), tmp_path)
    assert counts["cascades"]


def test_an_operand_of_fewer_dimensions_is_in_a_cascade_as_one_of_all(tmp_path: Path) -> None:
    """What is added to each head of a stack of maps, as a mask of attention is."""

    def model(*mask: int) -> onnx.ModelProto:
        steps = [("Tanh", "m", "m1"), ("Tanh", "x", "a"), ("Add", "a m1", "b"), ("Sigmoid", "b", "c"), ("Mul", "c m1", "d")]
        nodes = [helper.make_node(op, inputs.split(), [out]) for op, inputs, out in (*steps, ("Tanh", "d", "y"))]
        return build_model(nodes, {"x": (1, 8, 64, 64), "m": mask}, {"y": (1, 8, 64, 64)}, opset=13)

    built = [_built(model(*mask), with_sram("edge16", 16), tmp_path) for mask in ((64, 64), (1, 64, 64), (1, 1, 64, 64))]
    assert len({b.figures["cycles"] for b in built}) == 1
    assert all(plan.cascades for b in built for plan in b.plans)
