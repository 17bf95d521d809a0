"""`--error-report` measures every layer by itself, in the network, and on the outputs, and says why it loses what it loses."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.quantized.forms import script
from toolchain.api import BuildOptions, build
from toolchain.isa import load_machine
from toolchain.report.error_page import finding_text, report_files
from toolchain.report.error_report import Effort, ErrorReport

SAMPLES = 24


def save_network(folder: Path, graph: str, weights: dict[str, np.ndarray], x: np.ndarray) -> Path:
    """A model of one input of shape [1, 4, 8, 8] and data for it; nodes are named by their outputs."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g (float[1,4,8,8] x) => (float y) {{ {graph} }}')
    for name, value in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    for node in proto.graph.node:
        node.name = f"node_{node.output[0]}"
    onnx.save(onnx.shape_inference.infer_shapes(proto), folder / "m.onnx")
    np.savez(folder / "data.npz", x=x.astype(np.float32))
    return folder / "m.onnx"


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape)


CHAIN = "a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, v) d = Add(c, b) y = Conv(d, u)"
WEIGHTS = {"w": drawn(4, 4, 3, 3) / 6, "v": drawn(4, 4, 3, 3) / 6, "u": drawn(4, 4, 1, 1) / 2}


def make_report(
    folder: Path, *, hw: str = "edge16", ranges: dict[str, tuple[float, float]] | None = None, **options
) -> ErrorReport:
    """Return the report of the model and data in the folder.

    `ranges`: ranges of some tensors in a --quant file; the others are [-8, 8].
    """
    if ranges is not None:
        model = onnx.load(folder / "m.onnx")
        names = ["x", *(o for n in model.graph.node for o in n.output)]
        lines = [f"  {n}: {{low: {ranges.get(n, (-8.0, 8.0))[0]}, high: {ranges.get(n, (-8.0, 8.0))[1]}}}" for n in names]
        (folder / "p.yaml").write_text("\n".join(["version: 1", "tensors:", *lines, ""]))
        options["parameters"] = str(folder / "p.yaml")
    report = build(folder / "m.onnx", BuildOptions(hw, calibration=str(folder / "data.npz"), error_report=True, **options)).errors
    assert report is not None
    return report


def test_each_layer_alone_is_better_than_what_has_accumulated(tmp_path: Path) -> None:
    save_network(tmp_path, CHAIN, WEIGHTS, drawn(SAMPLES, 4, 8, 8))
    report = make_report(tmp_path)
    assert report.samples == 16  # of 24, none of which is held out where nothing judges
    rows = {r.tensor: r for r in report.rows}
    assert sorted(rows) == ["b", "c", "d", "x", "y"]
    last = rows["y"]
    assert last.accumulated_db is not None and last.accumulated_db < last.alone_db < last.own_db
    assert rows["x"].layer is None and rows["x"].alone_db == rows["x"].own_db == rows["x"].accumulated_db
    for row in (rows["b"], rows["c"], rows["y"]):
        assert row.weights_db is not None
        parts = 10 ** (-row.weights_db / 10) + 10 ** (-row.activations_db / 10)  # the weights' is of one sample alone
        assert 10 ** (-row.alone_db / 10) == pytest.approx(parts, rel=1e-3)
    assert last.effect_db == pytest.approx(last.alone_db, abs=1)  # it is the output, on three of the samples


