"""A state that newer values are joined to, and cut out of the whole again, has one scale with both: nothing is rescaled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from quant.parameters import quant_range
from tests.semantics.case import Case
from tests.semantics.judge import sqnr_db
from tests.semantics.machines import int16_machine
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.ir.graph import Graph, Origin, Quant
from toolchain.isa import Machine, load_machine
from toolchain.ops.data_movement import Pad
from toolchain.ops.kit.operator import same_scale
from toolchain.passes.state_windows import StateWindow, only_moves, share_window_scales
from toolchain.runtime import Session

STREAM = Case(  # two convolutions over time; what the first makes is read past the second one's window too
    "stream", "x 1,1,8; cache 1,1,4; taps 1,16,2; w 16,1,6; v 16,16,3",
    "whole = Concat<axis = 2>(cache, x) b = Constant<value_ints = [8]>() e = Constant<value_ints = [12]>() "
    "a = Constant<value_ints = [2]>() cache_out = Slice(whole, b, e, a) c = Conv<strides = [2]>(whole, w) r = Relu(c) "
    "both = Concat<axis = 2>(taps, r) f = Constant<value_ints = [4]>() g = Constant<value_ints = [6]>() "
    "taps_out = Slice(both, f, g, a) d = Conv(both, v) y = Add(d, r)",
    "y cache_out taps_out",
)  # fmt: skip
STATES = ("cache=cache_out", "taps=taps_out")
STEP = 1 / 32768  # of samples of 16 bits


def samples(count: int, seed: int) -> np.ndarray:
    return (np.rint(np.random.default_rng(seed).normal(0, 0.1, (count, 1, 1, 8)) / STEP) * STEP).astype(np.float32)


def stream(machine: str | Machine, folder: Path, **data: np.ndarray) -> Build:
    onnx.save(STREAM.proto, folder / "stream.onnx")
    np.savez(folder / "data.npz", allow_pickle=False, **data)
    return build(folder / "stream.onnx", BuildOptions(machine, str(folder / "data.npz"), states=STATES, repair="none"))


def scales(built: Build) -> dict[str, tuple[float, int]]:
    """Return the scales of the input and of the states."""
    (region,) = (s for s in built.container.segments if isinstance(s, Region))
    ports = [*region.inputs, *(state.port for state in region.states)]
    return {port.model: (port.scale, port.zero_point) for port in ports}


def rescales(built: Build) -> list[str]:
    return [layer["name"] for layer in built.figures["layers"] if layer["op"] == "Rescale"]


@pytest.mark.parametrize(("beyond", "is_newer"), [(0.45, True), (0.55, False), (-3.0, True)])
@pytest.mark.parametrize("end", ["low", "high"])
def test_a_window_has_a_newer_scale_where_that_holds_it_to_half_a_step(
    end: str, beyond: float, is_newer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The joined tensor has been seen to go beyond the codes of the newer one by this many of its steps."""
    window = StateWindow("past", "present", "joined", ("newer",))
    monkeypatch.setattr("toolchain.passes.state_windows.find_state_windows", lambda graph: [window])
    names, chip = ("past", "present", "joined", "newer"), load_machine("edge16").chip
    graph: Graph[Any] = Graph("g", (), (), (), {}, {}, {name: Origin(name, "plain") for name in names})
    newer, joined = Quant(0.5, 3), Quant(0.7, 0)
    codes = quant_range(newer, chip.numerics)
    low, high = (codes.low - beyond / 2, codes.high) if end == "low" else (codes.low, codes.high + beyond / 2)
    separate = {**dict.fromkeys(names, joined), "newer": newer}
    ranges = dict.fromkeys(names, Range(low, high))
    shared = share_window_scales(graph, chip, dict.fromkeys(names, CodeType.INT8), ranges, {}, separate)
    assert shared == dict.fromkeys(("past", "present", "joined"), newer if is_newer else joined)


@pytest.mark.parametrize("machine", ["edge16", "transformer64", "wide32_w4a16"])
def test_nothing_is_rescaled(machine: str, tmp_path: Path) -> None:
    built = stream(machine, tmp_path, x=samples(64, 1))
    scale_by_tensor = scales(built)
    assert rescales(built) == [] and scale_by_tensor["cache"] == scale_by_tensor["x"]


def test_samples_stay_exact_in_the_state(tmp_path: Path) -> None:
    """Check a state of 16 bits, whose scale is the input's own; a state that adds up would have twice the range."""
    built = stream(int16_machine(), tmp_path, x=samples(64, 1))
    session = Session(built.data)
    for x in samples(64, 1)[:8]:
        session.run(None, {"x": x})
        assert np.array_equal(session.state("cache"), x[:, :, 4:])


def test_a_state_that_begins_with_more_than_is_joined_to_it_has_the_scale_of_the_whole(tmp_path: Path) -> None:
    rng, x = np.random.default_rng(3), samples(64, 1)
    first = {"cache": rng.uniform(-4, 4, (64, 1, 1, 4)).astype(np.float32), "taps": rng.uniform(0, 1, (64, 1, 16, 2))}
    built = stream("transformer64", tmp_path, x=x, **{n: v.astype(np.float32) for n, v in first.items()})
    scale_by_tensor = scales(built)
    assert scale_by_tensor["cache"][0] > 4 * scale_by_tensor["x"][0] and len(rescales(built)) >= 1


def test_what_the_stream_makes_is_what_float_makes(tmp_path: Path) -> None:
    built = stream("edge16", tmp_path, x=samples(64, 1))
    session, runner = Session(built.data), onnxruntime.InferenceSession(STREAM.proto.SerializeToString())
    past_values = {past: np.zeros(STREAM.shapes[past], np.float32) for past in ("cache", "taps")}
    expected, got = list[np.ndarray](), list[np.ndarray]()
    for x in samples(32, 2):
        y, *states = (np.asarray(output) for output in runner.run(["y", "cache_out", "taps_out"], {"x": x, **past_values}))
        past_values = dict(zip(past_values, states))
        expected.append(y)
        got.append(session.run(["y"], {"x": x})[0])
    assert sqnr_db(np.stack(expected), np.stack(got)) > 30


def test_what_inserts_numbers_is_no_move() -> None:
    op = Pad((0, 0), (0, 2), 0.0)
    assert same_scale(op) and not only_moves(op)
