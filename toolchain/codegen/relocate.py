"""Move the DRAM areas of a compiled model to other addresses (`npu-sim --base`).

The programs keep their words; their base registers hold other values. So it works only on machines with
`control.host_bases`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from toolchain.codegen.dram_areas import area_at
from toolchain.codegen.model import Container, DramArea, LayerInfo, Port, Region
from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.input_limits import DRAM_BYTES


def relocate_container(container: Container, bases: Mapping[str, int]) -> Container:
    """Return the model with areas at new addresses; ports, constants and results move along. Areas without a new
    address stay.

    `bases`: new address of the area that holds `constants`, `activations`, `input:TENSOR`, `output:TENSOR` or
    `state:INPUT`. `SEGMENT:` precedes the name where several programs have such an area.

    Raise CompileError with every fault: an unknown or ambiguous name, a program of absolute addresses, a misaligned
    address, an area outside DRAM or over another.
    """
    if not bases:
        return container
    faults: list[str] = []
    moves: dict[int, dict[int, int]] = {}  # segment -> register -> base
    for name, base in bases.items():
        area_match = _find_area(container, name)
        if isinstance(area_match, str):
            faults.append(f"base {name}={base:#x}: {area_match}")
            continue
        segment, area = area_match
        moved = moves.setdefault(segment, {})
        if moved.setdefault(area.base_register, base) != base:
            faults.append(
                f"base {name}={base:#x}: {area.label} lie in one area, which is to be at {moved[area.base_register]:#x}"
            )
    segments = list(container.segments)
    for index, moved in moves.items():
        region = segments[index]
        assert isinstance(region, Region)
        areas = tuple(replace(a, base=moved.get(a.base_register, a.base)) for a in region.areas)
        faults += _faults(areas, container.machine.chip)
        segments[index] = _move_areas(region, areas)
    if faults:
        raise CompileError("\n".join(faults))
    return replace(container, segments=tuple(segments))


def _find_area(container: Container, name: str) -> tuple[int, DramArea] | str:
    """Return the (segment, area) that a name means, or a sentence on why there is none."""
    segment_text, label = re.fullmatch(r"(?:([0-9]{1,9}):)?(.*)", name, re.S).groups()  # type: ignore[union-attr]
    regions = {i: s for i, s in enumerate(container.segments) if isinstance(s, Region)}
    areas = [(i, a) for i, region in regions.items() for a in region.areas if any(h.label == label for h in a.holds)]
    chosen = [(i, a) for i, a in areas if segment_text is None or i == int(segment_text)]
    if not chosen:
        labels = {h.label for region in regions.values() for a in region.areas for h in a.holds}
        return f"no program has such an area; there are {', '.join(sorted(labels)) or 'none'}"
    if len(chosen) > 1:
        return f"several programs have one; say of which: {', '.join(f'{i}:{label}' for i, _ in chosen)}"
    ((_, area),) = chosen
    if not area.base_register:
        return (
            f"programs of {container.machine.chip.name} hold absolute addresses; build for a machine with "
            f"control.host_bases, base registers that the host sets"
        )
    return chosen[0]


def _faults(areas: tuple[DramArea, ...], chip: Chip) -> Iterator[str]:
    """Yield a sentence for each area that is misaligned, outside DRAM, or over another."""
    step = chip.dram.alignment_bytes
    for area in areas:
        prefix = f"base {area.label}={area.base:#x}"
        if area.base < 0 or area.base % step:
            yield f"{prefix}: must be a multiple of {step} from 0 on (memories.dram.alignment_bytes)"
        elif area.end > chip.dram.size:
            yield f"{prefix}: ends at {area.end:#x}, outside of the {chip.dram.size:#x} bytes of dram (memories.dram.size)"
        elif area.end > DRAM_BYTES:
            yield f"{prefix}: ends at {area.end:#x}; the simulator holds {DRAM_BYTES:#x} bytes of dram"
    for before, after in pairwise(sorted(areas, key=lambda a: a.base)):
        if after.base < before.end:
            yield (
                f"base {after.label}={after.base:#x}: lies over {before.label}, which is at {before.base:#x} to "
                f"{before.end:#x}; give one of them another place"
            )


def _move_areas(region: Region, areas: tuple[DramArea, ...]) -> Region:
    """Return the region with these areas in place of its own, in order, and all addresses inside them moved along."""

    def place(address: int) -> int:
        old = area_at(region.areas, address)
        assert old is not None  # what a file says of its areas holds all of its addresses
        new = areas[region.areas.index(old)]
        return address - old.base + new.base

    def port(old_port: Port) -> Port:
        return replace(old_port, address=place(old_port.address))

    def layer(info: LayerInfo) -> LayerInfo:
        if info.result is None or info.result.space != "dram":
            return info
        return replace(info, result=replace(info.result, address=place(info.result.address)))

    return replace(
        region,
        constants=tuple(sorted((place(address), data) for address, data in region.constants)),
        inputs=tuple(map(port, region.inputs)),
        outputs=tuple(map(port, region.outputs)),
        states=tuple(replace(state, port=port(state.port)) for state in region.states),
        layers=tuple(map(layer, region.layers)),
        dram_bytes=max((area.end for area in areas), default=0),
        areas=areas,
    )
