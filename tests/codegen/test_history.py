"""The latest conflicts of each engine, against bytes marked one by one; and what two interleaved tiles wait for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from toolchain.codegen.access_history import AccessHistory
from toolchain.codegen.lower import PlacedOp
from toolchain.codegen.synchronise import synchronise
from toolchain.hw import load_chip
from toolchain.machine import Access, Convolution, Residues, Signal, Space, overlap, residues

ENGINES = 3
SIZES = (1500, 1200)  # of dram that is written, of sram
TILE_CHANNELS = 16


def drawn_access(rng: np.random.Generator, dense: bool) -> Access:
    """Return a random access.

    `dense`: at strides of 24 bytes, like tiles of channels of one feature map.
    """
    space = int(rng.integers(0, 2))
    dimensions = int(rng.integers(0, 3))
    counts = tuple(int(n) for n in rng.integers(1, 4, dimensions))
    strides = tuple(int(n) for n in (24 * rng.integers(1, 4, dimensions) if dense else rng.integers(0, 60, dimensions)))
    inner_bytes, write = int(rng.integers(1, 9)), bool(rng.integers(0, 2))
    reach = inner_bytes + sum((n - 1) * stride for n, stride in zip(counts, strides))
    # reads behind the last byte of dram that is written are of constants
    room = 2 * SIZES[0] if space == Space.DRAM and not write else SIZES[space]
    access = Access(space, int(rng.integers(0, max(1, room - reach))), counts, strides, inner_bytes, write)
    return (
        access if access.end <= room and (access.address >= SIZES[0] or access.end <= SIZES[space]) else drawn_access(rng, dense)
    )


def bytes_of(access: Access) -> set[int]:
    starts = [access.address]
    for n, stride in zip(access.counts, access.strides):
        starts = [s + i * stride for s in starts for i in range(n)]
    return {s + j for s in starts for j in range(access.inner_bytes)}


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_latest_conflicts_are_those_of_the_bytes(seed: int, dense: bool) -> None:
    rng = np.random.default_rng(seed)
    history = AccessHistory(SIZES, ENGINES)
    marks: dict[tuple[int, int, bool, int], int] = {}  # (space, byte, write, engine) -> latest event
    met = 0
    for event in range(250):
        touched = [drawn_access(rng, dense) for _ in range(3)]
        latest_known = [int(k) for k in rng.integers(-1, max(event, 1), ENGINES)]
        expected = list(latest_known)
        for access in touched:
            kinds = (True, False) if access.write else (True,)
            for where in ((access.space, byte, kind) for byte in bytes_of(access) for kind in kinds):
                for engine in range(ENGINES):
                    expected[engine] = max(expected[engine], marks.get((*where, engine), -1))
        assert history.latest(touched, latest_known) == expected
        met += expected != latest_known
        engine = event % ENGINES
        history.record(touched, engine, event)
        for access in touched:
            if access.space != Space.DRAM or access.address < SIZES[0]:
                marks |= {(access.space, byte, access.write, engine): event for byte in bytes_of(access)}
    assert 100 < met < 240


def test_accesses_that_are_apart_share_no_byte() -> None:
    rng = np.random.default_rng(0)
    drawn = [(replace(drawn_access(rng, True), space=1), replace(drawn_access(rng, True), space=1)) for _ in range(3000)]
    are_disjoint = [bool(residues(a).is_disjoint(residues(b))) for a, b in drawn]
    columns = [Residues(*np.array([(r.first, r.run, r.pitch) for r in map(residues, side)]).T) for side in zip(*drawn)]
    assert columns[0].is_disjoint(columns[1]).tolist() == are_disjoint
    assert not any(is_disjoint and overlap(a, b) for is_disjoint, (a, b) in zip(are_disjoint, drawn))
    assert sum(are_disjoint) > 500


@pytest.mark.parametrize(("shared_bytes", "signals"), [(0, 0), (1, 1)])
def test_interleaved_tiles_wait_only_where_they_share_a_byte(shared_bytes: int, signals: int) -> None:
    """Two tiles of output channels of one layer, on two arrays; the second begins `shared_bytes` early."""
    chip = load_chip("edge16")
    chip = chip.model_copy(update={"engines": chip.engines | {"mac": chip.array.model_copy(update={"count": 2})}})
    arrays = [u.queue for u in chip.of_kind("mac_array")]
    assert len(arrays) == 2
    placed = [PlacedOp(convolution(unit), 0, (tile(unit * (TILE_CHANNELS - shared_bytes)),)) for unit in (0, 1)]
    synchronised = synchronise(placed, chip, 0)
    assert sum(isinstance(op, Signal) for op in synchronised.ops) == signals


def tile(first_channel: int) -> Access:
    return Access(Space.SRAM, 0x100 + first_channel, (8, 8), (8 * 2 * TILE_CHANNELS, 2 * TILE_CHANNELS), TILE_CHANNELS, True)


def convolution(unit: int) -> Convolution:
    return replace(Convolution(*(0 for _ in Convolution.parameters())), unit=unit)
