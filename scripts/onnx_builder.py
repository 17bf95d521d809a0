"""The few lines with which scripts write ONNX graphs node by node from trained weights."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

IR_VERSION = 8


@dataclass(frozen=True)
class GraphBuilder:
    """Collects nodes and constants in order; `build` makes the checked model. A node's name is its output's."""

    name: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, name: str, values: NDArray[Any]) -> str:
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def scalar(self, name: str, value: float) -> str:
        self.initializers.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name

    def node(self, op: str, name: str, inputs: list[str], **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def build(
        self,
        inputs: dict[str, list[int | str]],
        outputs: dict[str, list[int | str] | None],
        opset: int,
        doc: str = "",
    ) -> onnx.ModelProto:
        """Make the checked model. Inputs and outputs: name -> shape, all float32; an output's None is inferred.

        Raises onnx.checker.ValidationError on a bad graph.
        """
        ports = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in group.items()]
            for group in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, self.name, ports[0], ports[1], self.initializers, doc_string=doc)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
        if None in outputs.values():
            model = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(model, full_check=True)
        return model


def fold_batch_norm(
    weights: NDArray[np.float32],
    gamma: NDArray[np.float32],
    beta: NDArray[np.float32],
    mean: NDArray[np.float32],
    variance: NDArray[np.float32],
    epsilon: float,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Convolution weights [oc, ...] and its batch normalization [oc] -> weights, bias [oc]; computed in float64."""
    gain = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    folded = weights.astype(np.float64) * gain.reshape(-1, *[1] * (weights.ndim - 1))
    bias = beta.astype(np.float64) - mean.astype(np.float64) * gain
    return folded.astype(np.float32), bias.astype(np.float32)
