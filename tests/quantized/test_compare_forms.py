"""bench/compare_exporters.py: a file against onnxruntime's kernels, and against the float model with the same scales."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.quantized.forms import comparing, computing, leveling
from tests.quantized.test_forms import small_network
from toolchain.frontend import load_model
from toolchain.isa import load_machine

MACHINES = ("edge16", "transformer64")


@pytest.mark.parametrize("form", ["qdq_s8_channel", "qop_s8_tensor", "qdq_u8_channel", "integer", "qdq_s16", "blocked"])
def test_a_line_a_form(form: str, tmp_path: Path) -> None:
    script = comparing()
    model, samples = small_network()
    onnx.save(model, tmp_path / "m.onnx")
    judge = script.Judge(tmp_path / "m.onnx", samples[:4], samples)
    machine, others = script.with_wide(script.float32_machine(load_machine("edge16"))), {n: load_machine(n) for n in MACHINES}
    row = script.compare_form(judge, model, form, machine, others)
    assert row.hosted == 0
    exact = form not in ("qdq_s16", "blocked")
    assert row.chip_db == script.EXACT_DB if exact else row.chip_db >= 45
    assert sorted(row.above_db) == (sorted(MACHINES) if exact else [])
    assert all(quality.db >= -0.5 for both in row.above_db.values() for quality in both), row.above_db
    assert row.exactly is None or row.exactly.chip_db >= 45
    assert ("onnxruntime equal" in script.text(row)) == (row.chip_db == script.EXACT_DB)


def test_weights_of_a_file_in_two_planes(tmp_path: Path) -> None:
    """Check that weights get two bit slices by the name of their codes, next to weights that the file leaves in float."""
    script = comparing()
    model, samples = small_network()
    onnx.save(model, tmp_path / "m.onnx")

    def level(*types: str) -> float:
        judge = script.Judge(tmp_path / "m.onnx", samples[:4], samples, types=types)
        return script.compare_form(judge, model, "blocked", load_machine("transformer64"), {}).chip_db

    assert level() < 60 < 75 < level("w*_codes=int16")


@pytest.mark.parametrize("form", ["qdq_s8_channel", "qop_s8_channel", "tensorflow", "integer"])
def test_the_float_model_takes_the_scales_of_each_form(form: str, tmp_path: Path) -> None:
    """All of what a form says, by names of the float model."""
    script = comparing()
    model, samples = small_network()
    onnx.save(model, tmp_path / "m.onnx")
    onnx.save(script.quantize_form(model, samples, form), tmp_path / "q.onnx")
    judge = script.Judge(tmp_path / "m.onnx", samples[:4], samples[:1])
    network, _ = judge.integer(load_model(tmp_path / "q.onnx"), load_machine("ws8_pow2"))
    ranges = script._rename_to_float(network.selection.file_ranges, network.model.graph, load_model(tmp_path / "m.onnx").graph)
    expected_names = {"x", "r0", "r1", "c2", "a", "g", "y"}
    assert expected_names <= ranges.keys()
    assert len({ranges[n] for n in expected_names}) == len(expected_names)  # each its own


def test_no_numbers_are_near_to_two_answers_that_are_apart() -> None:
    script, rng = comparing(), np.random.default_rng(0)
    one = rng.normal(size=1000)
    other = one + 0.05 * rng.normal(size=1000)
    distant = script.ExactFidelity(99.0, 99.0, script._db([[one]], [[other]]), 99.0, None)
    noise = np.linalg.norm(one - other) / 2
    assert distant.both_db == pytest.approx(20 * np.log10(np.linalg.norm(one) / noise))
    for z in (one, other, (one + other) / 2, one + 0.02 * rng.normal(size=1000)):
        farther = max(np.linalg.norm(z - one), np.linalg.norm(z - other))
        assert 20 * np.log10(np.linalg.norm(one) / farther) <= distant.both_db + 1e-9
    row = script.Row("f", 0, 30.0, replace(distant, unfused_db=31.0, bits=9), {})
    assert script.text(row).endswith("unoptimized 31.0 dB; from both at most 37.0 dB; 40 dB with weights of 9 bits")
    assert "at most" not in script.text(replace(row, exactly=replace(distant, unfused_db=34.0)))


def test_the_bits_that_weights_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that each further bit halves the noise."""
    script = comparing()
    model, samples = small_network()
    quantized_model = script.quantize_form(model, samples, "blocked")
    expected = [script.on_kernels(quantized_model, s) for s in samples]
    first = script._db(expected, computing().exact(computing().with_rounded_weights(quantized_model, 9), samples))
    for more, bits in ((0, 9), (6, 10), (12, 11), (100, None)):
        monkeypatch.setattr(script, "ASKED_DB", first + 0.8 * more)
        assert script._bits(quantized_model, samples, expected) == bits


