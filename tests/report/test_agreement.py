"""Every build holds the normal form against the user's file: a fault of the frontend ends it, whatever form the file has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from quant.float_session import FloatSession
from toolchain.api import BuildOptions, build
from toolchain.errors import CompileError, InternalError
from toolchain.frontend import NormalModel, decompose_rules, linear_rules, load_model
from toolchain.report import frontend_check
from toolchain.report.frontend_check import AMPLIFIED, TOLERANCE, _file, _normal, _rounding, check_frontend, distance

SHAPES = {"x": (1, 3, 8, 8)}
FACTOR = np.array([0.5, 2, 1, 3], np.float32).reshape(1, 4, 1, 1)


def make_scaled_convolution(body: str = "") -> onnx.ModelProto:
    """A Conv with a bias, then a Mul and an Add that the frontend folds into it."""
    text = body or "a = Conv<pads=[1,1,1,1]>(x, w, b) s = Mul(a, m) t = Add(s, n) y = Relu(t)"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> scaled (float[1,3,8,8] x) => (float[1,4,8,8] y) {{ {text} }}'
    )
    rng = np.random.default_rng(0)
    values = {
        "w": rng.standard_normal((4, 3, 3, 3)),
        "b": rng.standard_normal(4),
        "m": FACTOR,
        "n": rng.standard_normal((1, 4, 1, 1)),
    }
    for name, value in values.items():
        proto.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    return proto


def plain(proto: onnx.ModelProto, path: Path) -> None:
    onnx.save(proto, path)


def with_external_data(proto: onnx.ModelProto, path: Path) -> None:
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)


def with_open_batch(proto: onnx.ModelProto, path: Path) -> None:
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(proto, path)


def with_batch_of_none(proto: onnx.ModelProto, path: Path) -> None:
    """Some exporters write 0 for what is dynamic; onnxruntime would take no sample."""
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, path)


def with_weights_as_inputs(proto: onnx.ModelProto, path: Path) -> None:
    for w in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(w.name, TensorProto.FLOAT, list(w.dims)))
    onnx.save(proto, path)


def with_a_function(proto: onnx.ModelProto, path: Path) -> None:
    nodes = [helper.make_node("Mul", ["p", "q"], ["i"]), helper.make_node("Add", ["i", "r"], ["o"])]
    function = helper.make_function("local", "Affine", ["p", "q", "r"], ["o"], nodes, [helper.make_opsetid("", 17)])
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    remaining_nodes = [
        proto.graph.node[0],
        helper.make_node("Affine", ["a", "m", "n"], ["t"], domain="local"),
        proto.graph.node[3],
    ]
    remaining_nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in remaining_nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(remaining_nodes)
    onnx.save(proto, path)


FORMS = [plain, with_external_data, with_open_batch, with_batch_of_none, with_weights_as_inputs, with_a_function]


@pytest.fixture
def bias_left_unscaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault as one can happen: the factor reaches the weights, not the bias."""
    sound = linear_rules.fold_into_weights

    def faulty(n, weighted, row, scope):
        folded = sound(n, weighted, row, scope)
        return (*folded[:2], weighted.inputs[2]) if n.op.op_type == "Mul" and len(folded) == 3 else folded

    monkeypatch.setattr(linear_rules, "fold_into_weights", faulty)


@pytest.mark.parametrize("form", FORMS)
def test_a_faulty_fold_ends_the_build(form: Callable, tmp_path: Path, bias_left_unscaled: None) -> None:
    form(make_scaled_convolution(), tmp_path / "m.onnx")
    with pytest.raises(InternalError) as caught:
        build(tmp_path / "m.onnx", BuildOptions("edge16"))
    text = str(caught.value)
    assert text.startswith("the frontend changed the model: output 'y' of the file and of its normal form differ by ")
    assert "; the first tensor that differs is 't', by " in text or form is with_a_function
    assert "node " in text and "(Conv)" in text


@pytest.mark.parametrize("form", FORMS)
def test_a_sound_model_is_run_from_its_file(form: Callable, tmp_path: Path) -> None:
    form(make_scaled_convolution(), tmp_path / "m.onnx")
    built = build(tmp_path / "m.onnx", BuildOptions("edge16"))
    assert [w for w in built.warnings if "onnxruntime" in w] == []
    assert built.figures["outputs"][0]["sqnr_db"] > 30


