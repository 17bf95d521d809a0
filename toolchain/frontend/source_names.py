"""Map tensors of the canonical form that the file has in another shape to their names in the file."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from toolchain.ir.graph import OnnxGraph

MOVES = ("Reshape", "Transpose")  # of a whole tensor


def map_source_names(graph: OnnxGraph, moved: Iterable[tuple[str, str]], file_tensors: Collection[str]) -> dict[str, str]:
    """Return, by graph tensor that is not in the file, the nearest file tensor of which it is a reshaped or transposed form.

    Tensors without such a file tensor are left out.
    `graph`: the canonical form.
    `moved`: (input, output) of every Reshape and Transpose on the way to the canonical form.
    `file_tensors`: the file's tensors.
    """
    near: dict[str, list[str]] = {}
    for before, after in moved:
        near.setdefault(before, []).append(after)
        near.setdefault(after, []).append(before)
    new_names = (n for node in graph.nodes for n in node.outputs if n and n not in file_tensors)
    return {name: nearest for name in new_names if (nearest := _nearest(name, near, file_tensors)) is not None}


def _nearest(name: str, near: dict[str, list[str]], file_tensors: Collection[str]) -> str | None:
    waiting = [name]
    visited = {name}
    for at in waiting:  # grows on the way
        if at in file_tensors:
            return at
        waiting += [n for n in near.get(at, ()) if n not in visited]
        visited.update(waiting)
    return None
