"""Models that are quantized already: layers that have other codes than the file's are repaired, all else stays as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from quant.fidelity import sqnr_db
from tests.quantized.forms import on_kernels, script
from tests.quantized.test_forms import small_network
from tests.support.run_in_process import run_script
from toolchain.api import Build, BuildOptions, build
from toolchain.errors import CompileError
from toolchain.repair.repair_pipeline import Effort
from toolchain.runtime import Session

pytestmark = pytest.mark.usefixtures("repaired_by_default")
ROOT = Path(__file__).parents[2]
SAMPLES = 32
STEPS = ["rounding", "answering", "bias"]


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
    ("form", "machine", "gain"),
    [("qdq_s8_channel", "wide32_w4a16", 3), ("tensorrt", "ws8_pow2", 1), ("matmul_nbits", "transformer64", 1)],
)
def test_what_the_machine_rounds_anew_is_repaired(form: str, machine: str, gain: float, tmp_path: Path) -> None:
    """Check the default repair of quantized models with weights of 4 bits, with power-of-two scales, and with weights in
    float."""
    quantized_model = save_quantized(form, tmp_path)
    plain, repaired = built(tmp_path, machine, "none"), built(tmp_path, machine, None)
    assert [s["step"] for s in repaired.figures["repair"]["steps"]] == STEPS
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
