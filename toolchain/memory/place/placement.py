"""Give buffers their addresses, with a certificate: greedy orders first, then the decision search against targets.

`place` is the entry of the package. Time is cut into pieces that no buffer crosses, and each piece is placed by itself.
A piece of more than SEARCH_ALLOCATIONS allocations goes to `core_first`. A node is one step of the search.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from toolchain.memory.buffer import Buffer, DoesNotFit, Placement, check_buffers
from toolchain.memory.check import live_at_peak
from toolchain.memory.place.allocations import Allocation, list_rights, make_allocations, rights_to_try
from toolchain.memory.place.compiled_fit import Fitter
from toolchain.memory.place.core_first import CoreFirst
from toolchain.memory.place.greedy import FEW, NoRoom, first_fit, orders, peak_of, skyline
from toolchain.memory.place.search import Decider, Plan, Strategy, Verdict, draw_strategy

DEFAULT_EFFORT_NODES = 20_000
SEARCH_ALLOCATIONS = 3_000  # above this the tables of the search outgrow the memory: only the fullest part is searched
FLOOR_NODES = 100_000  # at most, for the bound itself, before the way down from the best plan
SHORT_NODES_AN_ITEM = 6  # of one search on the way down: what is found, is found in one to seven
FAVOURITES = 6  # strategies that last found a plan on the way down; every other search jitters one of them
# Steps down tried in turn, in 64ths of the way from the plan to its bound. Large ones succeed rarely, but gain most.
SHARES = (48, 22, 9, 35, 15, 6, 27, 41, 12, 19, 7, 31, 2)


def place(buffers: Iterable[Buffer], capacity_bytes: int | None = None, effort_nodes: int = DEFAULT_EFFORT_NODES) -> Placement:
    """Return addresses for all buffers and the certificate of their peak.

    `capacity_bytes`: the first plan found within it is returned (packing). None: the smallest peak found.
    `effort_nodes`: how long to search, in nodes; the answer depends on it and on nothing else. 0: greedy plans only.
    Where rights to another's place leave no plan, fewer or other ones are taken, each time with all of the effort.
    Where the bound is beyond the capacity, greedy plans are tried only for the refusal's peak; with an effort of 0 none are.
    Raise InvalidBuffers for buffers that contradict themselves or each other. Raise DoesNotFit where no plan was found within
    the capacity, or none at all.
    """
    by_name = check_buffers(buffers)
    rigid = any(b.in_place_of or b.view_of for b in by_name.values())
    floor = _bound_of_every_choice(by_name) if rigid else None
    tried, peaks, nodes, bound, proved = list[list[Allocation]](), list[int](), 0, 0, False
    for rights in rights_to_try(by_name):
        items = make_allocations(by_name, rights)
        if items in tried:
            continue
        tried.append(items)
        plan = _place_items(_drop_empty(items), floor, capacity_bytes, effort_nodes)
        nodes += plan.nodes
        # With rights to share not all of which need be taken, what the search refutes is no proof.
        bound = plan.bound_bytes if floor is None else floor
        if plan.bases is not None:
            peak = peak_of(_drop_empty(items), plan.bases)
            if capacity_bytes is None or peak <= capacity_bytes:
                return Placement(_addresses(by_name, items, plan.bases), peak, min(bound, peak), peak <= bound, nodes)
            peaks.append(peak)
        proved = plan.impossible and not rigid if capacity_bytes is None else bound > capacity_bytes
        if proved:
            break
    step, live, _ = live_at_peak(by_name.values())
    raise DoesNotFit(capacity_bytes, bound, min(peaks, default=None), step, live, proved, nodes)


def _place_items(items: Sequence[Allocation], floor: int | None, capacity: int | None, effort: int) -> Plan:
    """Return the plan of allocations that all have bytes, perhaps beyond the capacity.

    `floor`: lower bound of the peak in bytes, where other allocations could be made of the same buffers; else None.
    """
    bound = lower_bound(items) if floor is None else floor
    if capacity is not None and bound <= capacity and all(item.plain for item in items):
        bases = skyline(items, capacity)
        if bases is not None:
            return Plan(bases, bound)
    return _place_pieces(items, bound, capacity, effort)


def _bound_of_every_choice(by_name: Mapping[str, Buffer]) -> int:
    """Return the lower bound of the peak in bytes, whichever rights to another's place are taken."""
    overlaid = _drop_empty(make_allocations(by_name, list_rights(by_name), legal=False))
    return max(_most_live_bytes(overlaid), _lowest_end(_drop_empty(make_allocations(by_name))))


def _drop_empty(items: Iterable[Allocation]) -> list[Allocation]:
    """Return the items that have bytes: those that are searched for."""
    return [item for item in items if item.size_bytes]


