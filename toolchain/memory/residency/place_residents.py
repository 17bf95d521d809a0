"""Choose residents and confirm them by placement: what is chosen is placed with everything else, or less is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.memory.buffer import Buffer, DoesNotFit, Placement
from toolchain.memory.place.placement import DEFAULT_EFFORT_NODES, place
from toolchain.memory.residency.choice import DEFAULT_EFFORT_LABELS, Residency, ResidentTensor, choose_residents

ROUNDS = 8


@dataclass(frozen=True)
class PlacedResidents:
    """A residency with addresses for the residents and the other buffers.

    `hot_steps`: the fullest step of each choice that failed: its bytes fitted, its placement did not. Empty: the first one held.
    """

    residency: Residency
    placement: Placement
    hot_steps: tuple[int, ...]


def place_residents(
    tensors: Sequence[ResidentTensor],
    others: Sequence[Buffer],
    capacity_bytes: int,
    alignment_bytes: int = 1,
    effort_labels: int = DEFAULT_EFFORT_LABELS,
    effort_nodes: int = DEFAULT_EFFORT_NODES,
) -> PlacedResidents:
    """Return the residents chosen beside `others`, which must be placed, with addresses for all of them.

    Where a choice does not place, the choice is repeated with a sixteenth of the capacity more withheld.
    It is withheld during the lives of all buffers that are live at the fullest step. After ROUNDS choices nothing stays.
    `residency.bound_saved_bytes` is the bound for the full capacity, and `proved` refers to it.
    `effort_labels`: of each choice. `effort_nodes`: of each placement.
    Raise DoesNotFit where the others alone do not fit, InvalidTensors, InvalidBuffers.
    """
    steps = max([t.end for t in tensors] + [b.end for b in others], default=0)
    reserved = [0] * steps
    for b in others:
        for step in range(b.start, b.end):
            reserved[step] += b.size_bytes + -b.size_bytes % alignment_bytes
    padded = [_pad_to_alignment(t, alignment_bytes) for t in tensors]
    hot: list[int] = []
    bound = None
    for _ in range(ROUNDS):
        chosen = choose_residents(padded, reserved, capacity_bytes, effort_labels)
        bound = chosen.bound_saved_bytes if bound is None else bound
        stay = [t for t in tensors if t.name in chosen.resident]
        try:
            placement = place([*others, *_buffers(stay, alignment_bytes)], capacity_bytes, effort_nodes)
        except DoesNotFit as fault:
            hot.append(fault.step)
            for step in {s for b in fault.live for s in range(b.start, b.end)}:
                reserved[step] += max(capacity_bytes // 16, 1)
            continue
        return PlacedResidents(_against(chosen, bound), placement, tuple(hot))
    none = Residency(frozenset(), 0, bound or 0, not bound, 0)
    return PlacedResidents(none, place(others, capacity_bytes, effort_nodes), tuple(hot))


def _pad_to_alignment(t: ResidentTensor, alignment: int) -> ResidentTensor:
    """Return the tensor with its size rounded up to the alignment."""
    return ResidentTensor(t.name, t.start, t.end, t.size_bytes + -t.size_bytes % alignment, t.saving_bytes)


def _buffers(tensors: Sequence[ResidentTensor], alignment: int) -> list[Buffer]:
    return [Buffer(t.name, t.start, t.end, t.size_bytes, alignment) for t in tensors]


def _against(chosen: Residency, bound: int) -> Residency:
    """Return the residency with its certificate against a bound of another choice."""
    proved = chosen.saved_bytes == bound
    return Residency(chosen.resident, chosen.saved_bytes, max(bound, chosen.saved_bytes), proved, chosen.nodes)
