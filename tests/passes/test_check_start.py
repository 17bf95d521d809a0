"""An edited graph is refused by every rule that it breaks, also where one of its two nodes alone was changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from toolchain.errors import CompileError
from toolchain.ir.graph import Graph, Node, OnnxOp, TensorType
from toolchain.ir.parse_text import StageGraph
from toolchain.isa import load_machine
from toolchain.passes.check_start import require_start

F = TensorType((1, 4, 2), "float32")
NODES = (Node("r", OnnxOp("Relu"), ("x",), ("m",), ("r",)), Node("n", OnnxOp("Neg"), ("m",), ("y",), ("n",)))
GRAPH: Graph[Any] = Graph("g", NODES, ("x",), ("y",), dict.fromkeys("xmy", F), {})


def require(edited: Graph[Any]) -> None:
    start = StageGraph("compose", edited, {"r": "g, line 3", "n": "g, line 4"})
    require_start(start, GRAPH, load_machine("edge16").chip, 21, GRAPH, {"r", "n"})


def test_the_graph_itself_takes_its_place() -> None:
    require(GRAPH)


EDITS: dict[str, tuple[Callable[[Graph[Any]], Graph[Any]], str]] = {
    "an output more": (
        lambda g: replace(g, outputs=("y", "m")),
        "--start-from: outputs of the graph are y, m, those of the model y",
    ),
    "another input": (
        lambda g: replace(g, types={**g.types, "x": replace(F, shape=(1, 4, 3))}),
        "--start-from: input x has the shape [1, 4, 3], the model's has [1, 4, 2]",
    ),
    "another type between the nodes": (
        lambda g: replace(g, types={**g.types, "m": replace(F, shape=(1, 4, 3))}),
        "g, line 3: Relu: gives float32[1, 4, 2] for m, which is float32[1, 4, 3]",
    ),
    "another operator of the same tensors": (
        lambda g: g.with_nodes((g.nodes[0], replace(g.nodes[1], op=OnnxOp("Not")))),
        'g, line 4: node n (Not): input 0 "m" is tensor(float), which Not does not take',
    ),
    "another input of a node": (
        lambda g: g.with_nodes((g.nodes[0], replace(g.nodes[1], inputs=("m", "x")))),
        "g, line 4: node n (Neg): has 2 inputs, 1 to 1 are allowed",
    ),
    "four faults": (
        lambda g: g.with_nodes(tuple(replace(n, inputs=("z", "v")) for n in g.nodes)),
        "--start-from: the graph is not sound: r: input 'z' is not defined before it; r: input 'v' is not defined before it; "
        "n: input 'z' is not defined before it; and 1 more",
    ),
    "three faults": (
        lambda g: g.with_nodes((replace(g.nodes[0], inputs=("z", "v")), replace(g.nodes[1], inputs=("z",)))),
        "--start-from: the graph is not sound: r: input 'z' is not defined before it; r: input 'v' is not defined before it; "
        "n: input 'z' is not defined before it",
    ),
    "a tensor that nothing makes": (
        lambda g: g.with_nodes((g.nodes[0], replace(g.nodes[1], inputs=("z",)))),
        "--start-from: the graph is not sound: n: input 'z' is not defined before it",
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_one_node_is_seen_beside_another(edit: str) -> None:
    change, message = EDITS[edit]
    with pytest.raises(CompileError) as fault:
        require(change(GRAPH))
    assert str(fault.value) == message
