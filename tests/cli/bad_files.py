"""A folder of files that the commands must take (good.*) and of files that they must refuse (all others)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper, parser

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
GRAPH = "(float[1,3,8,8] x) => (float[1,4,8,8] y) { a = Conv<pads=[1,1,1,1]>(x, w) y = Relu(a) }"
ISLAND = """(float[1,3,8,8] x) => (float[1,4,8,8] y) {
    a = Conv<pads=[1,1,1,1]>(x, w) b = MeanVarianceNormalization<axes=[1]>(a) y = Relu(b) }"""
WIDE = "(float[1,64,4,4] x) => (float[1,64,4,4] y) { y = Conv<pads=[1,1,1,1]>(x, w) }"


def model(graph: str = GRAPH) -> onnx.ModelProto:
    """Return a model.

    `graph`: in ONNX's text form; w float32[4, 3, 3, 3] is its weight.
    """
    proto = parser.parse_model(HEAD + graph)
    weights = np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return proto


def make_models(folder: Path) -> None:
    good = model().SerializeToString()
    (folder / "good.onnx").write_bytes(good)
    (folder / "island.onnx").write_bytes(model(ISLAND).SerializeToString())
    (folder / "cut.onnx").write_bytes(good[:300])
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "text.onnx").write_bytes(b"I am no model at all\n")
    (folder / "unknown.onnx").write_bytes(model(GRAPH.replace("Relu", "Frobnicate")).SerializeToString())
    (folder / "dynamic.onnx").write_bytes(model(GRAPH.replace("1,3,8,8", "N,3,H,W")).SerializeToString())
    types = GRAPH.replace("Relu(a)", "Add(a, i)").replace(" x)", " x, int64[1] i)")
    (folder / "types.onnx").write_bytes(model(types).SerializeToString())
    wide = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, (64, 64, 3, 3), np.ones(64 * 64 * 9, np.float32))
    big = parser.parse_model(HEAD + WIDE)
    big.graph.initializer.append(wide)
    (folder / "wide.onnx").write_bytes(big.SerializeToString())
    nan = model()
    nan.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full((4, 3, 3, 3), np.nan, np.float32), "w"))
    (folder / "nan.onnx").write_bytes(nan.SerializeToString())
    external = model()
    external_data_helper.convert_model_to_external_data(external, location="lost.bin", size_threshold=0)
    onnx.save(external, folder / "external.onnx")
    (folder / "lost.bin").unlink()
    model_proto = model()
    external_data_helper.convert_model_to_external_data(model_proto, location="weights.bin", size_threshold=0)
    onnx.save(model_proto, folder / "weights.onnx")


def make_machines(folder: Path) -> None:
    """Write machines, each of them edge16 with one change."""
    changes = {
        "units": ("size: 512 KiB", "size: 512 kHz"),
        "key": ("banks: 8", "bank: 8"),
        "banks": ("banks: 8", "banks: 0"),
        "small": ("size: 512 KiB", "size: 1 KiB"),
        "accumulators": ("entries: 4096", "entries: 8"),
        "table": ("file: isa/descriptors1024.yaml", "file: overlap.yaml"),
        "without_prelu": ("      prelu: {lanes: 16, startup: 8}\n", ""),
        "lost": ("file: isa/descriptors1024.yaml", "file: isa/none.yaml"),
        "own": ("file: isa/descriptors1024.yaml", "file: own_table.yaml"),
    }
    text = files("hw_configs").joinpath("edge16.yaml").read_text()
    for name, (old, new) in changes.items():
        assert old in text, old
        (folder / f"{name}.yaml").write_text(text.replace(old, new, 1))
    table = files("hw_configs").joinpath("isa/descriptors1024.yaml").read_text()
    (folder / "own_table.yaml").write_text(table)
    channel = "channel: {bits: [35, 32]}"
    assert channel in table
    (folder / "overlap.yaml").write_text(table.replace(channel, "channel: {bits: [36, 32]}", 1))
    (folder / "tabs.yaml").write_text("name: x\n\tclock: 1\n")


def make_arrays(folder: Path) -> None:
    x = np.random.default_rng(2).normal(size=(1, 3, 8, 8)).astype(np.float32)
    with_nan = x.copy()
    with_nan[0, 1, 2, 3] = np.nan
    for name, arrays in {
        "good": {"x": x},
        "shape": {"x": x[:, :, :4]},
        "type": {"x": x.astype(np.float64)},
        "name": {"input": x},
        "more": {"x": x, "z": x},
        "nan": {"x": with_nan},
        "none": {},
        "huge": {"x": np.where(np.isnan(with_nan), 1e300, x.astype(np.float64))},
        "many": {"x": np.repeat(x, 32, axis=0)},
        "labelled": {"x": x, "y": np.zeros(1, np.uint8)},
        "uneven": {"x": x, "y": np.zeros(2, np.uint8)},
        "objects": {"x": np.array([None, 1], object)},
    }.items():
        np.savez(folder / f"{name}.npz", **arrays)
    (folder / "text.npz").write_text("no arrays\n")
    (folder / "cut.npz").write_bytes((folder / "good.npz").read_bytes()[:500])
    np.save(folder / "array.npy", x)
    shutil.copy(folder / "array.npy", folder / "array.npz")


def make_calibration(folder: Path) -> None:
    (folder / "nothing").mkdir()
    (folder / "mixed").mkdir()
    (folder / "mixed" / "notes.txt").write_text("no samples\n")
    (folder / "samples").mkdir()
    np.save(folder / "samples" / "a.npy", np.ones((1, 3, 8, 8), np.float32))
    (folder / "samples.csv").write_text("1,2,3\n")
    (folder / "feed.py").write_text(
        "def none():\n    return iter(())\n\n\ndef fails():\n    raise RuntimeError('no disk')\n    yield\n"
    )
    good = 'version: 1\ntensors:\n  "x": {low: -3.0, high: 3.0}\n  "a": {low: -9.0, high: 9.0}\n  "y": {low: 0.0, high: 9.0}\n'
    (folder / "good_parameters.yaml").write_text(good)
    for name, (old, new) in {
        "absent": ('  "y": {low: 0.0, high: 9.0}\n', ""),
        "strange": ('"a"', '"conv.out"'),
        "swapped": ("low: -3.0, high: 3.0", "low: 3.0, high: -3.0"),
        "both": ("low: -3.0, high: 3.0", "low: -3.0, scale: 0.1"),
        "huge": ("low: -3.0", "low: .inf"),
        "words": ("low: -3.0", "low: minus three"),
        "scale": ("low: -3.0, high: 3.0", "scale: 0.0, zero_point: 0"),
        "code": ("low: -3.0, high: 3.0", "scale: 0.1, zero_point: 300"),
        "version": ("version: 1", "version: 7"),
        "truth": ("version: 1", "version: yes"),
        "tiny": ("low: -3.0, high: 3.0", "scale: 1.0e-30, zero_point: 0"),
        "vast": ("low: -3.0, high: 3.0", "scale: 1.0e+308, zero_point: 0"),
        "double": ("low: -3.0", "low: -1.0e+300"),
        "point": ("low: -3.0, high: 3.0", "low: 0, high: 0"),
        "wide": ("low: -3.0, high: 3.0", "scale: 1.0e+9, zero_point: 0"),
    }.items():
        assert old in good
        (folder / f"parameters_{name}.yaml").write_text(good.replace(old, new))


def make_buffers(folder: Path) -> None:
    (folder / "buffers.csv").write_text("id,lower,upper,size\na,0,2,64\nb,1,3,64\n")
    (folder / "benchmark").mkdir()
    for name in "ABDEFGHIJK":
        shutil.copy(folder / "buffers.csv", folder / "benchmark" / f"{name}.1048576.csv")


MAKERS: tuple[Callable[[Path], None], ...] = (make_models, make_machines, make_arrays, make_calibration, make_buffers)


def make_all(folder: Path) -> None:
    for make in MAKERS:
        make(folder)
    (folder / "folder").mkdir()
    (folder / "plain_file").write_text("old contents\n")
