"""Expand nodes whose operators a plug-in defines: check their attributes, infer their types, write out their steps.

`check_domain_versions` checks the versions of domains outside ONNX that a model imports.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, replace
from typing import Any

import numpy as np
import onnx

from toolchain.foundation.type_guards import is_tuple
from toolchain.frontend.errors import NodeFault, refuse_node
from toolchain.frontend.infer import infer
from toolchain.frontend.read_onnx import DOMAINS, FOREIGN, graphs_of
from toolchain.frontend.upgrade import Upgraded
from toolchain.ir.graph import OnnxGraph, OnnxNode, TensorType
from toolchain.plugin import (
    LoadedPlugin,
    Operator,
    Steps,
    attribute_defaults,
    find_operator,
    find_rule,
    input_counts,
)

_KINDS = {int: "INT", float: "FLOAT", str: "STRING", tuple: "a list", np.ndarray: "TENSOR"}
_LIBRARY_VERSION = 1  # host models import it of each domain but ONNX's


@dataclass(frozen=True)
class PluginNode:
    """A node with the plug-in that defines its operator, and the operator with the node's attributes."""

    node: OnnxNode
    plugin: LoadedPlugin
    operator: Operator

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the operator. Raise CompileError for whatever it raises."""
        function = getattr(self.operator, method)
        where = f"node {self.node.name} ({self.node.op.op_type}): {method} of plug-in {self.plugin.plugin.name}"
        return self.plugin.call(where, function, *arguments)

    def infer(self, types: Mapping[str, TensorType]) -> dict[str, TensorType]:
        """Return the type of each named output by the plug-in's method `infer`. Raise CompileError where that fails."""
        inputs = [types[n] if n else None for n in self.node.inputs]
        answer = self.call("infer", *inputs)
        output_types = answer if is_tuple(answer) else (answer,)
        if not all(isinstance(t, TensorType) for t in output_types) or len(output_types) < len(self.node.outputs):
            raise self.fault(f"infer returns {answer!r}; it must return a TensorType for each of its outputs")
        whole_shapes = [tuple(int(d) for d in t.shape) for t in output_types]
        return {n: TensorType(s, t.dtype) for n, s, t in zip(self.node.outputs, whole_shapes, output_types) if n}

    def write_out(self, types: Mapping[str, TensorType]) -> Upgraded:
        """Return the steps in the node's place, which make its outputs, and their constants.

        Raise CompileError where the plug-in's method `steps` fails, or its steps read or return an unknown tensor.
        """
        node = self.node
        build = Steps({n: types[n] for n in node.inputs if n}, node.name)
        answer = self.call("steps", build, *(n or None for n in node.inputs))
        results = answer if is_tuple(answer) else (answer,)
        step_outputs = {name for step in build.nodes for name in step.outputs}
        if not all(isinstance(r, str) for r in results) or len(results) < len(node.outputs):
            raise self.fault(f"steps returns {answer!r}; it must return the name of a tensor for each of its outputs")
        unknown = next((r for r in results if r not in step_outputs | build.types.keys() | build.constants.keys()), None)
        if unknown is not None:
            raise self.fault(f"steps returns {unknown!r}, which none of its steps makes")
        self._check_step_inputs(build)
        name_by_step = dict[str, str]()
        for result, output in zip(map(str, results), node.outputs):
            if output and result in step_outputs and result not in name_by_step:
                name_by_step[result] = output
            elif output:
                source = name_by_step.get(result, result)
                build.append(f"{node.name}/Identity_{len(build.nodes)}", "Identity", (source,), (output,), {})
        nodes = [
            replace(
                step,
                inputs=tuple(name_by_step.get(n, n) for n in step.inputs),
                outputs=tuple(name_by_step.get(n, n) for n in step.outputs),
                sources=node.sources,
            )
            for step in build.nodes
        ]
        return Upgraded(nodes, build.constants)

    def _check_step_inputs(self, build: Steps) -> None:
        """Raise CompileError where a step reads what is neither an input nor a constant nor made by an earlier step."""
        available = {"", *build.types, *build.constants}
        for step in build.nodes:
            unknown = next((name for name in step.inputs if name not in available), None)
            if unknown is not None:
                raise self.fault(f"its step {step.op.op_type} reads {unknown!r}, which is no input and no earlier step makes")
            available.update(step.outputs)

    def check_types(self, step_types: Mapping[str, TensorType], inferred: Mapping[str, TensorType]) -> None:
        """Raise CompileError where the plug-in's `infer` and its steps give an output of other shapes or types.

        `step_types`: by the steps. `inferred`: by `infer`.
        """
        for name, t in inferred.items():
            if (t.shape, t.dtype) != (step_types[name].shape, step_types[name].dtype):
                by_rule, by_steps = (f"{one.dtype}{list(one.shape)}" for one in (t, step_types[name]))
                raise self.fault(f"infer says that output {name!r} is {by_rule}, its steps make {by_steps}")

    def fault(self, reason: str) -> Exception:
        """Return the error for a plug-in whose parts contradict each other."""
        return refuse_node(self.node, reason, f"mend {self.plugin.file}, and check it by npu-build --check-plugin")