def lower_bound(items: Sequence[Allocation]) -> int:
    """Return the largest sum of live bytes over all steps, or the lowest end of an allocation alone, where that is larger.

    No plan's peak is below it. 0 without items.
    """
    return max(_most_live_bytes(items), _lowest_end(items))


def _lowest_end(items: Sequence[Allocation]) -> int:
    """Return the largest end that an allocation has at its own lowest address, in bytes."""
    return max((item.lowest_base(0) + item.size_bytes for item in items), default=0)


def _most_live_bytes(items: Sequence[Allocation]) -> int:
    """Return the largest sum of live bytes over all steps.

    Where all addresses are multiples of the least alignment, sizes are rounded up to it, all but one.
    """
    changes: dict[int, int] = {}
    grain = min((item.alignment_bytes for item in items), default=1)
    same_grain = grain > 1 and all(item.alignment_bytes % grain == 0 for item in items)
    # A part that begins off the grain may lie in the padding of another.
    same_grain = same_grain and all(low % grain == 0 for item in items for _, _, low, _ in item.parts)
    for item in items:
        for start, end, low, high in item.parts:
            padded = high - low
            if same_grain and len(item.parts) == 1:
                padded += -padded % grain
            changes[start] = changes.get(start, 0) + padded
            changes[end] = changes.get(end, 0) - padded
    live = most = 0
    for step in sorted(changes):
        live += changes[step]
        most = max(most, live)
    if same_grain and most:
        most -= max(-item.size_bytes % grain for item in items)
    return most


def _place_pieces(items: Sequence[Allocation], bound: int, capacity: int | None, effort: int) -> Plan:
    """Return the plan of all items, piece by piece, the fullest first; the peak of one is the target of the next.

    A piece is a stretch of time that no item crosses. `bound`: lower bound of the whole, in bytes.
    `capacity`: as in `place`. `effort`: nodes for all pieces together.
    The plan's `bases` are None where some piece has no plan.
    """
    pieces = [(lower_bound([items[n] for n in piece]), piece) for piece in _pieces(items)]
    pieces.sort(key=lambda piece: (-piece[0], piece[1]))
    bases = [0] * len(items)
    nodes = 0
    target = bound
    best_bound = bound
    for piece_bound, piece in pieces:
        some = [items[n] for n in piece]
        if capacity is None:
            plan = _minimize(some, piece_bound, target, max(effort - nodes, 0))
        else:
            plan = _pack(some, piece_bound, capacity, max(effort - nodes, 0))
        nodes += plan.nodes
        best_bound = max(best_bound, plan.bound_bytes)
        if plan.bases is None:
            return Plan(None, best_bound, nodes, plan.impossible)
        for n, base in zip(piece, plan.bases):
            bases[n] = base
        target = max(target, peak_of(some, plan.bases))
    return Plan(bases, best_bound, nodes)


def _pieces(items: Sequence[Allocation]) -> list[list[int]]:
    """Return the items of each stretch of time that no item crosses, by rising start."""
    pieces: list[list[int]] = []
    until = None
    for n in sorted(range(len(items)), key=lambda n: (items[n].start, n)):
        if until is None or items[n].start >= until:
            pieces.append([])
            until = items[n].end
        pieces[-1].append(n)
        until = max(until, items[n].end)
    return pieces


def _greedy(items: Sequence[Allocation], target: int) -> list[int] | None:
    """Return the bases of the best greedy plan, the first with a peak of at most `target`; None where no order works."""
    best, peak = None, math.inf
    fitter = Fitter(items) if len(items) > FEW and all(item.plain for item in items) else None
    for order in orders(items):
        try:
            bases = first_fit(items, order, limit=peak) if fitter is None else fitter.fit(order).tolist()
        except NoRoom:
            continue
        if (end := peak_of(items, bases)) < peak:
            best, peak = bases, end
        if peak <= target:
            break
    return best


def _pack(items: Sequence[Allocation], bound: int, capacity: int, effort: int) -> Plan:
    """Return the first plan of a piece within the capacity, or the best known that exceeds it.

    `bases` are None where there is none. A refuted capacity raises the bound.
    """
    if bound > capacity and not effort:
        return Plan(None, bound)
    if len(items) > SEARCH_ALLOCATIONS:
        return CoreFirst(items, bound, effort if bound <= capacity else 0).run(capacity, minimize=False)
    plan = Plan(_greedy(items, capacity), bound)
    fits = plan.bases is not None and peak_of(items, plan.bases) <= capacity
    if fits or bound > capacity:
        return plan
    decider = Decider(items)
    verdict = decider.attempts(capacity, effort)
    plan.nodes = verdict.nodes
    if verdict.bases is not None:
        plan.bases = list(verdict.bases)
    elif verdict.refuted:
        plan.bound_bytes = decider.next_peak(capacity)
    return plan


