"""Describe the types of codes that a layer reads and makes, for the rows of reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolchain.foundation.type_guards import is_tuple
from toolchain.ir.graph import Graph, Node
from toolchain.ops.convolution.integer_convolution import IntegerConvolution


@dataclass(frozen=True)
class LayerTypes:
    """The types of a layer's codes, such as `int8`.

    `input_types`: types of the codes that it reads, operand by operand, constants excluded.
    `output_types`: types of the codes that it makes.
    `weight_type`: type of its weights, None without weights.
    """

    input_types: tuple[str, ...]
    output_types: tuple[str, ...]
    weight_type: str | None

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON has them, with lists for tuples."""
        return {key: list(value) if is_tuple(value) else value for key, value in asdict(self).items()}


def types_of(reads: Iterable[str], makes: Iterable[str], nodes: Iterable[Node], graph: Graph) -> LayerTypes:
    """Return the types of a layer.

    `reads`, `makes`: tensors of the integer graph. Of `reads`, constants and empty names are left out.
    `nodes`: nodes of which one at most has weights.
    """
    weights = [n.op.weight_type.value for n in nodes if isinstance(n.op, IntegerConvolution)]
    inputs = tuple(graph.types[n].dtype for n in reads if n and n not in graph.constants)
    return LayerTypes(inputs, tuple(graph.types[n].dtype for n in makes), weights[0] if weights else None)


def types_by_layer(graph: Graph) -> dict[str, LayerTypes]:
    """Return the types of each layer by the name of its node."""
    return {n.name: types_of(n.inputs, n.outputs, (n,), graph) for n in graph.nodes}


def types_text(row: Mapping[str, Any]) -> str:
    """Return a text such as `int8, int16 to int16; int4 weights`, empty for a row that is no layer.

    `row`: a row with the keys of LayerTypes.
    """
    outputs: Sequence[str] = row.get("output_types") or ()
    if not outputs:
        return ""
    read = ", ".join(dict.fromkeys(row["input_types"]))
    codes = f"{read} to {', '.join(dict.fromkeys(outputs))}" if read else ", ".join(dict.fromkeys(outputs))
    return codes if row["weight_type"] is None else f"{codes}; {row['weight_type']} weights"
