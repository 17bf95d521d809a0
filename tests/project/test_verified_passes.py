"""The suite's own check of passes: all of them are watched, and one that breaks a graph is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import toolchain.passes.fuse
import toolchain.passes.pipeline
from tests.support.verified_passes import BrokenGraph, passes, verify_pass
from toolchain.frontend import rewrite
from toolchain.ir.graph import INNER, Graph, Node, OnnxOp, Origin, TensorType, verify

F = TensorType((2,), "float32")
RELU = Node("relu", OnnxOp("Relu"), ("x",), ("y",))
SOUND = Graph("g", (RELU,), ("x",), ("y",), {"x": F, "y": F, "w": F}, {"w": np.zeros(2, np.float32)})
ARRANGED = replace(
    SOUND, nodes=(replace(RELU, inputs=("a",)),), types={**SOUND.types, "a": F}, origins={"a": Origin("x", "nhwc")}
)
BROKEN = {
    "output 'y' is never defined": replace(SOUND, nodes=()),
    "relu: input 'z' is not defined before it": replace(SOUND, nodes=(replace(RELU, inputs=("z",)),)),
    "relu: input 'a' is not defined before it": replace(ARRANGED, origins={"a": Origin("gone", "nhwc")}),
    "again: output 'y' is defined twice": replace(SOUND, nodes=(RELU, replace(RELU, name="again"))),
    "tensor 'y' has no type": replace(SOUND, types={"x": F, "w": F}),
    "constant 'w' is float32[3], its type says float32[2]": replace(SOUND, constants={"w": np.zeros(3, np.float32)}),
    "constant 'w' is int8[2], its type says float32[2]": replace(SOUND, constants={"w": np.zeros(2, np.int8)}),
}


def test_a_tensor_of_the_compiler_is_named_by_what_it_is_for() -> None:
    """x, moved and moved again for relu, whose output is taken on to z."""
    names = ("x", "a", "b", "y", "z", "w")
    added = [Node(name, OnnxOp("Reshape"), (before,), (name,)) for before, name in (("x", "a"), ("a", "b"), ("y", "z"))]
    relu = replace(RELU, inputs=("b",), sources=("clip", "relu"))
    origins = {"a": Origin("x", "nhwc"), "b": Origin("y", INNER), "z": Origin("y", INNER)}
    graph = Graph("g", (*added[:2], relu, added[2]), ("x",), ("z",), dict.fromkeys(names, F), SOUND.constants, origins)
    assert [graph.find_model_node(name) for name in names] == ["clip", "clip", "clip", "clip", None, None]
    assert [str(graph.shown(name)) for name in names] == ["x", "x", "y, inside clip", "y", "y", "w"]


def test_every_stage_that_makes_a_graph_is_watched() -> None:
    stages_watched = {name.removeprefix("toolchain.") for name, f in passes().items() if hasattr(f, "__wrapped__")}
    stages = "import_graph.import_graph model.cast_to_float32 dequantize.dequantize_graph rewrite.sweep"
    stages += " canonicalize.canonicalize promote_attributes.promote"
    others = "compose.compose select.select merge_transposes.merge_transposes hoist_over_moves.lift_functions"
    others += " hoist_over_moves.hoist_sums fold_qdq.fuse_selected_clamps pipeline.select_graph"
    others += " fuse.fuse_clamps fuse.fuse_tables fuse.fuse_residuals quantize.quantize"
    assert {f"frontend.{s}" for s in stages.split()} | {f"passes.{p}" for p in others.split()} <= stages_watched
    assert "repair.channel_scaling.scale_model" in stages_watched and "export.qdq.qdq_graph" in stages_watched


@pytest.mark.parametrize("fault", BROKEN)
def test_a_pass_that_breaks_a_graph_is_named(fault: str) -> None:
    def breaking(graph: Graph) -> tuple[Graph, int]:
        return BROKEN[fault], 1

    with pytest.raises(BrokenGraph) as raised:
        verify_pass(breaking)(SOUND)
    assert str(raised.value) == f"{__name__}.breaking gave a broken graph: {fault}"


@pytest.mark.parametrize("holder", [toolchain.passes.pipeline, toolchain.passes.fuse])
def test_where_the_build_calls_it_and_where_it_is_defined(holder: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "with_nodes", lambda graph, nodes: replace(graph, nodes=tuple(nodes)[:-1]))
    with pytest.raises(
        BrokenGraph, match=r"^toolchain.passes.fuse.fuse_tables gave a broken graph: output 'y' is never defined$"
    ):
        holder.fuse_tables(SOUND, None)  # type: ignore[attr-defined]


def test_a_rule_of_the_frontend_that_breaks_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "eliminate_dead_code", lambda graph: BROKEN["tensor 'y' has no type"])
    with pytest.raises(BrokenGraph, match=r"^toolchain.frontend.rewrite.(sweep|rewrite) gave .* tensor 'y' has no type$"):
        rewrite.rewrite(SOUND, {}, 21, {})


def test_a_tensor_that_is_arranged_on_its_way_in_needs_what_it_is_of() -> None:
    assert not verify(SOUND) and not verify(ARRANGED)
    inner = replace(ARRANGED, origins={"a": Origin("x", INNER)})
    assert verify(inner) == verify(BROKEN["relu: input 'a' is not defined before it"]) != []
