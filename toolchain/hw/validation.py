"""Check data against a typed model, and word each fault for the person who wrote the file."""

from __future__ import annotations

import difflib
import json
import re
import types
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from toolchain.foundation.type_guards import is_list
from toolchain.hw.section import WRITTEN
from toolchain.hw.yaml_source import KeyPath, Source, is_section

Model = TypeVar("Model", bound=BaseModel)
_NO_KEY, _KEY_LIST_PREFIX = "no such key", "; known: "
_NEAR = 0.7  # of the letters of two words, that they share


@dataclass(frozen=True)
class ModelFault:
    """A fault that pydantic finds, with its place in the file."""

    path: KeyPath
    error: ErrorDetails

    @property
    def is_unknown(self) -> bool:
        """True for an unknown key, which may be a misspelling of another."""
        return self.error["type"] == "extra_forbidden"


def find_faults(model: type[Model], data: Any) -> Model | list[ModelFault]:
    """Return the model of the data, or all faults. Raise RecursionError where the data nest too deep."""
    try:
        # JSON mode: YAML lists stand for tuples, everything else stays strict.
        return model.model_validate_json(json.dumps(data), context=WRITTEN)
    except ValidationError as invalid:
        errors = [error for error in invalid.errors(include_url=False) if not _follows(error)]
        return [ModelFault(_place(error["loc"], data)[0], error) for error in errors]


def validate(model: type[Model], source: Source) -> tuple[Model | None, list[str]]:
    """Return (the model, []) or (None, faults as `file:line: path: reason` in the order of the file)."""
    try:
        result = find_faults(model, source.data)
    except RecursionError:
        return None, [source.fault((), "nests too deep")]
    model_faults = [] if isinstance(result, BaseModel) else [format_fault(model, source, wrong) for wrong in result]
    faults = in_order([*source.doubles, *model_faults])
    return None if faults or isinstance(result, list) else result, faults


def format_fault(model: type[BaseModel], source: Source, wrong: ModelFault) -> str:
    """Return a fault as `file:line: path: reason`, in words for the file's author."""
    return _fault(model, source, wrong.error)


def words_of(error: ErrorDetails) -> tuple[str, ...]:
    """Return the words that may stand at the fault's place."""
    context = error.get("ctx", {})
    return tuple(re.findall(r"'(\w+)'", str(context.get("expected") or context.get("expected_tags") or "")))


def in_order(faults: typing.Iterable[str]) -> list[str]:
    """Return faults sorted by the lines that they name, without duplicates.

    The list of known keys is kept in the first of several faults about unknown keys of one section only.
    """
    ordered = sorted(dict.fromkeys(faults), key=_line)
    lines = dict[str, int]()
    for index, fault in enumerate(ordered):
        head, _, keys = fault.partition(_KEY_LIST_PREFIX)
        line, _ = _line(fault)
        if head.endswith(_NO_KEY) and line != lines.setdefault(keys, line):
            ordered[index] = f"{head}{_KEY_LIST_PREFIX}those of line {lines[keys]}"
    return ordered


def suggest(word: str, candidates: typing.Iterable[str]) -> str:
    """Return '; did you mean "banks"?' for the nearest candidate, else the list of candidates; "" where there are none."""
    names = sorted(candidates)
    swapped = [name for name in names if sorted(name) == sorted(word)]
    close = swapped or difflib.get_close_matches(word, names, n=1, cutoff=_NEAR) or _near_beginnings(word, names)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"{_KEY_LIST_PREFIX}{', '.join(names)}" if names else ""


def _near_beginnings(word: str, names: list[str]) -> list[str]:
    """Return the name whose beginning is near to the word (latency_cycles for latncy), if only one has that beginning."""
    names_by_beginning = dict[str, list[str]]()
    for name in names:
        names_by_beginning.setdefault(name.partition("_")[0], []).append(name)
    alone = {first: of[0] for first, of in names_by_beginning.items() if len(of) == 1}
    return [alone[first] for first in difflib.get_close_matches(word, alone, n=1, cutoff=_NEAR)]


def _follows(error: ErrorDetails) -> bool:
    """Return whether a list is too short only because some entries are wrong, which have faults of their own."""
    return error["type"] == "too_short" and len(error["input"]) >= error.get("ctx", {})["min_length"]


def _line(fault: str) -> tuple[int, str]:
    """Return (line that the fault names, fault), for sorting; line 0 where it names none."""
    _, line, _ = fault.split(":", 2)
    return (int(line), fault) if line.isdigit() else (0, fault)


def _fault(model: type[BaseModel], source: Source, error: ErrorDetails) -> str:
    """Return a pydantic error as `file:line: path: reason`."""
    path, data = _place(error["loc"], source.data)
    kind = error["type"]
    if kind.startswith("union_tag"):
        return _wrong_kind(source, path, error)
    if kind == "extra_forbidden":
        keys = _known_keys(model, path[:-1], data)
        return source.fault(path, f"{_NO_KEY}{suggest(str(path[-1]), keys)}", at_key=True)
    if path[-1:] == ("[key]",):  # pydantic's step to a key itself
        return source.fault(path[:-1], _reason(error), at_key=True)
    in_list = path and isinstance(path[-1], int)
    if kind in ("tuple_type", "list_type"):
        return source.fault(path, f"must be a list{_example(model, path)}, got {shown(error['input'])}")
    if kind == "too_long" or (kind == "missing" and in_list):
        path = path[:-1] if kind == "missing" else path
        example = _example(model, path)
        if example or kind == "missing":
            return source.fault(path, f"must be a list{example}, got {json.dumps(error['input'])}")
    if kind == "missing":
        return source.fault(path, f"is missing{_example(model, path)}")
    return source.fault(path, _reason(error))