def test_the_first_faulty_tensor_is_named(tmp_path: Path, bias_left_unscaled: None) -> None:
    body = "a = Conv<pads=[1,1,1,1]>(x, w, b) s = Mul(a, m) t = Sigmoid(s) u = Mul(t, m) y = Relu(u)"
    onnx.save(make_scaled_convolution(body), tmp_path / "m.onnx")
    with pytest.raises(InternalError, match=r"the first tensor that differs is 's', by .*: node .* \(Conv\), made of "):
        build(tmp_path / "m.onnx", BuildOptions("edge16"))


def test_a_file_that_onnxruntime_does_not_load_is_said(tmp_path: Path) -> None:
    """Check the warning for a model that onnxruntime does not load: it has no Max of int16, which does nothing with one
    tensor."""
    body = "a = Conv<pads=[1,1,1,1]>(x, w, b) s = Cast<to=5>(a) t = Max(s) u = Cast<to=1>(t) y = Relu(u)"
    onnx.save(make_scaled_convolution(body), tmp_path / "m.onnx")
    built = build(tmp_path / "m.onnx", BuildOptions("edge16"))
    assert built.warnings[0].startswith("onnxruntime does not run the file as it is (")
    assert built.warnings[0].endswith("so that a fault in reading the file would not show")


def test_a_long_reason_of_onnxruntime_ends_at_a_word(tmp_path: Path) -> None:
    proto = make_scaled_convolution("a = Conv<pads=[1,1,1,1]>(x, w, b) s = Mul(a, m) y = Relu(s)")
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 2))
    (warning,) = [w for w in build(proto, BuildOptions("edge16")).warnings if w.startswith("onnxruntime does not run")]
    assert " ...); calibrated and judged" in warning


def test_what_float_cannot_tell_apart_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last digits of a sum, made large: both spellings are right, and their outputs have nothing in common."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,64] x) => (float[1,64] y) '
        "<float k = {1e6}> { a = MatMul(x, w) s = Mul(a, m) t = Mul(s, k) f = Floor(t) y = Sub(t, f) }"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w", (64, 64)), ("m", (64,))):
        proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    onnx.save(proto, tmp_path / "m.onnx")
    model = load_model(tmp_path / "m.onnx")
    sample = {"x": rng.standard_normal((1, 64)).astype(np.float32)}
    assert check_frontend(model, [sample]) == (model, ())
    monkeypatch.setattr(frontend_check, "AMPLIFIED", 0.0)
    with pytest.raises(InternalError):
        check_frontend(model, [sample])


def test_what_is_no_number_in_the_file_alone_is_said(tmp_path: Path) -> None:
    """The variance of one number, E[x2] - E[x]2, is less than 0 in float where its square rounds down; the root is none."""
    text = "h = Relu(x) n = MeanVarianceNormalization<axes=[1]>(h) y = Concat<axis=1>(x, n)"
    graph = f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,1,64] x) => (float[1,2,64] y) {{ {text} }}'
    onnx.save(onnx.parser.parse_model(graph), tmp_path / "m.onnx")
    model = load_model(tmp_path / "m.onnx")
    sample = {"x": np.random.default_rng(0).uniform(0.1, 1, (1, 1, 64)).astype(np.float32)}
    lost = int(np.isnan(FloatSession(_file(model), ["y"]).run(sample)[0]).sum())
    assert 0 < lost < 128
    checked_model, (note,) = check_frontend(model, [sample])
    assert checked_model == model and note.startswith(f"output 'y' of the file is no number (NaN) in {lost} of the places")
    with pytest.raises(CompileError, match=r"tensor 'n'.* holds NaN; "):
        build(tmp_path / "m.onnx", BuildOptions("transformer64"))
    warned = build(tmp_path / "m.onnx", BuildOptions("edge16")).warnings  # the norm is the host's there
    assert any(text.startswith("output 'y' of the file is no number") for text in warned)


def norm_of(body: str, path: Path) -> NormalModel:
    text = f"c = Conv<pads=[1,1,1,1]>(x, w, b) s = Mul(c, m) t = Add(s, n) y = {body}"
    proto = make_scaled_convolution(text)
    if body.startswith("MeanVariance"):  # of x alone: a bias hides small numbers
        proto = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,3,8,8] y) {{ y = {body} }}'
        )
    onnx.save(proto, path / "m.onnx")
    return load_model(path / "m.onnx")


NORM = "MeanVarianceNormalization<axes=[2,3]>(x)"
NOISE = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize("scale", [1e-4, 1e-8, 1e-12, 1e-16])
def test_a_norm_without_epsilon_is_one_in_the_normal_form(scale: float, tmp_path: Path) -> None:
    model = norm_of(NORM, tmp_path)
    assert check_frontend(model, [{"x": NOISE * np.float32(scale)}]) == (model, ())


