"""Inputs that shapes depend on are bound to what all samples hold."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from toolchain.api import BuildOptions, build
from toolchain.cli.files import npz_bytes, read_feeds
from toolchain.codegen import container_from_bytes
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.judging.stateful_samples import model_data
from toolchain.runtime import Session

UPSAMPLED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,2,4,4] x, float[4] scales, float b, int64[1] idle) => (float[1,2,h,w] y, int64[1] left)
{ z = Resize<mode="nearest">(x, , scales)
  y = Add(z, b)
  left = Identity(idle) }
"""
TWICE = np.asarray([1, 1, 2, 2], np.float32)


def model(folder: Path) -> Path:
    path = folder / "up.onnx"
    onnx.save(onnx.parser.parse_model(UPSAMPLED), path)
    return path


def samples(folder: Path, count: int = 3, name: str = "data.npz", **other: np.ndarray) -> Path:
    """All inputs but x are the same in every sample."""
    rng, path = np.random.default_rng(0), folder / name
    arrays = {
        "x": rng.standard_normal((count, 1, 2, 4, 4)).astype(np.float32),
        "scales": np.tile(TWICE, (count, 1)),
        "b": np.full(count, 0.5, np.float32),
        "idle": np.full((count, 1), 7, np.int64),
    }
    np.savez(path, **{**arrays, **other})
    return path


def feeds(**other: np.ndarray) -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).standard_normal((1, 2, 4, 4)).astype(np.float32)
    return {"x": x, "b": np.asarray(0.5, np.float32), "idle": np.asarray([7]), **other}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, tuple[str, ...]]:
    folder = tmp_path_factory.mktemp("bound")
    build_result = build(model(folder), BuildOptions("edge16", calibration=str(samples(folder)), states=("none",)))
    return build_result.data, build_result.notes


def test_only_what_decides_a_shape_is_bound_and_a_note_says_so(built: tuple[bytes, tuple[str, ...]]) -> None:
    data, notes = built
    container = container_from_bytes(data, "up")
    assert [t.name for t in container.inputs] == ["x", "b", "idle"]
    assert {n: v.tolist() for n, v in container.bound.items()} == {"scales": [1, 1, 2, 2]}
    (note,) = (n for n in notes if "scales" in n)
    assert "bound to [1.0, 1.0, 2.0, 2.0], which all 3 samples hold of " in note
    assert note.endswith("; a run that feeds another value is refused")


def test_one_sample_is_said_to_be_no_proof(tmp_path: Path) -> None:
    loaded = load_model(model(tmp_path), data=model_data(str(samples(tmp_path, 1))))
    (note,) = (n for n in loaded.notes if "scales" in n)
    assert "one sample alone is no proof" in note


def test_a_run_takes_the_bound_value_or_none_and_refuses_another(built: tuple[bytes, tuple[str, ...]], tmp_path: Path) -> None:
    session = Session(built[0])
    left_out = session.run(["y"], feeds())[0]
    assert left_out.shape == (1, 2, 8, 8)
    assert np.array_equal(session.run(["y"], feeds(scales=TWICE))[0], left_out)
    other = feeds(scales=np.asarray([1, 1, 3, 2], np.float32))
    both = re.escape(
        "input 'scales' is float32[4] [1.0, 1.0, 3.0, 2.0]; the model was built for float32[4] [1.0, 1.0, 2.0, 2.0] alone"
    )
    with pytest.raises(CompileError, match=both):
        session.run(["y"], other)
    (tmp_path / "other.npz").write_bytes(npz_bytes(other))
    with pytest.raises(CompileError, match=both):
        read_feeds(tmp_path / "other.npz", session.get_inputs(), session.get_states(), session.container.bound)


def test_a_value_that_differs_is_not_bound_and_the_refusal_says_where(tmp_path: Path) -> None:
    three = np.stack([TWICE, TWICE, TWICE + 1])
    data = samples(tmp_path, scales=three)
    message = f"sample 0 of {data} holds [1.0, 1.0, 2.0, 2.0], sample 2 [2.0, 2.0, 3.0, 3.0]; fix it with --value scales=V0,V1"
    with pytest.raises(CompileError, match=re.escape(message)):
        load_model(model(tmp_path), data=model_data(str(data)))


def test_data_to_judge_on_must_hold_the_same(tmp_path: Path) -> None:
    judge = samples(tmp_path, name="judge.npz", scales=np.stack([TWICE, TWICE + 1, TWICE]))
    with pytest.raises(CompileError, match=r"judge.npz: sample 1: input 'scales' is \[2.0, 2.0, 3.0, 3.0\]"):
        load_model(model(tmp_path), data=model_data(str(samples(tmp_path)), judge=str(judge)))


def test_a_model_of_bound_inputs_alone_is_built(tmp_path: Path) -> None:
    path, data = tmp_path / "range.onnx", tmp_path / "range.npz"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float a, float b, float d) => (float[n] y) { y = Range(a, b, d) }'
    onnx.save(onnx.parser.parse_model(text), path)
    feeds = {"a": np.float32(1), "b": np.float32(4), "d": np.float32(1)}
    data.write_bytes(npz_bytes({n: np.asarray([v]) for n, v in feeds.items()}))
    session = Session(build(path, BuildOptions("edge16", calibration=str(data))).data)
    assert session.run(None, {n: np.asarray(v) for n, v in feeds.items()})[0].tolist() == [1, 2, 3]


def test_an_input_that_the_file_and_the_option_call_empty_is_built(tmp_path: Path) -> None:
    path, data = tmp_path / "empty.onnx", tmp_path / "empty.npz"
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[2,0,4] x, float[2,1,4] b) => (float[2,1,4] y) <int64[1] axes = {1}>
    { s = ReduceSum<keepdims=1>(x, axes)
      y = Add(s, b) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    feeds = {"x": np.zeros((2, 0, 4), np.float32), "b": np.ones((2, 1, 4), np.float32)}
    data.write_bytes(npz_bytes({n: v[None] for n, v in feeds.items()}))
    shapes = {"x": (2, 0, 4)}
    session = Session(build(path, BuildOptions("edge16", calibration=str(data), shapes=shapes)).data)
    assert np.allclose(session.run(None, feeds)[0], 1, atol=0.02)
    with pytest.raises(CompileError, match="every dimension must be 1 or more"):
        load_model(path, {"b": (2, 0, 4)})


COUNTED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[3,2] x, bool[3] kept, float end) => (float[n,2] y, int64[1,m] places, float[k] counted, float[j] flat)
<float[1] start = {0}, float[1] step = {0.5}, bool[5] mask = {0, 1, 0, 0, 1}>
{ y = Compress<axis=-2>(x, kept)
  places = NonZero(kept)
  counted = Range(start, end, step)
  flat = Compress(x, mask) }"""


def test_elements_are_counted_where_the_data_say_which(tmp_path: Path) -> None:
    path, data = tmp_path / "counted.onnx", tmp_path / "counted.npz"
    onnx.save(onnx.parser.parse_model(COUNTED), path)
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    feeds = {"x": x, "kept": np.asarray([True, False, True]), "end": np.asarray(2.0, np.float32)}
    data.write_bytes(npz_bytes({n: v[None] for n, v in feeds.items()}))
    y, places, counted, flat = Session(build(path, BuildOptions("edge16", calibration=str(data))).data).run(None, feeds)
    assert y.tolist() == x[[0, 2]].tolist() and places.tolist() == [[0, 2]]
    assert counted.tolist() == [0, 0.5, 1, 1.5] and flat.tolist() == [1, 4]
