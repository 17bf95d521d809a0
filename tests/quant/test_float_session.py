"""onnxruntime computes what the model says, also where its own fusions do not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from quant.float_session import CheckedSession, inference_notes, largest_distance, open_session, trust_optimizer
from toolchain.api import BuildOptions, build
from toolchain.foundation.inference import InferenceError, InferenceSession, open_model, session_options

X = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
POOL = "<ceil_mode = 1, count_include_pad = 1, kernel_shape = [2,3], pads = [0,0,0,1], strides = [2,1]>"


@pytest.mark.parametrize(
    ("pads", "pool", "expected"),
    [
        ("0,0,0,0,0,0,1,0", f"AveragePool{POOL}", [[2.5, 2.0], [0.0, 0.0]]),
        ("0,0,0,0,0,0,0,3", "AveragePool<kernel_shape = [2,3], strides = [1,3]>", [[2.5, 0.0]]),
    ],
)
def test_padding_before_a_pool(pads: str, pool: str, expected: list[list[float]]) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,1,2,3] x) => (float[a,b,c,d] y) '
        f"<int64[8] p = {{{pads}}}> {{ t = Pad(x, p) y = {pool}(t) }}"
    )
    (y,) = open_session(model.SerializeToString()).run(None, {"x": X})
    assert y.tolist() == [[expected]]


def test_a_convolution_in_front_of_a_sum_that_is_asked_for() -> None:
    """Check a convolution with rounded weights, as in a quantized model, where the sum's other operand is computed later."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[1,8,4,4] x)
      => (float[1,8,4,4] y, float[1,8,4,4] b)
      <float s = {0.1}, int8 z = {0}> {
        xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
        v = QuantizeLinear(w, s, z) vd = DequantizeLinear(v, s, z) b = Conv(xd, vd, u)
        wq = QuantizeLinear(w, s, z) wd = DequantizeLinear(wq, s, z) a = Conv(xd, wd, u)
        h = Relu(a) hq = QuantizeLinear(h, s, z) hd = DequantizeLinear(hq, s, z)
        k = QuantizeLinear(w, s, z) kd = DequantizeLinear(k, s, z) c = Conv(hd, kd, u)
        d = Add(c, b) y = Relu(d) }""")
    rng = np.random.default_rng(0)
    for name, shape in {"w": (8, 8, 1, 1), "u": (8,)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    x = rng.standard_normal((1, 8, 4, 4)).astype(np.float32)
    outputs = dict(zip("yb", open_session(model.SerializeToString()).run(["y", "b"], {"x": x})))
    expected = dict(zip("yb", open_session(model.SerializeToString(), few_runs=True).run(["y", "b"], {"x": x})))
    assert all(np.allclose(outputs[n], expected[n], atol=1e-5) for n in "yb")


RMS = """<ir_version: 8, opset_import: ["": 17]> g (float[1,6,1] x) => (float[1,6,3] y)
  <float two = {2}, float e = {1e-5}, float[3] scale = {0.5, -1.5, 2}> {
    a = Add(x, two) p = Pow(a, two) m = ReduceMean<axes = [-1]>(p) v = Add(m, e) s = Sqrt(v) d = Div(a, s) y = Mul(d, scale) }"""
BY_CHANNEL = """<ir_version: 8, opset_import: ["": 17]> g (float[1,2,4,4] x) => (float[1,2,4,4] y)
  <float[2] s = {0.1, 0.2}, int8[2] z = {0, 0}, float one = {0.1}, int8 zero = {0}, int8[2,2,1,1] w = {10, 0, 0, 10}> {
    q = QuantizeLinear<axis = 1>(x, s, z) d = DequantizeLinear<axis = 1>(q, s, z) v = DequantizeLinear(w, one, zero)
    c = Conv(d, v) k = QuantizeLinear(c, one, zero) y = DequantizeLinear(k, one, zero) }"""


def serialize_text(text: str) -> bytes:
    return onnx.parser.parse_model(text).SerializeToString()


@pytest.mark.parametrize(("text", "shape"), [(RMS, (1, 6, 1)), (BY_CHANNEL, (1, 2, 4, 4))])
def test_a_model_that_fails_when_it_is_optimized(text: str, shape: tuple[int, ...]) -> None:
    rng, plain = np.random.default_rng(0), open_session(serialize_text(text), few_runs=True)
    with inference_notes() as notes:
        session = open_session(serialize_text(text))
        for _ in range(2):
            x = rng.standard_normal(shape).astype(np.float32)
            assert np.array_equal(session.run(None, {"x": x})[0], plain.run(None, {"x": x})[0])
    assert [note.partition(" (")[0] for note in notes] == ["onnxruntime's optimizer fails on it"]


@pytest.mark.parametrize(("factor", "used", "note"), [(1.0001, 1.0001, None), (1.01, 1.0, "(by 0.01 of an output's rms)")])
def test_a_model_that_the_optimizer_changes(factor: float, used: float, note: str | None) -> None:
    def opened(optimized: bool) -> InferenceSession:
        text = f"g (float[2] x) => (float[2] y) <float f = {{{factor if optimized else 1.0}}}> {{ y = Mul(x, f) }}"
        model = serialize_text(f'<ir_version: 8, opset_import: ["": 17]> {text}')
        return open_model(model, session_options(optimized=optimized))

    session, x = CheckedSession(opened), np.array([1, 2], np.float32)
    with inference_notes() as notes:
        runs = [session.run(None, {"x": x})[0] for _ in range(2)]
    assert np.allclose(runs, [x * used] * 2, rtol=1e-6)
    assert [n.partition("computes ")[2].partition(":")[0] for n in notes] == ([] if note is None else [note])


@pytest.mark.parametrize(("factor", "ways"), [(1.0, [True]), (1.01, [True, False])])
def test_known_outputs_are_not_computed_again(factor: float, ways: list[bool]) -> None:
    """The optimized model is compared with them; the plain one is opened where they differ."""
    opened_ways: list[bool] = []

    def open_way(optimized: bool) -> InferenceSession:
        opened_ways.append(optimized)
        text = f"g (float[2] x) => (float[2] y) <float f = {{{factor if optimized else 1.0}}}> {{ y = Mul(x, f) }}"
        return open_model(serialize_text(f'<ir_version: 8, opset_import: ["": 17]> {text}'), session_options(optimized=optimized))

    x = np.array([1, 2], np.float32)
    session = CheckedSession(open_way, plain_outputs=[x])
    assert np.array_equal(session.run(None, {"x": x})[0], x)
    assert (opened_ways, session.is_optimized) == (ways, factor == 1)


def test_a_model_that_nothing_runs() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Reshape(x, s) }'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3], np.int64), "s"))
    with pytest.raises(InferenceError, match=r"onnxruntime cannot (load|run) the model: .*[Rr]eshape"):
        open_session(proto.SerializeToString()).run(None, {"x": np.zeros(2, np.float32)})


def test_a_bad_sample_does_not_decide() -> None:
    """The next one is run, optimized where both agree."""
    session = open_session(serialize_text(RMS.replace("float[3] scale = {0.5, -1.5, 2}", "float scale = {2}")))
    with pytest.raises(InferenceError, match="cannot run"):
        session.run(None, {"x": np.zeros((1, 6, 2), np.float32)})
    assert session.run(None, {"x": np.zeros((1, 6, 1), np.float32)})[0].shape == (1, 6, 1)


def test_random_numbers_are_no_difference() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[64] x) => (float[64] y) { r = RandomNormalLike(x) y = Add(x, r) }'
    with inference_notes() as notes:
        open_session(serialize_text(text)).run(None, {"x": np.zeros(64, np.float32)})
    assert not notes


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("expected", "value", "distance"),
    [
        (np.array([3, 4], np.float32), np.array([3, 4], np.float32), 0),
        (np.array([3, 4], np.float32), np.array([3, 4.005], np.float32), 1e-3),
        (np.array([300, 400], np.float16), np.array([300, 400], np.float16), 0),
        (np.array([NAN, 4], np.float32), np.array([0, 4], np.float32), 0),
        (np.array([-INF, 4], np.float32), np.array([-3e38, 4], np.float32), 0),
        (np.array([3, 4], np.float32), np.array([NAN, 4], np.float32), INF),
        (np.array([0, 0], np.float32), np.array([0, 1e-9], np.float32), INF),
        (np.array([0], np.float32), np.array([[0]], np.float32), INF),
        (np.zeros((0, 3)), np.zeros((0, 3)), 0),
        (np.array([3, 4], np.int64), np.array([3, 9], np.int64), 1),
        (np.array([True]), np.array([False]), 1),
        (np.array([3], np.int64), np.array([3], np.float32), INF),
        (np.array(["a"], object), np.array(["b"], object), INF),
        ([np.zeros(2)], [np.ones(2)], 0),
    ],
)
def test_distances(expected: Any, value: Any, distance: float) -> None:
    assert largest_distance([expected], [value]) == pytest.approx(distance, rel=1e-3)


def test_memory_that_onnxruntime_lacks_is_no_fault_of_the_model() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (int64[1] n) => (float[a] y) { y = ConstantOfShape(n) }'
    with pytest.raises(MemoryError):
        open_session(serialize_text(text)).run(None, {"n": np.array([1 << 50], np.int64)})


def test_onnxruntime_is_opened_in_one_place() -> None:
    """The integer kernels of the ground floor, which imports nothing of the project, have a place of their own."""
    root = Path(__file__).resolve().parents[2]
    files = [
        f for folder in ("toolchain", "quant", "simulator", "scripts", "bench") for f in sorted((root / folder).rglob("*.py"))
    ]
    opening = {str(f.relative_to(root)) for f in files if re.search(r"(onnxruntime|ort)\.InferenceSession\(", f.read_text())}
    compares = {"bench/check_cuda.py"}  # with a session that the project has no hand in
    assert opening == {"toolchain/foundation/inference.py", "quant/fixed_point/sums/sessions.py"} | compares


class _Opened:
    """Opens y = x, optimized y = factor x, and counts."""

    def __init__(self, factor: float) -> None:
        self.factor, self.optimized = factor, list[bool]()

    def __call__(self, optimized: bool) -> InferenceSession:
        self.optimized.append(optimized)
        factor = self.factor if optimized else 1.0
        text = f"g (float[2] x) => (float[2] y) <float f = {{{factor}}}> {{ y = Mul(x, f) }}"
        return open_model(serialize_text(f'<ir_version: 8, opset_import: ["": 17]> {text}'), session_options(optimized=optimized))


def test_a_graph_of_a_file_that_agrees_is_not_compared() -> None:
    x, opened = np.array([1, 2], np.float32), _Opened(1.0)
    with inference_notes():
        trust_optimizer(True)
        session = CheckedSession(opened)
        assert session.run(None, {"x": x})[0].tolist() == [1, 2] and session.is_optimized
        trust_optimizer(False)
        compared, few = CheckedSession(_Opened(1.01)), CheckedSession(_Opened(1.0), few_runs=True)
        assert [s.run(None, {"x": x})[0].tolist() for s in (compared, few)] == [[1, 2]] * 2
        assert not compared.is_optimized and not few.is_optimized
    assert opened.optimized == [True]
    assert CheckedSession(other := _Opened(1.0)).run(None, {"x": x})[0].tolist() == [1, 2]
    assert other.optimized == [False, True]  # what one build knows does not outlive it


def test_a_graph_that_only_fails_when_it_is_optimized_is_run_without() -> None:
    x, plain = np.ones((1, 6, 1), np.float32), open_session(serialize_text(RMS), few_runs=True)
    with inference_notes() as notes:
        trust_optimizer(True)
        session = open_session(serialize_text(RMS))
        assert np.array_equal(session.run(None, {"x": x})[0], plain.run(None, {"x": x})[0])
    assert [note.partition(" (")[0] for note in notes] == ["onnxruntime's optimizer fails on it"]


def test_a_build_compares_the_file_and_nothing_that_is_derived_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    (tmp_path / "m.onnx").write_bytes(serialize_text(text))
    np.savez(tmp_path / "d.npz", allow_pickle=False, x=np.random.default_rng(0).standard_normal((17, 2)).astype(np.float32))
    compared = list[float]()
    monkeypatch.setattr(
        "quant.float_session.largest_distance", lambda *values: compared.append(largest_distance(*values)) or compared[-1]
    )
    build(tmp_path / "m.onnx", BuildOptions("edge16", str(tmp_path / "d.npz")))
    assert compared == [0]


def test_a_trusted_graph_that_does_not_load_is_run_without() -> None:
    def open_plain(optimized: bool) -> InferenceSession:
        if optimized:
            raise InferenceError("open", "no kernel")
        return plain(False)

    x, plain = np.array([1, 2], np.float32), _Opened(1.0)
    with inference_notes() as notes:
        trust_optimizer(True)
        session = CheckedSession(open_plain)
        assert session.run(None, {"x": x})[0].tolist() == [1, 2] and not session.is_optimized
    assert len(notes) == 1
