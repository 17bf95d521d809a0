"""Parse the text of a graph that `toolchain.ir.text` printed, or that somebody edited (docs/stages.md has the grammar).

Every fault is a CompileError with the file, and the line where one is at fault.
Operators are built from their fields, which `field_rules` checks.
Brackets in a value nest at most `MOST_LEVELS` deep: Python follows 1,000 calls into each other, and a level takes two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np

from quant.fixed_point.core.fixed_point_errors import FixedPointError
from toolchain.errors import CompileError, ToolchainError, first_line
from toolchain.ir.field_rules import find_field_fault, find_hint_fault, has_limits
from toolchain.ir.graph import Graph, Node, OnnxOp, Operator, Origin, Quant, TensorType
from toolchain.ir.states import ChipState, CircularState, StatePair, StatePart
from toolchain.ir.text import WORD, Arrays, digest

_STATES: Mapping[str, type] = {c.__name__: c for c in (ChipState, CircularState, StatePair, StatePart)}
_CONSTANTS = {"None": None, "True": True, "False": False, "nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_SCHEDULES = ("region", "entry")  # first words of schedules
_TOKEN = re.compile(
    r"(?P<array><(?:bool|u?int\d+|b?float\d+\w*|object|str\d*)\[[^\]]*\][^>]*>)"
    r'|(?P<quoted>"(?:[^"\\]|\\.)*")'
    r"|(?P<shared>#\d+=?)"
    r"|(?P<number>-inf|-?\d[\d.]*(?:e[+-]?\d+)?)"
    rf"|(?P<word>{WORD.pattern})"
    r"|(?P<mark>->|[(){}\[\]<>,:=])"
)
_ARRAY = re.compile(r"<(\w+)\[([^\]]*)\] ?(.*)>")
_CLOSE = {"(": ")", "<": ">"}
MOST_LEVELS = 200  # source: Python's limit of 1,000 calls


class _FieldError(ValueError):
    """A value of a field that its class does not have."""


class StageGraph(NamedTuple):
    """A graph from a text. `stage`: the stage of the build behind which it stands, "" where the text names none.

    `places`: file and line of each node, by its name, for messages.
    """

    stage: str
    graph: Graph[Any]
    places: Mapping[str, str] = MappingProxyType({})

    @property
    def is_integer(self) -> bool:
        """True where the graph has been quantized, so that nothing is left to calibrate for it."""
        return self.stage in ("quantize", "fuse")


class _Token(NamedTuple):
    """A token of the text. `kind`: array, quoted, shared, number, word or mark, the groups of `_TOKEN`."""

    kind: str
    text: str


@dataclass
class _Open:
    """A tuple or dataclass that is being read.

    `make`: the class, None for a tuple. `shared`: its number as a part that occurs several times.
    `items`, `names`: values and fields so far. `depth`: the most levels of an item so far.
    """

    make: type | None
    shared: str | None
    items: list[Any] = field(default_factory=list[Any])
    names: list[str] = field(default_factory=list[str])
    depth: int = 0


@dataclass
class _Line:
    """The tokens of one line, with the place of the next. `where`: file and line for messages."""

    tokens: list[_Token]
    where: str
    next: int = 0

    def fault(self, message: str) -> CompileError:
        """Return the error for this line."""
        return CompileError(f"{self.where}: {message}")

    def peek(self, offset: int = 0) -> str:
        """Return the text of a token to come, "" behind the last."""
        place = self.next + offset
        return self.tokens[place].text if place < len(self.tokens) else ""

    def take(self, *expected: str) -> _Token:
        """Take the next token. Raise CompileError where another one is expected."""
        if self.next >= len(self.tokens):
            raise self.fault(f"ends early; {' or '.join(expected) or 'more'} is expected")
        token = self.tokens[self.next]
        if expected and token.text not in expected:
            raise self.fault(f"{token.text} stands where {' or '.join(expected)} is expected")
        self.next += 1
        return token

    def end(self) -> None:
        """Raise CompileError where a token is left."""
        if self.next < len(self.tokens):
            raise self.fault(f"{self.peek()} stands behind the end of its statement")

    def take_if(self, text: str) -> bool:
        """Take the next token if it is this text; return whether it was."""
        matches = self.peek() == text
        self.next += matches
        return matches

    def take_name(self) -> str:
        """Take a name, in quotes or not. Raise CompileError where something else stands there."""
        token = self.take()
        if token.kind == "quoted":
            return self.unquote(token)
        if token.kind != "word":
            raise self.fault(f"{token.text} is no name; other names stand in double quotes")
        return token.text

    def unquote(self, token: _Token) -> str:
        try:
            return json.loads(token.text)
        except ValueError:
            raise self.fault(f"{token.text} is no text in quotes as JSON has it") from None

    def take_int(self) -> int:
        token = self.take()
        try:
            return int(token.text)
        except ValueError:
            raise self.fault(f"{token.text} is no whole number") from None

    def take_names(self, close: str = "") -> tuple[str, ...]:
        """Take names between commas, up to `close`, or to the end of the line."""
        names: list[str] = []
        while self.peek() != close:
            if names:
                self.take(",")
            names.append(self.take_name())
        if close:
            self.take(close)
        return tuple(names)

    def take_type(self) -> TensorType:
        """Take a tensor's type, as in `int8[1, 8] {scale 0.5, zero point 3}`. Raise CompileError for a type or scale that
        cannot be.
        """
        dtype = self.take_name()
        try:
            limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
        except (TypeError, ValueError, SyntaxError):
            raise self.fault(f"{dtype} is no type of elements; int8 and float32 are") from None
        self.take("[")
        shape: list[int] = []
        while not self.take_if("]"):
            if shape:
                self.take(",")
            shape.append(self.take_int())
            if shape[-1] < 0:
                raise self.fault(f"dimension {shape[-1]} is below 0")
        if not self.take_if("{"):
            return TensorType(tuple(shape), dtype)
        self.take("scale")
        try:
            scale = float(self.take().text)
        except ValueError:
            raise self.fault("scale is no number") from None
        if not 0 < scale < float("inf"):
            raise self.fault(f"scale {scale!r} is not a finite number above 0")
        for text in (",", "zero", "point"):
            self.take(text)
        zero_point = self.take_int()
        if limits is not None and not limits.min <= zero_point <= limits.max:
            raise self.fault(f"zero point {zero_point} is no code of {dtype}, which has {limits.min} to {limits.max}")
        self.take("}")
        return TensorType(tuple(shape), dtype, Quant(scale, zero_point))


@dataclass
class _Parser:
    """A parser with the parts that it has read so far. `arrays`: larger arrays by digest, `classes`: operators by name."""

    classes: Mapping[str, type]
    arrays: Mapping[str, np.ndarray]
    nodes: list[Node] = field(default_factory=list[Node])
    lines_by_node: dict[str, _Line] = field(default_factory=dict[str, _Line])
    types: dict[str, TensorType] = field(default_factory=dict[str, TensorType])
    constants: Arrays = field(default_factory=Arrays)
    origins: dict[str, Origin] = field(default_factory=dict[str, Origin])
    states: list[ChipState] = field(default_factory=list[ChipState])

    def read_line(self, line: _Line) -> None:
        """Read one statement: a tensor, a constant, an origin, a state or a node. Raise CompileError."""
        keyword = line.peek() if line.peek(1) not in (":", "=", ",") else ""
        if keyword == "tensor":
            line.take()
            self._take_typed(line)
        elif keyword == "constant":
            line.take()
            name = self._take_typed(line)
            line.take("=")
            self.constants[name] = self._array(line, line.take())
        elif keyword == "origin":
            line.take()
            name = line.take_name()
            line.take(":")
            self.origins[name] = Origin(line.take_name(), line.take_name())
        elif keyword == "state":
            line.take()
            self.states.append(self.take_value(line))
        else:
            self._read_node(line)
        line.end()

    def _take_typed(self, line: _Line) -> str:
        """Take a tensor's name, and its type where one follows; return the name. Raise CompileError where it has a type
        already.
        """
        name = line.take_name()
        if line.take_if(":"):
            if name in self.types:
                raise line.fault(f"tensor {name} is defined a second time")
            self.types[name] = line.take_type()
        return name

    def _read_node(self, line: _Line) -> None:
        """Read a node: outputs, operator, inputs, name, and sources. Raise CompileError where another node has its name."""
        outputs = [self._take_typed(line)]
        while line.take_if(","):
            outputs.append(self._take_typed(line))
        line.take("=")
        op = self._take_operator(line)
        line.take("(")
        inputs = line.take_names(")")
        line.take("node")
        name = line.take_name()
        if name in self.lines_by_node:
            first = self.lines_by_node[name].where
            raise line.fault(f"node {name} is defined a second time, first in {first}; give it another name")
        sources = line.take_names() if line.take_if("from") else ()
        self.nodes.append(Node(name, op, inputs, tuple(outputs), sources))
        self.lines_by_node[name] = line

    def check_fields(self) -> None:
        """Raise CompileError for fields that do not fit the node's tensors, whose lines may stand behind its own."""
        for node in self.nodes:
            if fault := find_field_fault(node, self.types):
                raise self.lines_by_node[node.name].fault(fault)

    def _take_operator(self, line: _Line) -> Operator:
        """Take `domain.Operator<...>` of ONNX, or `Operator<...>` of the chip."""
        name = line.peek()
        if name in self.classes:
            return self.take_value(line)
        domain, dot, op_type = line.take_name().rpartition(".")
        if not dot:
            raise line.fault(f"{name} is no operator of the chip; of ONNX's the domain stands in front, as in onnx.Relu")
        attributes: dict[str, Any] = {}
        line.take("<")
        while not line.take_if(">"):
            if attributes:
                line.take(",")
            key = line.take_name()
            line.take("=")
            attributes[key] = self.take_value(line)
        return OnnxOp(op_type, attributes, "" if domain == "onnx" else domain)

    def take_value(self, line: _Line) -> Any:
        """Take a value of at most MOST_LEVELS levels, those of shared parts counted where they are used."""
        shared: dict[str, tuple[Any, int]] = {}  # values with their levels
        opened: list[_Open] = []
        number: str | None = None  # of a shared part that begins here
        while True:
            token, levels = line.take(), 0
            if token.kind == "shared" and token.text.endswith("="):
                number = token.text[1:-1]
                continue
            if opened and token.text == ("(" if opened[-1].make is None else "<").translate(_CLOSERS):
                levels = opened[-1].depth + 1
                value = self._close(line, opened.pop(), shared)
            elif token.text == "(" or (token.kind == "word" and line.peek() == "<"):
                opened.append(_Open(None if token.text == "(" else self._class(line, token.text), number))
                number = None
                self._begin_item(line, opened[-1])
                continue
            elif token.kind == "shared":
                if token.text[1:] not in shared:
                    raise line.fault(f"{token.text} stands for a part, and no part before it is {token.text}=")
                value, levels = shared[token.text[1:]]
            else:
                value = self._plain(line, token)
            if not opened:
                return value
            opened[-1].items.append(value)
            opened[-1].depth = max(opened[-1].depth, levels)
            if max(len(opened), opened[-1].depth) >= MOST_LEVELS:
                raise line.fault(f"a value has more than {MOST_LEVELS} levels of brackets")
            if line.take_if(","):
                self._begin_item(line, opened[-1])

    def _class(self, line: _Line, name: str) -> type:
        """Return the class of this name, an operator or a part of one. Raise CompileError for others."""
        line.take("<")
        if name not in self.classes and name not in _STATES:
            raise line.fault(f"{name} is no operator of the chip, and no part of one")
        return self.classes.get(name) or _STATES[name]

    def _begin_item(self, line: _Line, part: _Open) -> None:
        if part.make is not None and line.peek() != ">":
            part.names.append(line.take_name())
            line.take("=")

    def _close(self, line: _Line, part: _Open, shared: dict[str, tuple[Any, int]]) -> Any:
        """Return the tuple or object of a bracket that ends, and remember it where it is a shared part."""
        value: Any = tuple(part.items)
        if part.make is not None:
            if len(part.names) != len(part.items):
                raise line.fault(f"{part.make.__name__}: has {len(part.items)} values for {len(part.names)} fields")
            value = self._construct(line, part.make, dict(zip(part.names, part.items)))
        if part.shared is not None:
            shared[part.shared] = value, part.depth + 1
        return value

    def _construct(self, line: _Line, make: type, values: dict[str, Any]) -> Any:
        """Return an operator, or a part of one, with these field values. Raise CompileError.

        Strings become members of an Enum where the field is one.
        """
        hints, names = get_type_hints(make), [one.name for one in fields(make)]
        unknown = next((name for name in values if name not in names), None)
        if unknown is not None:
            raise line.fault(f"{make.__name__}: has no field {unknown}; its fields are {', '.join(names)}")
        missing = [f.name for f in fields(make) if f.name not in values and f.default is f.default_factory is MISSING]
        if missing:
            raise line.fault(f"{make.__name__}: lacks {', '.join(missing)}")
        try:
            fitted = {name: _as_hinted(name, value, hints.get(name)) for name, value in values.items()}
        except _FieldError as error:
            raise line.fault(f"{make.__name__}: {error}") from None
        try:
            return make(**fitted)
        except Exception as error:
            own_sentence = not has_limits(make) or isinstance(error, FixedPointError | ToolchainError)
            message = first_line(error).removeprefix(f"{make.__name__}: ") if own_sentence else find_hint_fault(make, fitted)
            raise line.fault(f"{make.__name__}: {message or 'its fields do not fit each other'}") from None

    def _plain(self, line: _Line, token: _Token) -> Any:
        """Return the value of one token: an array, a text, a constant such as None, a word or a number."""
        if token.kind == "array":
            return self._array(line, token)
        if token.kind == "quoted":
            return line.unquote(token)
        if token.text in _CONSTANTS:
            return _CONSTANTS[token.text]
        if token.kind == "word":
            return token.text
        try:
            return int(token.text) if re.fullmatch(r"-?\d+", token.text) else float(token.text)
        except ValueError:
            raise line.fault(f"{token.text} stands where a value is expected") from None

    def _array(self, line: _Line, token: _Token) -> np.ndarray:
        """Return an array: its elements where they stand in the text, else the stored one of its digest."""
        parts = _ARRAY.fullmatch(token.text)
        if parts is None:
            raise line.fault(f"{token.text} stands where an array is expected")
        dtype, shape, content = parts.groups()
        place = content.rpartition("@")
        if place[1]:
            return self._find_stored(line, token.text, place[2])
        try:
            values = [_CONSTANTS.get(text, text) for text in content.split(", ") if text]
            sizes = [int(n) for n in shape.split(",") if n.strip()]
            return np.array(values, object).astype(dtype).reshape(sizes)
        except (TypeError, ValueError, OverflowError):
            raise line.fault(f"{token.text}: its elements are not as many as its shape says, or none of {dtype}") from None

    def _find_stored(self, line: _Line, text: str, key: str) -> np.ndarray:
        """Return the array of this digest. Raise CompileError where it is missing, or differs from what the text says of it."""
        if key not in self.arrays:
            raise line.fault(f"array @{key} is not in the .npz file beside the text; dump both in one build")
        if digest(self.arrays[key]) != key:
            raise line.fault(f"array @{key} of the .npz file beside the text is not the one that the text means")
        stored = self.arrays[key]
        if not text.startswith(kind := f"<{stored.dtype}{list(stored.shape)} "):
            raise line.fault(f"{text}: array @{key} of the .npz file beside the text is {kind[1:-1]}")
        return stored


