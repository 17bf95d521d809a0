"""Which of the model's nodes a person means: by name, by operator, or by a pattern of either."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from quant.suggestion import suggestion
from toolchain.errors import CompileError


def match_nodes(nodes: Sequence[tuple[str, str]], asked: Sequence[str], *, option: str = "--host-node") -> tuple[str, ...]:
    """nodes: (name, operator) of the model's own. A name counts before an operator, either before a pattern of * and ?; names
    may hold these. option: where they were asked for. Raises CompileError: one that fits nothing."""
    found: dict[str, None] = {}
    faults = []
    for what in asked:
        meant = _meant(nodes, what)
        if not meant:
            known = [n for n, _ in nodes] + [op for _, op in nodes]
            faults.append(f"{option} {what}: the model has no such node or operator{suggestion(what, known)}")
        found |= dict.fromkeys(meant)
    if faults:
        raise CompileError("\n".join([*faults, "  help: --explain lists the nodes of the model"]))
    return tuple(found)


def _meant(nodes: Sequence[tuple[str, str]], what: str) -> list[str]:
    named = [n for n, _ in nodes if n == what] or [n for n, op in nodes if op == what]
    return named or [n for n, op in nodes if fnmatchcase(n, what) or fnmatchcase(op, what)]
