"""Builds little ONNX graphs for scripts, bench and tests: from lists of nodes, or node by node from trained weights.

This is the one caller of `onnx.helper.make_graph` outside the product; `scripts/lint_words.py` holds that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OLDEST_IR_VERSION = 8
Shape = Sequence[int | str | None] | None  # None: of any rank, as outputs are whose shape is to be inferred


def build_graph(
    nodes: Iterable[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    constants: Mapping[str, Any] | None = None,
    *,
    name: str = "graph",
    types: Mapping[str, int] | None = None,
    doc: str = "",
) -> onnx.GraphProto:
    """Return the graph, or the body of a Loop, Scan or If.

    `inputs`, `outputs`: name -> shape, float32 but for the `types` (TensorProto.INT64) of some.
    `constants`: name -> array, whose type is kept.
    """
    of = types or {}
    ends, results = (
        [helper.make_tensor_value_info(n, of.get(n, TensorProto.FLOAT), shape) for n, shape in group.items()]
        for group in (inputs, outputs)
    )
    initializers = [numpy_helper.from_array(np.asarray(value), n) for n, value in (constants or {}).items()]
    return helper.make_graph(list(nodes), name, ends, results, initializers, doc_string=doc)


def build_model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    name: str = "graph",
    types: Mapping[str, int] | None = None,
    doc: str = "",
) -> onnx.ModelProto:
    """Return the model of build_graph's graph, not checked: a test may want what the checker refuses.

    Operators of other domains are of their domain's version 1.
    """
    graph = build_graph(nodes, inputs, outputs, constants, name=name, types=types, doc=doc)
    domains = dict.fromkeys(node.domain for node in graph.node if node.domain)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    ir_version = max(OLDEST_IR_VERSION, helper.find_min_ir_version_for(opsets, ignore_unknown=True))
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


@dataclass(frozen=True)
class GraphBuilder:
    """Collects nodes and constants in order; `build` makes the checked model. A node's name is its output's."""

    name: str
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    constants: dict[str, NDArray[Any]] = field(default_factory=dict[str, "NDArray[Any]"])

    def constant(self, name: str, values: NDArray[Any]) -> str:
        """Add an initializer and return its name."""
        self.constants[name] = values
        return name

    def scalar(self, name: str, value: float) -> str:
        """Add a float32 initializer without dimensions and return its name."""
        return self.constant(name, np.array(value, np.float32))

    def node(self, op: str, name: str, inputs: list[str], **attributes: Any) -> str:
        """Add a node with one output called `name`, as the node is, and return that name."""
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def build(self, inputs: Mapping[str, Shape], outputs: Mapping[str, Shape], opset: int, doc: str = "") -> onnx.ModelProto:
        """Return the checked model of the nodes so far.

        `inputs`, `outputs`: name -> shape, all float32; an output's None is inferred.

        Raise onnx.checker.ValidationError for a bad graph.
        """
        model = build_model(self.nodes, inputs, outputs, self.constants, opset=opset, name=self.name, doc=doc)
        if None in outputs.values():
            model = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(model, full_check=True)  # pyright: ignore[reportUnknownMemberType]  # its PathLike lacks str
        return model


def fold_batch_norm(
    weights: NDArray[np.float32],
    gamma: NDArray[np.float32],
    beta: NDArray[np.float32],
    mean: NDArray[np.float32],
    variance: NDArray[np.float32],
    epsilon: float,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the weights and bias of a convolution without bias that its batch normalization is folded into.

    `weights`: [oc, ...]; the other arrays [oc]. The result is float32, computed in float64.
    """
    gain = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    folded = weights.astype(np.float64) * gain.reshape(-1, *[1] * (weights.ndim - 1))
    bias = beta.astype(np.float64) - mean.astype(np.float64) * gain
    return folded.astype(np.float32), bias.astype(np.float32)
