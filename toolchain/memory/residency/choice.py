"""Choose which tensors stay in SRAM, so that fewest bytes go to and from the external memory (DDR).

Tensors are given as sizes and steps; `label_search` finds the choice. No addresses are given: see `place_residents`.
A label is a partial choice that the search keeps; `effort_nodes` and `nodes` count labels.
`toolchain/schedule/layer_by_layer.py` chooses a region's resident tensors by `choose_residents`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolchain.memory.residency.label_search import Item, choose

DEFAULT_EFFORT_LABELS = 50_000


class InvalidTensors(ValueError):
    """The candidates contradict themselves, or need more bytes at a step than there are."""


@dataclass(frozen=True)
class ResidentTensor:
    """A candidate for staying in SRAM during the steps [start, end).

    `saving_bytes`: DDR bytes saved when it stays.
    """

    name: str
    start: int
    end: int
    size_bytes: int
    saving_bytes: int


@dataclass(frozen=True)
class Residency:
    """The names of the tensors that stay, and the certificate: no choice saves more than `bound_saved_bytes`.

    `saved_bytes`: DDR bytes that this choice saves. `proved`: both are equal.
    `nodes`: labels that the search used, the same on every machine.
    """

    resident: frozenset[str]
    saved_bytes: int
    bound_saved_bytes: int
    proved: bool
    nodes: int


@dataclass(frozen=True)
class UsedTensor:
    """A tensor that may stay or be spilled between any two of its uses.

    `uses`: steps, rising: the tensor is made or loaded at the first; at each use it is in SRAM for that step.
    `in_ddr`: a copy is in DDR from the start (a constant, a graph input), so that a spill writes nothing.
    """

    name: str
    uses: tuple[int, ...]
    size_bytes: int
    in_ddr: bool = False


@dataclass(frozen=True)
class Spilling:
    """A choice of the gaps between uses in which tensors stay in SRAM, and its certificate.

    `resident_spans`: (tensor, k): it stays between its uses k and k + 1. In all other gaps it is spilled:
    read again before the next use, and written once if DDR has no copy.
    `ddr_bytes`: bytes moved by spills. `bound_ddr_bytes`: no choice moves fewer. `proved`: both are equal.
    `nodes`: labels that the search used.
    """

    resident_spans: frozenset[tuple[str, int]]
    ddr_bytes: int
    bound_ddr_bytes: int
    proved: bool
    nodes: int


def choose_residents(
    tensors: Iterable[ResidentTensor],
    reserved_bytes: Sequence[int],
    capacity_bytes: int,
    effort_nodes: int = DEFAULT_EFFORT_LABELS,
) -> Residency:
    """Return the choice that saves most DDR bytes while at no step more than the capacity is in use.

    `reserved_bytes`: bytes[step] not available at that step; steps beyond its end have all of the capacity.
    `effort_nodes`: labels of the search; where they run out the choice may not be the best, and `proved` is False.
    Tensors without a saving never stay. Raise InvalidTensors as `check_tensors` does.
    """
    tensors = list(tensors)
    check_tensors(tensors)
    worth = [t for t in tensors if t.saving_bytes > 0]
    steps = max((t.end for t in tensors), default=0)
    free = _free(reserved_bytes, capacity_bytes, steps)
    items = [Item(t.start, t.end, t.size_bytes, t.saving_bytes) for t in worth]
    chosen_items, saved, bound, nodes = choose(items, [], free, effort_nodes)
    names = frozenset(worth[n].name for n in chosen_items)
    return Residency(names, saved, bound, saved == bound, nodes)


def choose_spills(
    tensors: Iterable[UsedTensor],
    reserved_bytes: Sequence[int],
    capacity_bytes: int,
    effort_nodes: int = DEFAULT_EFFORT_LABELS,
) -> Spilling:
    """Return for each gap between uses whether the tensor stays, so that fewest bytes go to and from DDR.

    `reserved_bytes`: bytes[step] not available to these tensors. `effort_nodes`: as in `choose_residents`.
    Raise InvalidTensors for unsound tensors, and where those used at one step alone exceed what is available.
    """
    tensors = list(tensors)
    _check_used(tensors)
    steps = max((t.uses[-1] + 1 for t in tensors), default=0)
    free = _free(reserved_bytes, capacity_bytes, steps)
    items: list[Item] = []
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
            items.append(Item(a + 1, b, t.size_bytes, t.size_bytes, group, write / gaps))
            keys.append((t.name, k))
    for step, free_bytes in enumerate(free):
        if free_bytes < 0:
            raise InvalidTensors(f"step {step}: its tensors need {-free_bytes} bytes more than the capacity leaves")
    chosen_items, saved, bound, nodes = choose(items, bonus, free, effort_nodes)
    return Spilling(frozenset(keys[n] for n in chosen_items), cost - saved, cost - bound, saved == bound, nodes)


def check_tensors(tensors: Sequence[ResidentTensor]) -> None:
    """Raise InvalidTensors, in one sentence, at the first tensor whose name, size or live range is unsound."""
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
    """Raise InvalidTensors, in one sentence, at the first tensor whose name, size or uses are unsound."""
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
    """Return the bytes available at each step; there may be fewer than none."""
    return [capacity - r for r in reserved] + [capacity] * (steps - len(reserved))
