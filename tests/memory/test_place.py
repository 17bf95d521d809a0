from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from exhaustive import smallest_peak_by_address, smallest_peak_by_stacking

from toolchain.memory import Buffer, DoesNotFit, InvalidBuffers, Placement, place, read_csv, validate
from toolchain.memory.place.allocations import make_allocations
from toolchain.memory.place.search import ALL_STRATEGIES, Decider, draw_strategy, find_compiled_kernel

DATA = Path(__file__).parent / "data"
CAPACITY = 1_048_576


def random_buffers(rng: random.Random, n: int, steps: int, largest: int) -> list[Buffer]:
    out = []
    for k in range(n):
        start = rng.randrange(steps)
        out.append(Buffer(f"b{k}", start, rng.randint(start + 1, steps), rng.randint(1, largest)))
    return out


def make_constrained_buffers(rng: random.Random, n: int) -> list[Buffer]:
    out = []
    for b in random_buffers(rng, n, 4, 3):
        kind = rng.randrange(7)
        if kind == 0:
            b = replace(b, alignment_bytes=rng.choice([2, 3]))
        elif kind == 1:
            b = replace(b, bank_bytes=rng.choice([3, 4]))
        elif kind == 2 and not any(o.fixed_address is not None for o in out):
            b = replace(b, fixed_address=rng.randrange(4))
        elif kind == 3:
            low = rng.randrange(3)
            b = replace(b, region=(low, low + b.size_bytes + rng.randrange(4)))
        elif kind == 4 and out:
            b = replace(b, bank_bytes=4, apart_from=(rng.choice(out).name,))
        elif kind == 5 and out and not out[-1].bank_bytes:
            old = out[-1]
            b = replace(b, start=old.end - 1, end=old.end + 2, in_place_of=old.name)
            b = b if old.end - old.start > 1 else replace(b, in_place_of=None)
        out.append(b)
    return out


