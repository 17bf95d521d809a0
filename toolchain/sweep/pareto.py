"""Find the Pareto front of points: those that no other point beats in all objectives."""

from __future__ import annotations

from collections.abc import Sequence


def find_front(values: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of the points that no other dominates, rising. `values`: of each point, all to be small.

    A point dominates another where it is at most as large in every objective and smaller in one. Of equal points all stay.
    """
    order = sorted(range(len(values)), key=lambda index: tuple(values[index]))
    front: list[Sequence[float]] = []
    indices: list[int] = []
    for index in order:  # whatever dominates a point stands in front of it
        point = values[index]
        if not any(_dominates(other, point) for other in front):
            front.append(point)
            indices.append(index)
    return sorted(indices)


def _dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(x <= y for x, y in zip(a, b)) and any(x < y for x, y in zip(a, b))
