"""Models that are quantized already: layers that have other codes than the file's are repaired, all else stays as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from unequal_networks import nothing

from quant.fidelity import sqnr_db
from quant.observe import Range
from quant.repair.choices import Quantization
from tests.quantized.forms import on_kernels, script
from tests.quantized.test_forms import small_network
from tests.support.run_in_process import run_script
from toolchain.api import Build, BuildOptions, build
from toolchain.compiler import select_model
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.isa import load_machine
from toolchain.passes.type_overrides import decompose_for_types
from toolchain.repair.calibrate_network import steps_of
from toolchain.repair.equalize import apply_factors
from toolchain.repair.network import Network
from toolchain.repair.observers import choose_observers
from toolchain.repair.repair_pipeline import Effort
from toolchain.runtime import Session

pytestmark = pytest.mark.usefixtures("repaired_by_default")
ROOT = Path(__file__).parents[2]
SAMPLES = 32
STEPS = ["rounding", "answering", "bias"]
ALL_STEPS = [s.name for s in steps_of("fast", None)]
ROWS, CHANNELS = 16, 32
WEIGHT_ONLY = (
    "w = DequantizeLinear<axis = 1>(cw, sw) u = DequantizeLinear<axis = 1>(cu, su) v = DequantizeLinear<axis = 1>(cv, sv) "
    "a = MatMul(x, w) b = Mul(a, huge) s = Add(x, b) n = LayerNormalization(s, one) c = MatMul(n, u) r = Relu(c) y = MatMul(r, v)"
)


def save_quantized(form: str, folder: Path) -> onnx.ModelProto:
    model, _ = small_network()
    data = np.random.default_rng(1).normal(size=(SAMPLES, 1, 3, 8, 8)).astype(np.float32)
    quantized_model = script().quantize_form(model, [{"x": x} for x in data], form)
    onnx.save(quantized_model, folder / "m.onnx")
    np.save(folder / "x.npy", data)
    return quantized_model


def built(folder: Path, machine: str, repair: Effort | None) -> Build:
    return build(folder / "m.onnx", BuildOptions(machine, calibration=str(folder / "x.npy"), repair=repair))


def level(quantized_model: onnx.ModelProto, built: Build) -> float:
    """dB from onnxruntime on samples that nothing else saw."""
    others = [{"x": x} for x in np.random.default_rng(2).normal(size=(16, 1, 3, 8, 8)).astype(np.float32)]
    session = Session(built.data, backend="reference")
    expected, got = (
        np.concatenate([np.ravel(run(s)[0]) for s in others])
        for run in (lambda s: on_kernels(quantized_model, s), lambda s: session.run(None, s))
    )
    return sqnr_db(expected, got)


@pytest.mark.parametrize(
    ("form", "machine", "gain", "steps"),
    [
        ("qdq_s8_channel", "wide32_w4a16", 3, STEPS),
        ("tensorrt", "ws8_pow2", 1, STEPS),
        ("matmul_nbits", "transformer64", 1, [s for s in ALL_STEPS if s != "types"]),
    ],
)
def test_what_the_machine_rounds_anew_is_repaired(form: str, machine: str, gain: float, steps: list[str], tmp_path: Path) -> None:
    """Check the default repair of quantized models with weights of 4 bits, with power-of-two scales, and with weights in
    float."""
    quantized_model = save_quantized(form, tmp_path)
    plain, repaired = built(tmp_path, machine, "none"), built(tmp_path, machine, None)
    assert [s["step"] for s in repaired.figures["repair"]["steps"]] == steps
    assert level(quantized_model, repaired) >= level(quantized_model, plain) + gain


def test_scales_that_the_file_gives_stay(tmp_path: Path) -> None:
    """nvdla_small has one scale for all channels of a layer, and keeps those of activations."""
    save_quantized("qdq_s8_channel", tmp_path)
    plain, repaired = built(tmp_path, "nvdla_small", "none"), built(tmp_path, "nvdla_small", "fast")
    before, after = (b.container.graph for b in (plain, repaired))
    assert {n: t.quant for n, t in after.types.items() if n in before.types} == {n: t.quant for n, t in before.types.items()}


def test_where_all_codes_are_the_files_nothing_is(tmp_path: Path) -> None:
    save_quantized("qdq_s8_channel", tmp_path)
    assert built(tmp_path, "edge16", None).figures["repair"] is None
    with pytest.raises(CompileError, match="quantized already, and its codes are taken as they are; leave it out"):
        built(tmp_path, "edge16", "fast")


def save_weight_only(folder: Path) -> list[dict[str, np.ndarray]]:
    """Save a network whose weights alone are codes, of columns of unlike size, with its samples, and return these."""
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[1,{ROWS},{CHANNELS}] x) => (float[1,{ROWS},8] y) {{ {WEIGHT_ONLY} }}'
    )
    rng = np.random.default_rng(0)
    huge = np.where(np.arange(ROWS) == 3, 300, 1).reshape(1, ROWS, 1).astype(np.float32)
    values: dict[str, np.ndarray] = {"huge": huge, "one": np.ones(CHANNELS, np.float32)}
    for name, columns in (("w", np.ones(CHANNELS)), ("u", np.exp(rng.uniform(-3, 3, CHANNELS))), ("v", np.ones(8))):
        weights = rng.standard_normal((CHANNELS, len(columns))) * columns / 6
        scales = (np.abs(weights).max(0) / 127).astype(np.float32)
        values |= {f"c{name}": np.rint(weights / scales).astype(np.int8), f"s{name}": scales}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in values.items())
    onnx.save(proto, folder / "m.onnx")
    data = rng.standard_normal((SAMPLES, 1, ROWS, CHANNELS)).astype(np.float32)
    np.save(folder / "x.npy", data)
    return [{"x": x} for x in data]


def test_steps_change_activations_of_a_model_whose_weights_alone_are_codes(tmp_path: Path) -> None:
    """The sum that only the host reads goes there; channels whose weights are the file's codes get no factors."""
    save_weight_only(tmp_path)
    repaired = built(tmp_path, "edge16", None)
    steps = {s["step"]: s for s in repaired.figures["repair"]["steps"]}
    assert list(steps) == ALL_STEPS and steps["region ends"]["kept"] and not steps["equalization"]["kept"]
    assert steps["region ends"]["after_db"] > steps["region ends"]["before_db"] + 1.5
    assert not any("rounded anew" in note for note in repaired.notes)