def brute_force_places(count: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        buffers = random_buffers(rng, rng.randint(1, 8), rng.choice([3, 6, 12]), rng.choice([3, 9]))
        best = smallest_peak_by_stacking(buffers)
        plan = place(buffers)
        assert (plan.peak_bytes, plan.bound_bytes, plan.proved) == (best, best, True), buffers
        assert not validate(buffers, plan)
        with pytest.raises(DoesNotFit):
            place(buffers, best - 1)
        packed = place(buffers, best)
        assert not validate(buffers, packed, best)


def test_brute_force() -> None:
    brute_force_places(40, seed=1)


@pytest.mark.slow
def test_brute_force_2000() -> None:
    brute_force_places(2000, seed=2)


def test_constraints_against_every_address() -> None:
    rng = random.Random(4)
    tight = 0
    for _ in range(150):
        buffers = make_constrained_buffers(rng, rng.randint(2, 4))
        best = smallest_peak_by_address(buffers, limit=14)
        try:
            plan = place(buffers)
        except DoesNotFit:
            assert best is None, buffers
            continue
        assert not validate(buffers, plan), buffers
        assert best is not None
        assert plan.bound_bytes <= best <= plan.peak_bytes, buffers
        tight += plan.peak_bytes == best
        assert not plan.proved or plan.peak_bytes == best
    assert tight >= 140  # with in-place rights the plan may be above the optimum, never claimed to be it


def every_strategy_decides(count: int, seed: int) -> None:
    rng = random.Random(seed)
    for k in range(count):
        buffers = random_buffers(rng, rng.randint(1, 7), rng.choice([3, 6, 12]), rng.choice([3, 9]))
        decider = Decider(make_allocations({b.name: b for b in buffers}), compiled=False)
        best = smallest_peak_by_stacking(buffers)
        strategy = draw_strategy(7 * k)  # mirrored and jittered ones too
        assert decider.decide(best, strategy, 10**6).bases is not None, (buffers, strategy)
        assert decider.decide(best - 1, strategy, 10**6).refuted, (buffers, strategy)


def test_every_strategy_decides() -> None:
    every_strategy_decides(270, seed=3)


def test_drawn_strategies_differ_and_cover_all() -> None:
    drawn = [draw_strategy(k) for k in range(10 * len(ALL_STRATEGIES))]
    twice = 2 * len(ALL_STRATEGIES)
    assert drawn[:twice] == list(dict.fromkeys(drawn[:twice]))
    assert {s._replace(mirrored=False) for s in drawn[:twice]} == set(ALL_STRATEGIES)
    assert sum(s.jitter > 0 for s in drawn) == 6 * len(ALL_STRATEGIES)


@pytest.mark.slow
def test_minimizing_goes_far_below_the_first_plans() -> None:
    if find_compiled_kernel() is None:
        pytest.skip("needs the extra `fast`: minutes otherwise")
    buffers = read_csv(DATA / "J.1048576.csv")
    plan = place(buffers, effort_nodes=320_000)
    assert not validate(buffers, plan)
    assert plan.peak_bytes <= 1_041_408


def test_minimalloc_at_capacity() -> None:
    if find_compiled_kernel() is None:
        pytest.skip("needs the extra `fast`: minutes otherwise")
    for name in "ABCDEFGHIJK":
        buffers = read_csv(DATA / f"{name}.1048576.csv")
        plan = place(buffers, CAPACITY, effort_nodes=400_000)
        assert not validate(buffers, plan, CAPACITY), name


@pytest.mark.parametrize("name", "BCGK")
def test_same_plan_compiled_or_not(name: str) -> None:
    if find_compiled_kernel() is None:
        pytest.skip("needs the extra `fast`")
    items = make_allocations({b.name: b for b in read_csv(DATA / f"{name}.1048576.csv")})
    fast = Decider(items, compiled=True).attempts(CAPACITY, 600)
    plain = Decider(items, compiled=False).attempts(CAPACITY, 600)
    assert fast == plain
    assert fast.bases is not None


def test_minimalloc_proved_at_the_bound_without_numba() -> None:
    buffers = read_csv(DATA / "B.1048576.csv")
    decider = Decider(make_allocations({b.name: b for b in buffers}), compiled=False)
    verdict = decider.attempts(CAPACITY, 1000)
    assert verdict.bases is not None


def cp_sat_agrees(count: int, seed: int) -> None:
    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    rng = random.Random(seed)
    for _ in range(count):
        buffers = random_buffers(rng, rng.randint(20, 60), rng.choice([12, 25, 40]), rng.choice([9, 30]))
        plan = place(buffers, effort_nodes=20_000)
        assert not validate(buffers, plan)
        model = cp_model.CpModel()
        peak = model.new_int_var(0, plan.peak_bytes, "peak")
        xs, ys = [], []
        for b in buffers:
            at = model.new_int_var(0, plan.peak_bytes - b.size_bytes, b.name)
            ys.append(model.new_fixed_size_interval_var(at, b.size_bytes, b.name))
            xs.append(model.new_fixed_size_interval_var(b.start, b.end - b.start, b.name))
            model.add(at + b.size_bytes <= peak)
        model.add_no_overlap_2d(xs, ys)
        model.minimize(peak)
        solver = cp_model.CpSolver()
        solver.parameters.max_deterministic_time = 20
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        status = solver.solve(model)
        if status == cp_model.OPTIMAL:
            best = round(solver.objective_value)
            assert plan.bound_bytes <= best <= plan.peak_bytes
            assert not plan.proved or plan.peak_bytes == best
        else:
            assert round(solver.best_objective_bound) <= plan.peak_bytes


def test_cp_sat() -> None:
    cp_sat_agrees(8, seed=5)


@pytest.mark.slow
def test_cp_sat_300() -> None:
    cp_sat_agrees(300, seed=6)


def test_easy_buffers_need_no_search() -> None:
    rng = random.Random(0)
    buffers = []
    for k in range(200):
        start = rng.randrange(200)
        buffers.append(Buffer(f"b{k}", start, start + rng.randint(1, 8), rng.randrange(64, 16384, 64), 64))
    plan = place(buffers, CAPACITY)
    assert not validate(buffers, plan, CAPACITY)
    assert plan.nodes == 0


def test_views_and_rights() -> None:
    buffers = [
        Buffer("x", 0, 3, 10),
        Buffer("y", 2, 5, 10, in_place_of="x"),
        Buffer("part", 3, 5, 5, view_of="y", offset_bytes=5),
        Buffer("z", 0, 5, 4),
    ]
    plan = place(buffers)
    assert (plan.peak_bytes, plan.proved) == (14, True)
    assert not validate(buffers, plan)
    assert plan.addresses["part"] == plan.addresses["y"] + 5


def test_a_view_leaves_room_until_it_is_written() -> None:
    buffers = [
        Buffer("whole", 4, 6, 10),
        Buffer("low", 0, 5, 5, view_of="whole"),
        Buffer("high", 3, 5, 5, view_of="whole", offset_bytes=5),
        Buffer("early", 0, 3, 5),
    ]
    plan = place(buffers)
    assert (plan.peak_bytes, plan.proved) == (10, True)
    assert not validate(buffers, plan)


def test_a_view_off_the_grain_may_lie_in_padding() -> None:
    buffers = [
        buffer
        for k in "12"
        for buffer in (
            Buffer(f"root{k}", 0, 1, 128, 64),
            Buffer(f"view{k}", 1, 2, 88, view_of=f"root{k}", offset_bytes=40),
            Buffer(f"small{k}", 1, 2, 40, 64),
        )
    ]
    assert place(buffers, 256, effort_nodes=0).peak_bytes == 256


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Buffer("old", 0, 2, 64, fixed_address=0), Buffer("new", 1, 3, 64, fixed_address=64, in_place_of="old")),
        (Buffer("old", 0, 2, 64, bank_bytes=256), Buffer("new", 1, 3, 64, in_place_of="old")),
        (
            Buffer("old", 0, 2, 8, view_of="root", offset_bytes=4),
            Buffer("new", 1, 3, 8, alignment_bytes=8, in_place_of="old"),
        ),
    ],
)
def test_a_right_that_cannot_be_taken_is_not(old: Buffer, new: Buffer) -> None:
    buffers = [Buffer("root", 0, 2, 64), old, new]
    assert not validate(buffers, place(buffers))