def test_the_error_of_weights_is_that_of_the_float_model_with_rounded_weights(tmp_path: Path) -> None:
    """Against numpy on the file: a 1x1 convolution with weights that int4 loses much of."""
    x = drawn(SAMPLES, 4, 8, 8)
    save_network(tmp_path, "y = Conv(x, u)", {"u": WEIGHTS["u"]}, x)
    machine = load_machine("wide32_w4a16")
    built = build(tmp_path / "m.onnx", BuildOptions(machine, calibration=str(tmp_path / "data.npz"), error_report=True))
    assert built.errors is not None
    row = next(r for r in built.errors.rows if r.tensor == "y")
    graph = built.container.graph
    node = next(n for n in graph.nodes if n.name == "node_y")
    quants = [graph.types[n].quant for n in (node.inputs[0], node.outputs[0])]
    scales = node.op.requant.real_scale * quants[1].scale / quants[0].scale  # type: ignore[union-attr]
    rounded = graph.constants[node.inputs[1]].reshape(4, 4) * scales.reshape(-1, 1)
    real = WEIGHTS["u"].reshape(4, 4).astype(np.float32)
    sample = max(x, key=lambda s: float(np.square(real @ s.reshape(4, 64)).sum())).reshape(4, 64).astype(np.float32)
    lost = (rounded - real) @ sample
    expected = 10 * np.log10(np.sum((real @ sample) ** 2) / np.sum(lost**2))
    assert row.weights_db == pytest.approx(expected, abs=0.1)
    assert row.cause == "weight rounding" and row.remedy.startswith("numerics.weight: int8 in the machine's file")
    # Not as a share of the error: what is measured on one sample may be louder than the error of all.
    by_themselves = f"with a scale a channel leave {row.weights_db:.1f} dB by themselves, on one sample"
    assert row.why == f"weights rounded to int4 {by_themselves}"


@pytest.mark.parametrize(("done", "more"), [(None, "fast"), ("none", "fast"), ("fast", "full"), ("full", None)])
def test_what_repair_is_left_to_try(tmp_path: Path, done: Any, more: str | None) -> None:
    save_network(tmp_path, "y = Conv(x, u)", {"u": WEIGHTS["u"]}, drawn(24, 4, 8, 8))
    options = BuildOptions("wide32_w4a16", calibration=str(tmp_path / "data.npz"), error_report=True, repair=done)
    errors = build(tmp_path / "m.onnx", options).errors
    assert errors is not None
    row = next(r for r in errors.rows if r.tensor == "y")
    assert row.cause == "weight rounding"
    assert [way for way in row.remedy.split(", or ") if "repair" in way] == ([f"--repair {more}"] if more else [])


CAUSES = {  # ranges in the file of --quant -> tensor to blame, cause
    "clipped": ({"c": (-0.1, 0.1)}, "c", "clipped tail"),
    "wide": ({"c": (-900.0, 900.0)}, "c", "range wider than its values"),
    "wide input": ({"x": (-900.0, 900.0)}, "x", "range wider than its values"),
}


@pytest.mark.parametrize("case", CAUSES)
def test_the_first_finding_names_layer_and_cause(case: str, tmp_path: Path) -> None:
    ranges, tensor, cause = CAUSES[case]
    save_network(tmp_path, CHAIN, WEIGHTS, drawn(SAMPLES, 4, 8, 8))
    first = make_report(tmp_path, ranges=ranges).findings[0]
    assert (first.tensor, first.cause) == (tensor, cause)
    assert first.layer == (None if tensor == "x" else f"node_{tensor}")
    assert f"for {tensor} in the file of --quant" in first.remedy


def test_few_large_values_that_set_a_scale_are_named(tmp_path: Path) -> None:
    x = drawn(SAMPLES, 4, 8, 8)
    x[:, 0, 0, 0] = 3000.0
    save_network(tmp_path, "a = Relu(x) y = Add(a, k)", {"k": drawn(1, 4, 1, 1)}, x)
    first = make_report(tmp_path).findings[0]
    assert first.cause == "range dominated by few values" and first.remedy.startswith("--observer mse")


def test_operands_that_cancel_are_named(tmp_path: Path) -> None:
    """x + 20 - (x + 20.1): both operands have 40 dB, their difference nothing."""
    graph = "a = Mul(x, k) b = Add(a, h) c = Conv(b, e) d = Sub(c, b) y = Relu(d)"
    eye = (np.eye(4) + 0.01 * drawn(4, 4)).reshape(4, 4, 1, 1)
    weights = {"k": np.ones((1, 4, 1, 1)) * 1.01, "h": np.full((1, 4, 1, 1), 20.0), "e": eye}
    save_network(tmp_path, graph, weights, drawn(SAMPLES, 4, 8, 8))
    first = make_report(tmp_path).findings[0]
    assert (first.layer, first.cause) == ("node_d", "cancelling operands")
    assert "--host-node node_d" in first.remedy and "numerics.activation: int16" in first.remedy


