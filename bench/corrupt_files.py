"""Damages files for bench/fuzz_readers.py: their bytes, words of a text, fields of a model, the header of a sealed file.

Each public function takes a random generator and the bytes of a sound file, and returns the bytes of a damaged one.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import struct
import zipfile
from typing import Any

import onnx
import yaml

NUMBERS = (
    *("0", "1", "-1", "2", "3", "7", "127", "128", "255", "256", "65535", "65536", "1000000", "2147483647", "2147483648"),
    *("4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551616", "-9223372036854775809"),
    *("0.0", "0.5", "-0.0", "1e-45", "1e38", "1e39", "1e308", "1e400", ".nan", ".inf", "-.inf", "NaN", "0x10", "0x" + "f" * 5000),
    *("9" * 5000, "1:2:3", "0o7", "1_000", "", "null", "true", "x", "[]", "{}", "''", '"512 KiB"', "1 TiB", "281474976710656"),
)
WORDS = (
    *(
        "*a",
        "&a [*a]",
        "&a x",
        "!!bool x",
        "!!int ''",
        "!!float x",
        "!!timestamp x",
        "!!binary x",
        "!!set {a}",
        "!!null x",
        "!x y",
    ),
    *("[", "{", "]", "}", "'", '"', "|", ">", "%", "@", "`", "\t", "---", "...", "<<: *a", "? a", ": ", "#", "- ", ",", ";", "="),
    *("[" * 50, "{a: " * 50, "\0", "\x1b[2J", "\ufeff", "\u2028", '"\\ud800"', "é" * 300, "a" * 5000, "\r", "../../etc/passwd"),
)
INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    100,
    255,
    1000,
    65536,
    10**6,
    2**31 - 1,
    2**31,
    -(2**31),
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
)
FLOATS = (0.0, 1.0, -1.0, 0.5, 1e-45, 1e38, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "y", "a", "w", "no such name", "é", "\x1b[2J", "a" * 3000, "../secret", "SAME_UPPER", "linear", "local", "N")
OPERATORS = tuple(sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain in ("", "ai.onnx.ml")}))
PREFIX = struct.Struct("<8sIQ32s")  # of model.npu


def binary(rng: random.Random, data: bytes) -> bytes:
    """Return the data with up to 16 damages of bytes: bits flipped, bytes replaced, left out, inserted, repeated, or cut off."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(damaged) + 1)
        length = min(rng.choice((1, 1, 2, 4, 8, 64)), len(damaged) - at)
        how = rng.randrange(7)
        if how == 0 and length:
            damaged[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            damaged[at : at + length] = bytes(rng.choice((0, 1, 0x7F, 0x80, 0xFF)) for _ in range(length))
        elif how == 2:
            del damaged[at : at + length]
        elif how == 3:
            damaged[at:at] = rng.randbytes(length)
        elif how == 4:
            damaged[at:at] = damaged[at : at + length]
        elif how == 5 and rng.random() < 0.2:
            del damaged[at:]
        else:
            damaged[at : at + length] = rng.randbytes(length)
    return bytes(damaged)


def text(rng: random.Random, data: bytes) -> bytes:
    """Return a text with up to five damages of numbers, words and lines; in one of ten cases of bytes."""
    if rng.random() < 0.1:
        return binary(rng, data)
    lines = data.decode().splitlines()
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(lines)) if lines else 0
        line = lines[at] if lines else ""
        how = rng.randrange(8)
        if how < 3:
            changed = _swap_word(rng, line, r"-?\d[\w.]*", NUMBERS)
        elif how == 3:
            changed = _swap_word(
                rng, line, r"[A-Za-z_][\w.]*", (*WORDS, *NUMBERS, *re.findall(r"[A-Za-z_]\w+", rng.choice(lines or [""])))
            )
        elif how == 4:
            place = rng.randrange(len(line) + 1)
            changed = line[:place] + rng.choice(WORDS) + line[place:]
        elif how == 5:
            changed = " " * rng.randrange(5) + line.strip()
        else:
            other = rng.randrange(len(lines)) if lines else 0
            lines[at : at + rng.randrange(2)] = lines[other : other + rng.randrange(4)]
            continue
        lines[at : at + 1] = [changed]
    return "\n".join([*lines, ""]).encode(errors="surrogatepass")


def stage_text(rng: random.Random, data: bytes) -> bytes:
    """Damage the text of a stage: its words, or one statement so that it is still a graph, of another model or machine."""
    if rng.random() < 0.4 or not data.startswith(b"graph"):
        return text(rng, data)
    lines = data.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2))):
        change = rng.choice(
            (_change_field, _change_field, _change_origin, _change_source, _change_input, _nest_value, _change_shape)
        )
        places = [i for i, line in enumerate(lines) if _STATEMENT_OF.get(change, "") in line]
        if places:
            at = rng.choice(places)
            lines[at] = change(rng, lines[at], lines)
    return "\n".join([*(line for line in lines if line), ""]).encode()


