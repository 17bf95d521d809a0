"""Instances of thousands of buffers: first fit on columns, the core searched first, windows."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

import pytest
from exhaustive import smallest_peak_by_stacking

from toolchain.memory import Buffer, place, read_csv, validate
from toolchain.memory.place.allocations import Allocation, make_allocations
from toolchain.memory.place.compiled_fit import Fitter
from toolchain.memory.place.core_first import CoreFirst, large_orders
from toolchain.memory.place.greedy import first_fit
from toolchain.memory.place.placement import lower_bound
from toolchain.memory.place.search import find_compiled_kernel
from toolchain.memory.place.window_search import improve_by_windows, make_columns

DATA = Path(__file__).parent / "data"


def some_items(rng: random.Random, n: int, alignments: tuple[int, ...] = (1,), longest: int = 1 << 30) -> list[Allocation]:
    buffers = {}
    for k in range(n):
        start = rng.randrange(n)
        end = min(n + 1, start + min(longest, 1 + int(rng.paretovariate(0.7))))
        buffers[str(k)] = Buffer(str(k), start, end, rng.randint(1, 9) * rng.choice([1, 16]), rng.choice(alignments))
    return make_allocations(buffers)


def test_first_fit_is_the_same_three_times() -> None:
    rng = random.Random(1)
    for number in range(60):
        items = some_items(rng, rng.randint(1, 60), (1, 4, 8), *[4] * (number % 2))  # others live long, so they go by columns
        order = rng.sample(range(len(items)), len(items))
        first = Fitter(items, compiled=False).fit(order).tolist()
        assert first == first_fit(items, order)
        assert first == Fitter(items).fit(order).tolist()
        fixed = {n: first[n] + 64 for n in order[: len(order) // 3]}
        around = Fitter(items, compiled=False).fit(order, fixed).tolist()
        assert around == first_fit(items, order, fixed)
        assert around == Fitter(items).fit(order, fixed).tolist()


def test_bound_items_lead() -> None:
    buffers = {"a": Buffer("a", 0, 2, 9), "f": Buffer("f", 0, 2, 1, fixed_address=4), "r": Buffer("r", 0, 2, 2, region=(0, 8))}
    assert [order[:2].tolist() for order in large_orders(make_allocations(buffers))] == [[1, 2]] * 6


def test_core_first_against_brute_force() -> None:
    rng = random.Random(4)
    for _ in range(40):
        items = some_items(rng, rng.randint(2, 7))
        buffers = [Buffer(str(n), i.start, i.end, i.size_bytes) for n, i in enumerate(items)]
        bound = lower_bound(items)
        plan = CoreFirst(items, bound, 20_000).run(bound, minimize=True)
        best = smallest_peak_by_stacking(buffers)
        assert plan.bases is not None
        assert plan.bound_bytes <= best <= max(base + i.size_bytes for base, i in zip(plan.bases, items))


@pytest.mark.parametrize("unit", [1, 64])
def test_a_core_without_a_plan_raises_the_bound(unit: int) -> None:
    """Ten buffers of which 8 units are live at most, and which need 9."""
    starts, ends = (3, 6, 3, 1, 0, 4, 5, 2, 1, 2), (7, 7, 6, 6, 3, 5, 7, 4, 2, 4)
    sizes = (1, 4, 2, 1, 4, 4, 3, 1, 2, 2)
    buffers = [Buffer(str(k), *row) for k, row in enumerate(zip(starts, ends, (unit * size for size in sizes)))]
    items = make_allocations({b.name: b for b in buffers})
    plan = CoreFirst(items, lower_bound(items), 20_000).run(8 * unit, minimize=True)
    assert plan.bases is not None
    assert plan.bound_bytes == 9 * unit == max(base + i.size_bytes for base, i in zip(plan.bases, items))
    assert place(buffers, effort_nodes=20_000).peak_bytes == 9 * unit


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.slow) for name in "CG"), "K"])
def test_large_method_reaches_the_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_compiled_kernel() is None:
        pytest.skip("needs the extra `fast`: minutes otherwise")
    monkeypatch.setattr(importlib.import_module("toolchain.memory.place.placement"), "SEARCH_ALLOCATIONS", 100)
    buffers = read_csv(DATA / f"{name}.1048576.csv")
    plan = place(buffers)
    assert not validate(buffers, plan)
    assert plan.proved
    packed = place(buffers, 1_048_576)
    assert not validate(buffers, packed, 1_048_576)


def test_4000_buffers() -> None:
    buffers = [Buffer(str(n), i.start, i.end, i.size_bytes) for n, i in enumerate(some_items(random.Random(5), 4000))]
    plan = place(buffers)
    assert not validate(buffers, plan)
    assert plan.proved
    assert place(buffers) == plan


def test_ends_where_no_core_is_small_enough() -> None:
    buffers = [Buffer("fixed", 0, 1, 1, fixed_address=1), *(Buffer(str(k), 0, 1, 2) for k in range(3100))]
    plan = place(buffers, effort_nodes=200)
    assert not validate(buffers, plan)
    assert (plan.peak_bytes, plan.bound_bytes) == (6202, 6201)


def test_windows_lower_what_stands_out() -> None:
    items = make_allocations({b.name: b for b in read_csv(DATA / "C.1048576.csv")})
    columns = make_columns(items)
    size = columns.size
    initial_bases = Fitter(items).fit(large_orders(items)[0])
    target = int((initial_bases + size).max()) - 4096
    bases, nodes = improve_by_windows(items, columns, initial_bases, target, 50_000)
    assert (bases + size).max() <= target
    assert 0 < nodes <= 50_000
    for n, item in enumerate(items):
        for m in range(n):
            other = items[m]
            is_disjoint = item.end <= other.start or other.end <= item.start
            assert is_disjoint or bases[n] + size[n] <= bases[m] or bases[m] + size[m] <= bases[n], (n, m)
