"""The layers that lose most are named with the cause: each is judged by itself, fed with what float has."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support.decompose_cases import decomposing, make_mixed_machine
from tests.support.numerics_variants import with_numerics
from toolchain.api import BuildOptions, build
from toolchain.isa import load_machine
from toolchain.report.error_report import Effort
from toolchain.report.fidelity import FidelityPart
from toolchain.report.part_verdicts import judge_parts, output_lines
from toolchain.report.report_text import worst_text

POOR = "against float"  # of a warning
NAMES = ("one", "two", "three", "four")


def chain(folder: Path) -> Path:
    """Four convolutions and calibration data for them."""
    text = " ".join(f"{o} = Conv<pads=[1,1,1,1]>({i}, w{k})" for k, (i, o) in enumerate(zip("xabc", "abcy")))
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[1,4,8,8] x) => (float[1,4,8,8] y) {{ {text} }}'
    )
    rng = np.random.default_rng(0)
    for k in range(4):
        value = (rng.standard_normal((4, 4, 3, 3)) / 6).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(value, f"w{k}"))
    for node, name in zip(proto.graph.node, NAMES):
        node.name = name
    onnx.save(proto, folder / "m.onnx")
    np.savez(folder / "data.npz", x=rng.standard_normal((4, 4, 8, 8)).astype(np.float32))
    return folder / "m.onnx"


@pytest.mark.parametrize(("tensor", "layer"), [("a", "one"), ("c", "three"), ("y", "four"), ("x", None)])
def test_the_layer_where_the_error_arises_is_named(tensor: str, layer: str | None, tmp_path: Path) -> None:
    path = chain(tmp_path)
    ranges = dict.fromkeys("xabcy", "{low: -6.0, high: 6.0}") | {tensor: "{low: -0.05, high: 0.05}"}
    lines = "\n".join(f"  {name}: {text}" for name, text in ranges.items())
    (tmp_path / "p.yaml").write_text(f"version: 1\ntensors:\n{lines}\n")
    data = str(tmp_path / "data.npz")
    built = build(path, BuildOptions("edge16", calibration=data, parameters=str(tmp_path / "p.yaml")))
    worst_layer, *others = built.figures["worst_layers"]
    assert (worst_layer["tensor"], worst_layer["layer"], worst_layer["cause"]) == (tensor, layer, "clipped tail")
    assert worst_layer["alone_db"] < 10 < min(o["alone_db"] for o in others)
    assert worst_layer["remedy"].startswith("tried on 4 samples: low: ")
    assert f"for {tensor} in the file of --quant (" in worst_layer["remedy"]
    assert [p["poor"] for p in built.figures["outputs"]] == [True]
    (warning,) = [w for w in built.warnings if POOR in w]
    assert warning.startswith("output y: SQNR ") and f"tensor {tensor}: clipped tail" in warning
    assert warning.endswith(f"{worst_layer['why']}; {worst_layer['remedy']}")
    assert f"{layer or tensor}: {worst_layer['why']}; {worst_layer['remedy']}" in worst_text(built.figures)


def test_the_samples_that_come_out_worst_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of four is clipped, and only one is looked at."""
    path = chain(tmp_path)
    x = np.load(tmp_path / "data.npz")["x"] * np.array([0.1, 0.1, 3, 0.1], np.float32).reshape(4, 1, 1, 1)
    np.savez(tmp_path / "data.npz", x=x)
    (tmp_path / "p.yaml").write_text("version: 1\ntensors:\n" + "".join(f"  {n}: {{low: -1.0, high: 1.0}}\n" for n in "xabcy"))
    monkeypatch.setattr(Effort, "of", lambda _: Effort(1, 2, 4, 1))
    data = str(tmp_path / "data.npz")
    built = build(path, BuildOptions("edge16", calibration=data, parameters=str(tmp_path / "p.yaml")))
    assert built.figures["worst_layers"][0]["cause"] == "clipped tail"
    assert "float's tensors of 1 sample (of these 4, those whose outputs lose most):" in worst_text(built.figures)


MADE_OF_SEVERAL = {  # nodes, tensor whose range is too small, layer that is to blame
    "moves merged": ("a = Conv<pads=[1,1,1,1]>(x, w) b = Transpose<perm=[0,1,3,2]>(a) y = Add(b, x)", "y", "Add_2"),
    "function in front of moves": (
        "a = Conv<pads=[1,1,1,1]>(x, w) b = Transpose<perm=[0,3,1,2]>(a) c = Relu(b) y = Add(c, x)",
        "y",
        "Add_3",
    ),
    "transposed convolution": ("a = Relu(x) y = ConvTranspose<strides=[2,2]>(a, w)", "y", "ConvTranspose_1 (phases)"),
    "product of rows": ("a = Relu(x) r = Flatten(a) y = Gemm(r, v)", "y", "Gemm_2"),
    "pool in stages": ("y = MaxPool<kernel_shape=[7,7], pads=[3,3,3,3]>(x)", "x", None),
}


