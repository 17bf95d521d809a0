"""The exported ONNX model rounds where the chip does: onnxruntime gives the chip's codes, layer by layer and end to end.

As the machine rounds by default; `nearest`: once, for kernels of codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import onnx.utils
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from quant.calibration_data import open_data
from quant.fidelity import sqnr_db
from scripts.onnx_builder import build_model
from tests.semantics.machines import make_mixed_machine
from tests.support.numerics_variants import with_numerics
from tests.support.unsigned_machines import make_unsigned
from toolchain.api import BuildOptions, build
from toolchain.frontend import load_model
from toolchain.frontend.read_onnx import newest_opset
from toolchain.ir.graph import TensorType
from toolchain.isa import Machine, load_machine
from toolchain.report.fidelity import real_values
from toolchain.runtime import Session

CLASSIFIER = Path(__file__).parents[2] / "examples" / "classifier"
SHAPE = (1, 4, 8, 8)
CASES = {
    "chain": "a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) y = Conv(b, u)",
    "bounds": "a = Conv<pads=[1,1,1,1]>(x, w) b = Clip(a, low, high) y = Conv<strides=[2,2]>(b, w)",
    "depthwise": "a = Conv<group=4>(x, d) y = Relu(a)",
    "product": "a = Flatten(x) y = Gemm(a, g, h)",
    "transposed product": "a = Flatten(x) y = Gemm<transB=1>(a, t)",
    "sums": "a = Add(x, k) b = Mul(a, k) c = Sub(b, x) y = PRelu(c, s)",
    "adds": "a = Add(x, k) b = Mul(a, x) y = Add(b, x)",
    "moves": "a = MaxPool<kernel_shape=[2,2], strides=[2,1]>(x) b = Transpose<perm=[0,2,3,1]>(a) y = Concat<axis=1>(b, b)",
    "functions": "a = Sigmoid(x) b = Mul(a, x) c = Conv(b, u) y = Tanh(c)",
    "host": "a = Conv(x, u) b = MeanVarianceNormalization<axes=[1]>(a) c = Mul(b, a) y = Conv(c, u)",
    "moved product": "a = Conv(x, u) b = Flatten<axis=2>(a) c = Transpose<perm=[1,0]>(b) y = MatMul(c, v)",
    "joined": "a = Conv(x, u) b = Mul(x, k) y = Concat<axis=2>(a, b)",
    "pooled": "a = GlobalAveragePool(x) b = Flatten(a) y = Gemm(b, v, h)",
    "averaged": "a = AveragePool<kernel_shape=[2,2], pads=[0,0,1,1]>(x) y = Conv(a, u)",
    "transposed": "a = ConvTranspose<strides=[2,2], pads=[1,0,1,1]>(x, w, e) b = Clip(a, low, high) y = Conv(b, u)",
    "transposed in groups": "a = ConvTranspose<strides=[3,1], group=2>(x, w) y = Transpose<perm=[0,2,3,1]>(a)",
    "transposed and cut": "a = Conv(x, u) y = ConvTranspose<pads=[2,2,2,2], dilations=[1,2]>(a, w)",
}
SUMS = ("chain", "bounds", "depthwise", "product", "pooled", "moved product")
WEIGHTS = {
    "w": (4, 4, 3, 3), "u": (4, 4, 1, 1), "d": (4, 1, 3, 3), "g": (256, 10), "t": (10, 256), "h": (10,), "k": (1, 4, 1, 1),
    "s": (4, 1, 1), "v": (4, 10), "e": (4,),
}  # fmt: skip


def float32_scales() -> Machine:
    """edge16 with float32 scales and fp32_rne: QLinearConv's own arithmetic."""
    return with_numerics(load_machine("edge16"), scale={"kind": "float32"}, rounding="fp32_rne")


