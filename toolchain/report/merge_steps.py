"""Merge the rows of the steps of a sequence into one row, as a person takes a recurrent layer for one layer.

An unrolled sequence has a layer for each step. Reports print such rows as one; the JSON report keeps them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from toolchain.ir.graph import INNER, Graph, Node

Row = Mapping[str, Any]
RowT = TypeVar("RowT")
_SUMMED = ("cycles", "macs", "busy_macs", "bounds", "traffic", "attribution")


def tensors_of_steps(graph: Graph) -> dict[str, str]:
    """Return, by name of the layers of unrolled sequences, the model's tensor that the layer makes at one step.

    It is the same for all steps of one layer; reports call it `steps_of`. Layers are steps where several make the same
    tensor of the model in one layout. Layers that make a tensor inside an operator are steps where they have equal constants.

    `graph`: the chip's graph, whose origins name the model's tensors. Layers outside sequences have no entry.
    """
    origin_pairs = [(n, graph.origins[y]) for n in graph.nodes for y in n.outputs if y in graph.origins]
    times = Counter((origin.tensor, origin.layout) for _, origin in origin_pairs if origin.layout != INNER)
    several = {tensor for (tensor, _), count in times.items() if count > 1}
    complete_tensors = {tensor for tensor, _ in times}
    inside = {n.name: (origin.tensor, _weights(n, graph)) for n, origin in origin_pairs if origin.tensor not in complete_tensors}
    layer_counts = Counter(inside.values())
    steps = {name for name, (tensor, weights) in inside.items() if weights and layer_counts[tensor, weights] > 1}
    return {n.name: origin.tensor for n, origin in origin_pairs if origin.tensor in several or n.name in steps}


def _weights(node: Node, graph: Graph) -> tuple[bytes, ...]:
    return tuple(graph.constants[n].tobytes() for n in node.inputs if n in graph.constants)


def merge_step_rows(rows: Iterable[Row], name: str) -> list[Row]:
    """Return the rows with those of one operator and one `steps_of` merged into one, at the place of the first.

    Cycles, products, bounds, bytes and causes are summed, as far as rows have them. The rest is the first row's.
    A sum is None where one of the rows has None. `name`: the key of the row's name, to which `and_more` is appended.
    A row whose `steps_of` is None stays alone. Rows need the keys `op` and `steps_of`.
    """
    groups = group_rows(rows, lambda row: None if row["steps_of"] is None else (row["op"], row["steps_of"]))
    return [_sum(group, name) if len(group) > 1 else group[0] for group in groups]


def group_rows(rows: Iterable[RowT], get_key: Callable[[RowT], object | None]) -> list[list[RowT]]:
    """Return the rows grouped by key, each group at the place of its first row; a row whose key is None stays alone."""
    groups: dict[object, list[RowT]] = {}
    for index, row in enumerate(rows):
        key = get_key(row)
        groups.setdefault((index,) if key is None else (None, key), []).append(row)
    return list(groups.values())


def and_more(count: int) -> str:
    """Return what follows the name of the first of `count` steps in one row: ", and 2 more such steps" of 3, "" of 1."""
    return "" if count < 2 else f", and {count - 1:,} more such step{'s' if count > 2 else ''}"


def _sum(group: list[Row], name: str) -> Row:
    """Return the first row of a group with the sums of all."""
    sums = {key: _total([row[key] for row in group]) for key in _SUMMED if key in group[0]}
    return {**group[0], **sums, name: group[0][name] + and_more(len(group))}


def _total(values: list[Any]) -> Any:
    """Return the sum of numbers, or of mappings key by key; None where a value is None. Of texts the first is returned."""
    if any(v is None for v in values):
        return None
    if isinstance(values[0], str):
        return values[0]
    if not isinstance(values[0], Mapping):
        return sum(values)
    keys = dict.fromkeys(k for v in values for k in v)
    return {k: _total([v[k] for v in values if k in v]) for k in keys}
