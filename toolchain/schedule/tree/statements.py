"""The lines of a schedule, taken apart into words; what stands in each is said by its indentation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

from quant.suggestion import suggestion
from toolchain.input_limits import NUMBER_CHARACTERS
from toolchain.schedule.tree.text import PLAIN

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