def test_a_right_that_is_not_taken_binds_nobody() -> None:
    buffers = [Buffer("old", 0, 2, 4, fixed_address=100), Buffer("new", 1, 3, 64, in_place_of="old")]
    assert place(buffers, 128).peak_bytes == 104


def test_no_proof_without_a_search() -> None:
    buffers = make_boxed_buffers(477)
    with pytest.raises(DoesNotFit) as refusal:
        place(buffers, effort_nodes=0)
    assert (refusal.value.proved, refusal.value.capacity_bytes) == (False, None)
    assert str(refusal.value).startswith("any capacity: none found in 0 nodes; ")
    assert not validate(buffers, place(buffers))


def test_a_region_too_small_for_two_is_proved() -> None:
    with pytest.raises(DoesNotFit) as refusal:
        place([Buffer(name, 0, 2, 64, region=(0, 100)) for name in "ab"])
    assert refusal.value.proved


def make_boxed_buffers(seed: int) -> list[Buffer]:
    """Return random buffers that all lie in one region, which has room for the live ones of every step."""
    rng = random.Random(seed)
    top, buffers = rng.randint(12, 40), list[Buffer]()
    for k in range(rng.randint(5, 14)):
        start = rng.randint(0, 6)
        buffers.append(Buffer(f"b{k}", start, start + rng.randint(1, 6), rng.randint(2, 9), region=(0, top)))
    return buffers


def test_no_buffers() -> None:
    assert place([]) == Placement({}, 0, 0, True, 0)


def test_same_answer_again() -> None:
    buffers = random_buffers(random.Random(9), 60, 30, 50)
    assert place(buffers) == place(list(buffers))


