"""Choose the items with most savings within the free bytes of each step, by dynamic programming over the steps.

`choose` is the entry, for `choice`.
A label is the set of items kept across the current step, with the bytes saved so far; labels of equal sets
merge. Of labels of a step the ones of highest bound are kept where there are too many.
That is exact, and short where few items cross a step.
Lagrangian prices of SRAM bytes per step bound the remaining savings.
Labels that cannot beat the best known choice are dropped.
Where labels run out, the price bound of the dropped ones is the certificate.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

PRICE_ROUNDS = 120

# the items kept, latest first: (those before it, an item)
_Path: TypeAlias = tuple["_Path | None", int]
# by (items that stay across the current step, groups that have lost an item), a bit each: bytes saved, the items kept
_Labels = dict[tuple[int, int], tuple[int, _Path | None]]


@dataclass(frozen=True)
class Item:
    """A decision: `size` bytes are kept during the steps [start, end), which saves `saving` bytes, or not.

    `group`: index of the item's group, -1: none. When every item of a group is kept, the group's bonus is saved, too.
    `share`: this item's share of that bonus, for bounds and the greedy order. The shares of a group sum to at least its bonus.
    """

    start: int
    end: int
    size: int
    saving: int
    group: int = -1
    share: float = 0.0


def choose(items: Sequence[Item], bonus: Sequence[int], free: Sequence[int], effort: int) -> tuple[list[int], int, int, int]:
    """Return (indices of the items kept, bytes saved, upper bound of any choice's savings, labels used).

    `bonus`: bytes by group. `free`: bytes available at each step, up to the last end; a negative number is no room.
    `effort`: labels in all, shared evenly by the items. The choice is optimal where the bound equals the bytes saved.
    Savings and bonuses are not negative, and each group has items. Without items nothing is kept.
    """
    best_items, best = _greedy(items, bonus, free)
    if best >= sum(max(0, item.saving) for item in items) + sum(max(0, more) for more in bonus):
        return best_items, best, best, 0  # no choice saves more
    order = sorted(range(len(items)), key=lambda n: (items[n].start, items[n].end, n))
    prices = _prices(items, free)
    remaining_bounds = _bound_remaining(items, order, free, prices)
    last = {items[n].group: k for k, n in enumerate(order)}  # the group's bonus is decided after this item
    labels: _Labels = {(0, 0): (0, None)}
    nodes = 0
    dropped = 0.0
    width = max(effort // max(len(items), 1), 1)
    for k, n in enumerate(order):
        item = items[n]
        grown: _Labels = {}
        for (live, spilled), (saved, path) in labels.items():
            live = _still_live(live, items, item.start)
            nodes += 1
            out = spilled | (1 << item.group if item.group >= 0 else 0)
            closes = item.group >= 0 and last[item.group] == k
            choices: list[tuple[int, int, int, _Path | None]] = [(live, out, saved, path)]
            if _fits(items, live, n, free):
                gain = item.saving + (bonus[item.group] if closes and not spilled >> item.group & 1 else 0)
                choices.append((live | 1 << n, spilled, saved + gain, (path, n)))
            for mask, flags, value, way in choices:
                if closes:
                    flags &= ~(1 << item.group)
                if value > grown.get((mask, flags), (-1, None))[0]:
                    grown[mask, flags] = (value, way)
        labels, lost = _prune(grown, items, bonus, order, k, remaining_bounds, prices, best, width)
        dropped = max(dropped, lost)
    for saved, path in labels.values():
        if saved > best:
            best, best_items = saved, list[int]()
            while path is not None:
                path, n = path
                best_items.append(n)
    return best_items, best, max(best, _to_whole_bytes(dropped)), nodes


def _still_live(live: int, items: Sequence[Item], start: int) -> int:
    """Return the kept items, a bit each, without those that have ended at `start`."""
    mask, out = live, live
    while mask:
        n = mask.bit_length() - 1
        mask ^= 1 << n
        if items[n].end <= start:
            out ^= 1 << n
    return out


def _fits(items: Sequence[Item], live: int, n: int, free: Sequence[int]) -> bool:
    """Return whether item n fits beside the kept ones at every step of its own.

    `live`: kept items, a bit each; all are live at the start of item n, and only end.
    """
    item = items[n]
    if not item.size:
        return True
    ends: list[tuple[int, int]] = []
    mask = live
    while mask:
        m = mask.bit_length() - 1
        mask ^= 1 << m
        ends.append((items[m].end, items[m].size))
    return all(item.size + sum(size for end, size in ends if end > step) <= free[step] for step in range(item.start, item.end))


def _prune(
    labels: _Labels,
    items: Sequence[Item],
    bonus: Sequence[int],
    order: Sequence[int],
    k: int,
    remaining_bounds: Sequence[float],
    prices: np.ndarray,
    best: int,
    width: int,
) -> tuple[_Labels, float]:
    """Return the labels after item order[k] that may still beat `best`, at most `width`, and the best bound among those cut.

    The bound is 0 where none was cut for want of width. `remaining_bounds`: of `_bound_remaining`. `prices`: of `_prices`.
    """
    ranked: list[tuple[float, int, tuple[int, int], _Path | None]] = []
    done = set(order[: k + 1])
    started = {items[n].group for n in done if items[n].group >= 0}
    now = items[order[k]].start
    for key, (saved, path) in labels.items():
        live, spilled = key
        bound = saved + remaining_bounds[k + 1]
        mask = live
        while mask:
            m = mask.bit_length() - 1
            mask ^= 1 << m
            bound -= items[m].size * (prices[items[m].end] - prices[min(max(now, items[m].start), items[m].end)])
        bound += _open_bonus(items, bonus, order, k, started, spilled)
        if _to_whole_bytes(bound) > best:
            ranked.append((-bound, -saved, key, path))
    ranked.sort(key=lambda r: r[:3])
    lost = -ranked[width][0] if len(ranked) > width else 0.0
    return {key: (-saved, path) for _, saved, key, path in ranked[:width]}, lost


def _to_whole_bytes(bound: float) -> int:
    """Return the most bytes that a bound of savings allows: the next whole number below it, but for its rounding in float64."""
    return int(bound * (1 + 1e-9))


def _open_bonus(
    items: Sequence[Item], bonus: Sequence[int], order: Sequence[int], k: int, started: Set[int], spilled: int
) -> float:
    """Return the bonuses of groups that have decided items, none of them left out, and items still to come.

    `started`: the groups with decided items. `spilled`: groups that have lost an item, a bit each.
    """
    if not bonus:
        return 0.0
    pending = {items[n].group for n in order[k + 1 :]} & started
    return sum(bonus[g] for g in pending if not spilled >> g & 1)


def _greedy(items: Sequence[Item], bonus: Sequence[int], free: Sequence[int]) -> tuple[list[int], int]:
    """Return (items kept, bytes saved) when items are kept by falling saving per byte and step, as far as they fit."""
    room = np.array(free, dtype=np.int64)
    chosen_items: list[int] = []
    for n in sorted(range(len(items)), key=lambda n: (-_density(items[n]), n)):
        item = items[n]
        if not item.size or item.start >= item.end or room[item.start : item.end].min() >= item.size:
            room[item.start : item.end] -= item.size
            chosen_items.append(n)
    complete_groups = set(range(len(bonus))) - {items[n].group for n in set(range(len(items))) - set(chosen_items)}
    return chosen_items, sum(items[n].saving for n in chosen_items) + sum(bonus[g] for g in complete_groups)


def _density(item: Item) -> float:
    """Return the savings per byte and step."""
    return (item.saving + item.share) / max(item.size * (item.end - item.start), 1)


def _prices(items: Sequence[Item], free: Sequence[int]) -> np.ndarray:
    """Return float64[steps + 1], running sums of a price per SRAM byte and step, by which `_prune` bounds savings.

    They are Lagrange multipliers by PRICE_ROUNDS subgradient steps. Any prices give valid bounds; better ones cut more.
    """
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


def _bound_remaining(items: Sequence[Item], order: Sequence[int], free: Sequence[int], prices: np.ndarray) -> list[float]:
    """Return by k an upper bound of what the items from order[k] on can save, with all the room from their start on."""
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
