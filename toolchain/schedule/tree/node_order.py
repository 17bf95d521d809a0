"""The order of a region's nodes where a schedule names all its layers, and has them in another that runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from toolchain.ir.graph import Node
from toolchain.schedule.tree.nodes import RegionTree, layers_of, tensors_of


def reorder_nodes(nodes: Sequence[Node], free: Collection[str], tree: RegionTree) -> Sequence[Node]:
    """free: nodes that are no layers, which go in front of the first that reads them. The nodes as they are where the schedule
    does not name each of the others once, or where its order lets one run before what it reads is made."""
    said = [layer.call.layer for layer in layers_of(tensors_of(tree.body)[1])]
    named = {node.name: node for node in nodes if node.name not in free}
    if sorted(said) != sorted(named):
        return nodes
    makers = {name: node for node in nodes for name in node.outputs}
    found: dict[str, Node] = {}
    for name in said:
        for node in (*_free_before(named[name], makers, free), named[name]):
            if any(tensor in makers and makers[tensor].name not in found for tensor in node.inputs):
                return nodes
            found[node.name] = node
    return [*found.values(), *(node for node in nodes if node.name not in found)]


def _free_before(node: Node, makers: dict[str, Node], free: Collection[str]) -> list[Node]:
    """Those that the node reads through, the first to run first."""
    found: list[Node] = []
    for name in node.inputs:
        maker = makers.get(name)
        if maker is not None and maker.name in free:
            found += [*_free_before(maker, makers, free), maker]
    return found
