"""Keys of the machine that are tried: by the causes of cycles, timed again, and told where layers are far above their bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from simulator import StallCause
from tests.support.machine_variants import with_keys
from toolchain.api import Build, BuildOptions, build
from toolchain.hw import list_shipped_names
from toolchain.isa import Machine, load_machine
from toolchain.judging.try_keys import KeyTrials
from toolchain.report.build_text import build_text
from toolchain.report.key_changes import CauseCycles, KeyChange, change_chip, list_changes, rank_causes
from toolchain.report.report_text import key_trials_text
from toolchain.schedule.goals import BALANCED

EDGE = load_machine("edge16")


def edge_with(path: str, value: Any) -> Machine:
    """edge16 with another value of one key."""
    section, *names, last = path.split(".")
    values = EDGE.chip.model_dump(mode="json")
    inside = values[section]
    for name in names:
        inside = inside[name]
    inside[last] = value
    return with_keys(EDGE, **{section: values[section]})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three convolutions of 3 x 3 on 32 x 32 x 16."""
    rng, path = np.random.default_rng(3), tmp_path_factory.mktemp("keys") / "m.onnx"
    weights = {n: rng.normal(size=(16, 16, 3, 3)).astype(np.float32) for n in "uvw"}
    nodes = [
        helper.make_node("Conv", [x, w], [y], name, pads=[1, 1, 1, 1])
        for name, x, w, y in (("one", "x", "u", "a"), ("two", "a", "v", "b"), ("three", "b", "w", "y"))
    ]
    onnx.save(build_model(nodes, {"x": (1, 16, 32, 32)}, {"y": (1, 16, 32, 32)}, weights), path)
    return path


def trials_of(built: Build, options: BuildOptions) -> KeyTrials:
    return KeyTrials(built.container, built.figures, options)


def find_warning(built: Build) -> str:
    (warning,) = [w for w in built.warnings if "far above" in w]
    return warning


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("isa.word_cycles", 30_000.0, "isa.word_cycles 30000.0 -> 15000.0"),
        ("engines.dma.request_cycles", 40_000, "engines.dma.request_cycles 40000 -> 20000"),
        ("memories.dram.latency_cycles", 60_000, "memories.dram.latency_cycles 60000 -> 30000"),
    ],
)
def test_a_layer_far_above_its_bound_is_a_warning_with_the_key_that_helps(model: Path, key: str, value: Any, named: str) -> None:
    warning = find_warning(build(model, BuildOptions(edge_with(key, value))))
    assert warning.partition(" far above what the units need; ")[0] in ("1 layer", "2 layers", "3 layers")
    assert f"; {named} helps: one (" in warning


@pytest.mark.parametrize(
    ("level", "sram_bytes", "latency", "budget", "named"),
    [
        (0, 524_288, 30_000, None, "-O2"),
        (0, 6144, 3000, None, "memories.sram.size above 6144"),
        (2, 6144, 3000, None, "memories.sram.size above 6144"),
        (2, 524_288, 3000, 6144, "a larger --sram-budget"),
    ],
)
def test_a_layer_that_waits_for_bytes_again_is_a_warning_with_what_keeps_them(
    model: Path, level: int, sram_bytes: int, latency: int, budget: int | None, named: str
) -> None:
    memories = EDGE.chip.model_dump(mode="json")["memories"]
    memories["sram"]["size"], memories["dram"]["latency_cycles"] = sram_bytes, latency
    machine, larger = with_keys(EDGE, memories=memories), edge_with("memories.dram.latency_cycles", latency)
    options = BuildOptions(machine, level=level, goal=replace(BALANCED, sram_bytes=budget))
    built = build(model, options)
    warning = find_warning(built)
    assert f"; {named} helps: " in warning and "DRAM bytes of which" in warning
    helped = replace(options, level=2) if named == "-O2" else replace(options, hardware=larger, goal=BALANCED)
    assert build(model, helped).figures["cycles"] < 0.7 * built.figures["cycles"]


