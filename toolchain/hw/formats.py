"""Formats of machine files and instruction tables: the key `format`, and the rewriting of files in an earlier format.

A file without the key counts as format 1, the oldest. Format 2 of machine files gives each function of a vector engine
its own rate: `functions: {add: {lanes: 16, startup: 8}}`. Format 1 had `lanes`, `operations` and `startup_cycles`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import yaml

from toolchain.errors import ConfigError
from toolchain.foundation.type_guards import is_list
from toolchain.hw.yaml_source import Source, compose, is_section, read_source

MACHINE_FORMAT = 2
TABLE_FORMAT = 1
_KEY = "format"
_FORMAT_1_STARTUP_CYCLES = 4  # the default of format 1
_FORMAT_1_KEYS = ("lanes", "operations", "startup_cycles")
_NOT_REWRITTEN = (
    "the rewritten file would not hold the same values, as of an anchor, an alias or a tag; "
    f"write {', '.join(_FORMAT_1_KEYS)} out plainly"
)


@dataclass(frozen=True)
class Upgrade:
    """A file in the newest format. `changes`: one sentence for each change; empty where the file was of that format
    already.
    """

    text: str
    changes: tuple[str, ...]


def take_format(source: Source, newest: int) -> tuple[Source, list[str]]:
    """Return the file without its key `format`, and the faults of that key. `newest`: the newest format that is known."""
    if not is_section(source.data) or _KEY not in source.data:
        return source, []
    data = dict(source.data)
    number = data.pop(_KEY)
    rest = replace(source, data=data)
    if type(number) is not int or number < 1:
        return rest, [source.fault((_KEY,), f"must be a whole number from 1 to {newest}, got {number!r:.40}")]
    if number > newest:
        return rest, [source.fault((_KEY,), f"{number} is newer than {newest}, which this version reads; install a newer one")]
    return rest, []


def upgrade_hint(source: Source) -> list[str]:
    """Return a fault that points at `npu-hw upgrade`, where a machine file has keys of format 1; else an empty list."""
    engines = source.data.get("engines") if is_section(source.data) else None
    old = [name for name, engine in (engines if is_section(engines) else {}).items() if _is_vector_of_format_1(engine)]
    if not old:
        return []
    reason = f"has keys of format 1; npu-hw upgrade {source.label} rewrites them for format {MACHINE_FORMAT}"
    return [source.fault(("engines", str(old[0])), reason, at_key=True)]


def upgrade_text(text: str, label: str) -> Upgrade:
    """Return a machine file or an instruction table in the newest format.

    Line ends stay, and so do comments, but for those in the lines of keys that are rewritten. `label`: the file's name,
    for messages. Raise ConfigError where the text is no YAML mapping, is of a newer format, or would hold other values
    when rewritten.
    """
    source = read_source(text, label, doubles=True)
    if not is_section(source.data):
        raise ConfigError([f"{label}:1: file: is no machine and no instruction table: a mapping of keys is needed"])
    newest = TABLE_FORMAT if "operations" in source.data and "memories" not in source.data else MACHINE_FORMAT
    faults = take_format(source, newest)[1]
    if faults:
        raise ConfigError(faults)
    has_crlf = text.count("\r\n") == text.count("\n") > 0
    rewritten, changes = text.replace("\r\n", "\n") if has_crlf else text, list[str]()
    try:
        while (first := next(_vectors_of_format_1(compose(rewritten, yaml.SafeLoader)), None)) is not None:
            path, engine = first
            changes.append(f"{'.'.join(path)}: {', '.join(_FORMAT_1_KEYS)} -> functions")
            rewritten = _with_functions(rewritten, engine)
        if source.data.get(_KEY) != newest:
            changes.append(f"{_KEY}: {source.data.get(_KEY, 'none')} -> {newest}")
            rewritten = _with_format(rewritten, compose(rewritten, yaml.SafeLoader), newest)
        is_same = read_source(rewritten, label, doubles=True).data == _upgrade_data(source.data, newest)
    except (yaml.YAMLError, ConfigError):
        is_same = False
    if not is_same:
        raise ConfigError([f"{label}:1: file: {_NOT_REWRITTEN}"])
    return Upgrade(rewritten.replace("\n", "\r\n") if has_crlf else rewritten, tuple(changes))


def _upgrade_data(data: dict[str, Any], newest: int) -> dict[str, Any]:
    """Return the data that the file must hold in the newest format. Operations that are no list give no function."""
    upgraded = {**data, _KEY: newest}
    if is_section(data.get("engines")):
        upgraded["engines"] = {name: _upgrade_engine(engine) for name, engine in data["engines"].items()}
    return upgraded


def _upgrade_engine(engine: Any) -> Any:
    if not _is_vector_of_format_1(engine):
        return engine
    rate = {"lanes": engine.get("lanes"), "startup": engine.get("startup_cycles", _FORMAT_1_STARTUP_CYCLES)}
    names = engine["operations"] if is_list(engine["operations"]) else ()
    other_keys = {key: value for key, value in engine.items() if key not in _FORMAT_1_KEYS}
    return {**other_keys, "functions": {str(name): rate for name in names}}


def _is_vector_of_format_1(engine: Any) -> bool:
    return is_section(engine) and engine.get("kind") == "vector" and "functions" not in engine and "operations" in engine


def _pairs(node: Any) -> dict[str, tuple[Any, Any]]:
    """Return (key node, value node) by key of a YAML mapping; an empty dict for another node."""
    return {str(key.value): (key, value) for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}


def _vectors_of_format_1(root: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield (path, node) of the vector engines that have keys of format 1."""
    engines = _pairs(root).get("engines", (None, None))[1]
    for name, (_, engine) in _pairs(engines).items():
        keys = _pairs(engine)
        is_vector = "kind" in keys and keys["kind"][1].value == "vector"
        is_vector = is_vector and isinstance(keys.get("operations", (None, None))[1], yaml.SequenceNode)
        if is_vector and "functions" not in keys and {"lanes", "operations"} <= keys.keys():
            yield ("engines", name), engine


