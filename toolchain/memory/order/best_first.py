"""Search for the order of operators whose peak of live bytes is smallest.

`order_search.order_operators` calls `search_order` on a checked graph. A state is a set of operators that have run, closed
under predecessors. States are expanded best first, by their peak so far. Where the effort ends, a beam search begins anew.

Safe moves are made at once and not branched over. Let f be the live bytes after a closed set, which is a submodular function.
From a state S with peak P, a closed set T above S is a safe move if two conditions hold.
T can be run within P, and f(T) <= f(X) for every closed X with S <= X <= T.
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

BEAM = 64  # states kept for each number of operators run
LOOKAHEAD = 24  # closed sets looked at for one multi-operator move


@dataclass(frozen=True)
class OrderResult:
    """A complete order and the lower bound that the search proved.

    `order`: indices into the given operators, all of them.
    `bound_bytes`: no order has a smaller peak; equal to this order's peak where the search came to its end.
    `states`: states expanded best first, without those of the beam search; equal input gives an equal number.
    """

    order: tuple[int, ...]
    bound_bytes: int
    states: int


# (the path before it, operators run since)
_Path: TypeAlias = tuple["_Path | None", tuple[int, ...]]


@dataclass(slots=True)
class _State:
    """The operators that have run so far, a closed set, and what running them cost.

    `done`: bit k is set where operator k has run.
    `live`: bytes live now; `peak`: most bytes live at any time so far, never below the graph's lower bound.
    `count`: operators that have run.
    `ready`: operators whose predecessors have all run.
    `path`: (path before, operators run since), None at the start.
    """

    done: int
    live: int
    peak: int
    count: int
    ready: tuple[int, ...]
    path: _Path | None


class _Graph:
    """The operators by index, with sets of operators as bit masks: who must run before, who reads what."""

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
        """Return what running operator k after the operators of `done` does to the live bytes.

        That is (bytes needed beyond the live ones while k runs, change of live bytes once it has run).
        Inputs whose last reader is k are freed, or overwritten where `in_place` allows.
        """
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
        """Return the operators that k, the last of `done` to run, makes ready."""
        return [a for a in self.after[k] if not self.before[a] & ~done]

    def run(self, s: _State, k: int, extra: int, change: int) -> _State:
        """Return the state after operator k. `extra`, `change`: what `step` says of it. `s` stays as it is."""
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
    """Return the best order found, which is optimal where `effort_states` suffices.

    Then `bound_bytes` is its peak. Otherwise the order is that of a beam search, and the bound is valid but may be lower.
    `sizes`: bytes of each tensor. Graph inputs are live from the start until their last reader has run, outputs to the end.
    The graph must be free of cycles and faults (`order_search.check_graph`).
    """
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
    """Return the states after each ready operator, with the safe moves that follow it."""
    return [_advance(graph, graph.run(s, k, *graph.step(s.done, k))) for k in s.ready]


def _advance(graph: _Graph, s: _State) -> _State:
    """Return the state after all safe moves from `s`, one after another; `s` itself where there is none."""
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
    """Return the operators of a safe move that begins with k, in the order to run them; () where none is found.

    Those behind k are made ready by k and by one another. At most LOOKAHEAD closed sets above S | {k} are looked at, breadth
    first. Sets beyond the peak count as X in the condition above, but cannot be T.
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
    """Return a complete state by beam search: the BEAM best states are kept for each number of operators run."""
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
    """Return the operators in the order in which the state's path ran them."""
    parts: list[tuple[int, ...]] = []
    path = s.path
    while path is not None:
        path, ran = path
        parts.append(ran)
    return tuple(k for ran in reversed(parts) for k in ran)
