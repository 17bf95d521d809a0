"""Check that the report names the host's work which the cycles leave out.
Nodes can be sent to the host, and a quantized model gets a warning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from scripts.onnx_builder import build_model
from toolchain.api import BuildOptions, build
from toolchain.codegen import HostSubgraph
from toolchain.errors import CompileError, ProgramError
from toolchain.passes.select import ASKED_FOR
from toolchain.report import host_warnings
from toolchain.report.host_metrics import MACS, count_work, host_subgraph_macs
from toolchain.report.report_text import fallbacks_text, segments_text, totals_text
from toolchain.report.warnings import calibration_warnings

CONVOLUTION_MACS = 4 * 3 * 9 * 8 * 8


def island(op: str, shapes: dict[str, tuple[int, ...]], output: tuple[int, ...], **attributes: Any) -> HostSubgraph:
    node = helper.make_node(op, list(shapes), ["y"], "n", **attributes)
    model = build_model([node], shapes, {"y": output}, opset=onnx.defs.onnx_opset_version())
    return HostSubgraph(model.SerializeToString(), tuple(shapes), ("y",), ("n",))


S = ()
CASES: list[tuple[str, dict[str, tuple[int, ...]], tuple[int, ...], dict[str, Any], int]] = [
    ("Conv", {"x": (1, 4, 8, 8), "w": (6, 2, 3, 3)}, (1, 6, 6, 6), {"group": 2}, 6 * 36 * 2 * 9),
    ("ConvInteger", {"x": (1, 4, 8, 8), "w": (6, 4, 3, 3)}, (1, 6, 6, 6), {}, 6 * 36 * 4 * 9),
    ("DeformConv", {"x": (1, 4, 8, 8), "w": (6, 4, 3, 3), "o": (1, 18, 6, 6)}, (1, 6, 6, 6), {}, 6 * 36 * 4 * 9),
    (
        "QLinearConv",
        {"x": (1, 4, 8, 8), "a": S, "b": S, "w": (6, 4, 3, 3), "c": S, "d": S, "e": S, "f": S},
        (1, 6, 6, 6),
        {},
        6 * 36 * 4 * 9,
    ),
    ("ConvTranspose", {"x": (1, 4, 5, 5), "w": (4, 3, 2, 2)}, (1, 6, 10, 10), {"group": 2, "strides": [2, 2]}, 100 * 3 * 4),
    ("MatMul", {"a": (2, 3, 5), "b": (5, 7)}, (2, 3, 7), {}, 2 * 3 * 5 * 7),
    ("MatMulInteger", {"a": (3, 5), "b": (5, 7)}, (3, 7), {}, 3 * 5 * 7),
    ("QLinearMatMul", {"a": (3, 5), "s": S, "z": S, "b": (5, 7), "t": S, "u": S, "v": S, "w": S}, (3, 7), {}, 3 * 5 * 7),
    ("Gemm", {"a": (5, 3), "b": (5, 7)}, (3, 7), {"transA": 1}, 3 * 5 * 7),
    ("LSTM", {"x": (6, 2, 5), "w": (1, 16, 5), "r": (1, 16, 4)}, (6, 1, 2, 4), {"hidden_size": 4}, 12 * 16 * 9),
    ("GRU", {"x": (6, 2, 5), "w": (2, 12, 5), "r": (2, 12, 4)}, (6, 2, 2, 4), {"hidden_size": 4}, 12 * 24 * 9),
    ("RNN", {"x": (6, 2, 5), "w": (1, 4, 5), "r": (1, 4, 4)}, (6, 1, 2, 4), {"hidden_size": 4}, 12 * 4 * 9),
    ("Einsum", {"a": (2, 3, 5), "b": (2, 5, 7)}, (2, 3, 7), {"equation": "bij, bjk -> bik"}, 2 * 3 * 5 * 7),
    ("Einsum", {"a": (2, 4, 3, 5), "b": (5, 7)}, (2, 4, 3, 7), {"equation": "...ij,jk->...ik"}, 8 * 3 * 5 * 7),
    ("Einsum", {"a": (2, 3, 5), "b": (1, 5, 7)}, (2, 3, 7), {"equation": "bij,bjk->bik"}, 2 * 3 * 5 * 7),
    ("Attention", {"q": (2, 4, 6, 8), "k": (2, 4, 10, 8), "v": (2, 4, 10, 3)}, (2, 4, 6, 3), {}, 2 * 4 * 6 * 10 * (8 + 3)),
    ("Relu", {"x": (2, 3)}, (2, 3), {}, 0),
]


@pytest.mark.parametrize(("op", "shapes", "output", "attributes", "expected"), CASES, ids=[c[0] for c in CASES])
def test_products_of_an_island(op: str, shapes: dict, output: tuple[int, ...], attributes: dict, expected: int) -> None:
    assert host_subgraph_macs(island(op, shapes, output, **attributes)) == expected


def test_every_operator_of_the_table_has_a_case() -> None:
    assert set(MACS) == {c[0] for c in CASES} - {"Relu"}


def test_an_operator_of_another_domain_counts_by_its_elements() -> None:
    standard = island("Attention", {"q": (2, 4, 6, 8), "k": (2, 4, 10, 8), "v": (2, 4, 10, 3)}, (2, 4, 6, 3))
    proto = onnx.ModelProto.FromString(standard.model)
    proto.graph.node[0].domain = "com.microsoft"
    other = HostSubgraph(proto.SerializeToString(), standard.inputs, standard.outputs, standard.nodes)
    assert count_work(standard) == (2 * 4 * 6 * 10 * (8 + 3), 0)
    assert count_work(other) == (0, 2 * 4 * 6 * 3)


def test_an_output_of_unknown_rank_counts_no_elements() -> None:
    subgraph = island("Relu", {"x": (2, 3)}, (2, 3))
    assert count_work(subgraph) == (0, 6)
    proto = onnx.ModelProto.FromString(subgraph.model)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert count_work(HostSubgraph(proto.SerializeToString(), subgraph.inputs, subgraph.outputs, subgraph.nodes)) == (0, 0)


def test_a_rank_that_is_missing_is_said() -> None:
    subgraph = island("MatMul", {"a": (3, 5), "b": (5, 7)}, (3, 7))
    proto = onnx.ModelProto.FromString(subgraph.model)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ProgramError, match=r"^host node n \(MatMul\): the shape of 'a' is not known; build the file again$"):
        host_subgraph_macs(HostSubgraph(proto.SerializeToString(), subgraph.inputs, subgraph.outputs, subgraph.nodes))


def test_a_shape_that_is_missing_is_said() -> None:
    subgraph = island("MatMul", {"a": (3, 5), "b": (5, 7)}, (3, 7))
    proto = onnx.ModelProto.FromString(subgraph.model)
    proto.graph.input[1].type.tensor_type.ClearField("shape")
    proto.graph.input[1].type.tensor_type.shape.dim.add(dim_param="N")
    broken = HostSubgraph(proto.SerializeToString(), subgraph.inputs, subgraph.outputs, subgraph.nodes)
    with pytest.raises(ProgramError, match=r"^host node n \(MatMul\): the shape of 'b' is not known; build the file again$"):
        host_subgraph_macs(broken)


def two_convolutions(folder: Path) -> Path:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,4,8,8] y) '
        "{ a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) y = Conv<pads=[1,1,1,1]>(b, v) }"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w", (4, 3, 3, 3)), ("v", (4, 4, 3, 3))):
        proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    for node, name in zip(proto.graph.node, ("first", "relu", "second")):
        node.name = name
    onnx.save(proto, folder / "m.onnx")
    return folder / "m.onnx"


def test_a_node_can_be_kept_on_the_host(tmp_path: Path) -> None:
    built = build(two_convolutions(tmp_path), BuildOptions("edge16", host_nodes=("first",)))
    rows = {row["node"]: row for row in built.figures["nodes"]}
    assert (rows["first"]["engine"], rows["first"]["reason"]) == ("host", "asked for by --host-node")
    assert rows["relu"]["engine"] != "host" and rows["second"]["engine"] == "mac"
    assert built.figures["host"] == {
        "islands": 1,
        "nodes": 1,
        "macs": CONVOLUTION_MACS,
        "mac_share": pytest.approx(3 / 7),
        "crossings": 1,
        "crossing_bytes": 4 * 8 * 8,
        "seconds": pytest.approx(10e-6 + 256 / 1e9 + CONVOLUTION_MACS / 20e9),
    }
    text = totals_text(built.figures)
    assert text.splitlines()[0].endswith("; 42.9 % of the model's MACs run on the HOST")
    expected = (
        "not in the cycles: 1 island (1 node, 6,912 MACs) on the host, and 1 copy of 256 bytes between NPU and host; "
        "about 0.011 ms by the machine's prices of the host"
    )
    assert text.splitlines()[-1] == expected
    assert not any("HOST" in w for w in built.warnings)  # the user asked for it


def test_a_network_in_the_middle_crosses_twice(tmp_path: Path) -> None:
    built = build(two_convolutions(tmp_path), BuildOptions("edge16", host_nodes=("relu",)))
    assert [built.figures["host"][k] for k in ("islands", "macs", "crossings", "crossing_bytes")] == [1, 0, 2, 2 * 256]
    assert "HOST" not in totals_text(built.figures)
    assert [w for w in built.warnings if "HOST" in w] == []


def test_a_whole_network_on_the_chip_leaves_nothing_out(tmp_path: Path) -> None:
    built = build(two_convolutions(tmp_path), BuildOptions("edge16"))
    assert set(built.figures["host"].values()) == {0}
    assert "HOST" not in totals_text(built.figures) and "not in the cycles" not in totals_text(built.figures)


def test_unknown_nodes_are_refused_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        build(two_convolutions(tmp_path), BuildOptions("edge16", host_nodes=("frist", "relu", "elsewhere")))
    assert str(caught.value).splitlines() == [
        '--host-node frist: the model has no such node or operator; did you mean "first"?',
        "--host-node elsewhere: the model has no such node or operator",
        "  help: --explain lists the nodes of the model",
    ]


def test_ranges_of_each_run_are_told_so(tmp_path: Path) -> None:
    """Check products that do not subtract the zero point, all on the host until their ranges are calibrated."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = tmp_path / "q.onnx"
    quantize_dynamic(str(two_convolutions(tmp_path)), str(path), weight_type=QuantType.QInt8)
    quantized = onnx.load(path)
    for node in quantized.graph.node:
        if node.op_type == "ConvInteger":
            del node.input[2:]
    onnx.save(quantized, path)
    built = build(path, BuildOptions("edge16"))
    assert built.figures["host"]["macs"] == CONVOLUTION_MACS * 7 // 3 and built.figures["host"]["mac_share"] == 1
    assert any(
        w
        == "2 DynamicQuantizeLinear nodes of the model have a range that each run finds: 100.0 % of the model's MACs run on the "
        "HOST, and the cycles leave them out; --static-ranges calibrates them"
        for w in built.warnings
    )
    assert "16,128 MACs" in totals_text(built.figures)


