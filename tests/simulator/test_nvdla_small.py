"""NVDLA small against its RTL: single hardware layers, assembled as it runs them, and as they are planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from simulator import DramRange, DramRangeKind, Simulation, simulate
from tests.simulator.nvdla_layers import HardwareLayer, program
from toolchain.api import BuildOptions, build
from toolchain.hw.chip import Chip
from toolchain.hw.timing_terms import idealize_terms
from toolchain.isa import decode, encode, load_machine
from toolchain.runtime import Session, verify

MACHINE = load_machine("nvdla_small")
CLASSIFIER = Path(__file__).parents[2] / "examples" / "classifier"

# Convolutions of the sizes of direct-convolution tests in verif/tests/trace_tests/nv_small of github.com/nvdla/hw, and cycles of
# the RTL of nv_small in Verilator, its DRAM a latency of 32 cycles and one beat of 8 bytes a cycle.
RTL = {
    "24x36x29": (HardwareLayer((24, 36), 29, 54, (8, 6), (22, 35), pads=(9, 6)), 1_176_024),
    "45x26x41": (HardwareLayer((45, 26), 41, 14, (3, 5), (44, 24), pads=(3, 6)), 214_078),
    "12x7x25": (HardwareLayer((12, 7), 25, 55, (5, 5), (33, 24), pads=(5, 0), stride=(3, 3)), 69_194),
    "7x14x32": (HardwareLayer((7, 14), 32, 49, (4, 3), (7, 14), pads=(3, 2)), 34_542),
    "2x3x32": (HardwareLayer((2, 3), 32, 192, (3, 3), (8, 6), pads=(0, 3), stride=(4, 3)), 9_987),
    "2x2x16": (HardwareLayer((2, 2), 16, 36, (4, 4), (8, 8), dilation=(2, 2)), 2_353),
}
LATENCIES = {10: 9_965, 32: 9_987, 100: 10_055}  # of 2x3x32 by the latency of DRAM
NEAR = 0.01  # of the cycles


def run(layer: HardwareLayer, chip: Chip = MACHINE.chip, **options: int) -> Simulation:
    ops = program(layer, chip, **options)
    words = decode(encode(ops, MACHINE.isa), MACHINE.isa).words
    features, weights, _, results = layer.parts
    parts = [
        DramRange(DramRangeKind.INPUT, "features", features, weights),
        DramRange(DramRangeKind.CONSTANT, "", weights, results),
        DramRange(DramRangeKind.OUTPUT, "results", results, layer.dram_bytes),
    ]
    return simulate(chip, ops, words, layer.dram(), [], parts=parts)


@pytest.mark.parametrize("name", RTL)
def test_a_hardware_layer_takes_the_cycles_of_the_rtl(name: str) -> None:
    layer, cycles = RTL[name]
    ran = run(layer)
    np.testing.assert_array_equal(ran.dram[layer.parts[3] : layer.dram_bytes].view(np.int8), layer.compute_expected())
    assert ran.cycles == pytest.approx(cycles, rel=NEAR)


def with_dram(**changes: Any) -> Chip:
    memories = dict(MACHINE.chip.memories)
    memories["dram"] = memories["dram"].model_copy(update=changes)
    return MACHINE.chip.model_copy(update={"memories": memories})


@pytest.mark.parametrize("name", RTL)
def test_turns_may_be_the_memory_s(name: str) -> None:
    """Features in one copy and weights in one a group, a burst of each in turn: no figure of the assembly's own is in it."""
    layer, cycles = RTL[name]
    assert run(layer, with_dram(arbitration="round_robin"), turn_bytes=0).cycles == pytest.approx(cycles, rel=NEAR)


def test_latency_of_memory_is_paid_once_as_in_the_rtl() -> None:
    layer, _ = RTL["2x3x32"]
    beyond = {run(layer, with_dram(latency_cycles=latency)).cycles - cycles for latency, cycles in LATENCIES.items()}
    assert len(beyond) == 1


def test_answers_have_room_for_so_many_bytes() -> None:
    """The RTL waits for room with 300 cycles of latency; here features and weights have such a buffer each."""
    layer, _ = RTL["2x3x32"]
    chip = with_dram(latency_cycles=300)
    assert run(layer, chip).cycles == pytest.approx(11_743, rel=0.05)
    assert run(layer, idealize_terms(chip, ["outstanding"])).cycles < 0.9 * 11_743


def save_model(layer: HardwareLayer, path: Path) -> Path:
    _, weights, biases = layer.values
    (top, left_pad), (down, across) = (tuple(n // 2 for n in layer.pads), layer.pads)
    node = helper.make_node(
        "Conv",
        ["x", "w", "b"],
        ["y"],
        pads=[top, left_pad, down - top, across - left_pad],
        strides=layer.stride,
        dilations=layer.dilation,
    )
    x, y = (1, layer.channels, *layer.input), (1, layer.kernels, *layer.output)
    w, b = weights.transpose(0, 3, 1, 2) / 128, biases / (1 << 16)
    onnx.save(build_model([node], {"x": x}, {"y": y}, {"w": w.astype(np.float32), "b": b.astype(np.float32)}), path)
    return path


@pytest.mark.parametrize("name", RTL)
def test_a_planned_layer_takes_no_more(name: str, tmp_path: Path) -> None:
    layer, cycles = RTL[name]
    assert build(save_model(layer, tmp_path / "layer.onnx"), BuildOptions(MACHINE)).figures["cycles"] <= cycles


@pytest.mark.parametrize("seed", range(3))
def test_the_classifier_has_the_bits_of_the_reference(seed: int, classifier: bytes) -> None:
    image = np.random.default_rng(seed).random((1, 1, 28, 28), np.float32)
    run, difference = verify(Session(classifier), Session(classifier, backend="reference"), {"x": image})
    assert difference is None and run.outputs


@pytest.fixture(scope="module")
def classifier() -> bytes:
    data = CLASSIFIER / "calib.npz"
    return build(CLASSIFIER / "classifier.onnx", BuildOptions(MACHINE, str(data), samples=8)).data


def test_a_layer_that_the_buffer_does_not_hold_is_several() -> None:
    with pytest.raises(ValueError, match="131072 bytes hold 0 groups of kernels beside features and results"):
        program(HardwareLayer((64, 64), 8, 32, (1, 1), (64, 64)), MACHINE.chip)