@pytest.mark.parametrize("case", MADE_OF_SEVERAL)
@pytest.mark.parametrize("hw", ["edge16", "ws8_pow2"])
def test_tensors_that_only_the_compiler_has_are_not_blamed(case: str, hw: str, tmp_path: Path) -> None:
    text, narrow, layer = MADE_OF_SEVERAL[case]
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g (float[1,4,4,4] x) => (float y) {{ {text} }}')
    rng = np.random.default_rng(0)
    for name, shape in (("w", (4, 4, 3, 3)), ("v", (64, 10))):
        proto.graph.initializer.append(numpy_helper.from_array((rng.standard_normal(shape) / 6).astype(np.float32), name))
    for i, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{i}"
    onnx.save(onnx.shape_inference.infer_shapes(proto), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((4, 4, 4, 4)).astype(np.float32))
    tensors = ["x", *(o for node in proto.graph.node for o in node.output)]
    ranges = dict.fromkeys(tensors, "{low: -8.0, high: 8.0}") | {narrow: "{low: -0.05, high: 0.05}"}
    lines = "\n".join(f"  {name}: {text}" for name, text in ranges.items())
    (tmp_path / "p.yaml").write_text(f"version: 1\ntensors:\n{lines}\n")
    options = BuildOptions(hw, calibration=str(tmp_path / "data.npz"), parameters=str(tmp_path / "p.yaml"))
    worst_layer = build(tmp_path / "m.onnx", options).figures["worst_layers"][0]
    assert (worst_layer["tensor"], worst_layer["layer"], worst_layer["cause"]) == (narrow, layer, "clipped tail")
    assert worst_layer["alone_db"] < 10


