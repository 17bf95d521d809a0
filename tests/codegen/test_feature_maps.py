"""Machines whose feature maps lie in granules of channels: the numbers of those without, bytes where the page says."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from tests.support.random_cases import first_table
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Port, Region
from toolchain.hw.chip import Chip
from toolchain.isa import Machine, load_machine
from toolchain.isa.manual import manual
from toolchain.machine import Copy, MachineOp, Repeat, WindowOp
from toolchain.runtime import Session, random_feeds, verify

MACHINES = [("edge16", 8, "line"), ("edge16", 16, "surface"), ("edge16", 32, "line"), ("wide32_w4a16", 16, "line")]
MACHINES += [("wide32_w4a16", 32, "surface"), ("ethos_u55_256", 16, "line")]
# (n, h, w, c) -> the dimensions in the order of memory; c of each granule at last
IN_MEMORY = {"surface": (0, 3, 1, 2, 4), "line": (0, 1, 3, 2, 4)}


@cache
def machine(name: str, granule: int, order: str, repeats: bool = False) -> Machine:
    base = load_machine(name)
    data = json.loads(base.chip.model_dump_json())
    data["layout"]["feature_maps"] = {"granule": granule, "order": order}
    if repeats:
        data["control"] = {"bases": 4, "repeat": {"max_count": 8}}
    chip = Chip.model_validate_json(json.dumps(data))
    return replace(base, chip=chip, isa=first_table(chip, "descriptors"))


class Net:
    """Nodes with seeded weights."""

    def __init__(self, **inputs: list[int]):
        self.inputs, self.nodes, self.weights = inputs, list[Any](), dict[str, np.ndarray]()
        self.rng = np.random.default_rng(5)

    def add(self, op: str, inputs: str, output: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op, inputs.split(), output.split(), **attributes))

    def weight(self, name: str, *shape: int) -> None:
        self.weights[name] = self.rng.standard_normal(shape).astype(np.float32)

    def add_integers(self, name: str, *values: int) -> None:
        self.weights[name] = np.array(values, np.int64)

    def save(self, path: Path, **outputs: list[int]) -> Path:
        onnx.save(build_model(self.nodes, self.inputs, outputs, self.weights), path)
        return path


def conv(net: Net, x: str, y: str, inputs: int, outputs: int, kernel: int = 1, groups: int = 1) -> None:
    net.weight(f"w_{y}", outputs, inputs // groups, kernel, kernel)
    net.add("Conv", f"{x} w_{y}", y, pads=[kernel // 2] * 4, group=groups)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Channels that fill no granules, parts that begin inside one, a sum, a gate of one pixel, a shuffle, and matrices behind."""
    net = Net(x=[1, 5, 9, 10])
    conv(net, "x", "a", 5, 36, 3)
    conv(net, "a", "b", 36, 36, 3, 36)
    conv(net, "b", "m", 36, 36)
    net.add("Add", "a m", "c")  # behind the array where that adds
    net.add("GlobalAveragePool", "c", "mean")
    conv(net, "mean", "gate", 36, 36)
    net.add("Sigmoid", "gate", "open")
    net.add("Mul", "c open", "d")
    conv(net, "d", "e", 36, 20)
    net.add("Concat", "d e", "f", axis=1)  # the second part begins in a granule
    net.add_integers("first", 3)
    net.add_integers("last", 41)
    net.add_integers("channels", 1)
    net.add("Slice", "f first last channels", "g")
    net.add_integers("shuffle", 1, 2, 19, 9, 10)
    net.add_integers("back", 1, 38, 9, 10)
    net.add("Reshape", "g shuffle", "h")
    net.add("Transpose", "h", "i", perm=[0, 2, 1, 3, 4])
    net.add("Reshape", "i back", "j")
    net.add("MaxPool", "j", "k", kernel_shape=[2, 2], strides=[2, 2])
    net.add("Pad", "k pads", "l")
    net.add_integers("pads", 0, 2, 1, 0, 0, 1, 0, 2)
    net.add("Flatten", "k", "flat")
    net.weight("dense", 38 * 4 * 5, 10)
    net.add("MatMul", "flat dense", "y")
    outputs = {"y": [1, 10], "l": [1, 41, 5, 7], "e": [1, 20, 9, 10]}
    return net.save(tmp_path_factory.mktemp("maps") / "net.onnx", **outputs)


