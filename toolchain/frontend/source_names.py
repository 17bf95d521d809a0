"""What the file calls a tensor that the normal form has under another shape."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from toolchain.ir.graph import OnnxGraph

MOVES = ("Reshape", "Transpose")  # of a whole tensor


def map_source_names(graph: OnnxGraph, moved: Iterable[tuple[str, str]], own: Collection[str]) -> dict[str, str]:
    """graph: the normal form; moved: (input, output) of every Reshape and Transpose on the way to it; own: the file's tensors.
    By tensor of the graph that is none of them, the nearest of which it has all elements, where there is one."""
    near: dict[str, list[str]] = {}
    for before, after in moved:
        near.setdefault(before, []).append(after)
        near.setdefault(after, []).append(before)
    made = (n for node in graph.nodes for n in node.outputs if n and n not in own)
    return {name: found for name in made if (found := _nearest(name, near, own)) is not None}


def _nearest(name: str, near: dict[str, list[str]], own: Collection[str]) -> str | None:
    waiting = [name]
    seen = {name}
    for at in waiting:  # grows on the way
        if at in own:
            return at
        waiting += [n for n in near.get(at, ()) if n not in seen]
        seen.update(waiting)
    return None