def test_does_not_fit_says_why() -> None:
    buffers = [Buffer("a", 0, 4, 60), Buffer("b", 1, 3, 50), Buffer("c", 3, 5, 10)]
    with pytest.raises(DoesNotFit) as refusal:
        place(buffers, 100)
    assert str(refusal.value) == (
        "capacity 100 bytes: no plan exists; at step 1 110 bytes are live (a 60, b 50); lower bound 110, smallest peak found 110"
    )
    assert [b.name for b in refusal.value.live] == ["a", "b"]


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ([Buffer("a", 0, 1, -4)], "buffer a: size -4 is negative"),
        ([Buffer("a", 2, 2, 4)], "buffer a: live range [2, 2) is empty"),
        ([Buffer("a", 0, 1, 4, 0)], "buffer a: alignment 0 is not positive"),
        ([Buffer("a", 0, 1, 4), Buffer("a", 1, 2, 4)], "buffer a: the name is given twice"),
        ([Buffer("a", 0, 1 << 61, 4)], f"buffer a: live range [0, {1 << 61}) leaves [{-1 << 60}, {1 << 60})"),
        (
            [Buffer("a", 0, 1, 1 << 59), Buffer("b", 0, 1, 1 << 59)],
            f"the buffers take {(1 << 60) + 2} bytes together; addresses end at {1 << 60}",
        ),
        ([Buffer("a", 0, 1, 4, 8, 12)], "buffer a: fixed address 12 is no multiple of its alignment 8"),
        (
            [Buffer("a", 0, 1, 64, 64), Buffer("b", 0, 1, 8, fixed_address=10, view_of="a")],
            "buffer a: the fixed address of a view puts it at 10, against the alignment 64 of the buffers joined with it",
        ),
        ([Buffer("a", 0, 1, 9, bank_bytes=8)], "buffer a: size 9 is larger than its bank of 8 bytes"),
        ([Buffer("a", 0, 1, 9, region=(4, 8))], "buffer a: size 9 does not fit its region [4, 8)"),
        (
            [Buffer("a", 0, 2, 16, fixed_address=64, region=(0, 32))],
            "buffer a: 16 bytes at its fixed address 64 leave its region [0, 32); change one of both",
        ),
        (
            [Buffer("a", 0, 2, 16, fixed_address=24, bank_bytes=32)],
            "buffer a: 16 bytes at its fixed address 24 cross a bank of 32 bytes; the next address that does not is 32",
        ),
        (
            [Buffer("a", 0, 2, 16, 32, region=(4, 20))],
            "buffer a: 16 bytes with alignment 32 have no address in its region [4, 20); let it end at 48 or later",
        ),
        (
            [Buffer("a", 0, 2, 32, 8, region=(0, 40)), Buffer("v", 0, 2, 8, region=(64, 80), view_of="a", offset_bytes=8)],
            "buffer a: no address with alignment 8 suits it and the buffers that lie in it "
            "(a at offset 0 has region [0, 40); v at offset 8 has region [64, 80)); move or widen one of these",
        ),
        (
            [Buffer("a", 0, 2, 32, fixed_address=0), Buffer("v", 0, 2, 0, region=(64, 80), view_of="a")],
            "buffer a: no address suits it and the buffers that lie in it "
            "(a at offset 0 has fixed address 0; v at offset 0 has region [64, 80)); move or widen one of these",
        ),
        ([Buffer("a", 0, 1, 9, view_of="b")], "buffer a: refers to b, which is not among the buffers"),
        (
            [Buffer("a", 0, 1, 9, view_of="b", offset_bytes=2), Buffer("b", 0, 1, 10)],
            "buffer a: 9 bytes at offset 2 leave b, which has 10",
        ),
        (
            [Buffer("a", 0, 1, 9, view_of="b"), Buffer("b", 0, 1, 9, view_of="a")],
            "buffer a: view_of goes round in a circle",
        ),
    ],
)
def test_refused(buffers: list[Buffer], message: str) -> None:
    with pytest.raises(InvalidBuffers) as refusal:
        place(buffers)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("buffers", "peak"),
    [
        ([Buffer("a", 0, 4, 9), Buffer("v", 0, 2, 4, view_of="a", offset_bytes=5), Buffer("b", 1, 3, 4, 4, in_place_of="v")], 16),
        ([Buffer("a", 0, 4, 8), Buffer("b", 1, 3, 8, bank_bytes=8, in_place_of="a")], 16),
        ([Buffer("a", 0, 4, 8, fixed_address=0), Buffer("b", 1, 5, 8, fixed_address=16, in_place_of="a")], 24),
        ([Buffer("a", 0, 4, 100), Buffer("b", 1, 5, 8, region=(64, None), in_place_of="a")], 108),
    ],
)
def test_a_right_that_cannot_be_taken_is_not_refused(buffers: list[Buffer], peak: int) -> None:
    plan = place(buffers)
    assert not validate(buffers, plan) and plan.peak_bytes <= peak
    assert not validate(buffers, place(buffers, peak), peak)


