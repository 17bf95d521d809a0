"""Print graphs as text that people read and `toolchain.ir.parse_text` reads back: docs/stages.md has the grammar.

A graph is one line for each of its parts. Arrays of more than 8 elements stand beside the text, under a digest of their
content.

`GraphDump` hands the graph of a stage to whoever dumps it: its text, and the arrays that the text names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

import numpy as np

from toolchain.foundation.type_guards import is_array, is_sequence
from toolchain.ir.graph import Graph, Node, OnnxOp, TensorType

Arrays = dict[str, np.ndarray]  # by the digest of their content
INLINE = 8  # elements of an array that is written where it stands
WORD = re.compile(r"[A-Za-z_/][\w./@-]*")  # a name that needs no quotes
RESERVED = frozenset({"None", "True", "False", "nan", "inf"})


def print_graph(graph: Graph, stage: str = "", arrays: Arrays | None = None) -> str:
    """Return the text of a graph.

    `arrays`: gains the larger arrays by the digest that stands in the text; None: they are only named.
    """
    arrays = {} if arrays is None else arrays
    stage_words = f" stage {stage}" if stage else ""
    lines = [f"graph {print_name(graph.name)}{stage_words} ({_names(graph.inputs)}) -> ({_names(graph.outputs)})"]
    outputs = {name for node in graph.nodes for name in node.outputs}
    for name, kind in graph.types.items():
        if name not in outputs and name not in graph.constants:
            lines.append(f"  tensor {print_name(name)}: {print_type(kind)}")
    lines += [_print_node(node, graph, arrays) for node in graph.nodes]
    for name, value in sorted(graph.constants.items()):
        lines.append(f"  constant {_print_typed(name, graph)} = {_print_array(value, arrays)}")
    lines += [f"  origin {print_name(n)}: {print_name(o.tensor)} {o.layout}" for n, o in graph.origins.items()]
    lines += [f"  state {print_value(state, arrays)}" for state in graph.states]
    return "\n".join(lines) + "\n"


def print_name(name: str) -> str:
    """Return a name as it stands in a text, in quotes where it is no plain word."""
    return name if WORD.fullmatch(name) and name not in RESERVED else json.dumps(name)


def print_type(kind: TensorType) -> str:
    """Return the text of a tensor's type, with its scale and zero point in braces."""
    quant = f" {{scale {float(kind.quant.scale)!r}, zero point {kind.quant.zero_point}}}" if kind.quant else ""
    return f"{kind.dtype}[{', '.join(map(str, kind.shape))}]{quant}"


def print_operator(node: Node, arrays: Arrays | None = None) -> str:
    """Return the text of a node's operator with its parameters. `arrays`: as in `print_graph`."""
    arrays = {} if arrays is None else arrays
    if isinstance(node.op, OnnxOp):
        pairs = sorted(node.op.attributes.items())
        attributes = ", ".join(f"{print_name(name)}={print_value(value, arrays)}" for name, value in pairs)
        qualified = f"{node.op.domain or 'onnx'}.{node.op.op_type}"
        return f"{print_name(qualified)}<{attributes}>"
    return print_value(node.op, arrays)


def digest(value: np.ndarray) -> str:
    """Return 16 hexadecimal digits of a hash of the array's type, shape and content."""
    described = f"{value.dtype.str}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    return hashlib.sha256(described).hexdigest()[:16]


def _print_node(node: Node, graph: Graph, arrays: Arrays) -> str:
    outputs = ", ".join(_print_typed(name, graph) for name in node.outputs)
    sources = f" from {_names(node.sources)}" if node.sources else ""
    return f"  {outputs} = {print_operator(node, arrays)}({_names(node.inputs)})  node {print_name(node.name)}{sources}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(print_name, names))


def _print_typed(name: str, graph: Graph) -> str:
    return f"{print_name(name)}: {print_type(graph.types[name])}" if name in graph.types else print_name(name)