def test_accumulators_that_wrap_are_named(tmp_path: Path) -> None:
    """A product of computed operands has no bound that quantization could keep; 24 bits hold 127 * 127 * 1040."""
    graph = "a = Reshape(x, s) b = Relu(a) c = Transpose<perm=[0,2,1]>(b) y = MatMul(b, c)"
    proto_shape = np.array([1, 1, 2048], np.int64)
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g (float[1,2048] x) => (float y) {{ {graph} }}')
    proto.graph.initializer.append(numpy_helper.from_array(proto_shape, "s"))
    for node in proto.graph.node:
        node.name = f"node_{node.output[0]}"
    onnx.save(onnx.shape_inference.infer_shapes(proto), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=(3 + 0.1 * drawn(SAMPLES, 2048)).astype(np.float32))
    machine = load_machine("edge16")
    mac = machine.chip.array
    narrow = mac.model_copy(update={"accumulators": mac.accumulators.model_copy(update={"bits": 24})})
    chip = machine.chip.model_copy(update={"engines": {**machine.chip.engines, "mac": narrow}})
    options = BuildOptions(replace(machine, chip=chip), calibration=str(tmp_path / "data.npz"), error_report=True)
    report = build(tmp_path / "m.onnx", options).errors
    assert report is not None
    assert (report.findings[0].layer, report.findings[0].cause) == ("node_y", "accumulator overflow")
    assert report.findings[0].remedy.startswith("engines.mac.accumulators.bits above 24 in the machine's file")


def test_a_concat_whose_range_is_too_wide_is_named_for_what_it_joins(tmp_path: Path) -> None:
    """Check that the Concat is named: its operands share its scale, so their own range in the file of --quant would change
    nothing.
    """
    graph = "a = Conv(x, u) b = Conv<pads=[1,1,1,1]>(x, w) c = Concat<axis=1>(a, b) d = Conv(c, t) y = Relu(d)"
    save_network(tmp_path, graph, {**WEIGHTS, "t": drawn(4, 8, 1, 1)}, drawn(SAMPLES, 4, 8, 8))
    first = make_report(tmp_path, ranges={"c": (-160.0, 160.0)}).findings[0]
    assert (first.layer, first.tensor, first.cause) == ("node_c", "c", "range wider than its values")
    assert "for c in the file of --quant" in first.remedy


def test_scores_of_nothing_are_not_what_layers_are_tried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check scores that are worst by themselves, since their scale is that of the joined tensor; only one layer is tried."""
    monkeypatch.setattr(Effort, "of", lambda _: Effort(1, 4, 1, 1))
    graph = "s = Conv(x, u, k) t = Sigmoid(s) b = Conv(x, v1) c = Conv(b, v2) y = Concat<axis=1>(c, t)"
    weights = {"u": WEIGHTS["u"], "k": np.full(4, -12.0), "v1": drawn(4, 4, 1, 1), "v2": WEIGHTS["u"]}
    save_network(tmp_path, graph, weights, drawn(SAMPLES, 4, 8, 8))
    report = make_report(tmp_path, ranges={"b": (-1.0, 1.0), "s": (-16.0, 0.0), "t": (0.0, 1.0)})
    assert (report.findings[0].layer, report.findings[0].cause) == ("node_b", "clipped tail")
    scores = next(r for r in report.rows if r.tensor == "t")
    assert scores.effect_db is None and scores.alone_db < report.findings[0].alone_db


def test_weights_whose_rounding_is_louder_than_the_signal_are_named(tmp_path: Path) -> None:
    """Rows that sum to nothing, over an input that hardly changes: what rounding leaves of it is louder."""
    w = drawn(4, 4, 3, 3)
    x = 5 + 0.02 * np.random.default_rng(7).standard_normal((SAMPLES, 4, 8, 8))
    save_network(tmp_path, "y = Conv(x, w)", {"w": w - w.mean((1, 2, 3), keepdims=True)}, x)
    first = make_report(tmp_path, repair="none", raw_ports=("x",)).findings[0]
    assert (first.layer, first.cause) == ("node_y", "weight rounding") and first.alone_db < 3


class _Page(HTMLParser):
    """Counts what the page holds, and what it would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_files_hold_every_layer(tmp_path: Path) -> None:
    path = save_network(tmp_path, CHAIN.replace("x, w) b", "x, w) <b>").replace("<b>", "b"), WEIGHTS, drawn(SAMPLES, 4, 8, 8))
    proto = onnx.load(path)
    proto.graph.node[2].name = "<script>alert(1)</script>"
    onnx.save(proto, path)
    report = make_report(tmp_path)
    files = report_files(report, "m on edge16", "of --calib, held out of calibration")
    assert sorted(files) == ["layers.html", "layers.json", "layers.txt"]
    figures = json.loads(files["layers.json"])
    assert [r["tensor"] for r in figures["layers"]] == [r.tensor for r in report.rows]
    assert {"alone_db", "accumulated_db", "weights_db", "activations_db", "effect_db", "cause", "remedy"} <= figures["layers"][
        0
    ].keys()
    page = _Page()
    page.feed(files["layers.html"].decode())
    assert page.tags.count("rect") == page.tags.count("tr") - 1 == len(report.rows)
    assert page.loaded == [] and "script" not in page.tags
    text = files["layers.txt"].decode()
    assert text.startswith("m on edge16: error of each layer, on 16 samples of --calib, held out of calibration\n\n")
    assert all(r.tensor in text for r in report.rows)