def _change_field(rng: random.Random, line: str, lines: list[str]) -> str:
    """Give a field the value that it has in another statement, or one near its own."""
    places = list(re.finditer(_FIELD, line))
    if not places:
        return line
    place = rng.choice(places)
    others = [m.group(2) for other in lines for m in re.finditer(_FIELD, other) if m.group(1) == place.group(1)]
    near = ("0", "1", "2", "16", "24", "31", "33", "48", "64", "None", "True", "()", "(1)", "int16", "inner", "zz")
    return line[: place.start(2)] + rng.choice((*others, *near)) + line[place.end(2) :]


def _change_origin(rng: random.Random, line: str, lines: list[str]) -> str:
    """Give a tensor another origin or layout in a line of origins, or drop the line."""
    name, _, origin = line.rpartition(": ")
    layouts, origins = ("plain", "nhwc", "inner", "zz"), [one.rpartition(": ")[2] for one in lines if "  origin " in one]
    return rng.choice(("", f"{name}: {rng.choice(origins)}", f"{name}: {origin.rpartition(' ')[0]} {rng.choice(layouts)}"))


def _change_source(rng: random.Random, line: str, lines: list[str]) -> str:
    """Give a node other names of the model's nodes."""
    return f"{line.rpartition(' from ')[0]} from {rng.choice(('zz', 'x', 'Conv_0, zz', chr(34) + chr(34)))}"


def _change_input(rng: random.Random, line: str, lines: list[str]) -> str:
    """Let a node read another tensor."""
    call, _, rest = line.rpartition(")  node ")
    operator, _, inputs = call.rpartition("(")
    names = [match.group(1) for one in lines if (match := re.match(r'  ("[^"]*"|[^ ":]+): ', one))]
    read = [rng.choice(names) if rng.random() < 0.6 else name for name in inputs.split(", ")]
    return f"{operator}({', '.join(read)})  node {rest}"


def _nest_value(rng: random.Random, line: str, lines: list[str]) -> str:
    """Replace a value by one in very many parentheses."""
    levels = rng.choice((10, 150, 250, 3000))
    return _swap_word(rng, line, r"(?<==)(-?\d+|None|\([^()]*\))(?=[,>])", ("(" * levels + "1" + ")" * levels,))


def _change_shape(rng: random.Random, line: str, lines: list[str]) -> str:
    """Replace one dimension of a shape."""
    return _swap_word(rng, line, r"(?<=[\[ ,(])\d+(?=[,\])])", ("0", "1", "2", "3", "7", "24", "64"))


_FIELD = r"(\w+)=(-?\d+|None|True|False|[a-z_]\w*|\([^()]*\))(?=[,>])"
_STATEMENT_OF = {_change_origin: "  origin ", _change_source: " from ", _change_input: ")  node "}


def yaml_text(rng: random.Random, data: bytes) -> bytes:
    """Damage a YAML file: its words, or its values, which become others of any type and place."""
    if rng.random() < 0.5:
        return text(rng, data)
    return yaml.safe_dump(_damage_json(rng, yaml.safe_load(data)), allow_unicode=False, sort_keys=False).encode()


def json_text(rng: random.Random, data: bytes) -> bytes:
    """Damage a JSON file: its words, or its values, which become others of any type and place."""
    if rng.random() < 0.3:
        return text(rng, data)
    return json.dumps(_damage_json(rng, json.loads(data))).encode()


def _swap_word(rng: random.Random, line: str, pattern: str, instead: tuple[str, ...]) -> str:
    """Return the line with one match of `pattern` replaced by one of `instead`; unchanged without a match."""
    places = list(re.finditer(pattern, line))
    if not places:
        return line
    place = rng.choice(places)
    return line[: place.start()] + rng.choice(instead) + line[place.end() :]


# --- ONNX