def save_model(graph: str, folder: Path, weights: Mapping[str, np.ndarray] = MappingProxyType({}), opset: int = 17) -> Path:
    """Save a model and its data.

    `weights`: weights besides WEIGHTS.
    """
    head = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[1,4,8,8] x) => (float y)'
    proto = onnx.parser.parse_model(f"{head} {{ {graph} }}")
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(s) / np.sqrt(np.prod(s[1:]) or 1) for n, s in WEIGHTS.items()}
    for name, value in (values | {"low": np.array(-0.5), "high": np.array(0.7), **weights}).items():
        if any(name in n.input for n in proto.graph.node):
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    for node in proto.graph.node:
        node.name = f"node_{node.output[0]}"
    onnx.save(onnx.shape_inference.infer_shapes(proto), folder / "m.onnx")
    np.savez(folder / "data.npz", x=rng.standard_normal((24, *SHAPE)).astype(np.float32))
    return folder / "m.onnx"


def export_model(
    path: Path, data: Path, hw: str | Machine, *, nearest: bool = False, host_nodes: tuple[str, ...] = ()
) -> tuple[bytes, Session, list[dict[str, np.ndarray]]]:
    """The ONNX file, the integer reference, and samples."""
    options = BuildOptions(hw, calibration=str(data), level=0, export_qdq=True, export_nearest=nearest, host_nodes=host_nodes)
    built = build(path, options)  # nothing fused: every layer shows
    assert built.qdq is not None
    inputs = {t.name: TensorType(t.shape, t.dtype) for t in built.container.inputs}
    return built.qdq, Session(built.container, backend="reference"), list(open_data(data, inputs, limit=4))


def ran(model: bytes, feeds: Mapping[str, np.ndarray], *, plain: bool = False) -> np.ndarray:
    """The first output. plain: node by node, nothing fused."""
    return np.asarray(session(model, plain=plain).run(None, dict(feeds))[0])


def session(model: bytes, *, plain: bool = False) -> ort.InferenceSession:
    """Return a session that uses onnxruntime's kernels for codes, those of int8 too."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    if plain:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("nearest", [False, True], ids=["as_the_machine", "nearest"])
@pytest.mark.parametrize("case", CASES)
def test_onnxruntime_loads_it_as_it_is_set_by_default(case: str, nearest: bool, tmp_path: Path) -> None:
    """Check that onnxruntime loads the file by default, although it moves codes across other operators and then refuses the
    types.
    """
    data, _, samples = export_model(save_model(CASES[case], tmp_path), tmp_path / "data.npz", "edge16", nearest=nearest)
    as_set = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert np.isfinite(np.asarray(as_set.run(None, dict(samples[0]))[0])).all()


@pytest.mark.parametrize("nearest", [False, True], ids=["as_the_machine", "nearest"])
@pytest.mark.parametrize("hw", ["edge16", "edge16_u8", "ws8_pow2"])
@pytest.mark.parametrize("case", CASES)
def test_each_layer_is_within_a_step_and_the_whole_close(case: str, hw: str, nearest: bool, tmp_path: Path) -> None:
    """Every layer is fed with the chip's own codes of what it reads."""
    path = save_model(CASES[case], tmp_path)
    machine = make_unsigned(load_machine("edge16")) if hw == "edge16_u8" else load_machine(hw)
    data, reference, samples = export_model(path, tmp_path / "data.npz", machine, nearest=nearest)
    proto = onnx.load_from_string(data)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.opset_import[0].version >= 21
    quantized = [n for n in proto.graph.node if n.op_type == "QuantizeLinear"]
    values = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    cutter, graph = onnx.utils.Extractor(proto), load_model(path).graph
    for sample in samples:
        run = reference.run_detailed(sample)
        if hw != "ws8_pow2":  # that truncates: a sum of layers is as many halves of a step lower
            assert sqnr_db(run.outputs["y"], ran(data, sample)) >= 30
        real = {**sample, **chip_values(run, reference, graph)}
        codes = {n.output[0]: codes_of(real, n, values) for n in quantized if n.output[0].removesuffix("/codes") in real}
        feeds = {**sample, **codes}
        for node in quantized:
            output = node.output[0]
            if output not in codes or node.input[0] in sample:
                continue
            others = [n for n in feeds if n != output]
            layer_codes = ran(
                cutter.extract_model(others, [output]).SerializeToString(), {n: feeds[n] for n in others}, plain=True
            )
            assert np.abs(layer_codes.astype(int) - codes[output]).max() <= 1, output


