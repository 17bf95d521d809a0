"""Check the warnings of a build: ranges that no data showed, options without effect, and file codes that were not kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.quantized.test_forms import built_form
from tests.support.recurrent import recurrent
from toolchain.api import Build, BuildOptions, build
from toolchain.errors import percent
from toolchain.report import make_skipped_warnings, unseen_warnings
from toolchain.report.warnings import is_saturated


def of_a_sleeping_branch(folder: Path, **options: str) -> Build:
    """y = Conv(relu(x - 100)) + x: the branch is zero in all data."""
    text = "a = Sub(x, far) b = Relu(a) c = Conv(b, w) y = Add(c, x)"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g (float[1,4,8,8] x) => (float y) {{ {text} }}')
    rng = np.random.default_rng(0)
    for name, value in {"far": np.float32(100), "w": rng.normal(size=(4, 4, 1, 1)).astype(np.float32)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    onnx.save(onnx.shape_inference.infer_shapes(proto), folder / "m.onnx")
    np.savez(folder / "data.npz", x=rng.normal(size=(20, 4, 8, 8)).astype(np.float32))
    return build(folder / "m.onnx", BuildOptions("edge16", calibration=str(folder / "data.npz"), **options))  # type: ignore[arg-type]


def test_ranges_that_no_data_showed(tmp_path: Path) -> None:
    """Check both tensors after the Relu; ranges from the file are not reported."""
    warning = "ranges never seen: zero (to 1e-10) throughout the calibration data is b, c; give data in which they are not"
    assert warning in of_a_sleeping_branch(tmp_path).warnings
    lines = [f"  {n}: {{low: -8, high: 8}}" for n in "xabcy"]
    (tmp_path / "p.yaml").write_text("\n".join(["version: 1", "tensors:", *lines, ""]))
    assert not [w for w in of_a_sleeping_branch(tmp_path, parameters=str(tmp_path / "p.yaml")).warnings if "never seen" in w]


ALWAYS_ZERO = {
    "two ways to the same": 'a = DepthToSpace<blocksize=2, mode="CRD">(c) r = Reshape(c, six) '
    "t = Transpose<perm=[0,1,4,2,5,3]>(r) b = Reshape(t, four) z = Sub(a, b)",
    "beyond a bound": "k = Clip(c, low, high) m = Add(k, eight) u = Neg(m) e = MaxPool<kernel_shape=[1,1]>(u) z = Relu(e)",
}


@pytest.mark.parametrize("text", ALWAYS_ZERO.values(), ids=ALWAYS_ZERO)
def test_what_no_data_can_make_other_than_zero_is_not_warned_of(text: str, tmp_path: Path) -> None:
    body = f"c = Conv(x, w) {text} s = Add(z, c2) y = Abs(s)"
    body = body.replace("c2", "a" if "a = " in text else "c")
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g (float[1,4,8,8] x) => (float y) {{ {body} }}')
    rng = np.random.default_rng(0)
    values = {
        "w": rng.normal(size=(4, 4, 1, 1)).astype(np.float32),
        "six": np.array([1, 1, 2, 2, 8, 8]),
        "four": np.array([1, 1, 16, 16]),
    }
    values |= {"low": np.float32(-2), "high": np.float32(2), "eight": np.float32(8)}
    for name, value in values.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(20, 4, 8, 8)).astype(np.float32))
    built = build(tmp_path / "m.onnx", BuildOptions("edge16", calibration=str(tmp_path / "data.npz")))
    assert not [w for w in (*built.warnings, *built.notes) if "zero" in w], built.warnings


def test_of_many_the_first_are_named() -> None:
    assert unseen_warnings(()) == []
    assert "is a, b, c, d and 2 more;" in unseen_warnings("abcdef")[0]


def test_steps_of_repair_that_were_left_out() -> None:
    steps = [("equalization", False, "it finds nothing to change"), ("bias", True, "the outputs gain 1.00 dB")]
    repair = {"effort": "fast", "steps": [{"step": s, "kept": k, "why": w} for s, k, w in steps]}
    warning = "--repair fast: 1 of 2 steps left out: equalization: it finds nothing to change"
    assert make_skipped_warnings(repair, None, calibrated=True) == [warning]
    assert make_skipped_warnings({**repair, "steps": repair["steps"][1:]}, None, calibrated=True) == []
    assert make_skipped_warnings(None, "mse", calibrated=True) == []


@pytest.mark.parametrize(("form", "warning_count"), [("qdq_s8_channel", 1), ("dynamic", 0)])
def test_static_ranges_of_a_model_that_has_none_of_each_run(form: str, warning_count: int, tmp_path: Path) -> None:
    built, _, _ = built_form(form, tmp_path, "edge16", static_ranges=True)
    assert built.warnings.count("--static-ranges: left out, the model quantizes nothing by a range of each run") == warning_count


def test_an_observer_with_nothing_to_observe(tmp_path: Path) -> None:
    built_form("qdq_s8_channel", tmp_path, "edge16")
    options = BuildOptions("edge16", calibration=str(tmp_path / "calib.npz"), observer="mse")
    assert (
        "--observer mse: left out, the model gives every range itself"
        in build(tmp_path / "qdq_s8_channel.onnx", options).warnings
    )


SLICES_HINT = ", by their name in the file, takes them in two planes"


@pytest.mark.parametrize("form", ["qdq_s8_channel", "integer"])
@pytest.mark.parametrize(
    ("machine", "why"),
    [
        ("ws8_pow2", "scales that are powers of two (numerics.scale)"),
        ("nvdla_small", "one scale for all channels (numerics.weights_per_channel)"),
        ("wide32_w4a16", f"int4 weights (numerics.weight); --type WEIGHTS=int8{SLICES_HINT}"),
        ("edge16", None),
    ],
)
def test_weights_that_are_rounded_anew(machine: str, why: str | None, form: str, tmp_path: Path) -> None:
    built, _, _ = built_form(form, tmp_path, machine)
    notes = [n for n in built.notes if "rounded anew" in n]
    assert notes == ([] if why is None else [f"weights of 4 layers are rounded anew, {machine} has {why}"])


@pytest.mark.parametrize(
    ("clipped", "count", "is_reported"),
    [
        (1, 64, False),
        (2, 64, False),
        (3, 64, True),
        (3, 1000, False),
        (4, 1000, True),
        (1010, 1_000_000, False),
        (1100, 1_000_000, True),
    ],
)
def test_how_many_values_beyond_the_codes_say_something(clipped: int, count: int, is_reported: bool) -> None:
    """One value of 64 is above a share of 0.1 %, and says nothing of it."""
    assert is_saturated(clipped, count) is is_reported


def test_what_a_recurrent_layer_cuts_is_not_lost(tmp_path: Path) -> None:
    """A sigmoid of 10 and of 40 is one."""
    onnx.save(recurrent("LSTM", batch=1, length=3, units=4, inputs=4), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=40 * np.random.default_rng(0).normal(size=(24, 3, 1, 4)).astype(np.float32))
    options = BuildOptions("transformer64", calibration=str(tmp_path / "data.npz"), repair="none")
    assert not [w for w in build(tmp_path / "m.onnx", options).warnings if "before" in w or "tells" in w]


def test_a_share_has_no_more_digits_than_it_needs() -> None:
    assert [percent(share) for share in (1.0, 0.999, 0.123, 0.0046)] == ["100 %", "100 %", "12 %", "0.46 %"]
