"""Minimizing ends: also where the plan is closer to its bound than the finest step."""

from __future__ import annotations

import random

from toolchain.memory import Buffer, place, validate


def test_minimizing_random_unaligned_buffers_ends() -> None:
    for seed in range(300):
        draw = random.Random(seed)
        alignment = draw.choice([1, 4, 16, 64])
        starts = [draw.randint(0, 8) for _ in range(draw.randint(2, 9))]
        buffers = [
            Buffer(f"b{i}", start, start + draw.randint(1, 5), draw.randint(1, 3000), alignment) for i, start in enumerate(starts)
        ]
        placement = place(buffers)
        assert validate(buffers, placement) == []