def codes_of(real: Mapping[str, np.ndarray], node: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the codes of the tensor that a QuantizeLinear rounds."""
    scale, zero = (values[n] for n in node.input[1:])
    limits = np.iinfo(zero.dtype)
    return np.clip(np.rint(real[node.output[0].removesuffix("/codes")] / scale) + zero, limits.min, limits.max).astype(zero.dtype)


ROUNDINGS = {
    "double_round": lambda: load_machine("edge16"),
    "double_round, uint8": lambda: make_unsigned(load_machine("edge16")),
    "truncate": lambda: load_machine("ws8_pow2"),
    **{
        rule: lambda rule=rule: with_numerics(load_machine("edge16"), rounding=rule)
        for rule in ("half_away", "single_half_up", "floor")
    },
}


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("case", [*SUMS, *(c for c in CASES if c.startswith("transposed"))])
def test_onnxruntime_makes_the_codes_of_a_machine_however_it_rounds(case: str, rounding: str, tmp_path: Path) -> None:
    """Networks of sums of codes, with its optimizations and without."""
    data, reference, samples = export_model(save_model(CASES[case], tmp_path), tmp_path / "data.npz", ROUNDINGS[rounding]())
    steps = [n.op_type for n in onnx.load_from_string(data).graph.node]
    assert steps.count("Floor") == sum(steps.count(op) for op in ("Conv", "Gemm", "AveragePool", "ReduceMean"))
    for sample in samples:
        expected = reference.run(None, sample)[0]
        assert np.array_equal(ran(data, sample), expected) and np.array_equal(ran(data, sample, plain=True), expected)


def test_sums_beyond_what_float32_holds_round_once(tmp_path: Path) -> None:
    """Weights that are all the same: 2,048 products of 127 and up to 255 are above 2^24."""
    graph = "a = Flatten(x) b = Concat<axis=1>(a, a, a, a, a, a, a, a) y = Gemm(b, big, h)"
    path = save_model(graph, tmp_path, {"big": np.full((2048, 10), 0.01)})
    data, reference, samples = export_model(path, tmp_path / "data.npz", "edge16")
    assert not any(n.op_type == "Floor" for n in onnx.load_from_string(data).graph.node)
    assert all(sqnr_db(reference.run(None, s)[0], ran(data, s)) >= 30 for s in samples)


def chip_values(run: object, reference: Session, graph: object) -> dict[str, np.ndarray]:
    """Return the real values of the chip's codes of the model's tensors, by their name in the exported model."""
    container = reference.container
    values_by_tensor = {}
    for name, codes in run.codes.items():  # type: ignore[attr-defined]
        model = name.partition("@")[0]
        kind = container.graph.types[name]
        if model in graph.types and kind.quant is not None and name in (model, f"{model}@nhwc"):  # type: ignore[attr-defined]
            shape = graph.types[model].shape  # type: ignore[attr-defined]
            layout = "plain" if kind.shape == shape else "nhwc"
            values_by_tensor[model] = real_values(codes, container.graph, name, layout).reshape(shape)
    return values_by_tensor


@pytest.mark.parametrize("codes", ["int8", "uint8"])
@pytest.mark.parametrize("case", [c for c in CASES if c not in ("sums", "functions", "host")])
def test_on_a_machine_of_float32_scales_onnxruntime_gives_the_same(case: str, codes: str, tmp_path: Path) -> None:
    """Check equal outputs, without functions that round once where the chip rounds twice, and without Sub and PRelu, which have
    no kernels.
    """
    machine = float32_scales() if codes == "int8" else make_unsigned(float32_scales())
    data, reference, samples = export_model(save_model(CASES[case], tmp_path), tmp_path / "data.npz", machine)
    zeros = [numpy_helper.to_array(i) for i in onnx.load_from_string(data).graph.initializer if i.name.endswith("/zero_point")]
    assert codes in {str(z.dtype) for z in zeros if z.ndim == 0}
    for sample in samples:
        assert np.array_equal(ran(data, sample), reference.run(None, sample)[0])


@pytest.mark.parametrize("hw", ["edge16", "ws8_pow2"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_exported_is_read_back_to_the_same_codes(case: str, hw: str, tmp_path: Path) -> None:
    """Check the full level, where the imported model is fused again."""
    data, reference, samples = export_model(save_model(CASES[case], tmp_path), tmp_path / "data.npz", hw, nearest=True)
    (tmp_path / "q.onnx").write_bytes(data)
    again = build(tmp_path / "q.onnx", BuildOptions(hw, calibration=str(tmp_path / "data.npz")))
    assert not any("rounded anew" in n or "cannot keep" in n for n in again.notes)
    back = Session(again.container, backend="reference")
    for sample in samples:
        np.testing.assert_array_equal(back.run(None, sample)[0], reference.run(None, sample)[0])


def test_tensors_of_the_model_may_have_the_names_that_codes_would_have(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("w", (8, 8)), ("b", (1, 1, 8)))}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q/product"], "q"),
        helper.make_node("Add", ["q/product", "b"], ["q/out"], "q/add"),
        helper.make_node("Sigmoid", ["q/out"], ["y"], "gate"),
    ]
    onnx.save(build_model(nodes, {"x": [1, 4, 8]}, {"y": [1, 4, 8]}, weights), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((24, 1, 4, 8)).astype(np.float32))
    data, reference, samples = export_model(tmp_path / "m.onnx", tmp_path / "data.npz", "edge16")
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    assert all(sqnr_db(reference.run(None, sample)[0], ran(data, sample)) >= 30 for sample in samples)


def test_opsets_are_no_newer_than_the_operators_ask_for(tmp_path: Path) -> None:
    """onnxruntime has no QuantizeLinear of the newest that it reads."""
    path = save_model(CASES["chain"], tmp_path)
    model = onnx.load(path)
    model.opset_import[0].version = newest_opset()
    onnx.save(model, path)
    data, reference, samples = export_model(path, tmp_path / "data.npz", "edge16")
    assert onnx.load_from_string(data).opset_import[0].version == 21
    assert all(np.array_equal(ran(data, sample), reference.run(None, sample)[0]) for sample in samples)


def test_operators_of_later_opsets_have_them(tmp_path: Path) -> None:
    path = save_model("a = Conv(x, u) b = Mul(a, k) y = Swish<alpha=0.5>(b)", tmp_path, opset=24)
    data, reference, samples = export_model(path, tmp_path / "data.npz", "edge16", host_nodes=("node_y",))
    assert onnx.load_from_string(data).opset_import[0].version == 24
    assert all(sqnr_db(reference.run(None, sample)[0], ran(data, sample)) >= 30 for sample in samples)


def test_whole_numbers_stay_what_they_are(tmp_path: Path) -> None:
    """One operand is of the model, the other the chip's code of a constant."""
    graph = "a = Conv(x, u) i = ArgMax<axis=1>(a) n = Constant<value_int=2>() f = Equal(i, n) y = Where(f, x, k)"
    data, reference, samples = export_model(save_model(graph, tmp_path), tmp_path / "data.npz", "edge16")
    assert all(np.array_equal(ran(data, sample), reference.run(None, sample)[0]) for sample in samples)


def test_what_the_chip_makes_of_a_part_of_what_the_host_does_has_codes(tmp_path: Path) -> None:
    """A norm written out, whose difference is read by others too: the host runs the whole norm, the chip its first nodes."""
    norm = "var = ReduceMean<axes=[3]>(square) f = Add(var, low) root = Sqrt(f) n = Div(less, root) scaled = Mul(n, row)"
    graph = f"mean = ReduceMean<axes=[3]>(x) less = Sub(x, mean) square = Mul(less, less) {norm} y = Add(scaled, less)"
    path = save_model(graph, tmp_path, {"low": np.array(0.01), "row": np.linspace(0.5, 1.5, 8)})
    data, reference, _ = export_model(path, tmp_path / "data.npz", "edge16")
    kinds = {n.name: type(n.op).__name__ for n in reference.container.graph.nodes}
    proto = onnx.load_from_string(data)
    makers = {o: n.op_type for n in proto.graph.node for o in n.output}
    assert "LayerNormalization" in makers.values() and kinds["node_less"] == "IntegerBinary"
    (difference,) = [n for n in proto.graph.node if n.name == "node_less"]
    assert {makers[name] for name in difference.input} == {"DequantizeLinear"}


def test_nodes_may_have_the_names_of_tensors(tmp_path: Path) -> None:
    """Check nodes named after their outputs, as exporters of some frameworks write them."""
    path = save_model(CASES["chain"], tmp_path)
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, path)
    data, reference, samples = export_model(path, tmp_path / "data.npz", "edge16")
    assert all(np.array_equal(ran(data, sample), reference.run(None, sample)[0]) for sample in samples)