_CLOSERS = {ord(opening): closing for opening, closing in _CLOSE.items()}


def _as_hinted(name: str, value: Any, hint: Any) -> Any:
    """Return a member of the Enum that a field's type names, for its value as a string; else the value. Raise _FieldError."""
    if isinstance(value, str):
        for kind in (hint, *get_args(hint)):
            if isinstance(kind, type) and issubclass(kind, Enum):
                if value not in (members := [str(member.value) for member in kind]):
                    raise _FieldError(f"{name} {value}: must be one of {', '.join(members)}")
                return kind(value)
    return value


def classes_of(root: type) -> dict[str, type]:
    """Return, by name, all dataclasses that derive from `root` and those that their fields may hold."""
    pending, classes = list[Any]([root]), dict[str, type]()
    while pending:
        kind: Any = pending.pop()
        pending += get_args(kind)
        if isinstance(kind, type):
            pending += kind.__subclasses__()
        if isinstance(kind, type) and is_dataclass(kind) and classes.setdefault(kind.__name__, kind) is kind:
            pending += [hint for hint in get_type_hints(kind).values() if hint not in classes.values()]
    return classes


def parse_graph(text: str, name: str, classes: Mapping[str, type], arrays: Mapping[str, np.ndarray]) -> StageGraph:
    """Return the graph of a text. It is not verified. Raise CompileError with the line of what cannot be parsed.

    `name`: the file, for messages. `classes`: operators and their parts by name. `arrays`: larger arrays by digest.
    """
    first_word = text.split(maxsplit=1)[0] if text.strip() else ""
    if first_word in _SCHEDULES and re.search(r"^isa ", text, re.MULTILINE):
        raise CompileError(f"{name}: is a listing of programs, with which no build begins; npu-dis --assemble takes it")
    if first_word in _SCHEDULES:
        raise CompileError(f"{name}: is a schedule, not the graph of a stage; give it to --schedule")
    if first_word != "graph":
        raise CompileError(f"{name}: does not begin with 'graph'; npu-build --dump-after writes such a text")
    lines = [_tokens(line, f"{name}, line {number}") for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    head, parser = lines[0], _Parser(classes, arrays)
    head.take()
    graph_name = head.take_name()
    stage = head.take_name() if head.take_if("stage") else ""
    head.take("(")
    inputs = head.take_names(")")
    for mark in ("->", "("):
        head.take(mark)
    outputs = head.take_names(")")
    head.end()
    for line in lines[1:]:
        if line.peek() == "graph" and line.peek(1) not in (":", "=", ","):
            raise line.fault("a second graph begins; keep the one to start from")
        parser.read_line(line)
    parser.check_fields()
    graph = Graph(
        graph_name, tuple(parser.nodes), inputs, outputs, parser.types, parser.constants, parser.origins, tuple(parser.states)
    )
    return StageGraph(stage, graph, {name: line.where for name, line in parser.lines_by_node.items()})


def _tokens(text: str, where: str) -> _Line:
    return _Line(list(_split_tokens(text, where)), where)


def _split_tokens(text: str, where: str) -> Iterator[_Token]:
    """Yield the tokens of a line. Raise CompileError for text that is none."""
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            raise CompileError(f"{where}: {text[place : place + 20]!r} is not understood")
        yield _Token(match.lastgroup, match.group())
        place = match.end()
