"""What a layer reads from outside the SRAM to make one block of channels of its whole output, at least."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from toolchain.machine import Space
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import TileTask, spans
from toolchain.schedule.cascade_candidates import TileChoice
from toolchain.schedule.stripes import Span


def count_min_reads(
    layer: Layer, made: Iterable[Span], works: Iterable[TileTask], chosen: TileChoice, inside: Collection[str]
) -> int | None:
    """Of SRAM, where all of it is there at once. made: rows of the output, of each call; works: of one of those calls, made as
    chosen. inside: tensors that lie in SRAM. None where nothing is read from outside."""
    channels: dict[tuple[int, str, str], set[Span]] = {}
    for work in works:
        for i, box in enumerate(work.reads):
            if box.tensor not in inside:
                channels.setdefault((i, box.tensor, box.role), set()).add((box.start[-1], box.size[-1]))
    if not channels:
        return None
    tiling, width = chosen.tiling, layer.output.shape[2]
    down = [part for start, count in made for part in spans(count, tiling.rows, start)]
    across = spans(width, tiling.columns)
    return sum(
        _elements(layer, tensor, 1, down) * _elements(layer, tensor, 2, across) * _together(own) * layer.types[tensor].item_bytes
        for (_, tensor, role), own in channels.items()
        if all(unit.roles[role] == Space.SRAM for unit in chosen.units)
    )


def _elements(layer: Layer, tensor: str, axis: int, made: Iterable[Span]) -> int:
    """Rows (axis 1) or columns of a tensor that these of the output need, those in common to two of them twice; where windows
    leave some out, one stands for all."""
    windows = (layer.tiled.windows(layer, axis) or {}).get(tensor, ())
    dense = (w for w in windows if (w.kernel - 1) * w.dilation + 1 >= w.stride)
    return min((sum(count for _, count in {w.needed(*own) for own in made}) for w in dense), default=1)


def _together(channels: Iterable[Span]) -> int:
    return len({at for start, count in channels for at in range(start, start + count)})