def test_codes_of_sixteen_bits_are_read_back_to_a_float32_of_their_scales(tmp_path: Path) -> None:
    """QuantizeLinear has scales in float32, of which a few in ten thousand codes of 16 bits see the rounding."""
    path, data = save_model(CASES["bounds"], tmp_path), tmp_path / "data.npz"
    machine = make_mixed_machine()
    built = build(path, BuildOptions(machine, calibration=str(data), types=("*=int16",), level=0, export_qdq=True))
    assert built.qdq is not None
    (tmp_path / "q.onnx").write_bytes(built.qdq)
    again = build(tmp_path / "q.onnx", BuildOptions(machine, calibration=str(data)))
    x = np.load(data)["x"][0]
    expected, got = (Session(b.container, backend="reference").run(None, {"x": x})[0] for b in (built, again))
    assert {t.dtype for t in again.container.graph.types.values() if t.quant is not None} == {"int16"}
    assert sqnr_db(expected, got) >= 80


def test_wide_codes_stay_floats(tmp_path: Path) -> None:
    """QuantizeLinear has no such type: what is behind them is what the chip makes of codes finer than a float32."""
    path, data = save_model(CASES["sums"], tmp_path), tmp_path / "data.npz"
    options = BuildOptions(make_mixed_machine("int32"), calibration=str(data), types=("b=int32",), level=0, export_qdq=True)
    built = build(path, options)
    assert built.qdq is not None
    proto = onnx.load_from_string(built.qdq)
    rounded = {n.output[0].removesuffix("/codes") for n in proto.graph.node if n.op_type == "QuantizeLinear"}
    assert {"x", "a", "c", "y"} <= rounded and "b" not in rounded
    x = np.load(data)["x"][0]
    assert sqnr_db(ran(built.qdq, {"x": x}), Session(built.container).run(None, {"x": x})[0]) >= 35


