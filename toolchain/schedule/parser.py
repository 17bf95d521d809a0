"""Parse schedules: text, printed by `schedule.text` or written by hand, becomes the nodes of `schedule.nodes`.

Names are not looked up here; `schedule.bind_region` does that. A ring is a tile buffer, a fetch a prefetch of
constants. By the first word of a line, _FORMS says how it is written, for messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from quant.suggestion import suggestion
from toolchain.errors import CompileError, format_count
from toolchain.foundation.atomic_files import read_limited
from toolchain.input_limits import NUMBER_CHARACTERS, SCHEDULE_BYTES
from toolchain.schedule.nodes import (
    ALL,
    BLOCKS,
    ROLES,
    Call,
    CascadeTree,
    Fetch,
    LayerTree,
    Loop,
    OperandBuffer,
    Prefetch,
    RegionTree,
    Ring,
    Role,
    Tensor,
    TensorAlloc,
)
from toolchain.schedule.text import PLAIN

_TOKEN = re.compile(rf'\s+|#.*|(?P<name>"(?:[^"\\]|\\.)*")|(?P<word>{PLAIN.pattern})|(?P<comma>,)')
_FORMS = {
    "region": 'region NUMBER [entry "NAME"] [level NUMBER] [within NUMBER] [sample]',
    "alloc": 'alloc "TENSOR" in MEMORY [rows NUMBER]',
    "layer": 'layer "NAME"',
    "ring": "ring input NUMBER | constant NUMBER | output in MEMORY [slots NUMBER | all]",
    "fetch": 'fetch NUMBER behind "LAYER"',
    "for": "for AXIS by NUMBER",
    "call": "call [inline] | [on UNIT, ...] [dataflow NAME] [mode NAME]",
}


class FaultyLine(Exception):
    """An exception for a line of a schedule that cannot be read. Its message is the reason, without file and line."""


@dataclass
class Statement:
    """A line of a schedule, with the lines that are indented below it. Reading methods consume words and raise
    FaultyLine.

    `kind`: the first word. `words`: words after it that are still to be read; names keep their quotes.
    """

    line: int
    indent: int
    kind: str
    words: list[str]
    inside: list[Statement] = field(default_factory=lambda: list[Statement]())

    def next(self, what: str) -> str:
        """Read the next word. `what`: what it should be, for the message."""
        if not self.words:
            raise FaultyLine(f"ends where {what} is missing; it is written {_FORMS[self.kind]}")
        return self.words.pop(0)

    def expect(self, word: str) -> None:
        """Read the next word, which must be this one."""
        next_word = self.next(f"'{word}'")
        if next_word != word:
            raise FaultyLine(f"{next_word} stands where '{word}' must; it is written {_FORMS[self.kind]}")

    def name(self, what: str) -> str:
        """Read a name in quotes and return it without them. `what`: what has the name, for the message."""
        quoted = self.next(f"the name of a {what}, in quotes,")
        if not quoted.startswith('"'):
            raise FaultyLine(f'{quoted}: the name of a {what} stands in quotes: "{quoted}"')
        try:
            return cast(str, json.loads(quoted))
        except ValueError:
            raise FaultyLine(f'{quoted}: is no name in quotes as JSON has them; \\n, \\", \\\\ and \\u0041 are known') from None

    def word(self, what: str) -> str:
        """Read a name of the machine; it is in quotes only where it holds unusual characters."""
        token = self.next(what)
        if not token.startswith('"'):
            return token
        self.words.insert(0, token)
        return self.name(what)

    def number(self, what: str, least: int) -> int:
        """Read a whole number of at least `least`. `what`: what it counts, for the message."""
        digits = self.next(what)
        if not re.fullmatch(r"\d+", digits, re.ASCII) or len(digits) > NUMBER_CHARACTERS or int(digits) < least:
            raise FaultyLine(f"{what} {digits}: must be a whole number from {least} on")
        return int(digits)

    def takes(self, word: str) -> bool:
        """Read this word if it comes next. Return whether it does."""
        if self.words[:1] != [word]:
            return False
        self.words.pop(0)
        return True

    def end(self) -> None:
        """Raise FaultyLine where words are left."""
        if self.words:
            raise FaultyLine(f"{' '.join(self.words)}: too much; it is written {_FORMS[self.kind]}")


def statement_of(number: int, line: str) -> Statement | None:
    """Return the statement of a line, without lines inside it; None for a line without words. Raise FaultyLine.

    `number`: number of the line in its file.
    """
    words = list(_words(line))
    if not words:
        return None
    kind, indent = words[0], len(line) - len(line.lstrip(" "))
    if line[indent] == "\t":
        raise FaultyLine("begins with a tab; lines are indented by spaces")
    if kind not in _FORMS:
        raise FaultyLine(f"{kind}: must be one of {', '.join(_FORMS)}{suggestion(kind, _FORMS)}")
    return Statement(number, indent, kind, words[1:])


def _words(line: str) -> Iterator[str]:
    """Yield the words and quoted names of a line without its comment. Raise FaultyLine for anything else."""
    at = 0
    while at < len(line):
        token = _TOKEN.match(line, at)
        if token is None:
            raise FaultyLine(f"{line[at : at + 40].rstrip()}: is neither a name in quotes, nor a word, nor a comment behind '#'")
        if token.lastgroup is not None:
            yield token.group()
        at = token.end()


Node = TypeVar("Node")


def read_schedule(path: str | Path) -> tuple[RegionTree, ...]:
    """Read a schedule's file and return its regions in order.

    Raise CompileError with every fault, a line each, also for a file that is no UTF-8 or holds no region. Raise OSError
    where it cannot be read.
    """
    data = read_limited(path, SCHEDULE_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise CompileError(f"{path}: is no text in UTF-8, as schedules are; npu-build --dump-schedule writes one") from None
    return parse_schedule(text, str(path))


def parse_schedule(text: str, file: str) -> tuple[RegionTree, ...]:
    """Return the regions of a schedule's text, at least one. Raise CompileError with every fault, a line each.

    `file`: name for the messages.
    """
    if text.split(maxsplit=1)[:1] == ["graph"]:
        raise CompileError(f"{file}: is the graph of a stage, not a schedule; give it to --start-from")
    if re.search(r"^isa ", text, re.MULTILINE):
        raise CompileError(f"{file}: is a listing of programs, not a schedule; npu-dis --assemble takes it")
    parser = _Parser(file)
    regions = parser.regions(parser.statements(text))
    if parser.faults:
        faults = [f"{file}:{line}: {fault}" for line, fault in sorted(parser.faults, key=lambda f: f[0])]
        raise CompileError("\n".join(faults))
    if not regions:
        raise CompileError(f"{file}: holds no region; a schedule begins with 'region 0', npu-build --dump-schedule writes one")
    return tuple(regions)


class _Parser:
    """A parser of one text. Faulty statements are left out, and noted in `faults` as (line, reason)."""

    def __init__(self, file: str):
        self._file = file
        self.faults: list[tuple[int, str]] = []

    def statements(self, text: str) -> list[Statement]:
        """Return the outermost statements of a text, each with those inside it. Faults are added to `faults`."""
        top: list[Statement] = []
        open_: list[Statement] = []
        for number, line in enumerate(text.split("\n"), 1):
            statement = self._try(number, lambda number=number, line=line: statement_of(number, line))
            if statement is None:
                continue
            while open_ and open_[-1].indent >= statement.indent:
                open_.pop()
            siblings = open_[-1].inside if open_ else top
            if siblings and siblings[-1].indent != statement.indent:
                self.faults.append((number, f"stands {statement.indent} to the right, what is beside it {siblings[-1].indent}"))
            siblings.append(statement)
            open_.append(statement)
        return top

    def regions(self, statements: Sequence[Statement]) -> list[RegionTree]:
        """Return the regions of the outermost statements."""
        trees = self._each(statements, {"region": self._region}, "a schedule holds regions")
        first_lines: dict[tuple[str, int], int] = {}
        for region in trees:
            first = first_lines.setdefault((region.entry, region.region), region.line)
            if first != region.line:
                self.faults.append((region.line, f"region {region.region}: is there already, in line {first}"))
        return trees

    def _region(self, stmt: Statement) -> RegionTree:
        """Return the region of a statement. Tensors that come after a layer are noted as faults."""
        number, level = stmt.number("the number of a region", 0), -1
        entry = stmt.name("entry") if stmt.takes("entry") else ""
        if stmt.takes("level"):
            level = stmt.number("level", 0)
        within = stmt.number("within", 1) if stmt.takes("within") else 0
        sample = stmt.takes("sample")
        stmt.end()
        kinds: dict[str, Callable[[Statement], TensorAlloc | LayerTree | CascadeTree]] = {
            "alloc": self._tensor,
            "layer": self._layer,
            "for": self._cascade,
        }
        nodes = self._each(stmt.inside, kinds, "a region holds tensors, layers, and loops over layers")
        tensors = tuple(node for node in nodes if isinstance(node, TensorAlloc))
        late = next((tensor for node, tensor in zip(nodes, tensors) if node is not tensor), None)
        if late is not None:
            self.faults.append((late.line, "alloc: tensors stand in front of the layers of their region"))
        parts = tuple(node for node in nodes if not isinstance(node, TensorAlloc))
        return RegionTree(number, tensors, parts, level, sample, entry, within, line=stmt.line, file=self._file)

    def _tensor(self, stmt: Statement) -> TensorAlloc:
        """Return the tensor of `alloc NAME in MEMORY [rows N]`. Raise FaultyLine where it is another."""
        name = stmt.name("tensor")
        stmt.expect("in")
        memory = stmt.word("a memory")
        rows = stmt.number("rows", 1) if stmt.takes("rows") else 0
        self._require_end(stmt)
        return TensorAlloc(Tensor(name, rows), memory, line=stmt.line)

    def _cascade(self, stmt: Statement) -> CascadeTree:
        """Return the cascade of a loop over layers; a loop over blocks may hold one over rows. Raise FaultyLine where
        it has none.
        """
        loop, inside = self._loop(stmt), stmt.inside
        if loop.axis in BLOCKS and inside and inside[0].kind == "for":
            self._alone(inside)
            cascade = self._cascade(inside[0])
            return CascadeTree((loop, *cascade.loops), cascade.layers)
        layers = self._each(inside, {"layer": self._layer}, "layers take turns in a loop")
        if not inside:
            raise FaultyLine("for: holds no layer; layers that take turns stand in it, further to the right")
        return CascadeTree((loop,), tuple(layers))

    def _loop(self, stmt: Statement) -> Loop:
        """Return the loop of `for AXIS by STEP`. Raise FaultyLine where it is another."""
        axis = stmt.word("an axis")
        stmt.expect("by")
        step = stmt.number("step", 1)
        stmt.end()
        return Loop(axis, step, line=stmt.line)

    def _layer(self, stmt: Statement) -> LayerTree:
        """Return the layer of a statement: rings and fetches, then loops inside one another, then a call.

        Faults inside are noted; raise FaultyLine where no call is reached.
        """
        name = stmt.name("layer")
        stmt.end()
        allocs, loops = list[Ring | Fetch](), list[Loop]()
        inside = stmt.inside
        while inside and inside[0].kind in ("ring", "fetch"):
            allocs += self._each(inside[:1], {"ring": self._ring, "fetch": self._fetch}, "")
            inside = inside[1:]
        at = stmt
        while inside and inside[0].kind == "for":
            at = inside[0]
            loop = self._try(at.line, lambda at=at: self._loop(at))
            loops += [] if loop is None else [loop]
            self._alone(inside)
            inside = at.inside
        if not inside:
            raise FaultyLine(f"{at.kind}: nothing is called in it; a layer's rings and loops end with 'call'")
        self._alone(inside)
        calls = self._each(
            inside[:1], {"call": lambda call: self._call(name, stmt.line, call)}, "a layer holds rings, then loops, then a call"
        )
        rings, fetches = (tuple(a for a in allocs if isinstance(a, Ring)), tuple(a for a in allocs if isinstance(a, Fetch)))
        return LayerTree(calls[0] if calls else Call(name), tuple(loops), rings, fetches)

    def _alone(self, statements: Sequence[Statement]) -> None:
        """Add a fault for each statement behind the first."""
        for other in statements[1:]:
            self.faults.append(
                (other.line, f"{other.kind}: is one too many; a layer holds rings, then one loop in another, then a call")
            )

    def _ring(self, stmt: Statement) -> Ring:
        """Return the ring of `ring ROLE [NUMBER] in MEMORY [slots N]`. Raise FaultyLine where it is another."""
        role = stmt.next("input, constant or output")
        if role not in ROLES.values():
            raise FaultyLine(f"ring {role}: must be input, constant or output{suggestion(role, ROLES.values())}")
        number = (
            0 if role == "output" else stmt.number(f"the number of an {role}" if role == "input" else "a constant's number", 0)
        )
        stmt.expect("in")
        memory, slots = stmt.word("a memory"), 1
        if stmt.takes("slots"):
            slots = ALL if stmt.takes(ALL) else stmt.number("slots", 1)
        self._require_end(stmt)
        return Ring(OperandBuffer(cast(Role, role), number), memory, slots, line=stmt.line)

    def _fetch(self, stmt: Statement) -> Fetch:
        """Return the fetch of `fetch N behind LAYER`. Its memory stays empty. Raise FaultyLine where it is another."""
        constants = stmt.number("how many of the constants", 1)
        stmt.expect("behind")
        layer = stmt.name("layer")
        self._require_end(stmt)
        return Fetch(Prefetch(constants, layer), "", line=stmt.line)

    def _call(self, layer: str, line: int, stmt: Statement) -> Call:
        """Return the call of `call ...`. Raise FaultyLine where it is another. `line`: of its layer, for later faults."""
        units: list[str] = []
        if stmt.takes("inline"):
            self._require_end(stmt)
            return Call(layer, inline=True, line=line)
        if stmt.takes("on"):
            units.append(stmt.word("a unit"))
            while stmt.takes(","):
                units.append(stmt.word("a unit"))
        flow = stmt.word("a dataflow") if stmt.takes("dataflow") else ""
        mode = stmt.word("a mode") if stmt.takes("mode") else ""
        self._require_end(stmt)
        return Call(layer, tuple(units), flow, mode, line=line)

    def _require_end(self, stmt: Statement) -> None:
        """Raise FaultyLine where words or inner lines follow."""
        stmt.end()
        if stmt.inside:
            raise FaultyLine(
                f"{stmt.kind}: nothing stands in it, but {format_count(len(stmt.inside), 'line')} further to the right"
            )

    def _each(self, statements: Sequence[Statement], kinds: dict[str, Callable[[Statement], Node]], rule: str) -> list[Node]:
        """Return the nodes of those statements that can be read.

        `kinds`: by kind of statement that may stand here, the function that reads it. `rule`: what may stand here, for
        the message.
        """
        nodes: list[Node] = []
        for stmt in statements:
            if stmt.kind not in kinds:
                self.faults.append((stmt.line, f"{stmt.kind}: does not stand here; {rule}{suggestion(stmt.kind, kinds)}"))
                continue
            node = self._try(stmt.line, lambda stmt=stmt: kinds[stmt.kind](stmt))
            nodes += [] if node is None else [node]
        return nodes

    def _try(self, line: int, make: Callable[[], Node | None]) -> Node | None:
        """Return what `make` returns; None where it raises FaultyLine, which is then added to `faults`."""
        try:
            return make()
        except FaultyLine as fault:
            self.faults.append((line, str(fault)))
            return None
