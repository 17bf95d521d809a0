"""Programs for several sets of input shapes in one file: each is that of a file of its own, and constants stand once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from quant.file import Parameters, write_parameters
from quant.observe import Range
from tests.support.example_networks import fill_network
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region, container_to_bytes, entries_from_bytes, entries_to_bytes, images_of_entries
from toolchain.errors import CompileError
from toolchain.report.gate import Gate
from toolchain.runtime import Session, dram_image, random_feeds

ROOT = Path(__file__).parents[2]
CLASSIFIER = ROOT / "examples" / "classifier"
BATCHES = {"one": {"x": (1, 1, 28, 28)}, "eight": {"x": (8, 1, 28, 28)}}
BODY = """a = Conv<pads=[1,1,1,1]>(x, k) r = Relu(a) b = Conv<pads=[1,1,1,1], strides=[2,2]>(r, l)
    s = MeanVarianceNormalization<axes=[1]>(b) c = Conv<kernel_shape=[1,1]>(s, m) g = GlobalAveragePool(c) y = Flatten(g)"""
SHAPES = {"k": (32, 3, 3, 3), "l": (64, 32, 3, 3), "m": (40, 64, 1, 1)}
SIZES = {"small": {"x": (1, 3, 16, 16)}, "large": {"x": (1, 3, 48, 40)}}


def convolutions(folder: Path) -> Path:
    """Any batch, height and width; a region, an island, a region."""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[N,3,H,W] x) => (float[N,40] y) {{ {BODY} }}')
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        proto.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32) / 8, name))
    onnx.save(proto, folder / "m.onnx")
    return folder / "m.onnx"


def one_file_each(model: Path, options: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Build]:
    return {name: build(model, BuildOptions(shapes=shapes, **options)) for name, shapes in sizes.items()}


OTHERS = [pytest.param(m, marks=pytest.mark.exhaustive) for m in ("ethos_u55_256", "wide32_w4a16")]


@pytest.mark.parametrize("machine", ["edge16", *OTHERS])
def test_a_batch_in_one_file_gives_what_its_samples_give(machine: str) -> None:
    """Check the shipped classifier with two entry points, calibrated once.
    The first entry equals its own file byte for byte, and a batch of eight images gives the bits of eight runs.
    """
    calib = str(CLASSIFIER / "calib.npz")
    built = build(CLASSIFIER / "classifier.onnx", BuildOptions(machine, calib, entries=BATCHES))
    alone = build(CLASSIFIER / "classifier.onnx", BuildOptions(machine, calib, shapes=BATCHES["one"]))
    assert built.entries["one"].data == alone.data
    images = np.load(CLASSIFIER / "test.npz")["x"][:8].reshape(8, 1, 28, 28).astype(np.float32)
    one, eight = (Session(built.data, entry=name) for name in ("one", "eight"))
    (batch,) = eight.run(None, {"x": images})
    assert batch.std() > 0
    assert np.array_equal(batch, np.concatenate([one.run(None, {"x": image[None]})[0] for image in images]))
    assert np.array_equal(batch, Session(built.data, entry="eight", backend="reference").run(None, {"x": images})[0])
    assert _constants_once(built) < 1.1


def _constants_once(built: Build) -> float:
    """Bytes of the file's blocks by those of the largest file of one entry."""
    alone = max(_block_bytes(one.data) for one in built.entries.values())
    return _block_bytes(built.data) / alone


def _header(data: bytes) -> dict:
    size = int.from_bytes(data[52:60], "little")
    return json.loads(data[60 : 60 + size])


def _block_bytes(data: bytes) -> int:
    return sum(size for _, size in _header(data)["blocks"])


def _pieces(data: bytes) -> list[list[int]]:
    """Return the pieces of constants: block, first byte, bytes."""
    regions = [s for e in _header(data)["entries"] for s in e["segments"] if s["kind"] == "npu"]
    return [
        piece for region in regions for _, constant in region["constants"] if isinstance(constant, list) for piece in constant
    ]