@pytest.mark.parametrize(
    ("sizes", "alignments", "best"),
    [
        ((3, 3), (1, 2), 6),
        ((6, 6, 6), (4, 3, 1), 18),
        ((4, 4), (1, 3), 8),
        ((6, 6), (4, 6), 12),
        ((5, 2), (2, 2), 7),
        ((12, 3), (5, 5), 17),
        ((6, 1), (4, 4), 9),
        ((7, 6, 1), (4, 4, 4), 17),
    ],
)
def test_alignments_that_do_not_divide_the_sizes(sizes: tuple[int, ...], alignments: tuple[int, ...], best: int) -> None:
    """The least peak may have the smaller of two buffers at the bottom, where less is lost to the alignment."""
    for order in permutations(zip(sizes, alignments)):
        buffers = [Buffer(f"b{i}", 0, 1, size, alignment) for i, (size, alignment) in enumerate(order)]
        assert smallest_peak_by_address(buffers, limit=20) == best
        plan = place(buffers)
        assert (plan.peak_bytes, plan.bound_bytes) == (best, best) and not validate(buffers, plan)
        assert not validate(buffers, place(buffers, best), best)


@pytest.mark.parametrize(
    ("buffers", "capacity"),
    [
        # the right of b excludes the larger one of c
        ([Buffer("a", 0, 2, 16), Buffer("b", 1, 4, 8, in_place_of="a"), Buffer("c", 1, 4, 16, in_place_of="a")], 24),
        # in the place of a, b would need 164 bytes
        ([Buffer("a", 0, 2, 100, 64), Buffer("b", 1, 5, 36, in_place_of="a"), Buffer("c", 2, 5, 64, fixed_address=0)], 136),
        ([Buffer("a", 0, 2, 16, region=(0, 16)), Buffer("b", 1, 4, 16, region=(0, 16), in_place_of="a")], None),
    ],
)
def test_another_choice_of_rights_is_found(buffers: list[Buffer], capacity: int | None) -> None:
    assert not validate(buffers, place(buffers, capacity), capacity)


def test_a_right_that_only_costs_is_no_proof() -> None:
    """The peak is 100 if the right is left, so the bound is not the 110 of the plan that takes it."""
    view = Buffer("v", 0, 4, 10, view_of="a", offset_bytes=90)
    plan = place([Buffer("a", 0, 2, 100), view, Buffer("b", 3, 6, 20, in_place_of="v")])
    assert plan.bound_bytes <= 100 and plan.proved == (plan.peak_bytes == 100)


def test_validator_sees_every_fault() -> None:
    buffers = [
        Buffer("a", 0, 4, 8, 4),
        Buffer("b", 2, 6, 8, bank_bytes=16),
        Buffer("c", 5, 7, 4, fixed_address=0),
        Buffer("d", 5, 7, 4, bank_bytes=16, apart_from=("b",)),
        Buffer("v", 0, 1, 2, view_of="a", offset_bytes=2),
    ]
    good = {"a": 0, "b": 8, "c": 0, "d": 16, "v": 2}
    assert validate(buffers, Placement(good, 20, 16, False, 0), 20) == []

    def faults(peak: int = 20, bound: int = 16, proved: bool = False, **moved: int) -> list[str]:
        return validate(buffers, Placement({**good, **moved}, peak, bound, proved, 0), 20)

    assert faults(a=2, v=4) == [
        "buffer a: address 2 is no multiple of its alignment 4",
        "buffers a and b overlap in steps [2, 4) at bytes [8, 10)",
    ]
    assert faults(b=12) == [
        "buffer b: crosses a bank of 16 bytes at 12",
        "buffers b and d overlap in steps [5, 6) at bytes [16, 20)",
        "buffers d and b share a bank of 16 bytes",
    ]
    assert faults(c=4) == ["buffer c: address 4 is not its fixed address 0"]
    assert faults(d=4, peak=16) == ["buffers d and b share a bank of 16 bytes"]
    assert faults(v=4) == ["buffer v: address 4 is not 2 into a"]
    assert faults(peak=19) == ["the plan reaches 20 bytes, its certificate says 19"]
    assert faults(bound=21) == ["the bound 21 is above the peak 20"]
    assert faults(proved=True) == ["proved, but bound 16 is not the peak 20"]
    assert validate(buffers, Placement(good, 20, 16, False, 0), 18) == ["the plan reaches 20 bytes, the capacity is 18"]
    assert validate(buffers[:1], Placement({"q": 0}, 0, 0, False, 0)) == [
        "buffer a: has no address",
        "address given to q, which is not among the buffers",
    ]
