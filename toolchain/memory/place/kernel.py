"""Decide by search whether there is a placement within the target: depth first over canonical placements.

`decide` is the entry; `search.Decider` calls it with a problem and fresh scratch (`problem.Problem`, `problem.SearchState`).
The code is in the subset that both Python (over lists) and numba (over int64 arrays) run: the same nodes, the
same plan.
It is one file, because numba's cache of `decide` sees changes of this file alone.

A canonical plan has the smallest sum of size^2 * address among the plans within the target.
So each item lies on the floor or on another item, and no item could slip into a gap below its support.
Of two items of equal life that touch, the larger lies below where the target lets them change places. It may not: the size of
one is rounded up to more than its bytes, and the target is none of the unit's multiples.
Items are placed bottom up: everything placed later lies above what it overlaps.

A node picks a section and asks which item lies at its lowest reachable address.
It tries each item that may, then none: these items are flagged (left behind) until something placed later lifts them.
If another item could still slip under a candidate, the question moves to that item's lowest section first.
So heights fall and the questions end at a local minimum.
The choice is local, so the section can be the one that matters most (see `_pick_section`), not the globally
lowest.
Failures far away in time are then not tried again and again.

Cuts: the remaining items of a section, sorted by their lowest possible address, are the one-machine problem
with release dates.
The lowest address of the k-th plus the sizes from it on must be <= target.
The remaining items split into pieces where no item crosses.
A piece that cannot be placed refutes the choice that made it, whatever the other pieces hold.

In all functions `p` is the problem, which is only read, and `w` the scratch, which is changed.
`problem` explains their fields, and what sections, units and ranks are.
A piece is `items` entries of `w.pool` from `at` on. A frame, an open node, is FRAME numbers of `w.frames` from `f` on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from toolchain.memory.place.problem import Problem, SearchState

    # as Python runs it; numba has int64 arrays in their place
    Ints = list[int]
    Items = Problem[Ints]
    State = SearchState[Ints]
    Column = NDArray[np.int64]

PLACED, REFUTED, UNKNOWN = 1, 0, -1
BIG = 4611686018427387904

# Rules to pick a section: the lowest floor, the most units left, a low floor and little slack, the last also over the failures
# so far, slack alone over these. Then orders to try the candidates in.
LOWEST, FULLEST, LOW_AND_TIGHT, LOW_TIGHT_FAILING, TIGHT_FAILING = 0, 1, 2, 3, 4
BY_RANK, BY_NEED, BY_WASTE = 0, 1, 2

# frame: items at, items, candidates at, candidates, next one, parent frame, pending, trail, pool end, pendings
FRAME = 10
# w.counts: pool end, trail length, pendings, pending head
POOL, TRAIL, PENDINGS, HEAD = 0, 1, 2, 3
# The functions that `search.find_compiled_kernel` compiles; fall_array, pile_array and level_array stand in for three of them.
COMPILED = (
    *("_start", "_lift", "_bound", "_fall", "_pile", "_level", "_pick_section", "_gather", "_slips_under", "_settle_section"),
    *("_sort_values", "_drop_symmetric", "_leaves_gap", "_undo", "_place", "_leave_behind", "_split", "_branch", "_full"),
    "decide",
)


def decide(p: Items, w: State, target: int, node_limit: int, rule: int, order: int) -> tuple[int, int]:
    """Return (PLACED, REFUTED or UNKNOWN, nodes used).

    PLACED: `w.address` holds a plan, in units. UNKNOWN: `node_limit` was reached, or the scratch is full.
    `target`: in units, no item may end above it. The caller has set `w.top`, by item the largest address: at most
    target less its size.
    `rule`: how a node picks its section, LOWEST to TIGHT_FAILING. `order`: how it orders candidates, BY_RANK to BY_WASTE.
    """
    if not _start(p, w, target):
        return REFUTED, 0
    n_frames = 0
    nodes = 0
    while w.counts[HEAD] >= 0:
        head = 4 * w.counts[HEAD]
        at = w.pending[head]
        items = w.pending[head + 1]
        parent = w.pending[head + 2]
        if _full(p, w, n_frames):
            return UNKNOWN, nodes
        fail = _lift(p, w, at, items)
        if fail < 0:
            fail = _bound(p, w, at, items, target)
        if fail >= 0:
            w.weight[fail] += 1
            n_frames = parent + 1
        else:
            _branch(p, w, at, items, parent, w.pending[head + 3], n_frames, target, rule, order)
            n_frames += 1
        while True:
            if n_frames == 0:
                return REFUTED, nodes
            f = FRAME * (n_frames - 1)
            _undo(p, w, f)
            choice = w.frames[f + 4]
            if choice > w.frames[f + 3]:
                n_frames = w.frames[f + 5] + 1
                continue
            if nodes >= node_limit:
                return UNKNOWN, nodes
            w.frames[f + 4] += 1
            if choice == w.frames[f + 3]:
                nodes += 1
                _leave_behind(p, w, f)
            else:
                item = w.pool[w.frames[f + 2] + choice]
                if item < 0:
                    continue
                nodes += 1
                fail = _place(p, w, item)
                if fail >= 0:
                    w.weight[fail] += 1
                    continue
            _split(p, w, f, n_frames - 1)
            break
    return PLACED, nodes


def _start(p: Items, w: State, target: int) -> bool:
    """Set up the scratch with all items as one piece. Return whether each item and each section fits by itself."""
    for s in range(p.n_sections):
        w.rem[s] = 0
        w.weight[s] = 1
    for i in range(p.n):
        w.address[i] = -1
        w.flag[i] = -1
        w.raw[i] = p.low[i]
        w.pool[i] = i
        if p.low[i] > w.top[i]:
            return False
        for s in range(p.first[i], p.last[i]):
            w.rem[s] += p.size[i]
    for s in range(p.n_sections):
        if w.rem[s] > target:
            return False
    w.counts[POOL] = p.n
    w.counts[TRAIL] = 0
    w.counts[PENDINGS] = 1
    w.counts[HEAD] = 0 if p.n else -1
    w.pending[0] = 0
    w.pending[1] = p.n
    w.pending[2] = -1
    w.pending[3] = -1
    return True


def _full(p: Items, w: State, n_frames: int) -> bool:
    """Return whether the scratch might not hold one more node."""
    return (
        w.counts[POOL] + 3 * p.n + 10 > len(w.pool)
        or FRAME * (n_frames + 2) > len(w.frames)
        or 2 * (w.counts[TRAIL] + 2 * p.n + 10) > len(w.trail)
        or 4 * (w.counts[PENDINGS] + p.n + 2) > len(w.pending)
    )


def _lift(p: Items, w: State, at: int, items: int) -> int:
    """Set `w.eff` of a piece: the lowest address each item can still have.

    Items left behind must rest on one that is placed later. Return a section that cannot be filled, or -1.
    """
    eff, raw, flag, pool, top = w.eff, w.raw, w.flag, w.pool, w.top
    change = False
    for i in pool[at : at + items]:
        if flag[i] == raw[i]:
            eff[i] = BIG
            change = True
        else:
            eff[i] = raw[i]
    while change:
        change = False
        for i in pool[at : at + items]:
            if flag[i] != raw[i]:
                continue
            e = eff[i]
            for q in range(p.ov_ptr[i], p.ov_ptr[i + 1]):
                j = p.ov_item[q]
                if w.address[j] < 0 and eff[j] + p.size[j] < e:
                    e = eff[j] + p.size[j]
            if e <= raw[i]:
                e = raw[i] + 1
            if p.align[i] > 1 and e < BIG:
                e += -e % p.align[i]
            if e < eff[i]:
                eff[i] = e
                change = True
    for i in pool[at : at + items]:
        if eff[i] > top[i]:
            return p.first[i]
    return -1


def _bound(p: Items, w: State, at: int, items: int, target: int) -> int:
    """Sort the piece by falling `eff`, and set `w.floor`: the lowest `eff` of each section.

    Return a section whose items are too many for the target, or -1.
    """
    first, last, size, eff, load, floor = p.first, p.last, p.size, w.eff, w.load, w.floor
    _fall(w.pool, at, items, eff)
    piece = w.pool[at : at + items]
    low_s = p.n_sections
    high_s = 0
    for i in piece:
        if first[i] < low_s:
            low_s = first[i]
        if last[i] > high_s:
            high_s = last[i]
    _level(floor, low_s, high_s, 0)
    _level(load, low_s, high_s, 0)
    for i in piece:
        room = target - eff[i]
        s = first[i]
        if last[i] == s + 1:  # most items: without a call
            load[s] += size[i]
            if load[s] > room:
                return s
        elif _pile(load, s, last[i], size[i]) > room:
            while load[s] <= room:
                s += 1
            return s
    for i in piece:
        if last[i] == first[i] + 1:
            floor[first[i]] = eff[i]
        else:
            _level(floor, first[i], last[i], eff[i])
    return -1


def _fall(pool: Ints, at: int, items: int, eff: Ints) -> None:
    """Sort the items by falling `eff`; what is equal stays in order."""
    pool[at : at + items] = sorted(pool[at : at + items], key=eff.__getitem__, reverse=True)


def _pile(load: Ints, low: int, high: int, size: int) -> int:
    """Add `size` to load[low:high], of at least one section. Return the largest sum there."""
    row = [units + size for units in load[low:high]]
    load[low:high] = row
    return max(row)


def _level(floor: Ints, low: int, high: int, address: int) -> None:
    """Set floor[low:high] to `address`."""
    floor[low:high] = [address] * (high - low)


def fall_array(pool: Column, at: int, items: int, eff: Column) -> None:
    """Sort the items by falling effective address, like `_fall`.

    This function, and below `_pile` and `_level`, have forms that a compiler turns into fast code.
    They insert into arrays that hardly change from node to node, or use views with indices from 0, for vector
    instructions.
    """
    for k in range(at, at + items):
        i = pool[k]
        e = eff[i]
        m = k
        while m > at and eff[pool[m - 1]] < e:
            pool[m] = pool[m - 1]
            m -= 1
        pool[m] = i


def pile_array(load: Column, low: int, high: int, size: int) -> int:
    """Do what `_pile` does, for numba."""
    row = load[low:high]
    most = 0
    for s in range(len(row)):
        sum_units = row[s] + size
        row[s] = sum_units
        most = max(most, sum_units)
    return most


def level_array(floor: Column, low: int, high: int, address: int) -> None:
    """Do what `_level` does, for numba."""
    floor[low:high] = address


def _pick_section(p: Items, w: State, low_s: int, high_s: int, target: int, rule: int) -> int:
    """Return the section that matters most by the rule. Weights count the failures that a section was part of."""
    rem, floor, weight = w.rem, w.floor, w.weight
    best = -1
    best_score = 0.0
    for s in range(low_s, high_s):
        if rem[s] == 0:
            continue
        slack = (target - floor[s] - rem[s]) / target
        if rule == LOWEST:
            score = floor[s] + 0.5 * slack
        elif rule == FULLEST:
            score = -float(rem[s])
        elif rule == LOW_AND_TIGHT:
            score = (slack + 0.01) * (floor[s] / target + 0.1)
        elif rule == LOW_TIGHT_FAILING:
            score = (slack + 0.1) * (floor[s] / target + 0.1) / weight[s]
        else:
            score = (slack + 0.01) / weight[s]
        if best < 0 or score < best_score:
            best = s
            best_score = score
    return best


def _gather(p: Items, w: State, at: int, items: int, s: int, c_at: int) -> tuple[int, int]:
    """Put the items that may lie at the floor of section s into the pool, from c_at on.

    Return (how many, one left behind at that floor or -1).
    """
    first, last, eff, pool, lowest = p.first, p.last, w.eff, w.pool, w.floor[s]
    n = 0
    lifted = -1
    for i in pool[at : at + items]:
        if eff[i] == lowest and first[i] <= s and s < last[i]:
            if w.flag[i] == w.raw[i]:
                lifted = i
            else:
                pool[c_at + n] = i
                n += 1
    return n, lifted


def _slips_under(p: Items, w: State, c_at: int, n: int, lifted: int, h: int) -> int:
    """Return an item that may come to lie under a candidate at height h, or -1.

    Where n = 0 the candidate is `lifted`, an item left behind. The n candidates are in the pool from c_at on.
    """
    address, eff, size, ov_item = w.address, w.eff, p.size, p.ov_item
    if n == 0:
        down = -1
        for q in range(p.ov_ptr[lifted], p.ov_ptr[lifted + 1]):
            j = ov_item[q]
            if address[j] < 0 and eff[j] < h and (down < 0 or eff[j] + size[j] < eff[down] + size[down]):
                down = j
        return down
    for i in w.pool[c_at : c_at + n]:
        for j in ov_item[p.ov_ptr[i] : p.ov_ptr[i + 1]]:
            if address[j] < 0 and eff[j] + size[j] <= h:
                return j
    return -1


def _settle_section(p: Items, w: State, at: int, items: int, s: int, c_at: int) -> tuple[int, int]:
    """Move from section s down to one where nothing slips under its candidates. Return (section, candidates)."""
    while True:
        n, lifted = _gather(p, w, at, items, s, c_at)
        down = _slips_under(p, w, c_at, n, lifted, w.floor[s])
        if down < 0:
            return s, n
        s = p.first[down]
        for x in range(p.first[down], p.last[down]):
            if w.floor[x] < w.floor[s]:
                s = x


def _sort_values(p: Items, w: State, c_at: int, n: int, h: int, target: int, order: int) -> None:
    """Sort the n candidates, in the pool from c_at on, best first by the order; what is equal goes by rank.

    BY_NEED: fullest section, then longest life. BY_WASTE: fewest gaps closed off below h.
    """
    for m in range(c_at, c_at + n):
        i = w.pool[m]
        value = 0
        if order == BY_NEED:
            for s in range(p.first[i], p.last[i]):
                value = max(value, w.rem[s] + w.floor[s])
            value = value * 128 // target * 1000 + p.last[i] - p.first[i]
        elif order == BY_WASTE:
            for s in range(p.first[i], p.last[i]):
                value -= h - w.floor[s]
        w.value[i] = value
        k = m
        while k > c_at:
            j = w.pool[k - 1]
            if w.value[j] > value or (w.value[j] == value and j < i):
                break
            w.pool[k] = j
            k -= 1
        w.pool[k] = i


def _drop_symmetric(p: Items, w: State, c_at: int, n: int, h: int) -> None:
    """Mark, as -1 - item, the candidates that a canonical plan does not have at height h; they still count as left behind."""
    for m in range(c_at, c_at + n):
        i = w.pool[m]
        t = p.twin[i]
        drop = t >= 0 and w.address[t] < 0 and w.top[t] <= w.top[i]
        for q in range(p.same_ptr[i], p.same_ptr[i + 1]):
            j = p.same_item[q]
            if w.address[j] >= 0 and w.address[j] + p.size[j] == h and p.size[j] < p.size[i]:
                drop = drop or w.address[j] + p.size[i] <= w.top[j]
        if drop or _leaves_gap(p, w, i):
            w.pool[m] = -1 - i


def _leaves_gap(p: Items, w: State, i: int) -> bool:
    """Return whether the item was left behind at an address where it would still fit."""
    if w.flag[i] < 0:
        return False
    for q in range(p.ov_ptr[i], p.ov_ptr[i + 1]):
        j = p.ov_item[q]
        if w.address[j] >= 0:
            a = w.address[j]
            b = a + p.size[j]
            if p.ov_bank[q]:
                a -= a % p.ov_bank[q]
                b += -b % p.ov_bank[q]
            if a < w.flag[i] + p.size[i] and b > w.flag[i]:
                return False
    return True


def _branch(
    p: Items, w: State, at: int, items: int, parent: int, head: int, n_frames: int, target: int, rule: int, order: int
) -> None:
    """Open frame `n_frames` for a piece: pick its section and gather its candidates.

    `parent`: the frame whose choice made the piece. `head`: the piece that is worked on after it.
    """
    first, last = p.first, p.last
    low_s = p.n_sections
    high_s = 0
    for i in w.pool[at : at + items]:
        if first[i] < low_s:
            low_s = first[i]
        if last[i] > high_s:
            high_s = last[i]
    c_at = w.counts[POOL]
    s = _pick_section(p, w, low_s, high_s, target, rule)
    s, n = _settle_section(p, w, at, items, s, c_at)
    _sort_values(p, w, c_at, n, w.floor[s], target, order)
    _drop_symmetric(p, w, c_at, n, w.floor[s])
    f = FRAME * n_frames
    w.frames[f] = at
    w.frames[f + 1] = items
    w.frames[f + 2] = c_at
    w.frames[f + 3] = n
    w.frames[f + 4] = 0
    w.frames[f + 5] = parent
    w.frames[f + 6] = head
    w.frames[f + 7] = w.counts[TRAIL]
    w.frames[f + 8] = c_at + n
    w.frames[f + 9] = w.counts[PENDINGS]


def _undo(p: Items, w: State, f: int) -> None:
    """Go back to the state in which frame f was opened.

    The trail has pairs: (item, old raw), (-1 - item, unused) for one placed, (-1 - n - item, old flag).
    """
    k = w.counts[TRAIL]
    while k > w.frames[f + 7]:
        k -= 1
        i = w.trail[2 * k]
        if i >= 0:
            w.raw[i] = w.trail[2 * k + 1]
        elif i >= -p.n:
            i = -1 - i
            w.address[i] = -1
            for s in range(p.first[i], p.last[i]):
                w.rem[s] += p.size[i]
        else:
            w.flag[-1 - p.n - i] = w.trail[2 * k + 1]
    w.counts[TRAIL] = k
    w.counts[HEAD] = w.frames[f + 6]
    w.counts[POOL] = w.frames[f + 8]
    w.counts[PENDINGS] = w.frames[f + 9]


def _leave_behind(p: Items, w: State, f: int) -> None:
    """Leave all candidates of frame f behind: none of them lies at its present address."""
    k = w.counts[TRAIL]
    for m in range(w.frames[f + 2], w.frames[f + 2] + w.frames[f + 3]):
        i = w.pool[m]
        if i < 0:
            i = -1 - i
        w.trail[2 * k] = -1 - p.n - i
        w.trail[2 * k + 1] = w.flag[i]
        k += 1
        w.flag[i] = w.raw[i]
    w.counts[TRAIL] = k


def _place(p: Items, w: State, b: int) -> int:
    """Place item b at its lowest address and raise what it overlaps. Return a section that fails, or -1."""
    k = w.counts[TRAIL]
    w.address[b] = w.raw[b]
    w.trail[2 * k] = -1 - b
    k += 1
    for s in range(p.first[b], p.last[b]):
        w.rem[s] -= p.size[b]
    address, raw, trail, ov_item, ov_bank = w.address, w.raw, w.trail, p.ov_item, p.ov_bank
    end = raw[b] + p.size[b]
    fail = -1
    for q in range(p.ov_ptr[b], p.ov_ptr[b + 1]):
        j = ov_item[q]
        if address[j] >= 0:
            continue
        x = end
        if ov_bank[q]:
            x += -x % ov_bank[q]
        if x <= raw[j]:
            continue
        if p.align[j] > 1:
            x += -x % p.align[j]
        while p.bank[j] and x // p.bank[j] != (x + p.size[j] - 1) // p.bank[j]:
            x += -x % p.bank[j]
            x += -x % p.align[j]
        trail[2 * k] = j
        trail[2 * k + 1] = raw[j]
        k += 1
        raw[j] = x
        if x > w.top[j]:
            fail = max(p.first[j], p.first[b])
            break
    w.counts[TRAIL] = k
    return fail


def _split(p: Items, w: State, f: int, parent: int) -> None:
    """Open the pieces that are left of frame f's piece; the next to be worked on is the last in time."""
    at = w.frames[f]
    items = w.frames[f + 1]
    first, last, address, pool, cross = p.first, p.last, w.address, w.pool, w.cross
    low_s = p.n_sections
    high_s = 0
    p_at = w.counts[POOL]
    end = p_at
    for i in pool[at : at + items]:
        if address[i] < 0:
            pool[end] = i
            end += 1
            cross[first[i]] += 1
            cross[last[i] - 1] -= 1
            if first[i] < low_s:
                low_s = first[i]
            if last[i] > high_s:
                high_s = last[i]
    start = low_s
    crossing = 0
    for s in range(low_s, high_s):
        crossing += cross[s]
        cross[s] = 0
        if crossing:
            continue
        if start > low_s or s + 1 < high_s:  # more than one piece, so not all that was gathered above
            p_at = w.counts[POOL]
            end = p_at
            for i in pool[at : at + items]:
                if address[i] < 0 and first[i] >= start and last[i] <= s + 1:
                    pool[end] = i
                    end += 1
        start = s + 1
        if end > p_at:
            q = 4 * w.counts[PENDINGS]
            w.pending[q] = p_at
            w.pending[q + 1] = end - p_at
            w.pending[q + 2] = parent
            w.pending[q + 3] = w.counts[HEAD]
            w.counts[HEAD] = w.counts[PENDINGS]
            w.counts[PENDINGS] += 1
            w.counts[POOL] = end
