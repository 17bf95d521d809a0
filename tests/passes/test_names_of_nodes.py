"""Nodes have one name each: what the compiler adds to a function whose codes are others on both sides, in every mix of types."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from scripts.onnx_builder import build_model
from tests.support.verified_passes import graphs_in
from toolchain.api import Build, BuildOptions, build
from toolchain.errors import InternalError, ProgramError
from toolchain.foundation import entry_points
from toolchain.ir.graph import Graph, Node, OnnxOp, Origin, Quant, TensorType, distinctly_named, verify

F = TensorType((2,), "float32")


def node(name: str, x: str, y: str, *sources: str) -> Node[OnnxOp]:
    return Node(name, OnnxOp("Relu"), (x,), (y,), sources)


def test_the_models_own_node_keeps_its_name() -> None:
    nodes = [node("a (rescale)", "x", "p"), node("a", "p", "q", "a"), node("a (rescale)", "q", "r", "a (rescale)")]
    nodes += [node("a (rescale)", "r", "s"), node("a (rescale)_2", "s", "y", "a (rescale)_2")]
    names = [n.name for n in distinctly_named(nodes)]
    assert names == ["a (rescale)_3", "a", "a (rescale)", "a (rescale)_4", "a (rescale)_2"]


def test_two_nodes_of_one_name_are_a_fault_that_a_new_graph_does_not_have() -> None:
    nodes = (node("a", "x", "p"), node("a", "p", "y"))
    broken = Graph("g", nodes, ("x",), ("y",), dict.fromkeys("xpy", F), {})
    assert verify(broken) == ["2 nodes have the name 'a'"]
    assert not verify(broken.with_nodes(nodes))


def test_codes_say_of_what_they_are() -> None:
    types = {"x": F, "y": TensorType((2,), "int8", Quant(1.0, 0))}
    graph = Graph("g", (node("a", "x", "y"),), ("x",), ("y",), types, {})
    assert verify(graph) == ["tensor 'y' has codes, and no origin says of what"]
    assert not verify(graph.with_nodes(graph.nodes, origins={"y": Origin("y", "plain")}))


def make_rounded_model(kind: str, scale: float) -> onnx.ModelProto:
    """A function whose output the file rounds to int8 codes, and whose input it leaves in float."""
    nodes = [
        helper.make_node(kind, ["x"], ["t"]),
        helper.make_node("QuantizeLinear", ["t", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    return build_model(nodes, {"x": [1, 8]}, {"y": [1, 8]}, {"s": np.float32(scale), "z": np.int8(-5)}, opset=14)


def build_of(proto: onnx.ModelProto, low: float, high: float, folder: Path) -> Build:
    onnx.save(proto, folder / "m.onnx")
    np.savez(folder / "d.npz", allow_pickle=False, x=np.linspace(low, high, 17 * 8, dtype=np.float32).reshape(17, 1, 8))
    return build(folder / "m.onnx", BuildOptions("transformer64", str(folder / "d.npz")))


@pytest.mark.parametrize(("low", "high"), [(-40.0, 3.0), (-3.0, 40.0)])
def test_changes_of_scale_before_and_behind_a_table(low: float, high: float, tmp_path: Path) -> None:
    network_build = build_of(make_rounded_model("Exp", 0.02), low, high, tmp_path)
    names = [n.name for n in network_build.container.graph.nodes]
    assert len(set(names)) == len(names) and {"Exp_0 (rescale)", "Exp_0 (rescale)_2"} <= set(names)


def test_a_broken_program_that_was_just_built_is_our_fault() -> None:
    with pytest.raises(InternalError, match=r"^what was built is broken: no such word$"), entry_points.entry_in_errors(None):
        raise ProgramError("no such word")
    with (
        pytest.raises(InternalError, match=r"^entry a: what was built is broken: no such word$"),
        entry_points.entry_in_errors("a"),
    ):
        raise ProgramError("no such word")


def test_a_build_that_makes_a_broken_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsound(*_: object) -> None:
        raise ProgramError("layer 'a': its result is not what its node makes")

    monkeypatch.setattr("toolchain.codegen.container.verify_container", unsound)
    with pytest.raises(InternalError, match=r"^what was built is broken: model: is not sound: layer 'a'"):
        build_of(make_rounded_model("Relu", 0.01), -1, 1, tmp_path)


def test_a_build_does_not_go_on_with_a_broken_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "toolchain.passes.pipeline.verify", lambda graph: ["2 nodes have the name 'a'"] if [*graphs_in(graph)] else []
    )
    with pytest.raises(InternalError, match=r"^the integer graph is broken: 2 nodes have the name 'a'$"):
        build_of(make_rounded_model("Relu", 0.01), -1, 1, tmp_path)
