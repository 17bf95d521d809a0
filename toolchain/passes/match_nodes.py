"""Match names that the user gives to nodes of the model: by name, by operator, or by a pattern of either."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from quant.suggestion import suggestion
from toolchain.errors import CompileError


def match_nodes(nodes: Sequence[tuple[str, str]], patterns: Sequence[str], *, option: str = "--host-node") -> tuple[str, ...]:
    """Return the names of the nodes that the patterns fit, each once, in the order of the patterns.

    A name counts before an operator, either before a pattern of * and ?; names may hold these.
    Raise CompileError for a pattern that fits nothing.
    `nodes`: (name, operator) of the model's own.
    `option`: the option that the patterns came from, for messages.
    """
    matching_names: dict[str, None] = {}
    faults: list[str] = []
    for what in patterns:
        matches = _list_matches(nodes, what)
        if not matches:
            candidates = [n for n, _ in nodes] + [op for _, op in nodes]
            faults.append(f"{option} {what}: the model has no such node or operator{suggestion(what, candidates)}")
        matching_names |= dict.fromkeys(matches)
    if faults:
        raise CompileError("\n".join([*faults, "  help: --explain lists the nodes of the model"]))
    return tuple(matching_names)


def _list_matches(nodes: Sequence[tuple[str, str]], what: str) -> list[str]:
    named = [n for n, _ in nodes if n == what] or [n for n, op in nodes if op == what]
    return named or [n for n, op in nodes if fnmatchcase(n, what) or fnmatchcase(op, what)]