def _minimize(items: Sequence[Allocation], bound: int, target: int, effort: int) -> Plan:
    """Return the plan of a piece with the smallest peak found. A peak of `target` is as good as any below it.

    `bases` are None where none was found, which only fixed addresses and regions can cause.
    The search decides at the target first and then goes down from the best plan.
    Plans are found in few nodes or hardly at all, so a step down costs less than one up from the bound.
    """
    if len(items) > SEARCH_ALLOCATIONS:
        return CoreFirst(items, bound, effort).run(target, minimize=True)
    plan = Plan(_greedy(items, target), bound)
    if plan.bases is not None and peak_of(items, plan.bases) <= target:
        return plan
    decider = Decider(items)
    if plan.bases is None:  # bound items in each other's way: any plan at all
        reach = sum(i.size_bytes + i.alignment_bytes + i.bank_bytes for i in items) + target
        _try(plan, decider, reach, effort // 2)
        if plan.bases is None:
            plan.impossible = plan.bound_bytes > reach
            return plan
    floor = max(target, plan.bound_bytes)
    _try(plan, decider, floor, min(effort // 4, FLOOR_NODES, effort - plan.nodes))
    _go_down(plan, decider, target, effort)
    return plan


def _go_down(plan: Plan, decider: Decider, target: int, effort: int) -> None:
    """Lower the plan and raise its bound, in place, until they meet or the effort is used up.

    There are many short searches, each by another strategy and for another target between plan and bound.
    One in a few hundred finds a plan far below, nearly without backtracking.
    Every other one is a jittered form of a strategy that found a plan before.
    An eighth of the nodes goes to long searches, at the bound and just below the plan, which also prove.
    """
    began, deep_nodes = plan.nodes, 0
    deep_cap = SHORT_NODES_AN_ITEM * len(decider.items) + 200
    short_cap = deep_cap
    short = deep = idle = 0
    good_strategies: list[Strategy] = []
    while plan.nodes < effort and idle < 2 * len(SHARES):
        peak, floor = peak_of(decider.items, plan.bases or ()), max(target, plan.bound_bytes)
        if peak <= floor:
            return
        go_deep = 8 * deep_nodes < plan.nodes - began
        if go_deep:
            aim = floor if deep % 2 else max(floor, peak - decider.unit)
            strategy, cap = draw_strategy(deep // 2), deep_cap
            deep, deep_cap = deep + 1, deep_cap + deep_cap // 8
        else:
            step = max((peak - floor) * SHARES[short % len(SHARES)] // 64, decider.unit)
            aim = max(floor, (peak - step) // decider.unit * decider.unit)
            strategy, cap = draw_strategy(short), short_cap
            if short % 2 and good_strategies:
                strategy = good_strategies[short // 2 % len(good_strategies)]._replace(jitter=short)
            short += 1
        verdict = decider.decide(aim, strategy, min(cap, effort - plan.nodes))
        deep_nodes += verdict.nodes if go_deep else 0
        idle = 0 if verdict.nodes else idle + 1
        if _take(plan, decider, aim, verdict):
            good_strategies = [*good_strategies, strategy][-FAVOURITES:]


def _try(plan: Plan, decider: Decider, target: int, nodes: int) -> bool:
    """Decide once; improve the plan or its bound, in place. Return whether a plan within the target is known."""
    if plan.bases is not None and peak_of(decider.items, plan.bases) <= target:
        return True
    if plan.bound_bytes > target:
        return False
    return _take(plan, decider, target, decider.attempts(target, nodes))


def _take(plan: Plan, decider: Decider, target: int, verdict: Verdict) -> bool:
    """Take a verdict at a target into the plan, in place: its nodes, bases and bound. Return whether it has bases."""
    plan.nodes += verdict.nodes
    if verdict.refuted:
        plan.bound_bytes = max(plan.bound_bytes, decider.next_peak(target))
    if verdict.bases is None:
        return False
    plan.bases = list(verdict.bases)
    return True


def _addresses(by_name: Mapping[str, Buffer], items: Sequence[Allocation], bases: Sequence[int]) -> dict[str, int]:
    """Return the address of each buffer by name, in the order of `by_name`.

    `items`: all. One without bytes lies at its lowest legal address. `bases`: those of the others, in the same order.
    """
    sized = iter(bases)
    at = {
        name: base + offset
        for item in items
        for base in (next(sized) if item.size_bytes else item.lowest_base(0),)
        for name, offset in item.members
    }
    return {name: at[name] for name in by_name}