def test_dynamic_files_with_the_ranges_of_each_run(tmp_path: Path) -> None:
    script = comparing()
    model, samples = small_network()
    onnx.save(model, tmp_path / "m.onnx")
    judge = script.Judge(tmp_path / "m.onnx", samples[:4], samples)
    machine = script.with_wide(script.float32_machine(load_machine("edge16")))
    static, run = (
        script.compare_form(judge, model, "dynamic", machine, {}, run_ranges=run_ranges) for run_ranges in (False, True)
    )
    assert static.hosted == run.hosted == 0
    assert run.chip_db >= 50 > static.chip_db


def test_what_few_samples_show_is_no_difference() -> None:
    """Two networks of the same noise: four samples show decibels, and their standard error says that they are none."""
    levels = leveling()
    rng = np.random.default_rng(0)
    real = [[rng.normal(size=10)] for _ in range(400)]
    first, second = ([[x + 0.1 * rng.normal() * rng.normal(size=10)] for (x,) in real] for _ in range(2))
    few, many = levels.above(real[:4], first[:4], second[:4]), levels.above(real, first, second)
    assert abs(few.db) > 1 and abs(few.db) < 2.5 * few.error_db
    assert abs(many.db) < 0.5 and many.error_db < 0.6
    closer = [[x + (y - x) / 2] for (x,), (y,) in zip(real, first)]
    assert levels.above(real, closer, first).db == pytest.approx(6.02, abs=0.01)
    assert levels.above(real, first, first) == levels.SqnrDifference(0.0, 0.0)
    assert levels.above(real[:1], first[:1], first[:1]).error_db == np.inf
    assert str(levels.SqnrDifference(-1.856, 0.92)) == "-1.86 ± 0.92"


FORMS = ("qdq_u8_channel", "ms_qdq_s8", "pytorch", "tensorrt", "integer", "dynamic", "matmul_nbits", "blocked")


@pytest.mark.parametrize("form", FORMS)
def test_what_is_computed_exactly_is_the_file(form: str) -> None:
    """Check that exact computation equals onnxruntime's result, apart from rounded weights and static ranges."""
    script, exactly = comparing(), computing()
    model, samples = small_network()
    quantized_model = script.quantize_form(model, samples, form)
    expected = [script.on_kernels(quantized_model, s) for s in samples]
    rounded = exactly.with_rounded_weights(quantized_model)
    least = {"matmul_nbits": 40, "blocked": 40}.get(form, 100)  # weights of 8 bits
    assert script._db(exactly.exact(rounded, samples), expected) >= least
    ranges = exactly.ranges_of_runs(rounded, samples)
    assert (ranges != {}) == (form == "dynamic")
    if ranges:
        assert 30 <= script._db(exactly.exact(rounded, samples, ranges), expected) < 100


def test_what_is_rounded_otherwise_is_not_exact() -> None:
    script, exactly = comparing(), computing()
    model, samples = small_network()
    quantized_model = script.quantize_form(model, samples, "pytorch")
    expected = [script.on_kernels(quantized_model, s) for s in samples]
    scale = next(i for i in quantized_model.graph.initializer if i.name == "r0_scale")
    scale.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(scale) * np.float32(1.01), scale.name))
    assert script._db(exactly.exact(quantized_model, samples), expected) < 50


def test_a_last_softmax_is_left_out() -> None:
    model, _ = small_network()
    model.graph.node.append(onnx.helper.make_node("Softmax", ["y"], ["p"]))
    model.graph.output[0].name = "p"
    assert comparing().to_scores(model).graph.output[0].name == "y"
    assert model.graph.node[-1].op_type == "Gemm"
