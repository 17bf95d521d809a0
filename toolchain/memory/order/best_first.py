"""Search best-first over sets of operators that are closed under predecessors; use beam search when states run
out.

Live bytes after a closed set are a submodular function f of it. Hence the safe move, from S with the peak so
far P.
A closed T above S may be run at once if it can be run within P and one condition holds.
The condition is f(T) <= f(X) for every closed X with S <= X <= T.
For any order that goes on from S, first T and then the rest never has more live bytes.
The reason is f(U | T) <= f(U) + f(T) - f(U & T).
A single operator that fits within P and does not add live bytes is the smallest case.
(Kahn, Serenity and HMCOS know cuts of the graph; cutting at memory valleys is not safe, this is.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

from toolchain.memory.order.graph import Operator, transient_bytes

BEAM = 64
LOOKAHEAD = 24  # closed sets looked at for one multi-operator move


@dataclass(frozen=True)
class OrderResult:
    """A result of the search.

    `order`: operator indices.
    `bound_bytes`: no order has a smaller peak.
    `states`: states expanded.
    """

    order: tuple[int, ...]
    bound_bytes: int
    states: int


# (the path before it, operators run since)
_Path: TypeAlias = tuple["_Path | None", tuple[int, ...]]


@dataclass(slots=True)
class _State:
    """A closed set: bit k of `done` is operator k. `path` is (path before, operators run since)."""

    done: int
    live: int
    peak: int
    count: int
    ready: tuple[int, ...]
    path: _Path | None


class _Graph:
    """Operators by index with masks: who must run before, who uses what."""

    def __init__(
        self,
        operators: Sequence[Operator],
        sizes: Mapping[str, int],
        graph_inputs: Iterable[str],
        graph_outputs: Iterable[str],
    ) -> None:
        self.operators, self.sizes = operators, sizes
        self.n = len(operators)
        output_names = set(graph_outputs)
        producer_by_tensor = {t: k for k, op in enumerate(operators) for t in op.outputs}
        users: dict[str, int] = {}
        for k, op in enumerate(operators):
            for t in op.inputs:
                users[t] = users.get(t, 0) | 1 << k
        self.before = [0] * self.n
        self.after: list[list[int]] = [[] for _ in operators]
        for k, op in enumerate(operators):
            for producer in sorted({producer_by_tensor[t] for t in op.inputs if t in producer_by_tensor}):
                self.before[k] |= 1 << producer
                self.after[producer].append(k)
        # per operator: bytes of outputs and workspace, bytes of outputs that stay, (input, its users, its bytes)
        self.adds = [op.workspace_bytes + sum(sizes[t] for t in op.outputs) for op in operators]
        self.stays = [sum(sizes[t] for t in op.outputs if t in users or t in output_names) for op in operators]
        self.frees = [tuple((t, users[t], sizes[t]) for t in sorted(set(op.inputs)) if t not in output_names) for op in operators]
        self.start_bytes = sum(sizes[t] for t in set(graph_inputs) if t in users or t in output_names)
        self.alone = [
            sum(sizes[t] for t in set(op.inputs)) + transient_bytes(op, [f[0] for f in self.frees[k]], sizes)
            for k, op in enumerate(operators)
        ]

    def step(self, done: int, k: int) -> tuple[int, int]:
        """(bytes needed beyond the live ones while k runs, change of live bytes after it)."""
        after = done | 1 << k
        freed = 0
        dying: list[str] = []
        for t, users, size in self.frees[k]:
            if not users & ~after:
                freed += size
                dying.append(t)
        extra = self.adds[k]
        if dying and self.operators[k].in_place:
            extra = transient_bytes(self.operators[k], dying, self.sizes)
        return extra, self.stays[k] - freed

    def list_ready(self, done: int, k: int) -> list[int]:
        """Operators that k, the last of `done` to run, makes ready."""
        return [a for a in self.after[k] if not self.before[a] & ~done]

    def run(self, s: _State, k: int, extra: int, change: int) -> _State:
        done = s.done | 1 << k
        ready = tuple(r for r in s.ready if r != k) + tuple(self.list_ready(done, k))
        return _State(done, s.live + change, max(s.peak, s.live + extra), s.count + 1, ready, (s.path, (k,)))


def search_order(
    operators: Sequence[Operator],
    sizes: Mapping[str, int],
    graph_inputs: Iterable[str],
    graph_outputs: Iterable[str],
    effort_states: int,
) -> OrderResult:
    """Exact while the states last (`bound_bytes` is then the peak), otherwise beam search and a valid bound."""
    graph = _Graph(operators, sizes, graph_inputs, graph_outputs)
    ready = tuple(k for k in range(graph.n) if not graph.before[k])
    floor = max([graph.start_bytes, *graph.alone])
    root = _advance(graph, _State(0, graph.start_bytes, floor, 0, ready, None))
    best = {root.done: root.peak}
    heap = [(root.peak, -root.count, root.live, 0, root)]
    pushed = states = 0
    bound = floor
    while heap:
        s = heappop(heap)[-1]
        if s.peak > best[s.done]:
            continue
        bound = s.peak
        if s.count == graph.n:
            return OrderResult(_order_of(s), bound, states)
        if states >= effort_states:
            break
        states += 1
        for child in _children(graph, s):
            if child.peak < best.get(child.done, child.peak + 1):
                best[child.done] = child.peak
                pushed += 1
                heappush(heap, (child.peak, -child.count, child.live, pushed, child))
    return OrderResult(_order_of(_beam(graph, root)), bound, states)


def _children(graph: _Graph, s: _State) -> list[_State]:
    return [_advance(graph, graph.run(s, k, *graph.step(s.done, k))) for k in s.ready]


def _advance(graph: _Graph, s: _State) -> _State:
    """Makes safe moves while there are any."""
    while True:
        moved = False
        for k in s.ready:
            extra, change = graph.step(s.done, k)
            if change <= 0 and s.live + extra <= s.peak:
                s = graph.run(s, k, extra, change)
                moved = True
                break
        if moved:
            continue
        for k in s.ready:
            path = _safe_path(graph, s, k)
            if path:
                for operator in path:
                    s = graph.run(s, operator, *graph.step(s.done, operator))
                moved = True
                break
        if not moved:
            return s


def _safe_path(graph: _Graph, s: _State, k: int) -> tuple[int, ...]:
    """Operators that begin with k, are made ready by k and what follows it, and together are a safe move; or ().

    Breadth first over the closed sets above S | {k}, those beyond the peak included: they count as X, not as T.
    """
    extra, change = graph.step(s.done, k)
    if s.live + extra > s.peak:
        return ()
    live_by_set: dict[int, int] = {s.done | 1 << k: s.live + change}
    queue: list[tuple[int, int, tuple[int, ...], tuple[int, ...], bool]] = [
        (s.done | 1 << k, s.live + change, (k,), tuple(graph.list_ready(s.done | 1 << k, k)), True)
    ]
    reachable = {s.done | 1 << k}
    at = 0
    while at < len(queue) and len(queue) <= LOOKAHEAD:
        done, live, path, ready, within = queue[at]
        at += 1
        if within and live <= s.live and all(live <= f for x, f in live_by_set.items() if not x & ~done):
            return path
        for r in ready:
            extra, change = graph.step(done, r)
            after = done | 1 << r
            fits = within and live + extra <= s.peak
            if after in live_by_set and (not fits or after in reachable):
                continue
            live_by_set[after] = live + change
            if fits:
                reachable.add(after)
            remaining = tuple(x for x in ready if x != r) + tuple(graph.list_ready(after, r))
            queue.append((after, live + change, (*path, r), remaining, fits))
    return ()


def _beam(graph: _Graph, root: _State) -> _State:
    """The best of BEAM states kept for each number of operators run."""
    levels: dict[int, dict[int, _State]] = {root.count: {root.done: root}}
    for count in range(graph.n + 1):
        level = sorted(levels.pop(count, {}).values(), key=lambda s: (s.peak, s.live, s.done))[:BEAM]
        if count == graph.n:
            return level[0]
        for s in level:
            for child in _children(graph, s):
                known_state = levels.setdefault(child.count, {}).get(child.done)
                if known_state is None or child.peak < known_state.peak:
                    levels[child.count][child.done] = child
    raise AssertionError("a graph without cycles has a complete order")


def _order_of(s: _State) -> tuple[int, ...]:
    parts: list[tuple[int, ...]] = []
    path = s.path
    while path is not None:
        path, ran = path
        parts.append(ran)
    return tuple(k for ran in reversed(parts) for k in ran)
