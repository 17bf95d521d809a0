"""The parser reads schedules, the text of `schedule.text`, written or edited by hand; `schedule.bind_region` resolves names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from quant.suggestion import suggestion
from toolchain.atomic_files import read_limited
from toolchain.errors import CompileError, format_count
from toolchain.input_limits import NUMBER_CHARACTERS, SCHEDULE_BYTES
from toolchain.schedule.nodes import (
    ALL,
    BLOCKS,
    ROLES,
    Alloc,
    Call,
    Fetch,
    LayerTree,
    Loop,
    OperandBuffer,
    Prefetch,
    RegionTree,
    Ring,
    Role,
    Seq,
    Tensor,
    Tree,
    region_body,
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
    """What is wrong with a line, in words."""


@dataclass
class Statement:
    """A line and those that stand in it, by their indentation. words: left to be read behind the first; names are in quotes."""

    line: int
    indent: int
    kind: str
    words: list[str]
    inside: list[Statement] = field(default_factory=list)

    def next(self, what: str) -> str:
        if not self.words:
            raise FaultyLine(f"ends where {what} is missing; it is written {_FORMS[self.kind]}")
        return self.words.pop(0)

    def expect(self, word: str) -> None:
        found = self.next(f"'{word}'")
        if found != word:
            raise FaultyLine(f"{found} stands where '{word}' must; it is written {_FORMS[self.kind]}")

    def name(self, what: str) -> str:
        found = self.next(f"the name of a {what}, in quotes,")
        if not found.startswith('"'):
            raise FaultyLine(f'{found}: the name of a {what} stands in quotes: "{found}"')
        try:
            return cast(str, json.loads(found))
        except ValueError:
            raise FaultyLine(f'{found}: is no name in quotes as JSON has them; \\n, \\", \\\\ and \\u0041 are known') from None

    def word(self, what: str) -> str:
        """Of the machine; quotes are needed only where it holds other characters."""
        found = self.next(what)
        if not found.startswith('"'):
            return found
        self.words.insert(0, found)
        return self.name(what)

    def number(self, what: str, least: int) -> int:
        found = self.next(what)
        if not re.fullmatch(r"\d+", found, re.ASCII) or len(found) > NUMBER_CHARACTERS or int(found) < least:
            raise FaultyLine(f"{what} {found}: must be a whole number from {least} on")
        return int(found)

    def takes(self, word: str) -> bool:
        """Whether it comes next; then it is read."""
        if self.words[:1] != [word]:
            return False
        self.words.pop(0)
        return True

    def end(self) -> None:
        if self.words:
            raise FaultyLine(f"{' '.join(self.words)}: too much; it is written {_FORMS[self.kind]}")


def statement_of(number: int, line: str) -> Statement | None:
    """None of an empty line."""
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
    at = 0
    while at < len(line):
        found = _TOKEN.match(line, at)
        if found is None:
            raise FaultyLine(f"{line[at : at + 40].rstrip()}: is neither a name in quotes, nor a word, nor a comment behind '#'")
        if found.lastgroup is not None:
            yield found.group()
        at = found.end()


Found = TypeVar("Found")


def read_schedule(path: str | Path) -> tuple[RegionTree, ...]:
    """The regions of a file. Raises CompileError with every fault of it, OSError naming the file."""
    data = read_limited(path, SCHEDULE_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise CompileError(f"{path}: is no text in UTF-8, as schedules are; npu-build --dump-schedule writes one") from None
    return parse_schedule(text, str(path))


def parse_schedule(text: str, file: str) -> tuple[RegionTree, ...]:
    """file: how faults name it. Raises CompileError with all of them."""
    parser = _Parser(file)
    regions = parser.regions(parser.statements(text))
    if parser.faults:
        told = [f"{file}:{line}: {fault}" for line, fault in sorted(parser.faults, key=lambda f: f[0])]
        raise CompileError("\n".join(told))
    if not regions:
        raise CompileError(f"{file}: holds no region; a schedule begins with 'region 0', npu-build --dump-schedule writes one")
    return tuple(regions)


class _Parser:
    def __init__(self, file: str):
        self._file = file
        self.faults: list[tuple[int, str]] = []

    def statements(self, text: str) -> list[Statement]:
        """The outermost ones."""
        top: list[Statement] = []
        open_: list[Statement] = []
        for number, line in enumerate(text.split("\n"), 1):
            found = self._try(number, lambda number=number, line=line: statement_of(number, line))
            if found is None:
                continue
            while open_ and open_[-1].indent >= found.indent:
                open_.pop()
            beside = open_[-1].inside if open_ else top
            if beside and beside[-1].indent != found.indent:
                self.faults.append((number, f"stands {found.indent} to the right, what is beside it {beside[-1].indent}"))
            beside.append(found)
            open_.append(found)
        return top

    def regions(self, statements: Sequence[Statement]) -> list[RegionTree]:
        found = self._each(statements, {"region": self._region}, "a schedule holds regions")
        seen: dict[tuple[str, int], int] = {}
        for region in found:
            first = seen.setdefault((region.entry, region.region), region.line)
            if first != region.line:
                self.faults.append((region.line, f"region {region.region}: is there already, in line {first}"))
        return found

    def _region(self, said: Statement) -> RegionTree:
        number, level = said.number("the number of a region", 0), -1
        entry = said.name("entry") if said.takes("entry") else ""
        if said.takes("level"):
            level = said.number("level", 0)
        within = said.number("within", 1) if said.takes("within") else 0
        sample = said.takes("sample")
        said.end()
        kinds: dict[str, Callable[[Statement], Tree]] = {"alloc": self._tensor, "layer": self._layer, "for": self._turns}
        parts = self._each(said.inside, kinds, "a region holds tensors, layers, and loops over layers")
        tensors = tuple(p for p in parts if isinstance(p, Alloc) and isinstance(p.buffer, Tensor))
        late = next((t for p, t in zip(parts, tensors) if p is not t), None)
        if late is not None:
            self.faults.append((late.line, "alloc: tensors stand in front of the layers of their region"))
        rest = tuple(p for p in parts if not (isinstance(p, Alloc) and isinstance(p.buffer, Tensor)))
        return RegionTree(number, region_body(tensors, rest), level, sample, entry, within, line=said.line, file=self._file)

    def _tensor(self, said: Statement) -> Alloc:
        name = said.name("tensor")
        said.expect("in")
        memory = said.word("a memory")
        rows = said.number("rows", 1) if said.takes("rows") else 0
        self._ended(said)
        return Alloc(Tensor(name, rows), memory, Seq(()), line=said.line)

    def _turns(self, said: Statement) -> Loop:
        axis, step = self._axis(said)
        if axis in BLOCKS and said.inside and said.inside[0].kind == "for":
            self._alone(said.inside)
            return Loop(axis, step, self._turns(said.inside[0]), line=said.line)
        parts = self._each(said.inside, {"layer": self._layer}, "layers take turns in a loop")
        if not parts and not said.inside:
            raise FaultyLine("for: holds no layer; layers that take turns stand in it, further to the right")
        return Loop(axis, step, Seq(tuple(parts)), line=said.line)

    def _axis(self, said: Statement) -> tuple[str, int]:
        axis = said.word("an axis")
        said.expect("by")
        step = said.number("step", 1)
        said.end()
        return axis, step

    def _layer(self, said: Statement) -> Tree:
        name = said.name("layer")
        said.end()
        allocs, loops = list[Ring | Fetch](), list[Loop]()
        inside = said.inside
        while inside and inside[0].kind in ("ring", "fetch"):
            allocs += self._each(inside[:1], {"ring": self._ring, "fetch": self._fetch}, "")
            inside = inside[1:]
        at = said
        while inside and inside[0].kind == "for":
            at = inside[0]
            said_axis = self._try(at.line, lambda at=at: self._axis(at))
            loops += [] if said_axis is None else [Loop(*said_axis, Seq(()), line=at.line)]
            self._alone(inside)
            inside = at.inside
        if not inside:
            raise FaultyLine(f"{at.kind}: nothing is called in it; a layer's rings and loops end with 'call'")
        self._alone(inside)
        calls = self._each(
            inside[:1], {"call": lambda call: self._call(name, said.line, call)}, "a layer holds rings, then loops, then a call"
        )
        rings, fetches = (tuple(a for a in allocs if isinstance(a, Ring)), tuple(a for a in allocs if isinstance(a, Fetch)))
        return LayerTree(rings, tuple(loops), calls[0] if calls else Call(name), fetches).tree()

    def _alone(self, statements: Sequence[Statement]) -> None:
        for other in statements[1:]:
            self.faults.append(
                (other.line, f"{other.kind}: is one too many; a layer holds rings, then one loop in another, then a call")
            )

    def _ring(self, said: Statement) -> Ring:
        role = said.next("input, constant or output")
        if role not in ROLES.values():
            raise FaultyLine(f"ring {role}: must be input, constant or output{suggestion(role, ROLES.values())}")
        number = (
            0 if role == "output" else said.number(f"the number of an {role}" if role == "input" else "a constant's number", 0)
        )
        said.expect("in")
        memory, slots = said.word("a memory"), 1
        if said.takes("slots"):
            slots = ALL if said.takes(ALL) else said.number("slots", 1)
        self._ended(said)
        return Ring(OperandBuffer(cast(Role, role), number), memory, Seq(()), slots, line=said.line)

    def _fetch(self, said: Statement) -> Fetch:
        constants = said.number("how many of the constants", 1)
        said.expect("behind")
        behind = said.name("layer")
        self._ended(said)
        return Fetch(Prefetch(constants, behind), "", Seq(()), line=said.line)

    def _call(self, layer: str, line: int, said: Statement) -> Call:
        """line: of the layer, at which faults of it are told."""
        units: list[str] = []
        if said.takes("inline"):
            self._ended(said)
            return Call(layer, inline=True, line=line)
        if said.takes("on"):
            units.append(said.word("a unit"))
            while said.takes(","):
                units.append(said.word("a unit"))
        flow = said.word("a dataflow") if said.takes("dataflow") else ""
        mode = said.word("a mode") if said.takes("mode") else ""
        self._ended(said)
        return Call(layer, tuple(units), flow, mode, line=line)

    def _ended(self, said: Statement) -> None:
        said.end()
        if said.inside:
            raise FaultyLine(
                f"{said.kind}: nothing stands in it, but {format_count(len(said.inside), 'line')} further to the right"
            )

    def _each(self, statements: Sequence[Statement], kinds: dict[str, Callable[[Statement], Found]], rule: str) -> list[Found]:
        """What the statements say; faults of each are noted."""
        found: list[Found] = []
        for said in statements:
            if said.kind not in kinds:
                self.faults.append((said.line, f"{said.kind}: does not stand here; {rule}{suggestion(said.kind, kinds)}"))
                continue
            made = self._try(said.line, lambda said=said: kinds[said.kind](said))
            found += [] if made is None else [made]
        return found

    def _try(self, line: int, make: Callable[[], Found | None]) -> Found | None:
        try:
            return make()
        except FaultyLine as fault:
            self.faults.append((line, str(fault)))
            return None
