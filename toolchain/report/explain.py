"""Where every node of the model went: what `npu-build --explain` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolchain.ir.graph import Graph
from toolchain.ops.movement import Reshape


def explained(
    nodes: Sequence[tuple[str, str]], layers: Iterable[Mapping[str, Any]], graph: Graph, host: Mapping[str, str]
) -> list[dict[str, Any]]:
    """nodes: (name, operator) of the model's own nodes, in its order; layers: of the report; graph: what the chip runs;
    host: node -> why it runs there. Gives node, op, engine, layer, cycles (of the whole layer) and reason of each."""
    owner = {source: layer for layer in layers for source in layer["sources"]}
    views = {source for node in graph.nodes if isinstance(node.op, Reshape) for source in node.sources}
    return [_row(name, op, owner.get(name), name in views, host.get(name)) for name, op in nodes]


def _row(name: str, op: str, layer: Mapping[str, Any] | None, view: bool, refusal: str | None) -> dict[str, Any]:
    row = {"node": name, "op": op, "engine": "none", "layer": None, "cycles": 0, "reason": ""}
    if refusal is not None:
        return {**row, "engine": "host", "cycles": None, "reason": refusal}
    if layer is not None:
        part = "" if layer["name"] == name else f"part of {layer['name']}"
        return {**row, "engine": layer["engine"], "layer": layer["name"], "cycles": layer["cycles"], "reason": part}
    if view:
        return {**row, "reason": "the same bytes under another shape"}
    return {**row, "reason": "folded away: constant, without effect, or merged into another node"}