def operations(built: Build) -> list[MachineOp]:
    session = Session(built.data)
    regions = [i for i, s in enumerate(built.container.segments) if isinstance(s, Region)]
    return [op for i in regions for op in session.program(i).decoded.ops]


@cache
def without(name: str, path: Path, level: int) -> dict[str, np.ndarray]:
    built = build(path, BuildOptions(name, level=level))
    return Session(built.data).run_detailed(random_feeds(built.container.inputs, seed=3)).codes


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize(("name", "granule", "order"), MACHINES)
def test_codes_are_those_of_the_machine_without_granules(network: Path, name: str, granule: int, order: str, level: int) -> None:
    built = build(network, BuildOptions(machine(name, granule, order), level=level))
    assert not built.figures["warnings"]
    feeds = random_feeds(built.container.inputs, seed=3)
    run, difference = verify(Session(built.data, timing=True), Session(built.data, backend="reference"), feeds)
    assert difference is None, difference
    for tensor, codes in without(name, network, level).items():
        np.testing.assert_array_equal(run.codes[tensor], codes, err_msg=tensor)
    windows = [op for op in operations(built) if isinstance(op, WindowOp)]
    assert {bool(op.surfaces()[0]) for op in windows} == {True, False}, "maps, and rows of matrices"


def read_placed(port: Port, dram: np.ndarray) -> np.ndarray:
    """The codes of a port [n, h, w, c], read from where the page says that they are."""
    assert port.maps is not None
    n, h, w, c = port.shape
    sizes = (n, h, w, -(-c // port.maps.granule), port.maps.granule)
    order = IN_MEMORY[port.maps.order]
    size_bytes = int(np.prod(sizes)) * np.dtype(port.dtype).itemsize
    assert port.size_bytes == size_bytes
    granules = dram[port.address : port.address + size_bytes].view(port.dtype).reshape([sizes[i] for i in order])
    return granules.transpose([order.index(i) for i in range(5)]).reshape(n, h, w, -1)


@pytest.mark.parametrize(("name", "granule", "order"), MACHINES)
def test_ports_lie_in_whole_granules(network: Path, name: str, granule: int, order: str) -> None:
    built = build(network, BuildOptions(machine(name, granule, order)))
    session, feeds = Session(built.data), random_feeds(built.container.inputs, seed=3)
    (index,) = (i for i, s in enumerate(built.container.segments) if isinstance(s, Region))
    region = built.container.segments[index]
    assert isinstance(region, Region)
    codes = session.run_detailed(feeds).codes
    dram = session.memory_behind(index, len(session.program(index).flow) - 1, feeds)["dram"]
    maps = [p for p in (*region.inputs, *region.outputs) if p.maps is not None]
    assert [(p.model, p.maps) for p in maps] == [
        (n, machine(name, granule, order).chip.layout.feature_maps) for n in ("x", "e", "l")
    ]
    for port in maps:
        codes_in_dram, channels = read_placed(port, dram), port.shape[3]
        np.testing.assert_array_equal(codes_in_dram[..., :channels], codes[port.tensor], err_msg=port.model)
        assert port.model != "x" or not codes_in_dram[..., channels:].any(), "the host fills the last granule with zeros"


def test_ports_may_be_dense(network: Path) -> None:
    """Then the network between them lies in granules alone, and an image of five channels has the bytes of five."""
    granule_machine = machine("edge16", 16, "surface")
    maps = granule_machine.chip.layout.feature_maps
    assert maps is not None
    layout = granule_machine.chip.layout.model_copy(update={"feature_maps": maps.model_copy(update={"ports": "dense"})})
    built = build(
        network, BuildOptions(replace(granule_machine, chip=granule_machine.chip.model_copy(update={"layout": layout})))
    )
    (region,) = (s for s in built.container.segments if isinstance(s, Region))
    assert all(p.maps is None for p in (*region.inputs, *region.outputs))
    assert [p.size_bytes for p in region.inputs] == [9 * 10 * 5]
    feeds = random_feeds(built.container.inputs, seed=3)
    run, difference = verify(Session(built.data, timing=True), Session(built.data, backend="reference"), feeds)
    assert difference is None, difference
    for tensor, codes in without("edge16", network, 2).items():
        np.testing.assert_array_equal(run.codes[tensor], codes, err_msg=tensor)
    assert {bool(op.surfaces()[0]) for op in operations(built) if isinstance(op, WindowOp)} == {True, False}


def test_rows_of_a_matrix_stay_as_they_are(tmp_path: Path) -> None:
    """Attention of two heads on rows: no tensor of it lies in granules, and no Reshape is a copy."""
    net = Net(x=[1, 12, 24])
    for name in ("q", "k", "v"):
        net.weight(f"w{name}", 24, 24)
        net.add("MatMul", f"x w{name}", name)
        net.add("Reshape", f"{name} heads", f"{name}4")
    net.add_integers("heads", 1, 12, 2, 12)
    net.add("Transpose", "q4", "qt", perm=[0, 2, 1, 3])
    net.add("Transpose", "k4", "kt", perm=[0, 2, 3, 1])
    net.add("Transpose", "v4", "vt", perm=[0, 2, 1, 3])
    net.add("MatMul", "qt kt", "scores")
    net.weight("mask", 1, 1, 12, 12)
    net.add("Add", "scores mask", "masked")  # an element of each, made of matrices alone
    net.add("Tanh", "masked", "shares")
    net.add("MatMul", "shares vt", "mixed")
    net.add("Transpose", "mixed", "m4", perm=[0, 2, 1, 3])
    net.add_integers("rows", 1, 12, 24)
    net.add("Reshape", "m4 rows", "y")
    path = net.save(tmp_path / "attention.onnx", y=[1, 12, 24])
    granule_build, base = (build(path, BuildOptions(m)) for m in (machine("edge16", 16, "surface"), load_machine("edge16")))
    assert granule_build.figures["cycles"] == base.figures["cycles"]
    surfaces = {
        getattr(op, name) for op in operations(granule_build) for name in op.parameters() if name.endswith("surface_stride")
    }
    assert surfaces == {0}
    assert sum(isinstance(op, Copy) for op in operations(granule_build)) == sum(isinstance(op, Copy) for op in operations(base))


def test_what_fills_the_granules_of_a_port_is_the_ports(tmp_path: Path) -> None:
    """Tiles of an image of three channels are not said to wait in DRAM for want of room."""
    net = Net(x=[1, 3, 16, 16])
    conv(net, "x", "y", 3, 3, 3)
    path = net.save(tmp_path / "image.onnx", y=[1, 3, 16, 16])
    granule_machine = machine("edge16", 16, "surface")
    memories = {**granule_machine.chip.memories, "sram": granule_machine.chip.sram.model_copy(update={"size": 4096})}
    built = build(
        path, BuildOptions(replace(granule_machine, chip=granule_machine.chip.model_copy(update={"memories": memories})))
    )
    (row,) = built.figures["nodes"]
    assert row["operations"] is not None and "DRAM" not in row["reason"]


def test_what_fills_granules_and_padding_twice_is_no_warning(tmp_path: Path) -> None:
    """Rows that strides pass over are padded, and their last granules filled before."""
    net = Net(x=[1, 14, 4, 3])
    net.weight("w", 1, 14, 1, 3)
    net.add("Conv", "x w", "y", pads=[0, 2, 0, 2], strides=[2, 1])
    granule_machine = machine("edge16", 4, "surface")
    data = json.loads(granule_machine.chip.model_dump_json())
    data["layout"]["feature_maps"]["ports"] = "dense"
    data["limits"]["convolution"]["max_pad"] = [0, 0]
    padding = replace(granule_machine, chip=Chip.model_validate_json(json.dumps(data)))
    built = build(net.save(tmp_path / "strided.onnx", y=[1, 1, 2, 5]), BuildOptions(padding))
    assert any(node["op"] == "Pad" for node in built.figures["nodes"])
    assert not built.figures["warnings"]


def test_what_fills_granules_and_a_last_part_twice_is_no_warning(tmp_path: Path) -> None:
    """The second part begins inside a granule, the third brings its last one whole, and strides pass over pixels."""
    net = Net(x=[1, 4, 7, 10])
    conv(net, "x", "a", 4, 6)
    net.add("Concat", "a a a", "b", axis=1)
    net.weight("w", 11, 18, 1, 1)
    net.add("Conv", "b w", "y", strides=[3, 2])
    path = net.save(tmp_path / "parts.onnx", y=[1, 11, 3, 5])
    assert not build(path, BuildOptions(machine("edge16", 4, "surface"))).figures["warnings"]


@pytest.mark.parametrize("order", IN_MEMORY)
def test_groups_that_begin_inside_a_granule_lie_dense(order: str, tmp_path: Path) -> None:
    for outputs, cut in ((24, False), (32, True)):
        net = Net(x=[1, 32, 6, 6])
        conv(net, "x", "y", 32, outputs, 3, 2)
        path = net.save(tmp_path / "groups.onnx", y=[1, outputs, 6, 6])
        built = build(path, BuildOptions(machine("edge16", 16, order)))
        assert {bool(op.surfaces()[0]) for op in operations(built) if isinstance(op, WindowOp)} == {cut}


@pytest.mark.parametrize("order", IN_MEMORY)
def test_a_batch_of_images_is_a_repeat(order: str, tmp_path: Path) -> None:
    net = Net(x=[6, 20, 16, 16])
    conv(net, "x", "a", 20, 24, 3)
    net.add("Relu", "a", "b")
    conv(net, "b", "y", 24, 5)
    path = net.save(tmp_path / "batch.onnx", y=[6, 5, 16, 16])
    built = build(path, BuildOptions(machine("edge16", 16, order, repeats=True), level=0))
    assert any(isinstance(op, Repeat) for op in operations(built))
    feeds = random_feeds(built.container.inputs, seed=3)
    run, difference = verify(Session(built.data), Session(built.data, backend="reference"), feeds)
    assert difference is None, difference
    np.testing.assert_array_equal(run.outputs["y"], Session(build(path, BuildOptions("edge16")).data).run(["y"], feeds)[0])


@pytest.mark.parametrize("order", IN_MEMORY)
def test_rows_of_one_image_are_no_samples(order: str, tmp_path: Path) -> None:
    """Check rows of the output that are rows of one image, whose granules lie surface by surface, so the chip has all at once."""
    net = Net(x=[1, 20, 4, 8])
    conv(net, "x", "a", 20, 24)
    net.add("Transpose", "a", "b", perm=[0, 2, 3, 1])
    net.add_integers("rows", 4, 8, 24)
    net.add("Reshape", "b rows", "y")
    path = net.save(tmp_path / "rows.onnx", y=[4, 8, 24])
    granule_machine = machine("edge16", 16, order, repeats=True)
    dense = granule_machine.chip.model_copy(
        update={"layout": granule_machine.chip.layout.model_copy(update={"feature_maps": None})}
    )
    for target, repeats in ((granule_machine, False), (replace(granule_machine, chip=dense), True)):
        ops = operations(build(path, BuildOptions(target, level=0)))
        assert any(isinstance(op, Repeat) for op in ops) == repeats


def test_the_manual_draws_a_map() -> None:
    drawn = [line.split() for line in manual(machine("edge16", 16, "line")).splitlines() if " row 0 column 0 channels 16" in line]
    assert drawn == [["48", "row", "0", "column", "0", "channels", "16", "to", "31,", "12", "of", "them", "none"]]
    assert "Granules" not in manual(load_machine("edge16"))