@pytest.mark.parametrize(("body", "scale"), [(NORM, 1e-18), (NORM, 1e-22), (NORM, 1e-37), ("LRN<size=3>(t)", 1e25)])
def test_data_whose_squares_leave_float_are_judged_in_scale(body: str, scale: float, tmp_path: Path) -> None:
    model = norm_of(body, tmp_path)
    _, notes = check_frontend(model, [{"x": NOISE * np.float32(scale)}])
    assert notes[-1].startswith(
        "input 'x' of the data is so large or so small that float32 does not hold its squares: output 'y'"
    )


def test_a_fault_is_found_on_data_whose_squares_leave_float(tmp_path: Path, bias_left_unscaled: None) -> None:
    with pytest.raises(InternalError):
        check_frontend(norm_of("LRN<size=3>(t)", tmp_path), [{"x": NOISE * np.float32(1e25)}])


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e-20])
def test_a_wrong_norm_is_found_in_every_scale(scale: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompose_rules, "TINY", 1e-2)
    with pytest.raises(InternalError):
        check_frontend(norm_of(NORM, tmp_path), [{"x": NOISE * np.float32(scale)}])


@pytest.mark.parametrize(
    ("reference", "got", "expected"),
    [
        ([1.0, -2.0], [1.0, -2.0002], 1e-4),
        ([0.0, 0.0], [0.0, 1e-9], np.inf),
        ([np.nan, 2.0], [np.nan, 2.0], 0),
        ([np.inf, 2.0], [-np.inf, 2.0], np.inf),
        ([1.0], [np.nan], np.inf),
        ([1.0, 2.0], [1.0], np.inf),
    ],
)
def test_distance(reference: list[float], got: list[float], expected: float) -> None:
    relative_error = distance(np.array(reference, np.float32), np.array(got, np.float32))
    assert relative_error == pytest.approx(expected, rel=1e-3) and TOLERANCE < 1e-3
    assert distance(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])) == 0.25


def with_norm_of_rows(opset: int = 17) -> onnx.ModelProto:
    """Return the scaled convolution with a norm over rows of one number each next to it.
    No change of the inputs moves the norm; in the file it is what rounding leaves of 0.
    """
    mean = "ReduceMean<axes=[-1]>(#)" if opset < 18 else "ReduceMean(#, last)"
    text = f"""f = Conv<pads=[1,1,1,1]>(x, w, b) u = Mul(f, m) t = Add(u, n) y = Relu(t)
      c = Greater(p, zero) i = Cast<to=1>(c) j = Mul(i, k) a = Expand(j, s) h = {mean.replace("#", "a")} d = Sub(a, h)
      q = Mul(d, d) v = {mean.replace("#", "q")} g = Add(v, e) r = Sqrt(g) z = Div(d, r)"""
    constants = "float zero = {0}, float k = {1.7}, float e = {1e-5}, int64[2] s = {2,3}"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[1,3,8,8] x, float[2,1] p) => (float[1,4,8,8] y, float[2,3] z) '
        f"<{constants}{', int64[1] last = {-1}' if opset >= 18 else ''}> {{ {text} }}"
    )
    proto.graph.initializer.extend(t for t in make_scaled_convolution().graph.initializer)
    return proto


def sample_of_rows() -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    return {"x": x, "p": np.array([[1.0], [-1.0]], np.float32)}


@pytest.mark.parametrize("opset", [8, 9, 10, 17, 18, 26])
def test_what_rounding_leaves_of_nothing_is_no_fault(opset: int, tmp_path: Path) -> None:
    onnx.save(with_norm_of_rows(opset), tmp_path / "m.onnx")
    model, sample = load_model(tmp_path / "m.onnx"), sample_of_rows()
    file, normal = (FloatSession(side(model), ["z"]).run(sample)[0] for side in (_file, _normal))
    assert file.any() and distance(file, normal) > TOLERANCE
    assert check_frontend(model, [sample]) == (model, ())


@pytest.mark.parametrize("form", FORMS)
def test_rounding_is_measured_whatever_form_the_file_has(form: Callable, tmp_path: Path) -> None:
    proto = with_norm_of_rows()
    if form is with_a_function:
        body = [onnx.NodeProto.FromString(n.SerializeToString()) for n in proto.graph.node[4:]]
        names = ["p", "zero", "k", "s", "e"]
        proto.functions.append(helper.make_function("local", "Rows", names, ["z"], body, [helper.make_opsetid("", 17)]))
        proto.opset_import.append(helper.make_opsetid("local", 1))
        del proto.graph.node[4:]
        proto.graph.node.append(helper.make_node("Rows", names, ["z"], domain="local"))
        form = plain
    form(proto, tmp_path / "m.onnx")
    model = load_model(tmp_path / "m.onnx")
    assert check_frontend(model, [sample_of_rows()]) == (model, ())


