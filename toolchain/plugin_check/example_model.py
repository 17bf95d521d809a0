"""Make an ONNX model of one example of a plug-in, its random data, and the outputs that its operator computes.

A check calibrates on SAMPLES samples, since builds repair from so many on (docs/accuracy.md).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.foundation.inference import open_model, session_options
from toolchain.frontend.convert import node_to_proto
from toolchain.frontend.export_onnx import to_proto
from toolchain.frontend.plugin_nodes import PluginNode, plugin_node, type_steps
from toolchain.ir.graph import Graph, Node, OnnxOp, TensorType
from toolchain.plugin import OPSET, Array, Example, LoadedPlugin, operator_name

SAMPLES = 16


@dataclass(frozen=True)
class ExampleModel:
    """A model of one node, the example's operator.

    `definition`: the node, with the plug-in that defines it.
    `types`: types of its inputs by name, constants among them.
    `constants`: inputs that are constant.
    """

    example: Example
    definition: PluginNode
    types: dict[str, TensorType]
    constants: dict[str, Array]

    @property
    def inputs(self) -> list[str]:
        """Return the names of the inputs that are fed."""
        return [n for n in self.definition.node.inputs if n and n not in self.constants]

    def draw(self, seed: int) -> dict[str, Array]:
        """Return random float32 values of the fed inputs, uniform between the example's `low` and `high`; a seed gives the same
        values."""
        rng = np.random.default_rng(seed)
        low, high = self.example.low, self.example.high
        return {n: rng.uniform(low, high, self.types[n].shape).astype(np.float32) for n in self.inputs}

    def compute(self, feeds: dict[str, Array]) -> tuple[Array, ...]:
        """Return the outputs by the plug-in's own float function. Raise CompileError for whatever that raises."""
        values = {**self.constants, **feeds}
        answer = self.definition.call("compute", *(values[n] if n else None for n in self.definition.node.inputs))
        answers = cast("tuple[Any, ...]", answer) if isinstance(answer, tuple) else (answer,)
        return tuple(np.asarray(a) for a in answers)

    def run_steps(self, feeds: dict[str, Array]) -> list[Array]:
        """Return the outputs by the plug-in's steps under onnxruntime. Raise CompileError where they are no valid ONNX."""
        node = self.definition.node
        written = self.definition.write_out(self.types)
        values = {**self.constants, **written.constants}
        types = {**self.types, **type_steps(written, self.types, self.constants, OPSET)}
        graph = Graph("steps", tuple(written.nodes), tuple(self.inputs), node.outputs, types, values)
        session = open_model(to_proto(graph, OPSET).SerializeToString(), session_options(optimized=False))
        return session.run(list(node.outputs), feeds)

    def proto(self, output_types: dict[str, TensorType]) -> onnx.ModelProto:
        """Return the model as its user has it: one node of the plug-in's domain."""
        node = self.definition.node
        op = replace(node.op, attributes={k: v for k, v in node.op.attributes.items() if v is not None})
        graph = helper.make_graph(
            [node_to_proto(replace(node, op=op))],
            "example",
            [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, self.types[n].shape) for n in self.inputs],
            [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, t.shape) for n, t in output_types.items()],
            [numpy_helper.from_array(v, n) for n, v in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(node.op.domain, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def make_example_model(loaded: LoadedPlugin, example: Example) -> ExampleModel:
    """Return the model of an example; float32 inputs are fed, arrays are constants, None is left out.

    Raise CompileError where the operator does not take its attributes or inputs.
    """
    operator = type(example.operator)
    attributes: dict[str, Any] = {f.name: getattr(example.operator, f.name) for f in fields(operator)}  # type: ignore[arg-type]
    types, constants, names = dict[str, TensorType](), dict[str, Array](), list[str]()
    for index, value in enumerate(example.inputs):
        names.append("" if value is None else f"x{index}")
        if isinstance(value, np.ndarray):
            constants[names[-1]] = value
            types[names[-1]] = TensorType(value.shape, value.dtype.name)
        elif value is not None:
            types[names[-1]] = TensorType(tuple(value), "float32")
    outputs: Any = loaded.call(
        f"plug-in {loaded.plugin.name}: infer of {operator.__name__}", example.operator.infer, *_input_types(names, types)
    )
    count = len(cast("tuple[Any, ...]", outputs)) if isinstance(outputs, tuple) else 1
    op = OnnxOp(operator_name(operator), attributes, operator.DOMAIN)
    node = Node(operator_name(operator), op, tuple(names), tuple(f"y{i}" for i in range(count)), (operator_name(operator),))
    definition = plugin_node(node)
    assert definition is not None
    return ExampleModel(example, definition, types, constants)


def _input_types(names: list[str], types: dict[str, TensorType]) -> list[TensorType | None]:
    return [types[n] if n else None for n in names]