def model(rng: random.Random, data: bytes) -> bytes:
    """Return an ONNX model with up to three damages of its fields; in one of five cases of its bytes."""
    if rng.random() < 0.2:
        return binary(rng, data)
    proto = onnx.load_from_string(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        try:
            _damage_field(rng, rng.choice(_messages(proto)))
        except (ValueError, TypeError):
            continue  # what the field cannot hold
    return proto.SerializeToString()


def _messages(message: Any) -> list[Any]:
    """Return a protobuf message and all messages inside."""
    messages = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            messages += [m for inner in ([value] if hasattr(value, "ListFields") else value) for m in _messages(inner)]
    return messages


def _damage_field(rng: random.Random, message: Any) -> None:
    """Change, empty or clear a field of a message, in place."""
    present = [field for field, _ in message.ListFields()]
    field = rng.choice(present if present and rng.random() < 0.8 else message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    if hasattr(value, "append") or hasattr(value, "add"):
        _damage_list(rng, value, field)
    elif field.message_type is not None:
        message.ClearField(field.name) if rng.random() < 0.5 else value.SetInParent()
    elif rng.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _value(rng, field, value))


def _damage_list(rng: random.Random, values: Any, field: Any) -> None:
    """Add, delete or change an entry of a repeated field, in place."""
    how = rng.randrange(4)
    if field.message_type is not None:
        if not len(values):
            values.add()
        elif how == 0:
            del values[rng.randrange(len(values))]
        elif how == 1:
            values.add().CopyFrom(rng.choice(values))
        else:
            values[rng.randrange(len(values))].CopyFrom(rng.choice(values))
    elif how == 0 and len(values):
        del values[rng.randrange(len(values))]
    elif how == 1 or not len(values):
        values.append(_value(rng, field, None))
    else:
        values[rng.randrange(len(values))] = _value(rng, field, values[0])


def _value(rng: random.Random, field: Any, old: Any) -> Any:
    """Return a value for a field of this type, often one that makes no sense."""
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if field.cpp_type == field.CPPTYPE_ENUM:
        return rng.choice([v.number for v in field.enum_type.values])
    if field.cpp_type != field.CPPTYPE_STRING:
        return rng.choice(INTEGERS)
    if field.type == field.TYPE_BYTES:
        return binary(rng, old or b"x")
    return rng.choice(OPERATORS) if field.name == "op_type" else rng.choice(TEXTS)


# --- arrays


def array(rng: random.Random, data: bytes) -> bytes:
    """Damage an .npy: its header's words, or its bytes."""
    (size,) = struct.unpack_from("<H", data, 8)
    if rng.random() < 0.5:
        return binary(rng, data[: 10 + size]) + data[10 + size :]
    header = text(rng, data[10 : 10 + size]).ljust(rng.choice((size, 0)))[:60_000]
    return data[:8] + struct.pack("<H", len(header)) + header + data[10 + size :]


def arrays(rng: random.Random, data: bytes) -> bytes:
    """Damage an .npz: its members, their names and number, or the archive."""
    if rng.random() < 0.4:
        return binary(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    target = rng.choice(list(members))
    if rng.random() < 0.8:
        members[target] = array(rng, members[target])
    else:
        members[rng.choice(("x", "x.npy", "y", "../x.npy", "a/b.npy", "\x1b.npy"))] = members.pop(target)
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return binary(rng, written.getvalue()) if rng.random() < 0.1 else written.getvalue()


# --- model.npu


def program(rng: random.Random, data: bytes) -> bytes:
    """Damage a compiled model: its header, machine, graph, host subgraph or any bytes, mostly under a checksum that fits."""
    if rng.random() < 0.1:
        return binary(rng, data)
    (size,) = struct.unpack_from("<Q", data, PREFIX.size)
    start = PREFIX.size + 8
    header, body = json.loads(data[start : start + size]), data[start + size :]
    part = rng.choice(("header", "machine", "graph", "program", "island", "body"))
    if part == "body":
        body = binary(rng, body)
    elif part == "header":
        header = _damage_json(rng, header)
    else:
        entry = header["entries"][-1]
        section, key = entry if part == "graph" else header, part
        if part in ("program", "island"):
            kind, key = ("npu", "program") if part == "program" else ("host", "model")
            section = rng.choice([s for s in entry["segments"] if s["kind"] == kind])
        first, length = section[key]
        old = body[first : first + length]
        new = _section(rng, part, old)
        section[key], body = [len(body), len(new)], body + new
    header_text = json.dumps(header).encode()
    rest = struct.pack("<Q", len(header_text)) + header_text + body
    return PREFIX.pack(b"NPUMODEL", 2, len(rest), hashlib.sha256(rest).digest()) + rest


def _section(rng: random.Random, part: str, data: bytes) -> bytes:
    if part == "island":
        return model(rng, data)
    if part == "program" or rng.random() < 0.1:
        return binary(rng, data)
    return json.dumps(_damage_json(rng, json.loads(data))).encode()


def _damage_json(rng: random.Random, data: Any) -> Any:
    """One or a few values anywhere in it become others, or go, or are doubled."""
    for _ in range(rng.choice((1, 1, 2))):
        places: list[tuple[Any, Any]] = []
        waiting = [data]
        while waiting:
            at = waiting.pop()
            keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
            places += [(at, key) for key in keys]
            waiting += [at[key] for key in keys]
        at, key = rng.choice(places)
        how = rng.randrange(6)
        if how == 0:
            del at[key]
            return data
        if how == 1 and isinstance(at, list):
            at.insert(key, at[key])
        elif how == 2:
            other, other_key = rng.choice(places)
            at[key] = json.loads(json.dumps(other[other_key]))
        else:
            at[key] = rng.choice((*INTEGERS, *FLOATS[:6], *TEXTS, None, True, [], {}, [1, 2], "\ud800"))
    return data
