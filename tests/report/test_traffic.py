"""Bytes by memory and layer, instructions beside them, and energy: what layers have is what the network has."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.hw.chip import Chip
from toolchain.isa import Machine, load_machine
from toolchain.report.build_text import traffic_text
from toolchain.report.report_text import layers_text
from toolchain.report.traffic import LayerTraffic, traffic_figures
from toolchain.runtime import Session, random_feeds


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine("wide32_w4a16")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, machine: Machine) -> Build:
    """24 rows by 64 x 96, and those by 96 x 33."""
    path = tmp_path_factory.mktemp("traffic") / "g.onnx"
    rng, shapes = np.random.default_rng(3), {"w": (64, 96), "v": (96, 33)}
    weights = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "one"), helper.make_node("MatMul", ["y", "v"], ["z"], "two")]
    onnx.save(build_model(nodes, {"x": (24, 64)}, {"z": (24, 33)}, weights), path)
    return build(path, BuildOptions(hardware=machine))


def test_layers_sum_to_the_network(built: Build) -> None:
    figures = built.figures
    assert len(figures["layers"]) > 1
    for memory, moved in figures["traffic"].items():
        assert sum((Counter(layer["traffic"].get(memory, {})) for layer in figures["layers"]), Counter()) == Counter(
            {kind: size for kind, size in moved.items() if size}
        )
    assert sum(layer["program_bytes"] for layer in figures["layers"]) == figures["program_bytes"]
    for part, energy in figures["energy_pj"].items():
        assert sum(layer["energy_pj"][part] for layer in figures["layers"]) == pytest.approx(energy)


def test_each_layer_has_what_its_own_operations_do(built: Build, machine: Machine) -> None:
    energy = machine.chip.energy
    assert energy is not None
    layers = {layer["name"]: layer for layer in built.figures["layers"]}
    products = {"one": 24 * 64 * 96, "two": 24 * 96 * 33}
    for name, macs in products.items():
        assert layers[name]["energy_pj"]["macs"] == pytest.approx(energy.pj_per_mac * macs)
        assert layers[name]["traffic"]["dram"]["read_bytes"] >= 96 * 33 / 2 and layers[name]["program_bytes"] > 0


def test_the_network_s_bytes_are_those_of_the_run_and_of_its_program(built: Build, machine: Machine) -> None:
    """Check that each instruction is read once without repeats."""
    figures, run = built.figures, Session(built.data).run_detailed(random_feeds(built.container.inputs)).segments[0].simulation
    assert run is not None
    for name, moved in figures["traffic"].items():
        assert moved == {kind: getattr(run.traffic[name], kind) for kind in moved}
    assert figures["traffic"]["dram"]["read_bytes"] == figures["dram_read_bytes"]
    (region,) = (s for s in built.container.segments if isinstance(s, Region))
    assert figures["program_bytes"] == len(region.program)


def test_energy_is_that_of_products_and_of_bytes_as_charged(built: Build, machine: Machine) -> None:
    figures, energy = built.figures, machine.chip.energy
    assert energy is not None
    charged = {name: m["read_burst_bytes"] + m["write_burst_bytes"] for name, m in figures["traffic"].items()}
    on_chip = sum(size for name, size in charged.items() if name != "dram")
    assert figures["energy_pj"] == {
        "macs": pytest.approx(energy.pj_per_mac * 24 * (64 * 96 + 96 * 33)),
        "on_chip": pytest.approx(energy.pj_per_sram_byte * on_chip),
        "dram": pytest.approx(energy.pj_per_dram_byte * charged["dram"]),
        "total": pytest.approx(sum(v for k, v in figures["energy_pj"].items() if k != "total")),
    }
    assert charged["dram"] > figures["dram_read_bytes"] + figures["dram_write_bytes"]


def test_a_machine_without_energy_tells_none(built: Build, machine: Machine) -> None:
    data = json.loads(machine.chip.model_dump_json())
    chip = Chip.model_validate_json(json.dumps({**data, "energy": None}))
    nothing = LayerTraffic(np.zeros((1, len(chip.spaces), 4), np.int64), *np.zeros((2, 1), np.int64))
    assert traffic_figures(chip, 16, nothing) == {"traffic": {}, "program_bytes": 0, "energy_pj": None}
    assert "energy" not in traffic_text({**built.figures, "energy_pj": None})


def test_the_text_has_a_line_for_each_memory(built: Build) -> None:
    figures = built.figures
    text = traffic_text(figures)
    dram = figures["traffic"]["dram"]
    assert f"dram    {dram['read_bytes']:>10,}  {dram['write_bytes']:>7,}" in text
    assert f"instructions read: {figures['program_bytes']:,} bytes\nenergy: {figures['energy_pj']['total'] / 1e6:,.3f} uJ" in text
    moved = figures["layers"][0]["traffic"]["dram"]
    assert f"{moved['read_bytes'] + moved['write_bytes']:,}" in layers_text(figures).splitlines()[2].split()
    assert traffic_text({**figures, "layers": []}) == ""
