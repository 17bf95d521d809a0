"""Read a YAML file with the line of every key and value, so that faults can point at them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import yaml
from yaml.composer import Composer
from yaml.scanner import ScannerError

from toolchain.errors import ConfigError, first_line, system_cause
from toolchain.foundation.atomic_files import read_limited
from toolchain.input_limits import NUMBER_CHARACTERS, YAML_BYTES, YAML_DEPTH, YAML_NODES

KeyPath = tuple[str | int, ...]


def is_section(data: object) -> TypeGuard[dict[Any, Any]]:
    """Return whether data that was read from YAML are a mapping of keys."""
    return isinstance(data, dict)


@dataclass(frozen=True)
class Source:
    """A YAML file as plain data, with the lines of its keys and values.

    `label`: the file's name in faults. `lines`: path -> (line of its key, line of its value), from 1. `doubles`: faults
    of keys that are given twice; `data` hold the first of each.
    """

    label: str
    data: Any
    lines: Mapping[KeyPath, tuple[int, int]]
    doubles: tuple[str, ...] = ()

    def fault(self, path: KeyPath, reason: str, at_key: bool = False) -> str:
        """Return the text `file:line: path: reason`. For a path that the file lacks, the line is that of its nearest
        parent's key.

        `at_key`: name the line of the key, not that of the value.
        """
        located_path = path
        while located_path and located_path not in self.lines:
            located_path = located_path[:-1]
        key_line, value_line = self.lines.get(located_path, (1, 1))
        line = value_line if located_path == path and not at_key else key_line
        return f"{self.label}:{line}: {render_path(path)}: {reason}"


def render_path(path: KeyPath) -> str:
    """Return a path as text: ('engines', 'mac', 'types', 0) as 'engines.mac.types[0]'; an empty one as 'file'."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "file"


def read_yaml(file: Path | Traversable, label: str, *, doubles: bool = False) -> Source:
    """Return a file's contents as `read_source` does.

    Raise ConfigError also where it cannot be read, or is longer than YAML_BYTES and no resource of a package.
    """
    try:
        text = read_limited(file, YAML_BYTES).decode() if isinstance(file, Path) else file.read_text(encoding="utf-8")
    except OSError as fault:
        raise ConfigError([f"{label}: {system_cause(fault)}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{label}:1: not YAML: not UTF-8 text"]) from None
    return read_source(text, label, doubles=doubles)


def read_source(text: str, label: str, *, doubles: bool = False) -> Source:
    """Return the data of one YAML document, with keys as text and dates as written.

    Raise ConfigError for bad syntax, merge keys, recursion, an empty document, and more depth or nodes than
    `toolchain.input_limits` allows. Faults of keys and values are told together.
    `doubles`: keys that are given twice are left in `Source.doubles`; else they raise too.
    """
    try:
        node = _compose_root(text)
    except yaml.MarkedYAMLError as fault:
        line, reason = _syntax_fault(fault)
        raise ConfigError([f"{label}:{line}: not YAML: {reason}"]) from None
    except _TooMuch as fault:
        raise ConfigError([f"{label}:1: file: {fault}"]) from None
    except yaml.YAMLError as fault:
        raise ConfigError([f"{label}:1: not YAML: {first_line(fault)}"]) from None
    if node is None:
        raise ConfigError([f"{label}:1: file: is empty"])
    reader = _Reader(label)
    data = reader.read(node, (), node.start_mark.line + 1)
    if reader.faults or (reader.doubles and not doubles):
        raise ConfigError([*reader.faults, *reader.doubles])
    return Source(label, data, reader.lines, tuple(reader.doubles))


def _syntax_fault(fault: yaml.MarkedYAMLError) -> tuple[int, str]:
    """Return the line (from 1) to look at, and the parser's complaint in words for the file's author."""
    problem = fault.problem or fault.context or "cannot be parsed"
    mark = fault.problem_mark or fault.context_mark
    line = mark.line + 1 if mark else 1
    opened = fault.context_mark.line + 1 if fault.context_mark else line
    if "mapping values are not allowed" in problem:
        return (
            line,
            "a key where a value is expected: indented deeper than the keys beside it, or a text with ': ' lacks quotes",
        )
    if problem.startswith("expected ',' or"):
        return line, f"the bracket opened in line {opened} is not closed before this"
    if problem.startswith("expected <block end>"):
        return line, f"indented otherwise than the keys of its section, which begins in line {opened}"
    if problem.startswith("could not find expected ':'"):
        return opened, "a key without ':' and value"
    if problem.startswith("found unexpected end of stream"):
        return opened, "the quote opened here is not closed"
    if "found character '\\t'" in problem:
        return line, "indented with a tab; YAML takes spaces"
    if problem.startswith("found character"):
        return line, f"{problem.removeprefix('found character ').partition(' ')[0]} cannot begin a value; put the text in quotes"
    if "another document" in problem:
        return line, "a second document begins here ('---'); a file is one document"
    return line, problem


class _TooMuch(yaml.YAMLError):
    """An exception for a document that is too deep or too large."""


_TOO_MANY_NODES = f"holds more than {YAML_NODES:,} keys and values, each alias counted as what it stands for"


