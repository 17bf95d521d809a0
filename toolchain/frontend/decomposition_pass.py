"""Put the steps of decomposed nodes into a model in canonical form. `passes.decompose` decides which nodes and which steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from toolchain.errors import InternalError
from toolchain.frontend.convert import type_of
from toolchain.frontend.infer import defaults, infer
from toolchain.frontend.model import NormalModel
from toolchain.frontend.rewrite import eliminate_dead_code
from toolchain.ir.graph import OnnxNode
from toolchain.ir.range_constraints import Inner


def apply_decompositions(
    model: NormalModel,
    steps: Mapping[str, Sequence[OnnxNode]],
    constants: Mapping[str, np.ndarray],
    inner: Mapping[str, Inner],
    finest: frozenset[str] = frozenset(),
    repeated: Mapping[str, str] = MappingProxyType({}),
    first: frozenset[str] = frozenset(),
    made_of: Mapping[str, str] = MappingProxyType({}),
    steps_error: float = 0.0,
) -> NormalModel:
    """Return the model with its nodes replaced by their steps; it is the same object where `steps` is empty.

    The result keeps the model before in `undivided`. Raise InternalError where steps make an output of another type.
    `steps`: by node, the nodes in its place, which make its outputs.
    `constants`: constants that the steps read.
    `inner`, `finest`, `repeated`, `first`, `made_of`, `steps_error`: as in NormalModel.
    """
    if not steps:
        return model
    types = {**model.types, **{name: type_of(value) for name, value in constants.items()}}
    constants_by_name, nodes = {**model.graph.constants, **constants}, list[OnnxNode]()
    for node in model.graph.nodes:
        for step in steps.get(node.name, ()):
            step = replace(step, op=replace(step.op, attributes={**defaults(step, model.opset), **step.op.attributes}))
            nodes.append(step)
            for name, step_type in infer(step, types, constants_by_name, model.opset).items():
                if name in model.types and model.types[name] != step_type:
                    raise InternalError(f"node {node.name}: its steps make {name} of {step_type}, not of {model.types[name]}")
                types[name] = step_type
        nodes += () if node.name in steps else (node,)
    graph = model.graph.with_nodes(nodes, types, constants)
    decomposed_model = replace(
        model, graph=eliminate_dead_code(graph), undivided=model, inner=inner, finest=finest, first=first, made_of=made_of
    )
    names = {**model.source_name_by_tensor, **repeated}
    return replace(
        decomposed_model, repeated={**model.repeated, **repeated}, source_name_by_tensor=names, steps_error=steps_error
    )
