"""docs/container.md is enough to read a compiled file, and lists the operators as the code has them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from npu_reader import Model, codes, read, real, requantize_sums
from onnx import numpy_helper, parser

from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.codegen.graph_json import describe_type, field_types, records
from toolchain.ops.kit.registry import INTEGER_OPERATORS
from toolchain.runtime import Session, dram_image, random_feeds

PAGE = (Path(__file__).parents[2] / "docs" / "container.md").read_text()
CONVOLUTIONS = """c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, k) s = MeanVarianceNormalization<axes=[1]>(c)
    y = Conv<kernel_shape=[1,1]>(s, v)"""
SHAPES = {"k": (8, 8, 3, 3), "v": (8, 8, 1, 1), "o": (1, 8, 8, 8)}


def compile_network(folder: Path, body: str, machine: str) -> Build:
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,8,8] x) => (float[1,8,8,8] y) {{ {body} }}'
    )
    rng = np.random.default_rng(0)
    for name in sorted({n for node in proto.graph.node for n in node.input} & SHAPES.keys()):
        proto.graph.initializer.append(numpy_helper.from_array(rng.normal(size=SHAPES[name]).astype(np.float32), name))
    onnx.save(proto, folder / "m.onnx")
    return build(folder / "m.onnx", BuildOptions(machine))


@pytest.fixture(scope="module", params=["edge16", "wide32_w4a16"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A region, an island, a region."""
    return compile_network(tmp_path_factory.mktemp("page"), CONVOLUTIONS, request.param)


def test_the_reader_is_no_part_of_the_toolchain() -> None:
    source = Path(sys.modules["npu_reader"].__file__ or "").read_text()
    assert {m.split(".")[0] for m in re.findall(r"^(?:from|import) (\S+)", source, re.M)} == {
        "__future__", "dataclasses", "hashlib", "json", "numpy", "struct", "typing"
    }  # fmt: skip


def test_programs_and_constants(built: Build) -> None:
    model, container = read(built.data), built.container
    assert [s["kind"] for s in model.entry["segments"]] == ["npu", "host", "npu"]
    for segment_record, segment in zip(model.entry["segments"], container.segments, strict=True):
        if not isinstance(segment, Region):
            assert model.span(segment_record["model"]) == segment.model
            continue
        size = container.machine.isa.word_bytes
        assert b"".join(w.to_bytes(size, "little") for w in model.words(segment_record)) == segment.program
        assert np.array_equal(model.dram(segment_record), dram_image(segment))
        assert tuple(model.op_layers(segment_record)) == segment.op_layers
        for kind, ports in (("input", segment.inputs), ("output", segment.outputs)):
            kind_ports = [p for p in segment_record["ports"] if p["kind"] == kind]
            assert [(p["tensor"], p["address"], tuple(p["shape"])) for p in kind_ports] == [
                (p.tensor, p.address, p.shape) for p in ports
            ]


def test_the_arrays_of_the_graph(built: Build) -> None:
    model, graph = read(built.data), built.container.graph
    constants = {n: model.array(c) for n, c in model.graph()["constants"].items()}
    assert constants.keys() == graph.constants.keys()
    assert all(np.array_equal(constants[n], c) and constants[n].dtype == c.dtype for n, c in graph.constants.items())


def test_the_graph_says_what_its_tensors_are_of_the_user_s(built: Build) -> None:
    graph_record, graph = read(built.data).graph(), built.container.graph
    assert graph_record["origins"].keys() == graph.types.keys() - graph.constants.keys()
    assert {name: graph_record["origins"][name] for name in ("x@nhwc", "c", "y")} == {
        "x@nhwc": ["x", "nhwc"], "c": ["c", "nhwc"], "y": ["y", "nhwc"]
    }  # fmt: skip