def test_what_a_tensor_does_to_the_outputs_tells_more_than_its_own_figure(tmp_path: Path) -> None:
    """Rows of unlike size: one scale for all leaves nothing of the small ones. The whole has 40 dB and more, the quotient not."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,8,4,4] x) => (float y) { '
        "a = Abs(x) b = ReduceMean<axes=[2,3]>(a) d = Div(x, b) y = Relu(d) }"
    )
    onnx.save(proto, tmp_path / "m.onnx")
    sizes = 10.0 ** np.arange(-3, 5).reshape(8, 1, 1)
    np.savez(tmp_path / "data.npz", x=(sizes * np.random.default_rng(0).standard_normal((4, 8, 4, 4))).astype(np.float32))
    options = BuildOptions("edge16", calibration=str(tmp_path / "data.npz"), error_report=True)
    report = build(tmp_path / "m.onnx", options).errors
    assert report is not None
    first = report.findings[0]
    assert first.tensor in ("x", "a", "b") and first.effect_db is not None and first.effect_db < 10 < first.alone_db


def test_a_good_network(tmp_path: Path) -> None:
    built = build(chain(tmp_path), BuildOptions("edge16", calibration=str(tmp_path / "data.npz")))
    assert min(w["alone_db"] for w in built.figures["worst_layers"]) > 30
    assert [p["poor"] for p in built.figures["outputs"]] == [False]
    assert built.figures["calibration_samples"] == built.figures["judged_samples"] == 4
    assert built.warnings == (
        "calibrated on 4 samples; ranges of fewer than 16 may not hold for other data",
        "judged on the data it was calibrated on: others may do worse; give more than 16 samples, or --judge DATA",
    )


NORMS = {"InstanceNormalization": 0.1, "GroupNormalization<num_groups=2>": 0.05}


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_in_8_bits_is_warned_of_with_what_mends_it(norm: str, tmp_path: Path) -> None:
    """Over channels of unlike size: the small ones lose all, which the large ones hide in every layer of the first norm. All of
    its steps are named: one alone mends little."""
    text = f"a = Conv<pads=[1,1,1,1]>(x, w) n = {norm}(a, g, b) y = Conv(n, u)"
    rng, small = np.random.default_rng(5), NORMS[norm]
    sizes = np.array([1, 0.3, small, small]).reshape(4, 1, 1, 1)
    weights = {"w": sizes * rng.standard_normal((4, 4, 3, 3)) / 6, "u": rng.standard_normal((4, 4, 1, 1)) / 2}
    options = save_network(tmp_path, text, {**weights, "g": np.ones(4), "b": np.zeros(4)}, opset=21)
    options = replace(options, hardware=decomposing(make_mixed_machine()), repair="none", level=0)
    built = build(tmp_path / "m.onnx", options)
    (warning,) = [w for w in built.warnings if POOR in w]
    assert warning.startswith("output y: SQNR ") and "; layer node_n: " in warning and ", tensor n: " in warning
    assert " dB of the output: " in warning, warning
    assert "; tried on 8 samples: --host-node node_n (" in warning and " cycles for " in warning
    if norm == "InstanceNormalization":
        first, *others = built.figures["worst_layers"]
        assert first["effect_db"] < 10 < min(w["alone_db"] for w in (first, *others))
    improved = build(tmp_path / "m.onnx", replace(options, types=("node_n=int16",)))
    assert improved.figures["outputs"][0]["sqnr_db"] > 14 and not any(POOR in w for w in improved.warnings)


def test_what_many_layers_wear_down_alike_is_poor_too(tmp_path: Path) -> None:
    """Twelve convolutions whose codes are for 40 times their values: each leaves 10 dB and more of the output, all less."""
    count = 12
    names = ["x", *(f"t{i}" for i in range(1, count)), "y"]
    text = " ".join(f"{y} = Conv(x, w{i})".replace("(x", f"({x}") for i, (x, y) in enumerate(pairwise(names)))
    rng = np.random.default_rng(0)
    rotations = [np.linalg.qr(rng.standard_normal((4, 4)))[0].reshape(4, 4, 1, 1) for _ in range(count)]
    options = save_network(tmp_path, text, {f"w{i}": w for i, w in enumerate(rotations)})
    lines = "\n".join(f"  {name}: {{low: -40, high: 40}}" for name in names)
    (tmp_path / "p.yaml").write_text(f"version: 1\ntensors:\n{lines}\n")
    built = build(tmp_path / "m.onnx", replace(options, parameters=str(tmp_path / "p.yaml")))
    (part,) = built.figures["outputs"]
    (warning,) = [w for w in built.warnings if POOR in w]
    assert part["sqnr_db"] < 10 and part["poor"] is True and warning.startswith("output y: SQNR ")
    assert all(w["effect_db"] > 10 for w in built.figures["worst_layers"])


def save_network(folder: Path, graph: str, constants: dict[str, np.ndarray], opset: int = 17) -> BuildOptions:
    """A model of input [1, 4, 8, 8] with constants, and data for it."""
    head = f'<ir_version: 10, opset_import: ["": {opset}]> g (float[1,4,8,8] x) => (float y)'
    proto = onnx.parser.parse_model(f"{head} {{ {graph} }}")
    for name, value in constants.items():
        proto.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    for node in proto.graph.node:
        node.name = f"node_{node.output[0]}"
    onnx.save(onnx.shape_inference.infer_shapes(proto), folder / "m.onnx")
    np.savez(folder / "data.npz", x=np.random.default_rng(0).standard_normal((24, 4, 8, 8)).astype(np.float32))
    return BuildOptions("edge16", calibration=str(folder / "data.npz"))


def test_scores_of_what_is_not_there_are_not_poor(tmp_path: Path) -> None:
    """Sigmoid of -14: the output is far from float, and 16 bits would not hold it either."""
    options = save_network(tmp_path, "a = Add(x, k) y = Sigmoid(a)", {"k": np.full((1, 4, 1, 1), -14.0)})
    built = build(tmp_path / "m.onnx", options)
    (part,) = built.figures["outputs"]
    assert part["sqnr_db"] is None or part["sqnr_db"] < 1
    assert part["poor"] is False and not any(POOR in w for w in built.warnings)


def test_values_beyond_the_codes_are_warned_of(tmp_path: Path) -> None:
    options = save_network(tmp_path, "a = Add(x, x) y = Mul(a, x)", {})
    (tmp_path / "p.yaml").write_text(
        "version: 1\ntensors:\n  x: {low: -2, high: 2}\n  a: {low: -4, high: 4}\n  y: {low: -40, high: 40}\n"
    )
    warnings = build(tmp_path / "m.onnx", replace(options, parameters=str(tmp_path / "p.yaml"))).warnings
    (warning,) = [w for w in warnings if "outside the codes" in w]
    assert warning.startswith("more than 0.1 % of the values lie outside the codes of: x ") and warning.endswith(" %")


@pytest.mark.parametrize("samples", [None, 4])
def test_dead_channels_are_warned_of(samples: int | None, tmp_path: Path) -> None:
    """Check channels whose weights are too small for a code, and channels that a Relu never lets through, where enough samples
    were seen.
    A channel without weights in the file is intended.
    """
    weights = np.random.default_rng(0).standard_normal((4, 4, 1, 1))
    weights[1], weights[3] = 1e-6 * weights[1], 0
    one_scale = with_numerics(load_machine("edge16"), weights_per_channel=False)
    options = save_network(tmp_path, "a = Conv(x, w, b) y = Relu(a)", {"w": weights, "b": np.array([0, 1, -99, 1])})
    judged = replace(options, hardware=one_scale, judge=options.calibration, error_report=True, samples=samples, repair="none")
    expected = "dead channels, which give one value whatever comes: node_a {} of 4"
    assert expected.format(1) in build(tmp_path / "m.onnx", replace(judged, error_report=False)).warnings
    assert expected.format(2) in build(tmp_path / "m.onnx", judged).warnings


@pytest.mark.parametrize(("small", "poor"), [(1e-5, True), (1e-2, False)])
def test_an_output_that_16_bits_have_lost_is_poor(small: float, poor: bool, tmp_path: Path) -> None:
    """The part that it is made of has the scale of a whole that is 10^8 and 10^5 times larger."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,4,8,8] x) => (float[1,1,8,8] y)
      <int64[1] b = {3}, int64[1] e = {4}, int64[1] d = {1}, float k = {100.0}> { s = Slice(x, b, e, d) y = Mul(s, k) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    x = np.random.default_rng(0).uniform(-1000, 1000, (24, 4, 8, 8)).astype(np.float32)
    x[:, 3] *= small
    np.savez(tmp_path / "data.npz", x=x)
    options = BuildOptions("wide32_w4a16", calibration=str(tmp_path / "data.npz"), repair="none")
    (part,) = build(tmp_path / "m.onnx", options).figures["outputs"]
    assert part["poor"] is poor
    assert (part["sqnr_db"] or 0.0) < 1 if poor else part["sqnr_db"] > 30


def test_scores_that_16_bits_cannot_hold_are_not_poor(tmp_path: Path) -> None:
    options = save_network(tmp_path, "a = Add(x, k) y = Sigmoid(a)", {"k": np.full((1, 4, 1, 1), -18.0)})
    built = build(tmp_path / "m.onnx", replace(options, hardware="wide32_w4a16"))
    (part,) = built.figures["outputs"]
    assert (part["sqnr_db"] or 0.0) < 1 and part["poor"] is False


def test_poor_steps_of_a_sequence_are_one_line_of_the_worst() -> None:
    steps = [
        FidelityPart(f"h{i}", level, 0.5, 1.0, 0.0, tensor=f"h{i}", steps_of="h", outputs=("y",))
        for i, level in enumerate((6.0, 2.0, 4.0, 30.0))
    ]
    alone = FidelityPart("z", 5.0, 0.5, 1.0, 0.0, tensor="z", outputs=("z",))
    lines = [line for _, line in output_lines(judge_parts([alone], steps[:3], (), ()))]
    assert lines == [
        "output z: SQNR 5.0 dB, cosine 0.5000 against float",
        "concat operand h1, and 2 more such steps: SQNR 2.0 dB, cosine 0.5000 against float",
    ]


def test_a_reciprocal_of_what_rounds_to_zero_saturates_where_its_effect_is_measured(tmp_path: Path) -> None:
    """Some values of r have the code zero. Their reciprocals are infinite in float, on the chip the largest code."""
    options = save_network(tmp_path, "r = AveragePool<kernel_shape = [8, 8]>(x) q = Reciprocal(r) y = Mul(x, q)", {})
    x = np.random.default_rng(0).uniform(0.2, 1.0, (24, 4, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    ranges = {"x": "{low: -1, high: 1}", "r": "{low: 0, high: 305}", "q": "{low: 0, high: 5}", "y": "{low: -2, high: 2}"}
    lines = "\n".join(f"  {name}: {text}" for name, text in ranges.items())
    (tmp_path / "p.yaml").write_text(f"version: 1\ntensors:\n{lines}\n")
    built = build(tmp_path / "m.onnx", replace(options, parameters=str(tmp_path / "p.yaml")))
    (part,), effects = built.figures["outputs"], [w["effect_db"] for w in built.figures["worst_layers"]]
    assert part["sqnr_db"] < 10 and len(effects) >= 2
    assert all(effect is not None and effect >= part["sqnr_db"] - 1 for effect in effects)
