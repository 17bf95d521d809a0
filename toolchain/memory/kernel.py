"""The decision search: is there a placement with peak <= target?  Depth first over canonical placements.

One function in the subset that both Python (over lists) and numba (over int64 arrays) run: the same nodes, the same
plan. Items are numbered by rank: a lower number is tried first among equals.

A canonical plan has the smallest sum of addresses among the plans within the target. So each item lies on the floor or
on another item, none could slip under its support, and read from low to high addresses each next item lies at the
lowest address the items before it leave. The search places items in that order and cuts where
- an item left behind could have been placed under the new one (a gap that a smaller sum would fill),
- of two equal items the second would go first, or of two stacked items of equal life the larger lies below,
- at some section the lowest address still to be had plus the sizes still to be placed exceeds the target.
What is left to place splits into pieces where no item crosses; each piece is decided by itself.
"""

from __future__ import annotations

FOUND, REFUTED, UNKNOWN = 1, 0, -1


def decide(
    n,
    first,
    last,
    size,
    align,
    bank,
    high,
    ov_ptr,
    ov_item,
    ov_bank,
    twin,
    same_ptr,
    same_item,
    n_sections,
    target,
    node_limit,
    raw,
    address,
    eff,
    rem,
    floor,
    cross,
    pool,
    frames,
    placed,
    trail,
    pending,
):
    """Returns (FOUND | REFUTED | UNKNOWN, nodes). FOUND: `address` holds the plan.

    first, last   sections [first, last) in which an item lives;  high: its largest address, given the target
    ov_*          per item the items it overlaps in time, and the bank size that keeps the two apart (0: none)
    twin          the equal item that must be placed before, or -1;  same_*: other items of the same life
    raw           in: lowest address of each item, legal by itself; scratch afterwards. The rest is scratch.
    """
    # frame: 0 items at, 1 items n, 2 cands at, 3 cands n, 4 next cand, 5 parent, 6 pending, 7 placed, 8 pool end
    # pending: 0 items at, 1 items n, 2 parent frame, 3 next, 4 offset, 5 rank
    big = 4611686018427387904
    for s in range(n_sections):
        rem[s] = 0
    for i in range(n):
        address[i] = -1
        if raw[i] > high[i]:
            return REFUTED, 0
        for s in range(first[i], last[i]):
            rem[s] += size[i]
        pool[i] = i
    for s in range(n_sections):
        if rem[s] > target:
            return REFUTED, 0
    pool_end = n
    n_placed = 0
    n_trail = 0
    n_frames = 0
    nodes = 0
    n_pending = 1
    pending[0] = 0
    pending[1] = n
    pending[2] = -1
    pending[3] = -1
    pending[4] = 0
    pending[5] = -1
    head = 0
    while True:
        # open the next piece as a frame
        if head < 0:
            return FOUND, nodes
        at = pending[6 * head]
        count = pending[6 * head + 1]
        parent = pending[6 * head + 2]
        offset = pending[6 * head + 4]
        rank = pending[6 * head + 5]
        head = pending[6 * head + 3]
        cut = big
        for k in range(at, at + count):
            i = pool[k]
            if raw[i] + size[i] < cut:
                cut = raw[i] + size[i]
        c_at = pool_end
        c_n = 0
        for k in range(at, at + count):
            i = pool[k]
            o = raw[i]
            if o >= cut or o < offset or (o == offset and i < rank):
                continue
            t = twin[i]
            if t >= 0 and address[t] < 0:
                continue
            bad = False
            for q in range(same_ptr[i], same_ptr[i + 1]):
                j = same_item[q]
                if address[j] >= 0 and address[j] + size[j] == o and size[j] > size[i]:
                    bad = True
            if bad:
                continue
            m = c_at + c_n
            while m > c_at and raw[pool[m - 1]] > o:
                pool[m] = pool[m - 1]
                m -= 1
            pool[m] = i
            c_n += 1
        pool_end = c_at + c_n
        f = 10 * n_frames
        frames[f] = at
        frames[f + 1] = count
        frames[f + 2] = c_at
        frames[f + 3] = c_n
        frames[f + 4] = 0
        frames[f + 5] = parent
        frames[f + 6] = head
        frames[f + 7] = n_placed
        frames[f + 8] = pool_end
        frames[f + 9] = n_pending
        n_frames += 1
        # try candidates, going up where a frame has none left, until one leaves pieces to open
        while True:
            f = 10 * (n_frames - 1)
            # undo what was placed since this frame's turn
            while n_placed > frames[f + 7]:
                n_placed -= 1
                b = placed[2 * n_placed]
                while n_trail > placed[2 * n_placed + 1]:
                    n_trail -= 1
                    raw[trail[2 * n_trail]] = trail[2 * n_trail + 1]
                address[b] = -1
                for s in range(first[b], last[b]):
                    rem[s] += size[b]
            pool_end = frames[f + 8]
            head = frames[f + 6]
            n_pending = frames[f + 9]
            if frames[f + 4] == frames[f + 3]:
                n_frames = frames[f + 5] + 1
                if n_frames == 0:
                    return REFUTED, nodes
                continue
            if nodes >= node_limit:
                return UNKNOWN, nodes
            nodes += 1
            b = pool[frames[f + 2] + frames[f + 4]]
            frames[f + 4] += 1
            o = raw[b]
            address[b] = o
            placed[2 * n_placed] = b
            placed[2 * n_placed + 1] = n_trail
            n_placed += 1
            for s in range(first[b], last[b]):
                rem[s] -= size[b]
            fail = False
            for q in range(ov_ptr[b], ov_ptr[b + 1]):
                j = ov_item[q]
                if address[j] >= 0:
                    continue
                x = o + size[b]
                if ov_bank[q]:
                    x += -x % ov_bank[q]
                if x <= raw[j]:
                    continue
                if align[j] > 1:
                    x += -x % align[j]
                if bank[j] and x // bank[j] != (x + size[j] - 1) // bank[j]:
                    x += -x % bank[j]
                trail[2 * n_trail] = j
                trail[2 * n_trail + 1] = raw[j]
                n_trail += 1
                raw[j] = x
                if x > high[j]:
                    fail = True
                    break
            if fail:
                continue
            # lowest address each item of the piece can still have
            at = frames[f]
            count = frames[f + 1]
            low_s = n_sections
            high_s = 0
            for k in range(at, at + count):
                i = pool[k]
                if address[i] >= 0:
                    continue
                if first[i] < low_s:
                    low_s = first[i]
                if last[i] > high_s:
                    high_s = last[i]
                eff[i] = raw[i]
                if raw[i] < o or (raw[i] == o and i < b):
                    eff[i] = -1
            for s in range(low_s, high_s):
                floor[s] = big
                cross[s] = 0
            for k in range(at, at + count):
                i = pool[k]
                if address[i] >= 0:
                    continue
                e = eff[i]
                if e < 0:  # left behind: it must come to lie on something placed later
                    e = big
                    for q in range(ov_ptr[i], ov_ptr[i + 1]):
                        j = ov_item[q]
                        if address[j] < 0:
                            x = (eff[j] if eff[j] >= 0 else o) + size[j]
                            if x < e:
                                e = x
                    if align[i] > 1 and e < big:
                        e += -e % align[i]
                    if e > high[i]:
                        fail = True
                        break
                for s in range(first[i], last[i]):
                    if e < floor[s]:
                        floor[s] = e
                cross[first[i]] += 1
                cross[last[i] - 1] -= 1
            if fail:
                continue
            for s in range(low_s, high_s):
                if rem[s] and floor[s] + rem[s] > target:
                    fail = True
                    break
            if fail:
                continue
            # pieces of what is left
            start = low_s
            live = 0
            for s in range(low_s, high_s):
                live += cross[s]
                if live or (rem[s] == 0 and s == start):
                    if live == 0:
                        start = s + 1
                    continue
                p_at = pool_end
                for k in range(at, at + count):
                    i = pool[k]
                    if address[i] < 0 and first[i] >= start and last[i] <= s + 1:
                        pool[pool_end] = i
                        pool_end += 1
                start = s + 1
                if pool_end > p_at:
                    p = 6 * n_pending
                    pending[p] = p_at
                    pending[p + 1] = pool_end - p_at
                    pending[p + 2] = n_frames - 1
                    pending[p + 3] = head
                    pending[p + 4] = o
                    pending[p + 5] = b
                    head = n_pending
                    n_pending += 1
            break