@pytest.mark.parametrize("machine", ["edge16", "ws8_pow2"])
def test_by_one_parameters_file_every_entry_is_the_build_of_its_shapes(machine: str, tmp_path: Path) -> None:
    model = convolutions(tmp_path)
    tensors = {n: Range(-1.0 if n in "xabc" else 0.0, 1.0) for n in "xarbscg"} | {"y": Range(-1.0, 1.0)}
    write_parameters(tmp_path / "p.yaml", Parameters(tensors))
    options: dict[str, Any] = {"hardware": machine, "parameters": str(tmp_path / "p.yaml")}
    built = build(model, BuildOptions(**options, entries=SIZES))
    for name, alone in one_file_each(model, options, SIZES).items():
        assert built.entries[name].data == alone.data
        assert built.entries[name].figures["cycles"] == alone.figures["cycles"]
        session = Session(built.data, entry=name)
        feeds = random_feeds(session.get_inputs(), seed=1)
        assert [t.shape for t in session.get_inputs()] == [SIZES[name]["x"]]
        assert np.array_equal(session.run(None, feeds)[0], Session(alone.data).run(None, feeds)[0])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Three entries, of which the later ones have constants in pieces from the middle of blocks."""
    sizes = {**SIZES, "batch": {"x": (4, 3, 16, 16)}}
    built = build(convolutions(tmp_path_factory.mktemp("three")), BuildOptions("ws8_pow2", entries=sizes))
    assert list(built.entries) == list(sizes)
    assert any(first for _, first, _ in _pieces(built.data))
    return built


def test_the_image_of_entries_holds_their_constants(three: Build) -> None:
    files = images_of_entries({name: one.container for name, one in three.entries.items()})
    for name, one in three.entries.items():
        for segment, region in zip(json.loads(files[f"{name}/ports.json"])["segments"], one.container.segments, strict=True):
            if isinstance(region, Region):
                want, dram = dram_image(region), np.zeros(region.dram_bytes, np.uint8)
                for b in segment["constants"]["blocks"]:
                    piece = files["constants.bin"][b["offset"] : b["offset"] + b["bytes"]]
                    dram[b["address"] : b["address"] + b["bytes"]] = np.frombuffer(piece, np.uint8)
                assert np.array_equal(dram, want) and want.any()
    assert len(files["constants.bin"]) < 1.1 * max(_block_bytes(one.data) for one in three.entries.values())


def test_every_entry_is_built_with_what_is_asked_for() -> None:
    options = BuildOptions("edge16", "x.npz", gate=Gate(min_sqnr=20), export_qdq=True, judges={"large": "y.npz"}, entries=SIZES)
    small, large = options.each().values()
    assert [one.shapes for one in (small, large)] == [SIZES["small"], SIZES["large"]]
    assert [one.judge for one in (small, large)] == [None, "y.npz"]
    assert all((one.gate, one.export_qdq, one.calibration) == (Gate(min_sqnr=20), True, "x.npz") for one in (small, large))


def test_an_input_may_be_another_constant_in_each_entry(tmp_path: Path) -> None:
    graph = "g (float[n,8] x, float k) => (float[n,8] y) { m = Mul(x, k) y = Tanh(m) }"
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}'), tmp_path / "m.onnx")
    entries = {"few": {"x": (1, 8)}, "many": {"x": (2, 8)}}
    options = BuildOptions("edge16", entries=entries, entry_values={"few": {"k": ("1",)}, "many": {"k": ("0.5",)}})
    built = build(tmp_path / "m.onnx", options)
    for name, rows, factor in (("few", 1, 1.0), ("many", 2, 0.5)):
        x = np.linspace(-1, 1, 8 * rows, dtype=np.float32).reshape(rows, 8)
        session = Session(built.entries[name].container)
        assert [i.name for i in session.get_inputs()] == ["x"]
        np.testing.assert_allclose(session.run(["y"], {"x": x})[0], np.tanh(factor * x), atol=0.05)


@pytest.mark.parametrize(
    ("values", "entry_values", "message"),
    [
        ({}, {"any": {"k": ("1",)}}, "value any:k: there is no such entry; give --entry any:INPUT=SHAPE"),
        ({"k": ("2",)}, {"few": {"k": ("1",)}}, "value few:k: input 'k' has a value for all entries; give one of them"),
    ],
)
def test_values_of_entries_that_are_refused(values: Any, entry_values: Any, message: str) -> None:
    with pytest.raises(CompileError) as fault:
        BuildOptions("edge16", entries={"few": {"x": (1, 8)}}, values=values, entry_values=entry_values)
    assert str(fault.value) == message


def test_files_are_read_as_they_were_written(three: Build) -> None:
    """Check that constants in pieces are restored, and writing them again gives the same bytes."""
    built, read = three, entries_from_bytes(three.data, "m")
    assert list(read) == list(built.entries)
    for name, one in built.entries.items():
        assert read[name].segments == one.container.segments
        constants = one.container.graph.constants
        assert read[name].graph.constants.keys() == constants.keys()
        assert all(np.array_equal(read[name].graph.constants[n], value) for n, value in constants.items())
        assert container_to_bytes(read[name]) == one.data
    assert entries_to_bytes(read) == built.data


def test_an_entry_alone_has_its_own_name(tmp_path: Path) -> None:
    built = build(convolutions(tmp_path), BuildOptions("edge16", entries={"small": SIZES["small"]}))
    feeds = random_feeds(Session(built.data).get_inputs())
    named, only = (Session(built.data, entry=name).run(None, feeds)[0] for name in ("small", None))
    assert np.array_equal(named, only)


@pytest.mark.slow
def test_tiles_that_are_cut_otherwise_share_their_bytes(tmp_path: Path) -> None:
    """MobileNet v1, 4.2 MB of weights, at two sizes: its programs load other tiles, the file has hardly more than the larger."""
    built = build(_mobilenet(tmp_path), BuildOptions("edge16", entries={n: {"input": (1, 3, s, s)} for n, s in SIDES.items()}))
    blocks = [{d for s in b.container.segments if isinstance(s, Region) for _, d in s.constants} for b in built.entries.values()]
    shared_bytes = sum(map(len, blocks[0] & blocks[1]))
    assert shared_bytes < 2_500_000  # of 4.4 MB: so much would be shared if tiles were not cut into pieces
    alone = built.figures["alone_bytes"]
    assert len(built.data) == built.figures["file_bytes"] < 1.12 * max(alone.values()) < 0.6 * sum(alone.values())
    assert built.figures["shared_bytes"] == sum(alone.values()) - len(built.data) > 4_300_000
    assert _constants_once(built) < 1.02


SIDES = {"s96": 96, "s160": 160}


def _mobilenet(folder: Path) -> Path:
    proto = fill_network("mobilenet_v1_224")
    for dim, name in zip(proto.graph.input[0].type.tensor_type.shape.dim[2:], "HW"):
        dim.dim_param = name
    del proto.graph.value_info[:]
    onnx.save(proto, folder / "mobilenet.onnx")
    return folder / "mobilenet.onnx"
