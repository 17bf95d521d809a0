"""The types of what a layer reads and makes, as reports say them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolchain.ir.graph import Graph, Node
from toolchain.ops.convolution.integer import IntegerConvolution


@dataclass(frozen=True)
class LayerTypes:
    """inputs: of the codes that it reads, operand by operand, constants not among them; outputs: of those that it makes; weight:
    of its weights, None without."""

    input_types: tuple[str, ...]
    output_types: tuple[str, ...]
    weight_type: str | None

    def as_json(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def types_of(reads: Iterable[str], makes: Iterable[str], nodes: Iterable[Node], graph: Graph) -> LayerTypes:
    """reads, makes: tensors of the integer graph; nodes: of which one at most has weights."""
    weights = [n.op.weight_type.value for n in nodes if isinstance(n.op, IntegerConvolution)]
    inputs = tuple(graph.types[n].dtype for n in reads if n and n not in graph.constants)
    return LayerTypes(inputs, tuple(graph.types[n].dtype for n in makes), weights[0] if weights else None)


def types_by_layer(graph: Graph) -> dict[str, LayerTypes]:
    """By the names of the graph's nodes."""
    return {n.name: types_of(n.inputs, n.outputs, (n,), graph) for n in graph.nodes}


def types_text(row: Mapping[str, Any]) -> str:
    """row: with the keys of LayerTypes. `int8, int16 to int16; int4 weights`; nothing of what is no layer."""
    made: Sequence[str] = row.get("output_types") or ()
    if not made:
        return ""
    read = ", ".join(dict.fromkeys(row["input_types"]))
    codes = f"{read} to {', '.join(dict.fromkeys(made))}" if read else ", ".join(dict.fromkeys(made))
    return codes if row["weight_type"] is None else f"{codes}; {row['weight_type']} weights"
