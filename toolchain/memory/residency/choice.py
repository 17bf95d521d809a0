"""Which tensors stay in SRAM: fewest DDR bytes within the capacity, by dynamic programming over the steps.

A label is the set of tensors that stay across the current step, with the bytes saved so far; labels of equal sets
merge. That is exact, and short where few tensors cross a step. Lagrangian prices of SRAM bytes per step bound what is
still to be saved: labels that cannot beat the best choice known are dropped, and where labels run out the price bound
of what was dropped is the certificate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

DEFAULT_EFFORT_LABELS = 50_000
PRICE_ROUNDS = 120


class InvalidTensors(ValueError):
    """Candidates that contradict themselves."""


@dataclass(frozen=True)
class ResidentTensor:
    """A candidate for staying in SRAM during the steps [start, end).

    saving_bytes  DDR bytes saved when it stays
    """

    name: str
    start: int
    end: int
    size_bytes: int
    saving_bytes: int


@dataclass(frozen=True)
class Residency:
    """The tensors that stay, and the certificate: no choice saves more than `bound_saved_bytes`."""

    resident: frozenset[str]
    saved_bytes: int
    bound_saved_bytes: int
    proved: bool
    nodes: int


@dataclass(frozen=True)
class UsedTensor:
    """A tensor that may stay or be spilled between any two of its uses.

    uses    steps, rising: made or loaded at the first; at each use it is in SRAM for that step
    in_ddr  a copy is in DDR from the start (a constant, a graph input), so that a spill writes nothing
    """

    name: str
    uses: tuple[int, ...]
    size_bytes: int
    in_ddr: bool = False


@dataclass(frozen=True)
class Spilling:
    """kept: (tensor, k) stays between its uses k and k + 1. Otherwise it is read again, and written once if it must.

    ddr_bytes  bytes moved by spills; no choice moves fewer than `bound_ddr_bytes`
    """

    kept: frozenset[tuple[str, int]]
    ddr_bytes: int
    bound_ddr_bytes: int
    proved: bool
    nodes: int


@dataclass(frozen=True)
class _Item:
    """One decision. bonus: saved besides when every item of `group` is kept; share: of the bonus, for bounds."""

    start: int
    end: int
    size: int
    saving: int
    group: int = -1
    share: float = 0.0


def choose_residents(
    tensors: Iterable[ResidentTensor],
    reserved_bytes: Sequence[int],
    capacity_bytes: int,
    effort_nodes: int = DEFAULT_EFFORT_LABELS,
) -> Residency:
    """The choice that saves most DDR bytes while at no step more than the capacity is in use.

    reserved_bytes  bytes[step] not available at that step; steps beyond its end have all of the capacity.
    Raises InvalidTensors.
    """
    tensors = list(tensors)
    check_tensors(tensors)
    worth = [t for t in tensors if t.saving_bytes > 0]
    steps = max((t.end for t in tensors), default=0)
    free = _free(reserved_bytes, capacity_bytes, steps)
    items = [_Item(t.start, t.end, t.size_bytes, t.saving_bytes) for t in worth]
    kept, saved, bound, nodes = _choose(items, [], free, effort_nodes)
    names = frozenset(worth[n].name for n in kept)
    return Residency(names, saved, bound, saved == bound, nodes)


def choose_spills(
    tensors: Iterable[UsedTensor],
    reserved_bytes: Sequence[int],
    capacity_bytes: int,
    effort_nodes: int = DEFAULT_EFFORT_LABELS,
) -> Spilling:
    """Keep or spill each tensor between its uses, so that fewest bytes go to and from DDR.

    reserved_bytes  bytes[step] not available to these tensors. Raises InvalidTensors; also where the tensors used at
    one step alone exceed what is available.
    """
    tensors = list(tensors)
    _check_used(tensors)
    steps = max((t.uses[-1] + 1 for t in tensors), default=0)
    free = _free(reserved_bytes, capacity_bytes, steps)
    items: list[_Item] = []
    keys: list[tuple[str, int]] = []
    bonus: list[int] = []
    cost = 0
    for t in tensors:
        for step in t.uses:
            free[step] -= t.size_bytes
        gaps = len(t.uses) - 1
        write = 0 if t.in_ddr or not gaps else t.size_bytes
        cost += gaps * t.size_bytes + write
        group = len(bonus) if write else -1
        bonus += [write] if write else []
        for k, (a, b) in enumerate(zip(t.uses, t.uses[1:])):
            items.append(_Item(a + 1, b, t.size_bytes, t.size_bytes, group, write / gaps))
            keys.append((t.name, k))
    for step, left in enumerate(free):
        if left < 0:
            raise InvalidTensors(f"step {step}: its tensors need {-left} bytes more than the capacity leaves")
    kept, saved, bound, nodes = _choose(items, bonus, free, effort_nodes)
    return Spilling(frozenset(keys[n] for n in kept), cost - saved, cost - bound, saved == bound, nodes)


def check_tensors(tensors: Sequence[ResidentTensor]) -> None:
    """Raises InvalidTensors with one sentence at the first fault."""
    names: set[str] = set()
    for t in tensors:
        if t.name in names:
            raise InvalidTensors(f"tensor {t.name}: the name is given twice")
        names.add(t.name)
        if t.size_bytes < 0:
            raise InvalidTensors(f"tensor {t.name}: size {t.size_bytes} is negative")
        if t.end <= t.start or t.start < 0:
            raise InvalidTensors(f"tensor {t.name}: live range [{t.start}, {t.end}) is empty or begins before step 0")


def _check_used(tensors: Sequence[UsedTensor]) -> None:
    names: set[str] = set()
    for t in tensors:
        if t.name in names:
            raise InvalidTensors(f"tensor {t.name}: the name is given twice")
        names.add(t.name)
        if t.size_bytes < 0:
            raise InvalidTensors(f"tensor {t.name}: size {t.size_bytes} is negative")
        if not t.uses or t.uses[0] < 0 or any(b <= a for a, b in zip(t.uses, t.uses[1:])):
            raise InvalidTensors(f"tensor {t.name}: uses {t.uses} are not rising steps from 0 on")


def _free(reserved: Sequence[int], capacity: int, steps: int) -> list[int]:
    return [capacity - r for r in reserved] + [capacity] * (steps - len(reserved))


def _choose(items: Sequence[_Item], bonus: Sequence[int], free: Sequence[int], effort: int) -> tuple[list[int], int, int, int]:
    """(items kept, bytes saved, bound, labels): dynamic programming from the first step to the last."""
    kept, best = _greedy(items, bonus, free)
    order = sorted(range(len(items)), key=lambda n: (items[n].start, items[n].end, n))
    prices = _prices(items, free)
    left = _left(items, order, free, prices)
    last = {items[n].group: k for k, n in enumerate(order)}  # the group's bonus is decided after this item
    labels: dict[tuple[int, int], tuple[int, tuple | None]] = {(0, 0): (0, None)}
    nodes = 0
    dropped = 0.0
    width = max(effort // max(len(items), 1), 1)
    for k, n in enumerate(order):
        item = items[n]
        grown: dict[tuple[int, int], tuple[int, tuple | None]] = {}
        for (live, spilled), (saved, path) in labels.items():
            live = _still_live(live, items, item.start)
            nodes += 1
            out = spilled | (1 << item.group if item.group >= 0 else 0)
            closes = item.group >= 0 and last[item.group] == k
            choices = [(live, out, saved, path)]
            if _fits(items, live, n, free):
                gain = item.saving + (bonus[item.group] if closes and not spilled >> item.group & 1 else 0)
                choices.append((live | 1 << n, spilled, saved + gain, (path, n)))
            for mask, flags, value, way in choices:
                if closes:
                    flags &= ~(1 << item.group)
                if value > grown.get((mask, flags), (-1, None))[0]:
                    grown[mask, flags] = (value, way)
        labels, lost = _prune(grown, items, bonus, order, k, left, prices, best, width)
        dropped = max(dropped, lost)
    for saved, path in labels.values():
        if saved > best:
            best, kept = saved, []
            while path is not None:
                path, n = path
                kept.append(n)
    return kept, best, max(best, int(dropped)), nodes


def _still_live(live: int, items: Sequence[_Item], start: int) -> int:
    mask, out = live, live
    while mask:
        n = mask.bit_length() - 1
        mask ^= 1 << n
        if items[n].end <= start:
            out ^= 1 << n
    return out


def _fits(items: Sequence[_Item], live: int, n: int, free: Sequence[int]) -> bool:
    """Allocation n besides the live ones, at every step of its own. All of them are live at its start, and only end."""
    item = items[n]
    if not item.size:
        return True
    ends = []
    mask = live
    while mask:
        m = mask.bit_length() - 1
        mask ^= 1 << m
        ends.append((items[m].end, items[m].size))
    return all(item.size + sum(size for end, size in ends if end > step) <= free[step] for step in range(item.start, item.end))


def _prune(labels, items, bonus, order, k, left, prices, best, width):
    """Keeps the labels that may still beat `best`, at most `width`; also returns the best bound among the cut ones."""
    ranked = []
    done = set(order[: k + 1])
    started = {items[n].group for n in done if items[n].group >= 0}
    now = items[order[k]].start
    for key, (saved, path) in labels.items():
        live, spilled = key
        bound = saved + left[k + 1]
        mask = live
        while mask:
            m = mask.bit_length() - 1
            mask ^= 1 << m
            bound -= items[m].size * (prices[items[m].end] - prices[min(max(now, items[m].start), items[m].end)])
        bound += _open_bonus(items, bonus, order, k, started, spilled)
        if bound > best + 1e-6 * (1 + best):
            ranked.append((-bound, -saved, key, path))
    ranked.sort(key=lambda r: r[:3])
    lost = -ranked[width][0] if len(ranked) > width else 0.0
    return {key: (-saved, path) for _, saved, key, path in ranked[:width]}, lost


def _open_bonus(items, bonus, order, k, started, spilled) -> float:
    """Shares of bonuses already earned by items decided, of groups that are still whole."""
    if not bonus:
        return 0.0
    pending = {items[n].group for n in order[k + 1 :]} & started
    return sum(bonus[g] for g in pending if not spilled >> g & 1)


def _greedy(items: Sequence[_Item], bonus: Sequence[int], free: Sequence[int]) -> tuple[list[int], int]:
    room = np.array(free, dtype=np.int64)
    kept: list[int] = []
    for n in sorted(range(len(items)), key=lambda n: (-_density(items[n]), n)):
        item = items[n]
        if not item.size or item.start >= item.end or room[item.start : item.end].min() >= item.size:
            room[item.start : item.end] -= item.size
            kept.append(n)
    whole = set(range(len(bonus))) - {items[n].group for n in set(range(len(items))) - set(kept)}
    return kept, sum(items[n].saving for n in kept) + sum(bonus[g] for g in whole)


def _density(item: _Item) -> float:
    return (item.saving + item.share) / max(item.size * (item.end - item.start), 1)


def _prices(items: Sequence[_Item], free: Sequence[int]) -> np.ndarray:
    """Running sums of a price per SRAM byte and step: Lagrange multipliers by subgradient steps. Any are valid."""
    room = np.array(free, dtype=np.float64)
    if not len(room) or not items:
        return np.zeros(len(room) + 1)
    start, end = np.array([i.start for i in items]), np.array([i.end for i in items])
    size = np.array([i.size for i in items], dtype=np.float64)
    gain = np.array([i.saving + i.share for i in items])
    price = np.zeros(len(room))
    best_price, best_value = price, np.inf
    top = max(_density(i) for i in items)
    for turn in range(PRICE_ROUNDS):
        sums = np.concatenate([[0.0], np.cumsum(price)])
        reduced = gain - size * (sums[end] - sums[start])
        value = price @ np.maximum(room, 0) + reduced.clip(0).sum()
        if value < best_value:
            best_price, best_value = price, value
        use = np.zeros(len(room) + 1)
        np.add.at(use, start, size * (reduced > 0))
        np.add.at(use, end, -size * (reduced > 0))
        over = np.cumsum(use)[:-1] - room
        norm = float(np.abs(over).max()) or 1.0
        price = (price + top / (1 + turn / 4) * over / norm).clip(0)
    return np.concatenate([[0.0], np.cumsum(best_price)])


def _left(items: Sequence[_Item], order: Sequence[int], free: Sequence[int], prices: np.ndarray) -> list[float]:
    """left[k]: a bound of what the items from order[k] on can save, had they all of the room from their start on."""
    out = [0.0] * (len(order) + 1)
    step_price = np.diff(prices)
    room = np.concatenate([np.cumsum((step_price * np.maximum(free, 0))[::-1])[::-1], [0.0]])
    gains = 0.0
    for k in range(len(order), -1, -1):
        if k < len(order):
            item = items[order[k]]
            gains += max(0.0, item.saving + item.share - item.size * (prices[item.end] - prices[item.start]))
        since = items[order[k - 1]].start if k else 0
        out[k] = gains + float(room[min(since, len(room) - 1)])
    return out