def _place(steps: tuple[int | str, ...], data: Any) -> tuple[KeyPath, Any]:
    """Return a fault's path and the section around it.

    The path is without pydantic's steps into the alternatives that `kind` tells apart.
    """
    path: list[int | str] = []
    parent = data
    for step in steps:
        if is_section(data) and data.get("kind") == step and data is not parent:
            parent = data
            continue
        parent = data
        path.append(step)
        inside = is_section(data) or (is_list(data) and isinstance(step, int) and step < len(data))
        data = (data.get(step) if is_section(data) else data[int(step)]) if inside else None
    return tuple(path), parent


def _wrong_kind(source: Source, path: KeyPath, error: ErrorDetails) -> str:
    """Return the fault of a section whose `kind` is missing or unknown."""
    if error["type"] == "union_tag_not_found":
        return source.fault((*path, "kind"), "is missing")
    context = error.get("ctx", {})
    return source.fault((*path, "kind"), f"must be one of {context['expected_tags']}; got {shown(context['tag'])}")


def _example(model: type[BaseModel], path: KeyPath) -> str:
    """Return a text such as ' [height, width], for example [3, 3]' for the field at `path`; "" where it has none."""
    notes = [note for owner in _candidates(model, path[:-1]) for note in _notes(owner, path[-1])] if path else []
    description = next((f" {note.description}" for note in notes if note.description), "")
    return next((f"{description}, for example {_inline(note.examples[0])}" for note in notes if note.examples), description)


def _notes(owner: Any, part: str | int) -> list[FieldInfo]:
    """Return the pydantic fields that describe `owner.part` or `owner[part]`: the field first, then the types that it
    may have.
    """
    if _is_model(owner):
        field = _fields(owner).get(str(part))
        return [] if field is None else [field, *_inner_notes(field.annotation)]
    return [note for inner in typing.get_args(owner)[-1:] for note in _inner_notes(inner)]


def _inner_notes(annotation: Any) -> list[FieldInfo]:
    """Return the pydantic fields in an annotation."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return [a for a in arguments[1:] if isinstance(a, FieldInfo)]
    if origin in (typing.Union, types.UnionType):
        return [note for argument in arguments for note in _inner_notes(argument)]
    return []


def _inline(value: Any) -> str:
    """Return a value as YAML on one line."""
    if is_list(value):
        return f"[{', '.join(_inline(v) for v in value)}]"
    if is_section(value):
        return f"{{{', '.join(f'{k}: {_inline(v)}' for k, v in value.items())}}}"
    return str(value)


def _reason(error: ErrorDetails) -> str:
    """Return a pydantic error in words for the file's author."""
    kind, context = error["type"], error.get("ctx", {})
    got = shown(error["input"])
    if kind == "value_error":
        return str(context["error"])
    limits = {
        "greater_than_equal": "ge",
        "greater_than": "gt",
        "less_than_equal": "le",
        "less_than": "lt",
    }
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    if kind in limits:
        bound = limits[kind]
        return f"must be {words[bound]} {context[bound]:g}, got {got}"
    if kind == "multiple_of":
        return f"must be a multiple of {context['multiple_of']:g}, got {got}"
    if kind in ("literal_error", "enum"):
        return f"must be one of {context['expected'].replace(' or ', ', ')}; got {got}"
    expected = {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "bool_type": "true or false",
        "string_type": "a text",
        "model_type": "a section of keys",
        "dict_type": "a section of keys",
        "model_attributes_type": "a section of keys",
        "finite_number": "a finite number",
    }
    if kind in expected:
        return f"must be {expected[kind]}, got {got}"
    if kind == "too_short":
        return f"must have at least {context['min_length']} entries, got {context['actual_length']}"
    if kind == "too_long":
        return f"must have {context['max_length']} entries, got {context['actual_length']}"
    if kind == "string_pattern_mismatch":
        return f"{got} does not match {context['pattern']}"
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, got {got}"


def shown(value: Any) -> str:
    """Return a short text for a value that was written, for messages."""
    if value is None:
        return "nothing"
    if is_section(value):
        return "a section of keys"
    if is_list(value):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _known_keys(model: Any, path: KeyPath, data: Any) -> set[str]:
    """Return the keys that the section `data` at `path` may have."""
    kind = data.get("kind") if is_section(data) else None
    section_models = [c for c in _candidates(model, path) if _is_model(c)]
    kind_models = [
        c for c in section_models if "kind" in c.model_fields and kind in typing.get_args(c.model_fields["kind"].annotation)
    ]
    return {key for c in kind_models or section_models for key in _fields(c)}


def _candidates(model: Any, path: KeyPath) -> list[Any]:
    """Return the types that the value at `path` may have."""
    candidates = [model]
    for part in path:
        candidates = [inner for candidate in candidates for inner in _step(candidate, part)]
    return candidates


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields by the keys that files have."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _step(annotation: Any, part: str | int) -> list[Any]:
    """Return the types that the value at `part` of a value of this type may have."""
    if _is_model(annotation):
        field = _fields(annotation).get(str(part))
        return _alternatives(field.annotation) if field else []
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is dict:
        return _alternatives(arguments[1])
    if origin is tuple:
        return _alternatives(arguments[0])
    return []


def _alternatives(annotation: Any) -> list[Any]:
    """Return the types of a union; without `Annotated`."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [a for argument in typing.get_args(annotation) for a in _alternatives(argument)]
    return [annotation]
