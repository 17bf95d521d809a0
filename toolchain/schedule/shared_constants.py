"""Layers that have the same constants, as the steps of a recurrent layer do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from toolchain.ops.kit.operator import Layer


def find_shared_constants(layers: Iterable[tuple[int, Layer]]) -> frozenset[int]:
    """Those of these layers, by their numbers, whose operator and constants another has as well."""
    groups: dict[bytes, list[int]] = {}
    for index, layer in layers:
        groups.setdefault(_fingerprint(layer), []).append(index)
    return frozenset(index for group in groups.values() if len(group) > 1 for index in group)


def _fingerprint(layer: Layer) -> bytes:
    """Equal where the operator and its constants are."""
    digest = hashlib.sha256()
    constants = [layer.constants[n] for n in layer.node.inputs if n in layer.constants]
    for part in _parts((layer.node.op, constants)):
        digest.update(part)
    return digest.digest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif is_dataclass(value):
        yield type(value).__name__.encode()
        for field in fields(value):
            yield from _parts(getattr(value, field.name))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _parts(one)
    else:
        yield repr(value).encode() + b";"
