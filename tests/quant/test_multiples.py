"""Inputs whose values are whole multiples of a step, as converters and image formats make them, lose nothing to their codes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from edge_numerics import EDGE, machine
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

from quant.calibrate import OBSERVERS, calibrate, observe_all
from quant.common_step import CommonStep
from quant.file import Parameters, read_parameters, render_parameters, write_parameters
from quant.fixed_point import ScaleForm
from quant.fixed_point.core.codes import CodeType
from quant.observe import Range, Tails
from quant.parameters import activation_quant, with_room
from toolchain.api import BuildOptions, build
from toolchain.codegen import Region
from toolchain.errors import ConfigError
from toolchain.ir.graph import Quant

settings.register_profile("quant", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("quant")

Array = np.ndarray[Any, Any]
AUDIO, IMAGE = 2.0**-15, 1 / 255
POW2 = replace(EDGE, scale=ScaleForm("pow2"))
INT16 = machine(activation="int16", symmetric_activations=True)


def step_of(*samples: Array) -> float | None:
    common_step = CommonStep()
    for sample in samples:
        common_step.update(np.asarray(sample, np.float32))
    return common_step.step


COUNTS = st.lists(st.integers(-30_000, 30_000), min_size=1, max_size=40)


@given(st.sampled_from((AUDIO, 1.0, 3.0)), st.lists(COUNTS, min_size=1, max_size=4))
def test_the_largest_number_that_all_are_multiples_of(step: float, counts: list[list[int]]) -> None:
    common = np.gcd.reduce([n for part in counts for n in part])
    assert step_of(*(np.asarray(part) * step for part in counts)) == (common * step or None)


@given(st.sampled_from((IMAGE, 2 * IMAGE, 1 / 65535, 0.01)), st.integers(2, 30_000), st.integers(0, 99))
def test_steps_that_float32_does_not_hold(step: float, most: int, seed: int) -> None:
    counts = np.random.default_rng(seed).integers(-most, most, (3, 200))
    assert step_of(*(counts * step)) == pytest.approx(step, rel=1e-6)


def test_arithmetic_in_float32_may_lie_between() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, 50_000).astype(np.float32)
    assert step_of(pixels / np.float32(255) * 2 - 1) == pytest.approx(IMAGE, rel=1e-6)
    assert step_of(pixels * np.float32(0.02) / np.float32(0.3)) == pytest.approx(0.02 / 0.3, rel=1e-6)


@pytest.mark.parametrize("x", [np.random.default_rng(1).normal(size=40), np.random.default_rng(2).uniform(size=40) ** 9])
def test_other_numbers_have_none(x: Array) -> None:
    assert step_of(x) is None
    audio = np.rint(np.linspace(-1, 1, 50_000) * 1000) * AUDIO
    assert step_of(audio) == AUDIO and step_of(audio, x) is None
    audio[41_000] += AUDIO / 3
    assert step_of(audio) == pytest.approx(AUDIO / 3)


def test_few_numbers_may_lie_between_a_multiple_and_none() -> None:
    """Check that few numbers may have a common step by chance: of samples of two numbers one in seventy goes through all
    rounds."""
    for seed in range(400):
        rng = np.random.default_rng(seed)
        step = step_of(*rng.uniform(-2, 3, (8, 2)))
        assert step is None or step >= 3 / 2**16
    x = np.array([1, 2, 3 + 3 * 2.0**-21 * 3])  # three roundings off: what a finer step of any size would not tell
    assert step_of(x) is None


@pytest.mark.parametrize(
    ("r", "numerics", "expected"),
    [
        (Range(-1, 1 - AUDIO, step=AUDIO), INT16, Quant(AUDIO, 0)),
        (Range(-0.3, 0.2, step=AUDIO), INT16, Quant(AUDIO / 3, 0)),
        (Range(-1, 1.5, step=AUDIO), INT16, Quant(1.5 / 32767, 0)),  # more steps than codes
        (Range(0, 0.9, step=IMAGE), EDGE, Quant(IMAGE, -128)),
        (Range(-50 * IMAGE, 0.75, step=IMAGE), EDGE, Quant(IMAGE, -72)),
        (Range(0, 1, step=IMAGE), EDGE, Quant(1 / 255, -128)),
        (Range(-0.3, 0.2, step=AUDIO), EDGE, activation_quant(Range(-0.3, 0.2), EDGE)),
        (Range(-0.3, 0.2, step=0.07), POW2, activation_quant(Range(-0.3, 0.2), POW2)),
    ],
)  # fmt: skip
def test_the_scale_is_a_whole_part_of_the_step(r: Range, numerics: Any, expected: Quant) -> None:
    assert activation_quant(r, numerics) == expected


def test_room_ends_where_the_codes_of_the_steps_do() -> None:
    tails = Tails(64, 0.05, 0.05)
    wide = with_room(Range(0, 0.99, tails), None, EDGE)
    assert wide.high > 1.05 and activation_quant(wide, EDGE).scale > IMAGE
    ends = with_room(Range(0, 0.99, tails, IMAGE), None, EDGE)
    assert activation_quant(ends, EDGE).scale == IMAGE
    half = with_room(Range(0, 0.49, tails, IMAGE), None, EDGE)
    assert half.high > 0.55 and activation_quant(half, EDGE).scale == IMAGE


def model(folder: Path, body: str) -> str:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,64] x) => (float[1,64] y) {{ {body} }}'
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    return str(folder / "m.onnx")


def audio(seed: int, step: float = AUDIO) -> Array:
    """float32[16, 1, 64]."""
    x = np.random.default_rng(seed).uniform(-10_000, 10_000, (16, 1, 64))
    return (np.rint(x) * step).astype(np.float32)


@pytest.mark.parametrize("observer", OBSERVERS)
def test_every_observer_tells_of_inputs_alone(observer: Any, tmp_path: Path) -> None:
    proto = onnx.load(model(tmp_path, "y = Relu(x)"))
    samples = [{"x": x} for x in audio(0)]
    ranges = calibrate(proto, samples, ["x", "y"], observer=observer, numerics=INT16)
    assert ranges["x"].step == AUDIO and ranges["y"].step is None
    observed = observe_all(proto, samples, ["x", "y"]).ranges(observer, INT16)
    assert observed["x"].step == AUDIO and observed["y"].step is None


@pytest.mark.parametrize("step", [AUDIO, AUDIO / 3])
def test_audio_reaches_the_chip_as_it_is(step: float, tmp_path: Path) -> None:
    path = model(tmp_path, "y = Mul(x, x)")
    np.savez(tmp_path / "d.npz", x=audio(0, step=step))
    built = build(path, BuildOptions("transformer64", calibration=str(tmp_path / "d.npz"), types=("*=int16",)))
    (region,) = (s for s in built.container.segments if isinstance(s, Region))
    parts = step / region.inputs[0].scale
    assert parts == pytest.approx(round(parts), rel=1e-6) and round(parts) > 0
    samples = [{"x": x} for x in audio(0, step=step)]
    ranges = calibrate(onnx.load(path), samples, ["x", "y"])
    write_parameters(tmp_path / "p.yaml", Parameters(ranges, types=dict.fromkeys("xy", CodeType.INT16)))
    (again,) = build(path, BuildOptions("transformer64", parameters=str(tmp_path / "p.yaml"))).container.segments
    assert isinstance(again, Region) and (again.program, again.constants) == (region.program, region.constants)


def test_a_file_holds_it(tmp_path: Path) -> None:
    r = Range(-0.5, 0.25, step=AUDIO)
    write_parameters(tmp_path / "p.yaml", Parameters({"x": r}))
    assert '"x": {low: -0.5, high: 0.25, step: 3.0517578125e-05}' in render_parameters(Parameters({"x": r}))
    assert read_parameters(tmp_path / "p.yaml").quant("x", INT16) == activation_quant(r, INT16) == Quant(AUDIO / 2, 0)
    (tmp_path / "q.yaml").write_text("version: 1\ntensors:\n  x: {scale: 0.5, zero_point: 0, step: 0.5}\n")
    with pytest.raises(ConfigError, match="step stands beside low and high"):
        read_parameters(tmp_path / "q.yaml")
