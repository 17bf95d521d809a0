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
    """Return a sentence for each limit that strides of convolutions exceed, with its cost in cycles.

    `layers`: layers of the report.
    """
    chip, graph = container.machine.chip, container.graph
    cycles = {layer["name"]: layer["cycles"] for layer in layers}
    layers_by_reason: dict[str, list[str]] = {}
    for node in graph.nodes:
        if isinstance(node.op, IntegerConvolution):
            reason = node.op.stride_cut(Layer(node, graph.types, graph.constants, chip))
            if reason:
                layers_by_reason.setdefault(reason, []).append(node.name)
    total = sum(cycles.values())
    costs = {reason: sum(cycles.get(n, 0) for n in names) for reason, names in layers_by_reason.items()}
    return tuple(
        f"{reason}: {format_count(len(names), 'layer')}, {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}, "
        f"{costs[reason]:,} of {total:,} cycles"
        for reason, names in layers_by_reason.items()
        if costs[reason] >= _WORTH_SAYING * total
    )