def print_value(value: Any, arrays: Arrays | None = None) -> str:
    """Return the text of a value of any depth.

    A part that occurs several times is written at its first occurrence as `#1=...`, and is `#1` afterwards.
    """
    arrays = {} if arrays is None else arrays
    repeated, numbers = _get_repeated_ids(value), dict[int, int]()
    pieces: list[str] = []
    pending: list[Any] = [value]  # the next one last; a _Piece is written as it is
    while pending:
        part = pending.pop()
        if isinstance(part, _Piece) or not (is_sequence(part) or _has_fields(part)):
            pieces.append(part if isinstance(part, _Piece) else _print_plain(part, arrays))
            continue
        if id(part) in numbers:
            pieces.append(f"#{numbers[id(part)]}")
            continue
        if id(part) in repeated:
            numbers[id(part)] = len(numbers) + 1
            pieces.append(f"#{numbers[id(part)]}=")
        pending += reversed(list(_list_pieces(part)))
    return "".join(pieces)


class _Piece(str):
    """Punctuation or a name of a text, beside values that are strings."""


def _list_pieces(part: Any) -> Iterator[Any]:
    """Yield the punctuation of a tuple or dataclass, and the values between it."""
    names = _field_names(part)
    yield _Piece(f"{type(part).__name__}<" if names is not None else "(")
    for index, item in enumerate(part if names is None else [getattr(part, name) for name in names]):
        yield _Piece((", " if index else "") + (f"{names[index]}=" if names is not None else ""))
        yield item
    yield _Piece(")" if names is None else ">")


def _field_names(part: Any) -> Sequence[str] | None:
    """Return the names of the fields of a dataclass or named tuple; None for a plain tuple or list."""
    return [f.name for f in fields(part)] if _has_fields(part) else getattr(part, "_fields", None)


def _get_repeated_ids(value: Any) -> set[int]:
    """Return the ids of tuples of tuples that occur more than once in the value."""
    met, repeated = set[int](), set[int]()
    pending = [value]
    while pending:
        part = pending.pop()
        if _has_fields(part):
            pending += [getattr(part, f.name) for f in fields(part)]
        elif is_sequence(part) and any(is_sequence(item) for item in part):
            if id(part) in met:
                repeated.add(id(part))
                continue
            met.add(id(part))
            pending += part
    return repeated


def _has_fields(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _print_plain(value: Any, arrays: Arrays) -> str:
    if is_array(value):
        return _print_array(value, arrays)
    plain: object = cast(Any, value).item() if isinstance(value, np.generic) else value
    return print_name(plain) if isinstance(plain, str) else repr(plain)


def _print_array(value: np.ndarray, arrays: Arrays) -> str:
    """Return `<int8[2] 1, 2>`; for a larger array its least and largest element and its digest, which `arrays` gains."""
    head = f"{value.dtype.name}[{', '.join(map(str, value.shape))}]"
    if value.size <= INLINE and value.dtype.kind in "biuf":
        return f"<{head} {', '.join(repr(v) for v in value.reshape(-1).tolist())}>"
    key = digest(value)
    arrays[key] = value
    ends = f" {value.min():.6g}..{value.max():.6g}" if value.size and value.dtype.kind in "iuf" else ""
    return f"<{head}{ends} @{key}>"


@dataclass(frozen=True)
class GraphDump:
    """A graph at the end of a stage; calling it returns its text.

    `head`: a line in front of the text, "" for none.
    """

    stage: str
    graph: Graph[Any]
    head: str = ""

    def __call__(self) -> str:
        return self.print_text({})

    def print_text(self, arrays: Arrays) -> str:
        """Return the text; `arrays` gains its larger arrays by digest."""
        return self.head + print_graph(self.graph, self.stage, arrays)


def dump_of(entry: str, dump: Callable[[str, Callable[[], str]], None]) -> Callable[[str, Callable[[], str]], None]:
    """Return a function that calls `dump` with each stage's text, the name of its entry in a line in front."""
    head = f"entry {entry}\n"

    def dump_entry(stage: str, text: Callable[[], str]) -> None:
        dump(stage, replace(text, head=head) if isinstance(text, GraphDump) else lambda: head + text())

    return dump_entry
