"""Operators over named tensors: what the order search is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class InvalidGraph(ValueError):
    """Operators that cannot be ordered: a tensor without producer, without size, made twice, or a cycle."""


@dataclass(frozen=True)
class Operator:
    """A step of the order. It needs its inputs, outputs and workspace at once.

    `in_place`: (output, input) pairs: the output may take over the input's bytes where this is its last use.
    `workspace_bytes`: scratch and streamed weights, live only while it runs.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    in_place: tuple[tuple[str, str], ...] = ()
    workspace_bytes: int = 0


def transient_bytes(op: Operator, dying: Iterable[str], tensor_sizes: Mapping[str, int]) -> int:
    """Bytes needed while `op` runs beyond those live before it; `dying` inputs may be overwritten in place."""
    extra = op.workspace_bytes + sum(tensor_sizes[t] for t in op.outputs)
    free = set(dying)
    served: set[str] = set()
    pairs = sorted(op.in_place, key=lambda p: (-min(tensor_sizes[p[0]], tensor_sizes[p[1]]), p))
    for out, old in pairs:
        if old in free and out not in served:
            extra -= min(tensor_sizes[out], tensor_sizes[old])
            free.discard(old)
            served.add(out)
    return extra