def test_weights_are_the_chips_codes(tmp_path: Path) -> None:
    data, _, _ = export_model(save_model(CASES["chain"], tmp_path), tmp_path / "data.npz", "edge16", nearest=True)
    proto = onnx.load_from_string(data)
    kinds = {i.name: i.data_type for i in proto.graph.initializer if i.name.endswith("/codes")}
    assert set(kinds.values()) == {onnx.TensorProto.INT8} and len(kinds) == 2
    assert not any(i.data_type == onnx.TensorProto.FLOAT and np.prod(i.dims) > 4 for i in proto.graph.initializer)


@pytest.mark.slow
def test_the_classifier_names_the_same_classes() -> None:
    """Check 350 of the 2,000 images: with float32 scales all logits are equal."""
    data, reference, _ = export_model(CLASSIFIER / "classifier.onnx", CLASSIFIER / "calib.npz", float32_scales())
    with np.load(CLASSIFIER / "test.npz") as test:
        images, labels = (test["x"][:350].astype(np.float32) / 255), test["y"][:350]
    runner, right = session(data), 0
    for image, label in zip(images, labels):
        x = image.reshape(1, 1, 28, 28)
        ours, theirs = reference.run(None, {"x": x})[0], np.asarray(runner.run(None, {"x": x})[0])
        assert np.array_equal(ours, theirs)
        right += int(ours.argmax() == label)
    assert right > 0.9 * len(images)
