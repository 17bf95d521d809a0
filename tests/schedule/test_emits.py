"""Sums that an array leaves in a memory: where they lie, who takes them out, and that the array goes on meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from test_placement import convolution, model, save

from simulator.trace import chrome_trace
from tests.support.accumulator_machines import emitting
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.hw.unit_map import SUMS
from toolchain.isa import Machine, decode, load_machine
from toolchain.machine import Convolution, Depthwise, Emit, EmitKind, MachineOp, MatrixProduct
from toolchain.machine.access import AccumulatorUse
from toolchain.runtime import Session, random_feeds, verify
from toolchain.schedule.accumulator_memory import AccumulatorAddresses

assert model
ENTRIES = {"accumulators": {"bits": 32, "entries": 1024, "memory": "acc"}}


def built(path: Path, machine: Machine, level: int = 2) -> tuple[Build, list[MachineOp]]:
    """Compiled, and held against the reference on other inputs; with the operations of its one region."""
    built_network = build(path, BuildOptions(machine, level=level))
    assert not built_network.figures["warnings"]
    (region,) = built_network.container.segments
    assert isinstance(region, Region)
    feeds = random_feeds(built_network.container.inputs, seed=5)
    _, difference = verify(Session(built_network.data, timing=True), Session(built_network.data, backend="reference"), feeds)
    assert difference is None
    return built_network, list(decode(region.program, machine.isa).ops)


def together(built_network: Build, machine: Machine) -> float:
    """The share of the time of emits in which the array runs too, by the trace."""
    feeds = random_feeds(built_network.container.inputs, seed=5)
    run = Session(built_network.data, timing=True).run_detailed(feeds).segments[0].simulation
    assert run is not None
    events = [e for e in chrome_trace(machine.chip, run.flow, run)["traceEvents"] if e["ph"] == "X"]
    tracks = {"emit": 2, "convolution": 1}  # of the vector engine, of the array
    spans = {
        name: [(e["ts"], e["ts"] + e["dur"]) for e in events if (e["name"], e["tid"]) == (name, track)]
        for name, track in tracks.items()
    }
    shared = sum(max(0, min(b, d) - max(a, c)) for a, b in spans["emit"] for c, d in spans["convolution"])
    return shared / sum(b - a for a, b in spans["emit"])


def test_the_array_makes_the_next_sums_while_the_last_are_taken_out(model: Path) -> None:
    save(model, [convolution("x", "w", "y"), convolution("y", "w", "z")], ["x"], ["z"], w=(32, 32, 3, 3))
    machine = emitting(load_machine("edge16"), mac=ENTRIES)
    built_network, ops = built(model, machine)
    sums = [op for op in ops if isinstance(op, Convolution)]
    assert len(sums) == len([op for op in ops if isinstance(op, Emit)]) >= 8
    assert not any(op.emit or op.output_address or op.clamp_low for op in sums)
    # halves of all 32 KiB, in turn
    assert [op.sums_address for op in sums] == [0, 16384] * (len(sums) // 2)
    assert together(built_network, machine) > 0.8
    assert built_network.figures["layers"][0]["engine"] == "mac"


@pytest.mark.parametrize(("banks", "addresses"), [(1, [0, 0]), (2, [0, 16384])])
def test_sums_that_fill_the_memory_have_no_alternating_halves(model: Path, banks: int, addresses: list[int]) -> None:
    save(model, [convolution("x", "w", "y")], ["x"], ["y"], w=(32, 32, 3, 3))
    machine = emitting(load_machine("edge16"), banks=banks)
    _, ops = built(model, machine, level=0)
    assert [op.sums_address for op in ops if isinstance(op, Convolution)] == addresses


def test_arrays_share_the_memory_and_vector_engines_alternate(model: Path) -> None:
    save(model, [convolution("x", "w", "y"), convolution("y", "w", "z")], ["x"], ["z"], w=(32, 32, 3, 3))
    machine = emitting(load_machine("edge16"), banks=4, mac={**ENTRIES, "count": 2}, vector={"count": 2}, dma={"channels": 2})
    _, ops = built(model, machine)
    half = machine.chip.memories["acc"].size // 2
    for unit in (0, 1):
        sums = {op.sums_address for op in ops if isinstance(op, Convolution) and op.unit == unit}
        assert sums and sums == {op.sums_address for op in ops if isinstance(op, Emit) and op.unit == unit}
        assert {address // half for address in sums} == {unit}


@pytest.mark.parametrize("depthwise", ["diagonal", "none"])
def test_all_that_follows_a_sum_is_done_on_the_way_out(model: Path, depthwise: str) -> None:
    """Tables, residual sums, channels alone, and groups together: the codes of the machine whose array does it."""
    nodes = [
        convolution("x", "w", "a"),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        convolution("b", "w", "c"),
        helper.make_node("Add", ["c", "x"], ["d"]),
        helper.make_node("Conv", ["d", "v"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=32),
    ]
    save(model, nodes, ["x"], ["y"], w=(32, 32, 3, 3), v=(32, 1, 3, 3))
    machine = emitting(load_machine("edge16"), mac={"depthwise": depthwise})
    built_network, ops = built(model, machine)
    emits = [op for op in ops if isinstance(op, Emit)]
    assert {(op.use_table, op.use_add) for op in emits} == {(1, 0), (0, 1), (0, 0)}
    assert any(isinstance(op, Depthwise) for op in ops) == (depthwise == "diagonal")
    feeds = random_feeds(built_network.container.inputs, seed=9)
    plain = build(model, BuildOptions(load_machine("edge16")))
    mine, theirs = (Session(b.data).run(None, feeds)[0] for b in (built_network, plain))
    np.testing.assert_array_equal(mine, theirs)
    near_float(model, feeds, mine)


def test_products_of_activations_are_rounded_as_such(model: Path) -> None:
    save(model, [helper.make_node("MatMul", ["x", "z"], ["y"])], ["x", "z"], ["y"])
    machine = emitting(load_machine("edge16"))
    built_network, ops = built(model, machine)
    assert {op.kind for op in ops if isinstance(op, Emit)} == {EmitKind.MATRIX_PRODUCT}
    assert all(op.multiplier == op.emit == 0 for op in ops if isinstance(op, MatrixProduct))
    feeds = random_feeds(built_network.container.inputs, seed=9)
    near_float(model, feeds, Session(built_network.data).run(None, feeds)[0])


def near_float(path: Path, feeds: Any, got: np.ndarray) -> None:
    """30 dB above the noise, against the model's own file."""
    session = onnxruntime.InferenceSession(onnx.load(path).SerializeToString(), providers=["CPUExecutionProvider"])
    expected = np.asarray(session.run(None, feeds)[0])
    assert 10 * np.log10(np.square(expected).sum() / np.square(expected - got).sum()) > 30


def test_halves_are_taken_in_turn_where_sums_fit_them() -> None:
    chip = emitting(load_machine("edge16"), banks=1).chip
    (array,) = chip.of_kind("mac_array")
    assert chip.spaces[array.roles[SUMS]].memory.size == 16384
    places = AccumulatorAddresses(chip)

    def addresses(*chains: tuple[int, Sequence[int]]) -> list[int]:
        return [
            places.address(AccumulatorUse((1, size), accumulate, 0, 0), array) for size, steps in chains for accumulate in steps
        ]

    assert addresses((2048, (0, 1, 1)), (2048, (0,)), (16, (0, 1))) == [0, 0, 0, 8192, 0, 0]
    # what needs more than a half begins at the first byte, and so does what follows the second half
    assert addresses((2049, (0, 1)), (2048, (0,)), (16, (0,))) == [0, 0, 8192, 0]
