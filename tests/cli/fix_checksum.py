"""Compiled files changed by hand, with a checksum that fits."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from typing import Any

PREFIX_BYTES = 52  # magic 8, version 4, length 8, SHA-256 32
VERSION = 2


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = struct.unpack_from("<Q", data, PREFIX_BYTES)[0]
    start = PREFIX_BYTES + 8
    return json.loads(data[start : start + size]), data[start + size :]


def seal(header: Any, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-(PREFIX_BYTES + 8 + len(text)) % 16)  # so that the body begins at a multiple of 16
    rest = struct.pack("<Q", len(text)) + text + body
    return struct.pack("<8sIQ32s", b"NPUMODEL", VERSION, len(rest), hashlib.sha256(rest).digest()) + rest


def change_header(data: bytes, path: str, value: Any) -> bytes:
    """Return the file with a changed header.

    `path`: keys and indices of the header, with dots.
    `value`: None removes the key.
    """
    header, body = parts(data)
    *inner, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    at: Any = header
    for key in inner:
        at = at[key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return seal(header, body)


def graph_changed(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    header, body = parts(data)
    entry = header["entries"][0]
    start, size = entry["graph"]
    graph = json.loads(body[start : start + size])
    change(graph)
    text = json.dumps(graph).encode()
    entry["graph"] = [len(body), len(text)]
    return seal(header, body + text)


def island_changed(data: bytes, model: bytes) -> bytes:
    """The model of the first island is another."""
    header, body = parts(data)
    island = next(s for s in header["entries"][0]["segments"] if s["kind"] == "host")
    island["model"] = [len(body), len(model)]
    return seal(header, body + model)
