"""Constants that several layers read lie in DRAM once, and are brought once where there is room."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from toolchain.api import Build, BuildOptions, build
from toolchain.isa import Machine, load_machine
from toolchain.schedule.goals import Goal

UNITS, LAYERS = 64, 5


def chain(folder: Path) -> Path:
    """x to tanh(x W) again and again: all but the first have equal scales, as what they read lies in -1 to 1."""
    rng = np.random.default_rng(2)
    nodes = []
    for i in range(LAYERS):
        nodes.append(helper.make_node("MatMul", [f"x{i}", "W"], [f"m{i}"], name=f"product{i}"))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"x{i + 1}"], name=f"tanh{i}"))
    weights = {"W": rng.normal(0, 0.4, (UNITS, UNITS)).astype(np.float32)}
    onnx.save(build_model(nodes, {"x0": [4, UNITS]}, {f"x{LAYERS}": [4, UNITS]}, weights), folder / "m.onnx")
    return folder / "m.onnx"


def write_parameters_file(folder: Path) -> str:
    """One range for all products, and one for what functions make of them."""
    path = folder / "p.yaml"
    rows = ["  x0: {low: -1.0, high: 1.0}"]
    rows += [f"  m{i}: {{low: -4.0, high: 4.0}}\n  x{i + 1}: {{low: -1.0, high: 1.0}}" for i in range(LAYERS)]
    path.write_text("version: 1\ntensors:\n" + "\n".join(rows) + "\n")
    return str(path)


def built(folder: Path, hw: str | Machine = "transformer64", goal: Goal | None = None, level: int = 2) -> Build:
    options = BuildOptions(hw, parameters=write_parameters_file(folder), level=level)
    return build(chain(folder), options if goal is None else replace(options, goal=goal))


def read_by_products(built: Build) -> list[int]:
    return [
        row["traffic"].get("dram", {}).get("read_bytes", 0)
        for row in built.figures["layers"]
        if row["name"].startswith("product")
    ]


def test_they_are_brought_once(tmp_path: Path) -> None:
    read_bytes = read_by_products(built(tmp_path))
    assert len(read_bytes) == LAYERS and read_bytes[0] >= UNITS * UNITS and not any(read_bytes[1:])


@pytest.mark.parametrize("machine", ["edge16", "transformer64", "ethos_u55_256", "ws8_pow2"])
def test_plans_expect_them_to_be_brought_once(machine: str, tmp_path: Path) -> None:
    figures = built(tmp_path, machine, Goal("cycles")).figures
    assert figures["expected_cycles"] == pytest.approx(figures["cycles"], rel=0.01)


def test_not_without_room(tmp_path: Path) -> None:
    machine = load_machine("transformer64")
    weights = machine.chip.memories["weights"].model_copy(update={"size": 6 << 10})
    chip = machine.chip.model_copy(update={"memories": {**machine.chip.memories, "weights": weights}})
    assert min(read_by_products(built(tmp_path, replace(machine, chip=chip)))) >= UNITS * UNITS


@pytest.mark.parametrize(("objective", "level"), [("memory", 2), ("cycles", 0)])
def test_not_where_memory_counts(objective: str, level: int, tmp_path: Path) -> None:
    assert min(read_by_products(built(tmp_path, goal=Goal(objective), level=level))) >= UNITS * UNITS  # type: ignore[arg-type]


def test_they_lie_in_dram_once(tmp_path: Path) -> None:
    network_build = built(tmp_path, level=0)
    (region,) = network_build.container.segments
    sizes = [len(data) for _, data in region.constants]  # type: ignore[union-attr]
    assert len({data for _, data in region.constants}) == len(sizes)  # type: ignore[union-attr]
    assert sum(sizes) < 2 * UNITS * UNITS