def _with_functions(text: str, engine: Any) -> str:
    """Return the text with `functions` in place of an engine's keys of format 1."""
    keys = _pairs(engine)
    startup = keys["startup_cycles"][1].value if "startup_cycles" in keys else _FORMAT_1_STARTUP_CYCLES
    rate = f"{{lanes: {keys['lanes'][1].value}, startup: {startup}}}"
    names = [item.value for item in keys["operations"][1].value]
    if engine.flow_style:
        functions = f"functions: {{{', '.join(f'{name}: {rate}' for name in names)}}}"
        others = [text[k.start_mark.index : v.end_mark.index] for key, (k, v) in keys.items() if key not in _FORMAT_1_KEYS]
        return text[: engine.start_mark.index] + f"{{{', '.join([*others, functions])}}}" + text[engine.end_mark.index :]
    lines = text.splitlines(keepends=True)
    indent = " " * keys["operations"][0].start_mark.column
    block = [f"{indent}functions:{'' if names else ' {}'}\n", *(f"{indent}  {name}: {rate}\n" for name in names)]
    for key in sorted(_FORMAT_1_KEYS, key=lambda k: -keys[k][0].start_mark.line if k in keys else 0):
        if key in keys:
            lines[keys[key][0].start_mark.line : _last_line(keys[key][1]) + 1] = block if key == "operations" else []
    return "".join(lines)


def _last_line(node: Any) -> int:
    """Return the last line of a value, counted from 0. A block list ends with its last item, since its own mark is at
    the next key.
    """
    is_block = isinstance(node, yaml.SequenceNode) and not node.flow_style
    return _last_line(node.value[-1]) if is_block and node.value else node.end_mark.line


def _with_format(text: str, root: Any, number: int) -> str:
    """Return the text with this format number: in place of the old one, or else before the first key."""
    key, value = _pairs(root).get(_KEY, (None, None))
    if key is not None and value is not None:
        return text[: value.start_mark.index] + str(number) + text[value.end_mark.index :]
    start = root.start_mark.index + (1 if root.flow_style else 0)
    indent = " " * root.start_mark.column
    return text[:start] + (f"{_KEY}: {number}, " if root.flow_style else f"{_KEY}: {number}\n{indent}") + text[start:]