def test_a_little_on_the_host_is_no_warning() -> None:
    some = {"mac_share": 0.04, "nodes": 1}
    assert host_warnings(some, [("a", "MatMul")]) == []
    assert len(host_warnings({**some, "mac_share": 0.06}, [("a", "MatMul")])) == 1
    assert host_warnings({**some, "macs": 0}, [("a", "DynamicQuantizeLinear")]) == []
    assert len(host_warnings({**some, "macs": 9}, [("a", "DynamicQuantizeLinear")])) == 1


def test_what_the_user_asked_for_is_no_warning() -> None:
    much, nodes = {"mac_share": 0.5, "nodes": 2}, [("a", "MatMul")]
    assert host_warnings(much, nodes, [ASKED_FOR, ASKED_FOR]) == []
    assert len(host_warnings(much, nodes, [ASKED_FOR, "no operator of the chip computes MatMul"])) == 1


def test_few_samples_are_said() -> None:
    assert calibration_warnings(15) == ["calibrated on 15 samples; ranges of fewer than 16 may not hold for other data"]
    assert calibration_warnings(16) == calibration_warnings(None) == []


def test_many_segments_are_counted_and_the_first_are_listed() -> None:
    def segment(where: str, nodes: int) -> dict[str, Any]:
        return {"where": where, "nodes": nodes, "on_cpu": []}

    segments = [segment("npu (simulator)", 3), segment("CPUExecutionProvider", 1)]
    assert segments_text({"segments": segments}, 2) == "ran: 3 nodes on npu (simulator), 1 node on CPUExecutionProvider"
    assert segments_text({"segments": segments * 5}, 2) == (
        "ran: 5 nodes in 5 segments on CPUExecutionProvider, 15 nodes in 5 segments on npu (simulator); "
        "the first: 3 nodes on npu (simulator), 1 node on CPUExecutionProvider"
    )


def test_many_nodes_of_the_host_are_counted_and_the_first_are_listed() -> None:
    fallbacks = [{"node": f"n{i}", "op": "Det", "reason": "not here"} for i in range(5)]
    lines = fallbacks_text({"fallbacks": fallbacks}, 2).splitlines()
    assert lines[0] == "5 nodes run on the host:" and lines[-1] == "and 3 more" and len(lines) == 6
    assert len(fallbacks_text({"fallbacks": fallbacks}).splitlines()) == 8 and fallbacks_text({"fallbacks": []}, 2) == ""
