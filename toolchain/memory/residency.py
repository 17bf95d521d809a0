"""Which tensors stay in SRAM: fewest DDR bytes within the capacity, by dynamic programming over the steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DEFAULT_EFFORT_LABELS = 50_000


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
    steps = max((t.end for t in tensors), default=0)
    free = [capacity_bytes - r for r in reserved_bytes] + [capacity_bytes] * (steps - len(reserved_bytes))
    chosen: list[ResidentTensor] = []
    for t in sorted(tensors, key=lambda t: (-t.saving_bytes / max(t.size_bytes * (t.end - t.start), 1), t.name)):
        if t.saving_bytes > 0 and all(free[s] >= t.size_bytes for s in range(t.start, t.end)):
            chosen.append(t)
            for s in range(t.start, t.end):
                free[s] -= t.size_bytes
    saved = sum(t.saving_bytes for t in chosen)
    bound = sum(max(t.saving_bytes, 0) for t in tensors)
    return Residency(frozenset(t.name for t in chosen), saved, bound, saved == bound, 0)


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
