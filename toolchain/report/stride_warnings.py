"""The warning of strides beyond the limit of a machine, for which its array works in parts: many times its cycles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolchain.codegen import Container
from toolchain.errors import format_count
from toolchain.ops.convolution.integer import IntegerConvolution
from toolchain.ops.kit.operator import Layer

_WORTH_SAYING = 0.05  # of all cycles


def stride_warnings(container: Container, layers: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """layers: of the report. One sentence for each limit that convolutions' strides are beyond, with what they cost."""
    chip, graph = container.machine.chip, container.graph
    cycles = {layer["name"]: layer["cycles"] for layer in layers}
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        if isinstance(node.op, IntegerConvolution):
            said = node.op.stride_cut(Layer(node, graph.types, graph.constants, chip))
            if said:
                found.setdefault(said, []).append(node.name)
    total = sum(cycles.values())
    costs = {said: sum(cycles.get(n, 0) for n in names) for said, names in found.items()}
    return tuple(
        f"{said}: {format_count(len(names), 'layer')}, {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}, "
        f"{costs[said]:,} of {total:,} cycles"
        for said, names in found.items()
        if costs[said] >= _WORTH_SAYING * total
    )