class _Bounded(Composer):
    """A composer that stops where a document is too deep or too large, before all of it is built."""

    depth = nodes = 0
    peek_event: Callable[[], yaml.Event]  # of the parser that a subclass adds

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        self.nodes += 1
        line: int = self.peek_event().start_mark.line + 1
        if self.depth > YAML_DEPTH:
            raise _TooMuch(f"nests deeper than {YAML_DEPTH} sections and lists in line {line}")
        if self.nodes > YAML_NODES:
            raise _TooMuch(_TOO_MANY_NODES)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Loader(_Bounded, yaml.SafeLoader):
    """The loader in Python, whose messages are PyYAML's own."""

    def fetch_more_tokens(self) -> None:
        """Read on. Raise ScannerError also for an escape or a version whose number Python refuses, as of \\U00110000."""
        try:
            super().fetch_more_tokens()  # type: ignore[no-untyped-call]
        except ValueError:
            reason = "a number here is too large for what it stands for"
            raise ScannerError(None, None, reason, self.get_mark()) from None  # type: ignore[no-untyped-call]


if yaml.__with_libyaml__:

    class _FastLoader(_Bounded, yaml.CSafeLoader):
        """Parses in libyaml, ten times as fast."""

        def __init__(self, stream: str):
            yaml.CSafeLoader.__init__(self, stream)
            _Bounded.__init__(self)


# Tabs, question marks, tags, block scalars, directives, byte order marks, several documents: libyaml takes more of them, or gives
# them other names and lines.
_READ_OTHERWISE = re.compile(r"[\t?!|>\ufeff]|^(%|---)", re.MULTILINE)


class _NodeLoader(Protocol):
    """A loader of PyYAML, with types."""

    def get_single_node(self) -> yaml.Node | None: ...

    def dispose(self) -> None: ...


class _ScalarConstructor(Protocol):
    """A constructor of PyYAML, with types."""

    def construct_object(self, node: yaml.Node) -> Any: ...


def compose(text: str, loader_type: Callable[[str], _NodeLoader]) -> yaml.Node | None:
    """Return the root node of a document, None where it is empty. It does what `yaml.compose` does, which has no types.

    Raise YAMLError where the loader refuses the text.
    """
    loader = loader_type(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _compose_root(text: str) -> yaml.Node | None:
    """Return the document's root. What libyaml refuses is parsed in Python too, so that a file reads alike everywhere."""
    if yaml.__with_libyaml__ and not _READ_OTHERWISE.search(text):
        try:
            return compose(text, _FastLoader)
        except _TooMuch:
            raise
        except yaml.YAMLError:
            pass
    return compose(text, _Loader)


class _Reader:
    """A reader that makes plain data from YAML nodes and notes the lines."""

    def __init__(self, label: str):
        self.label = label
        self.lines: dict[KeyPath, tuple[int, int]] = {}
        self.faults: list[str] = []
        self.doubles: list[str] = []
        self.open: set[int] = set()
        self.nodes = 0
        self.scalars: _ScalarConstructor = yaml.constructor.SafeConstructor()

    def read(self, node: yaml.Node, path: KeyPath, key_line: int) -> Any:
        """Return the data of a node, and note its lines. Faults are collected; raise ConfigError where there are too
        many nodes.
        """
        line = node.start_mark.line + 1
        self.nodes += 1
        if self.nodes > YAML_NODES:
            raise ConfigError([f"{self.label}:1: file: {_TOO_MANY_NODES}"])
        # A section is where its key is, a value where it stands itself.
        self.lines[path] = (key_line, line if isinstance(node, yaml.ScalarNode) else key_line)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, line)
        if id(node) in self.open or len(path) > YAML_DEPTH:
            self.faults.append(f"{self.label}:{line}: {render_path(path)}: nests too deep or contains itself")
            return None
        self.open.add(id(node))
        data = self._sequence(node, path) if isinstance(node, yaml.SequenceNode) else self._mapping(node, path)
        self.open.discard(id(node))
        return data

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath, line: int) -> Any:
        """Return the value of a scalar: a number, bool, text or None. It is None after a fault."""
        kind = node.tag.rpartition(":")[2]
        if kind in ("int", "float") and len(node.value) > NUMBER_CHARACTERS:
            reason = f"a number of {len(node.value):,} characters; {NUMBER_CHARACTERS} are the most"
            self.faults.append(f"{self.label}:{line}: {render_path(path)}: {reason}")
            return None
        try:
            value = self.scalars.construct_object(node)
        except yaml.YAMLError as fault:
            reason = getattr(fault, "problem", None) or str(fault)
            self.faults.append(f"{self.label}:{line}: {render_path(path)}: {reason}")
            return None
        except (ValueError, LookupError, AttributeError, OverflowError):  # of a text that its tag does not fit
            self.faults.append(f"{self.label}:{line}: {render_path(path)}: {node.value!r:.60} is no {kind}")
            return None
        if isinstance(value, str):
            return self._text(value, path, line)
        # Dates and binary blobs have no place in a machine; keep what was written and let the model refuse it.
        return value if value is None or isinstance(value, bool | int | float) else node.value

    def _text(self, value: str, path: KeyPath, line: int) -> str:
        """Return the text. A lone surrogate in it becomes a fault."""
        if any("\ud800" <= c <= "\udfff" for c in value):
            self.faults.append(f"{self.label}:{line}: {render_path(path)}: holds half a character (a lone surrogate)")
        return value

    def _sequence(self, node: yaml.Node, path: KeyPath) -> list[Any]:
        return [self.read(item, (*path, i), item.start_mark.line + 1) for i, item in enumerate(node.value)]

    def _mapping(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        """Return the section of a node. Keys that are no plain names become faults, repeated ones `doubles`; both are
        left out.
        """
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
                self.faults.append(f"{self.label}:{line}: {render_path(path)}: keys must be plain names")
                continue
            key = self._text(str(key_node.value), path, line)
            here = (*path, key)
            if key in data:
                self.doubles.append(f"{self.label}:{line}: {render_path(here)}: given twice, first in line {self.lines[here][0]}")
                continue
            data[key] = self.read(value_node, here, line)
        return data