def test_a_fault_beside_what_rounding_decides_is_found(tmp_path: Path, bias_left_unscaled: None) -> None:
    onnx.save(with_norm_of_rows(), tmp_path / "m.onnx")
    with pytest.raises(InternalError, match=r"output 'y' of the file .*; the first tensor that differs is 't', "):
        check_frontend(load_model(tmp_path / "m.onnx"), [sample_of_rows()])


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ("float[1,3,8,8] x", "a = Conv<pads=[1,1,1,1]>(x, w, b) s = Mul(a, m) t = Add(s, n) y = Relu(t)"),
        # sizes by way of floats, which a change by a millionth would cut by one
        (
            "float[1,3,8,8] x",
            """a = Shape(x) c = Cast<to=1>(a) d = Constant<value_floats=[1.0,1.0,2.0,2.0]>() f = Mul(c, d) g = Floor(f)
            h = Cast<to=7>(g) y = Resize<mode="nearest">(x, , , h)""",
        ),
        # what is masked by the largest number that there is
        (
            "float[4,8] x",
            """z = Constant<value_float=0.0>() o = Constant<value_float=-3.4028234663852886e38>() c = Greater(x, z)
            d = Cast<to=1>(c) f = Mul(d, o) g = Add(x, f) y = Softmax<axis=-1>(g)""",
        ),
    ],
)
def test_a_sound_network_is_hardly_moved(inputs: str, text: str, tmp_path: Path) -> None:
    """Check that a sound network moves so little that its limit stays the tolerance."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float y) {{ {text} }}')
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    proto.graph.initializer.extend(make_scaled_convolution().graph.initializer)
    onnx.save(proto, tmp_path / "m.onnx")
    model = load_model(tmp_path / "m.onnx")
    sample = {n: np.random.default_rng(1).standard_normal(t.shape).astype(np.float32) for n, t in model.types.items() if n == "x"}
    value = FloatSession(_file(model), ["y"]).run(sample)[0]
    assert 0 < AMPLIFIED * _rounding(model, "y", sample, value) < TOLERANCE


def test_half_precision_is_taken_as_float32(tmp_path: Path) -> None:
    """A factor that the frontend folds into the weights: what float16 would round is no fault."""
    text = "s = Mul(x, k) a = MatMul(s, w) y = Mul(a, m)"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> half (float16[4,64] x) => (float16[4,8] y) {{ {text} }}'
    )
    rng = np.random.default_rng(0)
    values = {"k": np.array(0.3535), "w": rng.standard_normal((64, 8)), "m": rng.uniform(0.3, 0.7, 8)}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(v, np.float16), n) for n, v in values.items())
    onnx.save(proto, tmp_path / "m.onnx")
    model, sample = load_model(tmp_path / "m.onnx"), {"x": rng.standard_normal((4, 64)).astype(np.float16)}
    computed = {model.types[n].dtype for node in model.graph.nodes if node.op.op_type == "Gemm" for n in node.inputs}
    assert computed == {"float32"} and model.types["x"].dtype == model.types["y"].dtype == "float16"
    assert model.notes == ("the model computes in float16, which is taken as float32",)
    both = [session.run(sample)[0] for session in (FloatSession(side(model), ["y"]) for side in (_file, _normal))]
    assert distance(*both) <= 2.0**-10
    assert check_frontend(model, [sample])[1] == ()


def test_a_rounding_with_scales_of_channels_is_part_of_a_piece(tmp_path: Path) -> None:
    text = (
        '<ir_version: 9, opset_import: ["" : 18]> g (float[1,3,4,4] x) => (float[1,3,4,4] y) <float[3] s = {0.01, 0.1, 1.0}, '
        "int8[3] z = {0, 0, 0}, float t = {0.05}, int8 o = {0}> { a = Sigmoid(x) q = QuantizeLinear<axis = 1>(a, s, z) "
        "d = DequantizeLinear<axis = 1>(q, s, z) b = Neg(d) r = QuantizeLinear(b, t, o) e = DequantizeLinear(r, t, o) "
        "y = Relu(e) }"
    )
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    model, x = load_model(tmp_path / "m.onnx"), np.random.default_rng(0).normal(0, 4, (1, 3, 4, 4)).astype(np.float32)
    assert frontend_check._piece_by_piece(model, "y", {"x": x})
