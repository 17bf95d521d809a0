"""Sweep the size of the SRAM (`--sram-curve`): plan and time the same integer network for each size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count, takewhile
from typing import Any

from toolchain.codegen import Container, Region
from toolchain.compiler import time_region
from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.isa import Machine
from toolchain.machine import Space
from toolchain.ops.kit.operator import Layer, TiledOp
from toolchain.ops.kit.tile import round_up
from toolchain.report.bounds.bound_metrics import network_bounds, region_bounds
from toolchain.report.bounds.unit_bounds import MinUnitUse
from toolchain.schedule.tilings import smallest_tile

FIRST, LAST = 32 * 1024, 4 * 1024 * 1024  # bytes


@dataclass(frozen=True)
class SweepPoint:
    """A size of the SRAM in bytes, and what the network takes with it.

    `dram_bytes`: DRAM traffic of the plan; `least_bytes`: the least of any plan with this size.
    `peak_bytes`: most SRAM in use.
    """

    sram_bytes: int
    cycles: int
    dram_bytes: int
    least_bytes: int
    peak_bytes: int

    @property
    def takes(self) -> tuple[int, int, int]:
        """Return cycles, DRAM bytes and peak bytes."""
        return self.cycles, self.dram_bytes, self.peak_bytes


@dataclass(frozen=True)
class SramSweep:
    """The points of a sweep by rising size, from the smallest size that suffices.

    `own_bytes`: the machine's own SRAM, whose point is always among them.
    """

    points: tuple[SweepPoint, ...]
    own_bytes: int

    @property
    def as_json(self) -> list[dict[str, int]]:
        """Return the points as in the JSON report."""
        return [asdict(point) for point in self.points]

    @property
    def own(self) -> SweepPoint:
        """Return the point of the machine's own size."""
        return next(p for p in self.points if p.sram_bytes == self.own_bytes)


def sram_curve(compiled: Callable[[Machine], Container], machine: Machine, tell: Callable[[str, int, int], None]) -> SramSweep:
    """Plan and time a network for other sizes of SRAM, and return the points.

    The first size is the least in which each layer can run alone; sizes that are too small for a plan are left out. The
    sweep ends where a larger SRAM changes nothing any more, or programs cannot
    address it.

    `compiled`: makes the network for a machine, or raises CompileError.
    `tell`: is called with a text, the number of finished sizes, and the number of all.
    Raise CompileError where the machine's own SRAM is too small.
    """
    sizes, began = sizes_for(machine.chip), time.monotonic()
    tell(f"SRAM of {machine.chip.sram.size:,} bytes", 0, len(sizes))
    on_this_machine = compiled(machine)
    least = _least_bytes(on_this_machine)
    sizes = [least, *(s for s in sizes if s > least)]
    points: list[SweepPoint] = []
    for done, size in enumerate(sizes):
        left_s = (time.monotonic() - began) / (done + 1) * (len(sizes) - done)
        tell(f"SRAM of {size:,} bytes, size {done + 1} of {len(sizes)} at most, about {left_s:.0f} s left", done, len(sizes))
        if size > machine.chip.sram.size and len(points) > 1 and points[-1].takes == points[-2].takes:
            break  # all that could stay does
        try:
            points.append(_point(on_this_machine if size == machine.chip.sram.size else compiled(with_sram_size(machine, size))))
        except CompileError:
            if points and size > machine.chip.sram.size:  # the program's addresses reach no further
                break
    return SramSweep(tuple(points), machine.chip.sram.size)


def _least_bytes(container: Container) -> int:
    """Return the bytes of SRAM in which each layer by itself can run."""
    chip, graph = container.machine.chip, container.graph
    chip_nodes = {name for segment in container.segments if isinstance(segment, Region) for name in segment.nodes}
    layers = [Layer(n, graph.types, graph.constants, chip) for n in graph.nodes if n.name in chip_nodes]
    needs = [smallest_tile(la, ()).sizes.get(Space.SRAM, 0) for la in layers if isinstance(la.node.op, TiledOp)]
    return round_up(max(needs, default=1), chip.sram.alignment_bytes)


def sizes_for(chip: Chip) -> list[int]:
    """Return the sizes in bytes, rising: 32 KiB to 4 MiB in steps of the square root of two, and the machine's own.

    All are whole units of its alignment. A larger machine is swept up to its own size.
    """
    last, alignment_bytes = max(LAST, chip.sram.size), chip.sram.alignment_bytes
    steps = (int(FIRST * 2 ** (k / 2)) // alignment_bytes * alignment_bytes for k in count())
    return sorted({*takewhile(lambda size: size <= last, steps), chip.sram.size})


def with_sram_size(machine: Machine, sram_bytes: int) -> Machine:
    """Return the same machine with another size of SRAM."""
    return Machine(machine.chip.with_sram(sram_bytes), machine.isa)


def _point(container: Container) -> SweepPoint:
    """Time the compiled network and return its point."""
    machine, cycles, moved = container.machine, 0, 0
    regions = [s for s in container.segments if isinstance(s, Region)]
    for region in regions:
        run = time_region(machine, region)
        cycles, moved = cycles + run.cycles, moved + run.dram_read_bytes + run.dram_write_bytes
    uses = MinUnitUse(machine.chip)
    least = network_bounds([region_bounds(container, region, uses) for region in regions])["dram_bytes"]
    peak = max((region.sram_peak_bytes for region in regions), default=0)
    return SweepPoint(machine.chip.sram.size, cycles, moved, least, peak)


def rows(curve: SramSweep) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table under HEADS. The ratios are to the cycles of the machine as it is, and to the least DRAM
    bytes."""
    for index, point in enumerate(curve.points):
        remarks = ["the smallest that does"] if index == 0 else []
        remarks += ["this machine"] if point.sram_bytes == curve.own_bytes else []
        yield (
            f"{point.sram_bytes:,}",
            f"{point.cycles:,}",
            _times(point.cycles, curve.own.cycles),
            f"{point.dram_bytes:,}",
            _times(point.dram_bytes, point.least_bytes),
            ", ".join(remarks),
        )


HEADS = ("SRAM bytes", "cycles", "x this machine", "DRAM bytes", "x least", "")


def _times(value: int, of: int) -> str:
    return f"{value / of:.3f}" if of else "-"


def as_figures(curve: SramSweep) -> Mapping[str, Any]:
    """Return the sweep as in the JSON report (`SramCurve`)."""
    return {"own_bytes": curve.own_bytes, "points": curve.as_json}
