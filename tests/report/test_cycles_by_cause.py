"""Check the cycles of a built network by cause: in its figures, by layer, and in the text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from simulator import StallCause
from toolchain.api import Build, BuildOptions, build
from toolchain.report.build_text import attribution_text
from toolchain.report.report_text import OVERLAP_NOTE, layers_text
from toolchain.report.trace import trace_json
from toolchain.runtime import Session, random_feeds


def network(path: Path, group: int) -> Path:
    """Two convolutions of 3 x 3, the second in groups of two channels."""
    rng = np.random.default_rng(3)
    shapes = {"w": (16, 16, 3, 3), "v": (16, 16 // group, 3, 3)}
    weights = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], "one", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["y", "v"], ["z"], "two", pads=[1, 1, 1, 1], group=group),
    ]
    onnx.save(build_model(nodes, {"x": (1, 16, 16, 16)}, {"z": (1, 16, 16, 16)}, weights), path)
    return path


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return build(network(tmp_path_factory.mktemp("grouped") / "g.onnx", 8), BuildOptions(hardware="edge16"))


def cycles(stalls: dict[str, Any]) -> int:
    return sum(sum(stall_cycles.values()) if isinstance(stall_cycles, dict) else stall_cycles for stall_cycles in stalls.values())


def test_each_unit_has_all_cycles_of_the_network_and_of_each_layer(grouped: Build) -> None:
    figures = grouped.figures
    assert list(figures["attribution"]) == ["mac", "vector", "dma0"]
    assert {cycles(stalls) for stalls in figures["attribution"].values()} == {figures["cycles"]}
    for layer in figures["layers"]:
        assert {cycles(stalls) for stalls in layer["attribution"].values()} == {layer["cycles"]}


def test_useful_cycles_of_the_array_are_its_utilization(grouped: Build) -> None:
    """Check useful cycles, up to a cycle of each operation.
    Products by zeros, which groups that run together add, are no use.
    """
    figures = grouped.figures
    useful_cycles = figures["macs"] / figures["macs_per_cycle"]
    operations = 64
    assert useful_cycles <= figures["attribution"]["mac"]["useful"] <= useful_cycles + operations
    two = figures["layers"][-1]
    assert two["attribution"]["mac"]["partial_folds"] > 2 * two["attribution"]["mac"]["useful"]


def test_the_text_has_a_line_for_each_unit_and_sums_to_all(grouped: Build) -> None:
    text = attribution_text(grouped.figures)
    head, names, _, *rows = text.splitlines()
    assert head == "% of cycles, by cause" and names.split()[:2] == ["unit", "useful"] and "nothing to do" in names
    assert [row.split()[0] for row in rows] == ["mac", "vector", "dma0"]
    for row in rows:
        shares = [float(cell) for cell in row.split()[1:] if cell[0].isdigit()]
        assert sum(shares) == pytest.approx(100, abs=0.5)
    assert "mac: partial folds" in layers_text(grouped.figures)


def test_a_trace_has_the_causes_of_the_figures(grouped: Build) -> None:
    """Idle cycles, and those of operations, by unit; products by zeros are partial folds here too."""
    run = Session(grouped.data, timing=True).run_detailed(random_feeds(grouped.container.inputs))
    events = json.loads(trace_json(grouped.container, [s.simulation for s in run.segments]))["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for unit, stalls in grouped.figures["attribution"].items():
        operations = [e["args"]["cycles"] for e in events if e["ph"] == "X" and tracks[e["tid"]] == unit and e["cat"] != "idle"]
        for cause in (StallCause.USEFUL, StallCause.PARTIAL_FOLDS, StallCause.FILL_DRAIN):
            assert sum(o.get(cause, 0) for o in operations) == stalls.get(cause, 0)
        idle = [e for e in events if e["ph"] == "X" and tracks[e["tid"]] == unit and e["cat"] == "idle"]
        assert sum(e["dur"] for e in idle if e["args"]["cause"] == StallCause.NOTHING) == stalls.get(StallCause.NOTHING, 0)
    assert {e["id"].split(".")[0] for e in events if e["ph"] == "s"} == {"0"}


def test_a_layer_that_worked_beside_others_is_judged_by_its_own_work(grouped: Build) -> None:
    figures = grouped.figures
    peak = figures["macs_per_cycle"]
    assert sum(layer["busy_macs"] for layer in figures["layers"]) == figures["busy_cycles"]["mac"] * peak
    assert all(layer["busy_macs"] >= layer["macs"] for layer in figures["layers"])
    assert "*" not in layers_text(figures)
    first, *others = figures["layers"]
    text = layers_text({**figures, "layers": [{**first, "cycles": 0}, *others]})
    use = f"{100 * first['macs'] / first['busy_macs']:.1f} % *"
    assert OVERLAP_NOTE in text
    assert OVERLAP_NOTE not in layers_text({**figures, "layers": [{**layer, "cycles": 10**9} for layer in figures["layers"]]})
    assert use in text.splitlines()[2] and text.endswith("MAC use is while they worked for it")


def test_nothing_is_said_of_causes_that_are_not_known(grouped: Build) -> None:
    layers = [{**layer, "attribution": None} for layer in grouped.figures["layers"]]
    unknown = {**grouped.figures, "attribution": None, "layers": layers}
    assert attribution_text(unknown) == ""
    assert "mac:" not in layers_text(unknown)
