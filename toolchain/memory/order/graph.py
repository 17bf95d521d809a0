"""The graph that the order search is given: operators that read and write named tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class InvalidGraph(ValueError):
    """The operators cannot be ordered: a tensor lacks a producer or a size, has two producers, or there is a cycle.

    Rewrites raise it too, for an operator that is not what they take.
    """


@dataclass(frozen=True)
class Operator:
    """An operator that runs in one step. It needs the bytes of its inputs, outputs and workspace at once.

    `inputs`, `outputs`: names of tensors. An input is freed after its last reader.
    `in_place`: (output, input) pairs: the output may take over the input's bytes where this is the input's last use.
    `workspace_bytes`: scratch and streamed weights, live only while the operator runs.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    in_place: tuple[tuple[str, str], ...] = ()
    workspace_bytes: int = 0


def transient_bytes(op: Operator, dying: Iterable[str], tensor_sizes: Mapping[str, int]) -> int:
    """Return the bytes needed while `op` runs, beyond those live before it.

    `dying`: its inputs that nobody reads later. Those of `op.in_place` among them are overwritten by outputs, the largest
    pairs first. Each input and each output shares bytes once, the bytes of the smaller of both.
    """
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