def test_a_layer_computed_from_the_page(tmp_path: Path) -> None:
    """Weights, bias, scales and codes as the page says give the codes of the session, bit for bit."""
    data = compile_network(tmp_path, CONVOLUTIONS, "wide32_w4a16").data
    model, session = read(data), Session(data)
    node = next(n for n in model.graph()["nodes"] if n["operator"] == "Convolution" and n["fields"]["pads"] == [1, 1, 1, 1])
    assert node["fields"]["requant"]["rounding"] == "single_half_up"  # the reader knows this one
    feeds = random_feeds(session.get_inputs(), seed=1)
    region = model.entry["segments"][0]
    x, y = (next(p for p in region["ports"] if p["kind"] == kind) for kind in ("input", "output"))
    got = convolve(codes(x, feeds[x["model"]]), node, model)
    assert np.array_equal(real(y, got.reshape(y["shape"])), session.run_detailed(feeds).real[y["model"]])


def convolve(x: np.ndarray, node: dict, model: Model) -> np.ndarray:
    """3x3 with padding 1, stride 1."""
    constants, fields = model.graph()["constants"], node["fields"]
    weights, bias = (model.array(constants[n]).astype(np.int64) for n in node["inputs"][1:3])
    wide = np.pad(x.astype(np.int64) - fields["x_zero_point"], ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    taps = [(wide[:, i : i + height, j : j + width], weights[:, i, j]) for i in range(3) for j in range(3)]
    return requantize_sums(sum(a @ w.T for a, w in taps) + bias, fields["requant"], model)


def test_constants_of_two_regions_are_stored_once(tmp_path: Path) -> None:
    """Check that an array of the graph with the same codes shares them, and another array has its own bytes."""
    npu_file = read(
        compile_network(tmp_path, "a = Add(x, o) s = MeanVarianceNormalization<axes=[-1]>(a) y = Add(s, o)", "edge16").data
    )
    first, _, second = npu_file.entry["segments"]
    blocks, others = ([block for _, block in segment["constants"]] for segment in (first, second))
    assert blocks == others
    assert sum(len(npu_file.block(block)) for block in blocks) == 512
    arrays = [c["array"] for c in npu_file.graph()["constants"].values()]
    assert [a[1] for a in arrays] == [[8, 8, 8]] * 2
    assert sorted(piece[0] for a in arrays for piece in a[2]) == [*sorted(blocks), len(npu_file.header["blocks"]) - 1]


@pytest.mark.parametrize(("machine", "kind", "size_bytes"), [("edge16", "int8", 576), ("wide32_w4a16", "int4", 288)])
def test_weights_are_stored_once(machine: str, kind: str, size_bytes: int, tmp_path: Path) -> None:
    """Check that the graph's weights are pieces of the blocks that the program loads, up to the parameters after each tile."""
    npu_file = read(compile_network(tmp_path, CONVOLUTIONS, machine).data)
    dtype, shape, pieces = npu_file.graph()["constants"]["Conv_0.weights"]["array"]
    blocks = [block for _, block in npu_file.entry["segments"][0]["constants"]]
    assert (dtype, shape, sum(size for *_, size in pieces)) == (kind, [8, 3, 3, 8], size_bytes)
    assert {block for block, *_ in pieces} <= set(blocks)


def test_the_page_lists_every_operator() -> None:
    versions_on_page = dict(
        re.findall(r"^\| `(\w+)` \| (\d+ \| .*?) \|", PAGE.partition("### Operators")[2].partition("### Records")[0], re.M)
    )
    versions = {n: f"{kind.VERSION} | {_fields(kind)}" for n, kind in INTEGER_OPERATORS.items()}  # type: ignore[attr-defined]
    changed = sorted(n for n in versions.keys() & versions_on_page.keys() if versions[n] != versions_on_page[n])
    assert not changed, f"the fields of {changed} changed: raise VERSION where old files would be misread, then change the page"
    assert versions_on_page.keys() == versions.keys()


def test_the_page_lists_every_record() -> None:
    fields_on_page = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE.partition("### Records")[2].partition("\n## ")[0], re.M))
    kinds = {n: kind for op in INTEGER_OPERATORS.values() for n, kind in records(op).items() if kind is not op}
    assert fields_on_page == {n: _fields(kind) for n, kind in kinds.items()}


def _fields(kind: type) -> str:
    return ", ".join(f"`{n}`: {describe_type(h)}" for n, h in field_types(kind).items())