def test_fast_layers_and_small_networks_are_no_warning_and_are_not_timed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError

    options = BuildOptions(edge_with("engines.dma.request_cycles", 40_000))
    built = build(model, options)
    monkeypatch.setattr("toolchain.judging.try_keys.time_region", refuse)
    layers = [{**layer, "cycles": 5 * layer["bounds"]["cycles"]} for layer in built.figures["layers"]]
    assert trials_of(replace(built, figures={**built.figures, "layers": layers}), options).list_warnings() == []
    assert trials_of(replace(built, figures={**built.figures, "cycles": 99_999}), options).list_warnings() == []
    assert trials_of(replace(built, figures={**built.figures, "cycles": 9_000_000}), options).list_warnings() == []
    with pytest.raises(AssertionError):
        trials_of(built, options).list_warnings()


def test_cycles_of_waiting_are_of_what_the_other_unit_did() -> None:
    attribution = {
        "mac": {"useful": 50, "fill_drain": 10, "signal": {"dma0": 40}, "memory": {"dram": 7}, "nothing": 8},
        "vector": {"nothing": 115},
        "dma0": {"useful": 30, "requests": 10, "memory": {"dram": 40}, "queue": 0, "signal": {"mac": 35}},
    }
    assert rank_causes(attribution) == [
        CauseCycles(50, StallCause.USEFUL, "mac"),
        CauseCycles(30 + 3, StallCause.USEFUL, "dma0"),
        CauseCycles(10 + 1, StallCause.REQUESTS, "dma0"),
        CauseCycles(7 + 4, StallCause.MEMORY, "dram"),
        CauseCycles(10, StallCause.FILL_DRAIN, "mac"),
    ]
    assert rank_causes({"mac": {"nothing": 9}}) == []


@pytest.mark.parametrize("name", list_shipped_names())
def test_each_change_is_of_one_key_that_the_machine_has(name: str) -> None:
    chip = load_machine(name).chip
    causes = [CauseCycles(1, cause, unit.name) for cause in StallCause if cause is not StallCause.MEMORY for unit in chip.units]
    causes += [CauseCycles(1, StallCause.MEMORY, space.name) for space in chip.spaces]
    changes = [change for cause_cycles in causes for change in list_changes(chip, cause_cycles)]
    assert len({*changes}) >= 12  # a value may be a list, and trials of one change are one
    for change in changes:
        changed = change_chip(chip, change)
        assert change.before != change.after
        if changed is not None:
            assert list_differences(chip.model_dump(mode="json"), changed.model_dump(mode="json")) == [change.key]


def list_differences(one: Any, other: Any, path: str = "") -> list[str]:
    if not isinstance(one, dict):
        return [] if one == other else [path]
    return [key for name in one for key in list_differences(one[name], other[name], f"{path}.{name}".removeprefix("."))]


def test_a_change_that_breaks_a_rule_of_the_file_is_not_tried() -> None:
    assert change_chip(EDGE.chip, KeyChange(("isa", "program_memory"), "dram", "nowhere")) is None


def test_explain_says_which_key_helps_most_and_how_much(model: Path) -> None:
    """Check the timed cycles: with no cycles between folds the same plan is made, and its build takes as many."""
    plain = build(model, BuildOptions("edge16"))
    built = build(model, BuildOptions("edge16", explain=True))
    assert "key_trials" not in plain.figures and built.data == plain.data
    trials = {(one["key"], one["after"]): one["cycles"] for one in built.figures["key_trials"]}
    assert 3 <= len(trials) <= 6 and list(trials.values()) == sorted(trials.values())
    faster = build(model, BuildOptions(edge_with("engines.mac.timing.fold_cycles", 0)))
    assert trials["engines.mac.timing.fold_cycles", 0] == faster.figures["cycles"] < plain.figures["cycles"]
    line = next(line for line in build_text(built.figures, (), explain=True).splitlines() if line.startswith("key of"))
    (key, value), cycles = next(iter(trials.items()))
    assert f"{key} " in line and f"-> {value}".lower() in line
    assert f", {plain.figures['cycles']:,} -> {cycles:,} cycles (of {len(trials)} keys tried, each alone" in line
    assert "key of the machine" not in build_text(plain.figures, (), explain=True)


def test_keys_that_do_not_help_are_not_named() -> None:
    trials = [{"key": "isa.word_cycles", "before": 2.0, "after": 1.0, "cycles": 90}]
    text = key_trials_text({"cycles": 90, "key_trials": trials})
    assert text == "of 1 key of the machine, each changed alone, none makes this program faster"
    assert key_trials_text({"cycles": 90, "key_trials": []}) == ""
