"""Check plans independently: this module knows buffers and addresses, and nothing of how a plan was made.

Tests, `scripts/plan_memory.py` and benchmarks judge every plan by `validate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from toolchain.memory.buffer import Buffer, Placement


def validate(buffers: Iterable[Buffer], placement: Placement, capacity_bytes: int | None = None) -> list[str]:
    """Return the faults of a plan, one sentence each; empty where the plan is valid and its certificate consistent.

    Addresses are held to each buffer's own conditions, to those between buffers, and to the plan's peak and bound.
    `capacity_bytes`: the plan may not end above it; None: any peak is allowed.
    Nothing is raised for a faulty plan. The buffers themselves must be sound (`check_buffers`).
    """
    buffers = list(buffers)
    faults = [f"buffer {b.name}: has no address" for b in buffers if b.name not in placement.addresses]
    placed = {b.name: b for b in buffers if b.name in placement.addresses}
    faults += [f"address given to {name}, which is not among the buffers" for name in _unknown(placement, buffers)]
    for b in placed.values():
        faults += _faults_alone(b, placed, placement)
    faults += _overlaps(list(placed.values()), placed, placement)
    faults += _bank_conflicts(placed, placement)
    peak = max((placement.addresses[b.name] + b.size_bytes for b in placed.values() if b.size_bytes), default=0)
    if peak != placement.peak_bytes:
        faults.append(f"the plan reaches {peak} bytes, its certificate says {placement.peak_bytes}")
    if placement.bound_bytes > placement.peak_bytes:
        faults.append(f"the bound {placement.bound_bytes} is above the peak {placement.peak_bytes}")
    if placement.proved and placement.bound_bytes != placement.peak_bytes:
        faults.append(f"proved, but bound {placement.bound_bytes} is not the peak {placement.peak_bytes}")
    if capacity_bytes is not None and peak > capacity_bytes:
        faults.append(f"the plan reaches {peak} bytes, the capacity is {capacity_bytes}")
    return faults


def live_at_peak(buffers: Iterable[Buffer]) -> tuple[int, list[Buffer], int]:
    """Return (step, buffers live at it, their bytes) of the first step at which most bytes are live.

    Buffers that must or may share their bytes are counted as if they did not. Without buffers the step is 0.
    """
    buffers = list(buffers)
    changes: dict[int, int] = {}
    for b in buffers:
        changes[b.start] = changes.get(b.start, 0) + b.size_bytes
        changes[b.end] = changes.get(b.end, 0) - b.size_bytes
    live = most = 0
    at = min((b.start for b in buffers), default=0)
    for step in sorted(changes):
        live += changes[step]
        if live > most:
            most, at = live, step
    return at, [b for b in buffers if b.start <= at < b.end], most


def _unknown(placement: Placement, buffers: Sequence[Buffer]) -> list[str]:
    """Return the names that have an address and are none of the buffers, sorted."""
    return sorted(set(placement.addresses) - {b.name for b in buffers})


def _faults_alone(b: Buffer, placed: dict[str, Buffer], placement: Placement) -> list[str]:
    """Return how a buffer's address breaks what the buffer itself demands."""
    address = placement.addresses[b.name]
    faults: list[str] = []
    if address < 0:
        faults.append(f"buffer {b.name}: address {address} is negative")
    if address % b.alignment_bytes:
        faults.append(f"buffer {b.name}: address {address} is no multiple of its alignment {b.alignment_bytes}")
    if b.fixed_address is not None and address != b.fixed_address:
        faults.append(f"buffer {b.name}: address {address} is not its fixed address {b.fixed_address}")
    if b.region is not None:
        low, high = b.region
        if address < low or (high is not None and address + b.size_bytes > high):
            faults.append(f"buffer {b.name}: [{address}, {address + b.size_bytes}) leaves its region [{low}, {high})")
    if b.bank_bytes and b.size_bytes and address // b.bank_bytes != (address + b.size_bytes - 1) // b.bank_bytes:
        faults.append(f"buffer {b.name}: crosses a bank of {b.bank_bytes} bytes at {address}")
    if b.view_of in placed and address != placement.addresses[b.view_of] + b.offset_bytes:
        faults.append(f"buffer {b.name}: address {address} is not {b.offset_bytes} into {b.view_of}")
    return faults


def _overlaps(buffers: list[Buffer], placed: dict[str, Buffer], placement: Placement) -> list[str]:
    """Return a fault for each pair of buffers that share a byte at a step and may not."""
    faults: list[str] = []
    order = sorted((b for b in buffers if b.size_bytes), key=lambda b: (b.start, b.end, b.name))
    low = np.array([placement.addresses[b.name] for b in order], np.int64)
    high = low + np.array([b.size_bytes for b in order], np.int64)
    end = np.array([b.end for b in order], np.int64)
    live = np.empty(0, np.int64)
    for i, b in enumerate(order):
        live = live[end[live] > b.start]
        overlapping: list[int] = live[(low[live] < high[i]) & (low[i] < high[live])].tolist()
        for k in overlapping:
            other = order[k]
            if not _may_overlap(b, other, placed, placement):
                steps = f"[{b.start}, {min(b.end, other.end)})"
                where = f"[{max(low[i], low[k])}, {min(high[i], high[k])})"
                faults.append(f"buffers {other.name} and {b.name} overlap in steps {steps} at bytes {where}")
        live = np.append(live, i)
    return faults


def _may_overlap(a: Buffer, b: Buffer, placed: dict[str, Buffer], placement: Placement) -> bool:
    """Return whether both lie in one buffer by views, or one takes the other's place at its very address."""
    if _root(a, placed) == _root(b, placed):
        return True
    return placement.addresses[a.name] == placement.addresses[b.name] and (a.in_place_of == b.name or b.in_place_of == a.name)


def _root(b: Buffer, placed: dict[str, Buffer]) -> str:
    """Return the name of the buffer that a buffer lies in at last, its own where it is no view."""
    while b.view_of in placed:
        b = placed[b.view_of]
    return b.name


def _bank_conflicts(placed: dict[str, Buffer], placement: Placement) -> list[str]:
    """Return a fault for each pair that `apart_from` forbids to share a bank."""
    faults: list[str] = []
    for b in placed.values():
        for name in b.apart_from:
            other = placed.get(name)
            if other is None or other.end <= b.start or b.end <= other.start or not (b.size_bytes and other.size_bytes):
                continue
            low, at = placement.addresses[b.name], placement.addresses[name]
            first, last = low // b.bank_bytes, (low + b.size_bytes - 1) // b.bank_bytes
            if first <= (at + other.size_bytes - 1) // b.bank_bytes and at // b.bank_bytes <= last:
                faults.append(f"buffers {b.name} and {name} share a bank of {b.bank_bytes} bytes")
    return faults
