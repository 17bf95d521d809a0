"""Decompositions are written and registered in one way, wherever they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

import toolchain.frontend
from toolchain.foundation.module_registry import files_of
from toolchain.frontend import canonicalize, convolution_rules, decompose_rules, expand_contrib, expand_ml, expand_ort_fused
from toolchain.frontend.expansion_builder import ExpansionBuilder
from toolchain.frontend.rewrite import NodeChain, Rewriter, as_rule
from toolchain.ir.graph import Graph, Node, OnnxNode, OnnxOp, TensorType
from toolchain.ir.step_builder import StepBuilder, to_array
from toolchain.ops.kit.decomposition import DecompositionBuilder
from toolchain.plugin import Steps

TYPES = {"x": TensorType((2, 3), "float32"), "y": TensorType((2, 3), "float32")}
NODE: OnnxNode = Node("n", OnnxOp("Softmax", {"axis": 1}), ("x",), ("y",), ("n",))


def make_rewriter() -> Rewriter:
    return Rewriter(21, dict(TYPES), {}, frozenset({"y"}), Counter())


def add_in_each_builder(op_type: str, *inputs: str | float | Sequence[float] | np.ndarray) -> list[list[np.ndarray]]:
    """Add one step in each of the builders, and return the constants that it reads."""
    rewriter = make_rewriter()
    chain, expansion, steps = NodeChain(NODE, rewriter), ExpansionBuilder(NODE, TYPES, {}), Steps(TYPES, "n")
    decomposition = DecompositionBuilder(NODE, Graph("g", (NODE,), ("x",), ("y",), TYPES, {}), 8)
    chain.add(op_type, *inputs)
    expansion.add(op_type, *inputs)
    decomposition.add(op_type, *inputs, what="step")
    steps.add(op_type, *inputs)
    builders: list[tuple[StepBuilder, dict[str, np.ndarray]]] = [
        (chain, rewriter.constants),
        *((b, b.constants) for b in (expansion, decomposition, steps)),
    ]
    return [[values[name] for name in builder.nodes[-1].inputs if name in values] for builder, values in builders]


def test_every_builder_reads_a_value_as_the_same_constant() -> None:
    array = np.array([[1, 2]], np.uint8)
    for constants in add_in_each_builder("Op", "x", 2.5, (0, 1), array):
        assert [(c.dtype.name, c.tolist()) for c in constants] == [("float32", 2.5), ("int64", [0, 1]), ("uint8", [[1, 2]])]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(2, "float32"), ([1, 2], "int64"), ((), "int64"), ([1, 2.5], "float32"), (np.float64(3), "float32"), (np.int32(3), "int32")],
)
def test_a_value_has_the_type_that_steps_need(value: float, dtype: str) -> None:
    assert to_array(value).dtype.name == dtype


def test_a_decomposition_without_steps_leaves_the_operator() -> None:
    assert as_rule(lambda chain: None)(NODE, make_rewriter()) is None

    def add_one(chain: NodeChain) -> None:
        chain.add("Exp", chain.node.inputs[0])

    rewrite = as_rule(add_one)(NODE, make_rewriter())
    assert rewrite is not None and [(n.name, n.op.op_type, n.outputs) for n in rewrite.nodes] == [("n", "Exp", ("y",))]


def test_every_table_of_the_frontend_is_in_use() -> None:
    expanded = {expand_contrib, expand_ml, expand_ort_fused}
    files = {file for file in files_of(toolchain.frontend) if hasattr(file, "DECOMPOSITIONS")}
    assert files - expanded == {table for table in canonicalize.TABLES if hasattr(table, "DECOMPOSITIONS")}
    late = {file for file in files_of(toolchain.frontend) if hasattr(file, "LATE_DECOMPOSITIONS")}
    assert late == {decompose_rules, convolution_rules} == set(canonicalize.LATE_TABLES)
