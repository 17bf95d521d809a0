"""Rows of the steps of a sequence as one row: what a tensor is at all of them is one layer to people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from toolchain.ir.graph import INNER, Graph, Node

Row = Mapping[str, Any]
RowT = TypeVar("RowT")
_SUMMED = ("cycles", "macs", "busy_macs", "bounds", "traffic", "attribution")


def tensors_of_steps(graph: Graph) -> dict[str, str]:
    """graph: the chip's, whose tensors are told by their names in the file. By layer that makes a tensor at one of several steps
    of a sequence, or something inside it: the name that the tensor has at all of them. Of a tensor that is nowhere as it is in
    the model, only inside others: layers of the same weights, as no two parts of one product have."""
    made = [(n, graph.origins[y]) for n in graph.nodes for y in n.outputs if y in graph.origins]
    times = Counter((origin.tensor, origin.layout) for _, origin in made if origin.layout != INNER)
    several = {tensor for (tensor, _), count in times.items() if count > 1}
    whole = {tensor for tensor, _ in times}
    inside = {n.name: (origin.tensor, _weights(n, graph)) for n, origin in made if origin.tensor not in whole}
    alike = Counter(inside.values())
    steps = {name for name, (tensor, weights) in inside.items() if weights and alike[tensor, weights] > 1}
    return {n.name: origin.tensor for n, origin in made if origin.tensor in several or n.name in steps}


def _weights(node: Node, graph: Graph) -> tuple[bytes, ...]:
    return tuple(graph.constants[n].tobytes() for n in node.inputs if n in graph.constants)


def merge_step_rows(rows: Iterable[Row], name: str) -> list[Row]:
    """Rows of one operator and one `steps_of` as one, where the first stands: cycles, products, bytes and causes are their sums,
    the rest is the first's, and `name`, a key of the rows, says how many there are."""
    groups = group_rows(rows, lambda row: None if row["steps_of"] is None else (row["op"], row["steps_of"]))
    return [_sum(group, name) if len(group) > 1 else group[0] for group in groups]


def group_rows(rows: Iterable[RowT], alike: Callable[[RowT], object | None]) -> list[list[RowT]]:
    """Those for which this is equal together, where the first of them stands; None: alone."""
    groups: dict[object, list[RowT]] = {}
    for index, row in enumerate(rows):
        key = alike(row)
        groups.setdefault((index,) if key is None else (None, key), []).append(row)
    return list(groups.values())


def and_more(count: int) -> str:
    """Behind the name of the first of so many, of which the row tells together."""
    return "" if count < 2 else f", and {count - 1:,} more such step{'s' if count > 2 else ''}"


def _sum(group: list[Row], name: str) -> Row:
    sums = {key: _total([row[key] for row in group]) for key in _SUMMED if key in group[0]}
    return {**group[0], **sums, name: group[0][name] + and_more(len(group))}


def _total(values: list[Any]) -> Any:
    """Of numbers, or of mappings to them, key by key; None where one is. Of words the first."""
    if any(v is None for v in values):
        return None
    if isinstance(values[0], str):
        return values[0]
    if not isinstance(values[0], Mapping):
        return sum(values)
    keys = dict.fromkeys(k for v in values for k in v)
    return {k: _total([v[k] for v in values if k in v]) for k in keys}