def test_new_ranges_of_what_a_model_leaves_in_float_have_room(tmp_path: Path) -> None:
    samples = save_weight_only(tmp_path)
    machine = load_machine("transformer64")
    model = decompose_for_types(load_model(tmp_path / "m.onnx"), machine.chip, (), (), {})
    network = Network(model, select_model(model, machine), machine)
    peak = max(float(s["x"].max()) for s in samples)
    before = Quantization(
        network.get_model_ranges(network.requested_types), file_weights=model.stored, types=network.requested_types
    )
    for outcome in (
        apply_factors(network, before, {}, (), "", samples, nothing),
        choose_observers(network, before, samples, nothing),
    ):
        adjusted_range = outcome.quantization.ranges["x"]
        assert isinstance(adjusted_range, Range) and adjusted_range.high > 3 * peak


@pytest.mark.parametrize(("form", "machine"), [("qdq_s8_channel", "nvdla_small"), ("matmul_nbits", "transformer64")])
def test_a_parameters_file_holds_the_repair(form: str, machine: str, tmp_path: Path) -> None:
    save_quantized(form, tmp_path)
    script, data, file = ROOT / "scripts" / "calibrate.py", tmp_path / "x.npy", tmp_path / "p.yaml"
    completed = run_script(script, tmp_path / "m.onnx", "--hw", machine, "--data", data, "--repair", "fast", "-o", file)
    assert completed.returncode == 0, completed.stderr
    again = build(tmp_path / "m.onnx", BuildOptions(machine, parameters=str(file), level=0))
    expected_build = build(
        tmp_path / "m.onnx", BuildOptions(machine, calibration=str(data), judge=str(data), repair="fast", level=0)
    )  # of as many samples: with others to judge on none is held out
    assert again.data == expected_build.data