def plugin_node(node: OnnxNode) -> PluginNode | None:
    """Return the node with its plug-in, attributes completed by defaults; None where no plug-in defines its operator.

    Raise CompileError for attributes and inputs that the operator does not take.
    """
    definition = find_operator(node.op.domain, node.op.op_type)
    if definition is None:
        return None
    loaded, operator = definition
    least, most = input_counts(operator)
    inputs = list(node.inputs)
    while inputs and not inputs[-1]:
        inputs.pop()
    if not least <= len(inputs) <= most or not all(inputs[:least]):
        raise refuse_node(node, f"has {len(inputs)} inputs, {least} to {most} are allowed")
    values = {**attribute_defaults(operator), **node.op.attributes}
    instance = _with_attributes(node, loaded, operator, values)
    op = replace(node.op, attributes=values)
    return PluginNode(replace(node, op=op, inputs=tuple(inputs)), loaded, instance)


def _with_attributes(node: OnnxNode, loaded: LoadedPlugin, operator: type[Operator], values: Mapping[str, Any]) -> Operator:
    """Return the operator with the node's attributes. Raise CompileError for one that it has not, lacks or takes otherwise."""
    where = f"plug-in {loaded.plugin.name}: attributes of {node.op.op_type}"
    hints = loaded.call(where, typing.get_type_hints, operator)
    defaults = attribute_defaults(operator)
    for name, value in values.items():
        if name not in defaults:
            raise refuse_node(node, f'has no attribute "{name}"; it takes {", ".join(defaults) or "none"}')
        if value is MISSING:
            raise refuse_node(node, f'lacks its attribute "{name}"')
        kind = typing.get_origin(hints[name]) or hints[name]
        if type(value) is not kind and value is not defaults[name]:
            value_type: type[Any] = value.__class__
            value_kind = _KINDS.get(value_type, value_type.__name__)
            raise refuse_node(
                node, f'its attribute "{name}" is {value_kind}, {node.op.op_type} takes {_KINDS.get(kind, kind.__name__)}'
            )
    return loaded.call(where, lambda: operator(**values))


def write_out_plugin_nodes(graph: OnnxGraph, opset: int) -> OnnxGraph:
    """Return the graph with plug-in operators that have a rule of their own replaced by their steps, so that onnxruntime runs
    it.
    """
    definitions = {n.name: plugin_node(n) for n in graph.nodes if find_rule(n.op.domain, n.op.op_type) is not None}
    if not definitions:
        return graph
    nodes, constants, types = list[OnnxNode](), dict(graph.constants), dict(graph.types)
    for node in graph.nodes:
        definition = definitions.get(node.name)
        if definition is None:
            nodes.append(node)
            continue
        written = definition.write_out(types)
        nodes += written.nodes
        constants |= written.constants
        types |= type_steps(written, types, constants, opset)
    return replace(graph, nodes=tuple(nodes), constants=constants, types=types)


def type_steps(
    written: Upgraded, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray], opset: int
) -> dict[str, TensorType]:
    """Return the types of the tensors that steps make and of their constants. Raise CompileError where a step is no valid node.

    `types`, `constants`: of what the steps read.
    """
    step_types = {n: TensorType(v.shape, v.dtype.name) for n, v in written.constants.items()}
    for node in written.nodes:
        step_types |= infer(node, {**types, **step_types}, {**constants, **written.constants}, opset)
    return step_types


def check_domain_versions(proto: onnx.ModelProto) -> None:
    """Raise CompileError where a model imports a domain's version that its plug-in or library does not know."""
    versions = {opset.domain: opset.version for opset in proto.opset_import}
    faults = [*_list_faults(proto.graph, versions)]
    if faults:
        raise NodeFault(faults)


def _list_faults(graph: onnx.GraphProto, versions: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the fault of each node of an unknown version, with the way out."""
    for index, node in enumerate(graph.node):
        definition, version = find_operator(node.domain, node.op_type), versions.get(node.domain, 1)
        thing = f"node {node.name or f'{node.op_type}_{index}'} ({node.op_type})"
        thing = f'{thing}: the model imports version {version} of "{node.domain}"'
        if definition is not None:
            loaded, operator = definition
            if version > operator.DOMAIN_VERSION:
                yield (
                    f"{thing}, plug-in {loaded.plugin.name} defines the operator of version {operator.DOMAIN_VERSION}",
                    f"write DOMAIN_VERSION = {version} into its class where it means the same, or export with the older version",
                )
        elif node.domain not in (*DOMAINS, *FOREIGN, "ai.onnx") and version != _LIBRARY_VERSION:
            yield (
                f"{thing}, libraries of --custom-ops run it as version {_LIBRARY_VERSION}",
                "export with that version, or give a plug-in that defines it (--plugin FILE.py)",
            )
        for subgraph in graphs_of(node):
            yield from _list_faults(subgraph, versions)