def test_a_model_that_is_quantized_already_loses_nothing(tmp_path: Path) -> None:
    """Check layers that make codes of codes: a tie to the other side is no cause, and exact results print no `inf dB`."""
    x = drawn(SAMPLES, 4, 8, 8).astype(np.float32)
    path = save_network(tmp_path, CHAIN, WEIGHTS, x)
    samples = [{"x": one[None]} for one in x]
    onnx.save(script().quantize_form(onnx.load(path), samples, "qdq_s8_channel"), path)
    report = make_report(tmp_path)
    assert {f.tensor for f in report.findings} == {"x"}  # the float input alone is rounded
    rows = [r for r in report.rows if r.tensor[0] in "cdy"]  # b reads x
    assert (
        len(rows) == 3 and {r.cause for r in rows} == {"nothing lost"} and any(np.isfinite(r.alone_db) for r in rows)
    )  # there are ties
    files = report_files(replace(report, findings=()), "m", "of --calib")
    assert b"nothing is lost" in files["layers.txt"] and b"nothing is lost" in files["layers.html"]
    assert b"inf dB" not in report_files(report, "m", "of --calib")["layers.txt"]


@pytest.mark.parametrize(("high", "cause"), [(160.0, "range wider than its values"), (6.5, "clipped tail")])
def test_what_a_reader_makes_worse_is_put_down_to_the_range(high: float, cause: str, tmp_path: Path) -> None:
    """Differences of channels that are nearly alike lose most by themselves, because of how their operand is rounded."""
    near = np.repeat(6.0 + drawn(SAMPLES, 1, 8, 8) / 4, 4, 1) + drawn(SAMPLES, 4, 8, 8) / 16
    differences = np.array([[1, -1, 0, 0], [0, 1, -1, 0], [0, 0, 1, -1], [-1, 0, 0, 1]], np.float32).reshape(4, 4, 1, 1)
    eye = np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1)
    save_network(
        tmp_path, "a = Conv(x, i) b = Relu(a) c = Conv(b, e) y = Conv(c, u)", {"i": eye, "e": differences, "u": eye}, near
    )
    ranges = {"x": (0.0, 8.0), "a": (0.0, 8.0), "b": (0.0, high), "c": (-1.0, 1.0), "y": (-1.0, 1.0)}
    report = make_report(tmp_path, ranges=ranges)
    rows = {r.tensor: r for r in report.rows}
    assert rows["c"].alone_db < rows["b"].alone_db - 6
    assert (report.findings[0].tensor, report.findings[0].cause) == ("b", cause)


def test_a_finding_that_loses_all_says_so() -> None:
    finding = {"layer": "c", "op": "Conv", "tensor": "y", "cause": "accumulator", "alone_db": None, "effect_db": None}
    assert "leaves -inf dB alone: sums wrap" in finding_text({**finding, "why": "sums wrap", "remedy": ""})
