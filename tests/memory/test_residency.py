from __future__ import annotations

import random

import pytest
from exhaustive import fewest_spilled, most_saved

from toolchain.memory import (
    Buffer,
    InvalidTensors,
    ResidentTensor,
    UsedTensor,
    choose_residents,
    choose_spills,
    place_residents,
    validate,
)


def residents_against_brute_force(count: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        steps, capacity = rng.choice([4, 8, 12]), rng.randint(5, 25)
        tensors = []
        for k in range(rng.randint(1, 9)):
            start = rng.randrange(steps)
            end = rng.randint(start + 1, steps)
            tensors.append(ResidentTensor(f"t{k}", start, end, rng.randint(0, 12), rng.randint(0, 20)))
        reserved = [rng.randint(0, 8) for _ in range(rng.randint(0, steps))]
        best = most_saved(tensors, reserved, capacity)
        choice = choose_residents(tensors, reserved, capacity)
        assert (choice.saved_bytes, choice.bound_saved_bytes, choice.proved) == (best, best, True), (tensors, reserved)
        assert sum(t.saving_bytes for t in tensors if t.name in choice.resident) == best
        hurried = choose_residents(tensors, reserved, capacity, effort_nodes=1)
        assert hurried.saved_bytes <= best <= hurried.bound_saved_bytes


def spills_against_brute_force(count: int, seed: int) -> None:
    rng = random.Random(seed)
    done = 0
    while done < count:
        tensors = []
        for k in range(rng.randint(1, 4)):
            uses = tuple(sorted(rng.sample(range(10), rng.randint(1, 4))))
            tensors.append(UsedTensor(f"t{k}", uses, rng.randint(1, 9), rng.random() < 0.4))
        reserved = [rng.randint(0, 6) for _ in range(10)]
        capacity = max(r + sum(t.size_bytes for t in tensors if s in t.uses) for s, r in enumerate(reserved))
        capacity += rng.randint(0, 8)
        best = fewest_spilled(tensors, reserved, capacity)
        choice = choose_spills(tensors, reserved, capacity)
        assert (choice.ddr_bytes, choice.bound_ddr_bytes, choice.proved) == (best, best, True), (tensors, reserved)
        hurried = choose_spills(tensors, reserved, capacity, effort_nodes=1)
        assert hurried.bound_ddr_bytes <= best <= hurried.ddr_bytes
        done += 1


@pytest.mark.parametrize("more", [1, 3])
def test_a_choice_that_saves_little_more_of_much_is_found(more: int) -> None:
    tensors = [
        ResidentTensor("dense", 0, 1, 2, 4_000_000),
        ResidentTensor("small", 0, 1, 1, 1_000_000),
        ResidentTensor("large", 0, 1, 3, 5_000_000 + more),
    ]
    choice = choose_residents(tensors, [], 3)
    assert sorted(choice.resident) == ["large"] and choice.proved
    assert choice.saved_bytes == choice.bound_saved_bytes == 5_000_000 + more


def test_residents_brute_force() -> None:
    residents_against_brute_force(200, seed=1)


def test_spills_brute_force() -> None:
    spills_against_brute_force(100, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("count", [150, pytest.param(500, marks=pytest.mark.exhaustive)])
def test_more_of_both_by_brute_force(count: int) -> None:
    residents_against_brute_force(count, seed=3)
    spills_against_brute_force(count, seed=4)


def test_placement_confirms_the_choice() -> None:
    rng = random.Random(7)
    for _ in range(20):
        others = [Buffer(f"o{k}", k, k + 2, rng.randint(1, 20), 4) for k in range(12)]
        tensors = []
        for k in range(10):
            start = rng.randrange(10)
            tensors.append(ResidentTensor(f"t{k}", start, start + rng.randint(1, 4), rng.randint(1, 30), 10))
        settled = place_residents(tensors, others, 64, alignment_bytes=4)
        stay = [Buffer(t.name, t.start, t.end, t.size_bytes, 4) for t in tensors if t.name in settled.residency.resident]
        assert not validate([*others, *stay], settled.placement, 64)
        assert settled.residency.saved_bytes == 10 * len(stay) <= settled.residency.bound_saved_bytes


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([ResidentTensor("a", 0, 1, -1, 0)], "tensor a: size -1 is negative"),
        ([ResidentTensor("a", 3, 3, 1, 0)], "tensor a: live range [3, 3) is empty or begins before step 0"),
        ([ResidentTensor("a", 0, 1, 1, 0)] * 2, "tensor a: the name is given twice"),
    ],
)
def test_refused(tensors: list[ResidentTensor], message: str) -> None:
    with pytest.raises(InvalidTensors) as refusal:
        choose_residents(tensors, [], 10)
    assert str(refusal.value) == message


def test_uses_that_exceed_the_capacity() -> None:
    with pytest.raises(InvalidTensors) as refusal:
        choose_spills([UsedTensor("a", (0, 2), 8)], [0, 0, 5], 10)
    assert str(refusal.value) == "step 2: its tensors need 3 bytes more than the capacity leaves"
