"""Explain why a network cannot be planned: a layer that exceeds a memory, with a picture, or too many tiles.

The planners raise these CompileErrors (`schedule.layer_by_layer`, `schedule.region_planner`).
"""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph
from toolchain.machine import Space
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import round_up
from toolchain.schedule.nodes import Ring
from toolchain.schedule.tilings import SmallestTile

MOST_TILES = 65_536  # of one program: building and checking it takes about a minute
_WIDTH = 40  # characters of the picture's bars


def explain_too_small(layers: Sequence[Layer], needs: Sequence[SmallestTile], chip: Chip, graph: Graph) -> str | None:
    """Return a refusal for each memory that some layer's smallest tile exceeds by itself; None where all fit.

    `needs`: smallest tile of each layer. A refusal names the least memory that would do: tensors may stay in DRAM, so
    that is the largest of these tiles.
    """
    refusals = (_too_small(layers, needs, chip, graph, space) for space in chip.staging)
    return "\n".join(s for s in refusals if s is not None) or None


def _too_small(layers: Sequence[Layer], needs: Sequence[SmallestTile], chip: Chip, graph: Graph, space: int) -> str | None:
    """Return the refusal for one memory, or None."""
    memory, key = chip.spaces[space].memory, chip.spaces[space].key
    size, align = memory.size, memory.alignment_bytes
    step = max(range(len(needs)), key=lambda i: needs[i].sizes.get(space, 0), default=None)
    if step is None or needs[step].sizes.get(space, 0) <= size:
        return None
    need, layer, name = needs[step].sizes[space], layers[step], "SRAM" if space == Space.SRAM else key
    kind = type(layer.node.op).__name__.removeprefix("Integer")
    rows = [
        (_label(slot, layer, graph), sum(round_up(size, align) for size in slot.sizes))
        for slot in needs[step].slots
        if slot.space == space
    ]
    lines = [
        f"{layer.node.name} ({kind}): its smallest tile needs {need} bytes of {name} at once, "
        f"{chip.name} has {size} (memories.{key}.size)",
        f"  live at step {step + 1} of {len(layers)}, the peak ('|' is the end of the {name}):",
        *_picture(rows, size),
        f"  help: the smallest {name} that would do for the network is {round_up(need, memory.size_step_bytes)} bytes",
    ]
    return "\n".join(lines)


def explain_too_many(layers: Sequence[Layer], tiles: Sequence[int], chip: Chip) -> str | None:
    """Return the refusal of a plan with more tiles than a program may have (MOST_TILES), or None. `tiles`: number for
    each layer.
    """
    total = sum(tiles)
    if total <= MOST_TILES:
        return None
    step = max(range(len(tiles)), key=lambda i: tiles[i])
    layer = layers[step]
    kind = type(layer.node.op).__name__.removeprefix("Integer")
    strided = layer.node.op.stride_cut(layer) if isinstance(layer.node.op, IntegerConvolution) else None
    if strided:
        return (
            f"{chip.name}: the network falls into {total} tiles, most of them ({tiles[step]}) of {layer.node.name} ({kind}); "
            f"a program has at most {MOST_TILES}\n  help: {strided}; raise it, or let strides be 1 and drop outputs by a Slice"
        )
    return (
        f"{chip.name}: the network falls into {total} tiles, most of them ({tiles[step]}) of {layer.node.name} ({kind}); "
        f"a program has at most {MOST_TILES}\n"
        f"  help: larger tiles need more SRAM (memories.sram.size is {chip.sram.size}), larger "
        f"{chip.key('mac_array')}.accumulators.entries, or wider limits"
    )


def _label(ring: Ring, layer: Layer, graph: Graph) -> str:
    """Return the name of a tile buffer for people, with the user's tensor."""
    role, index = ring.buffer.role, ring.buffer.number
    if role == "output":
        return f"output {graph.shown(layer.node.outputs[0])}"
    if role == "constant":
        return f"constants {index + 1}" if index else "constants"
    name = graph.shown(layer.activations[index]) if index < len(layer.activations) else index + 1
    return f"input {name}"


def _picture(rows: Sequence[tuple[str, int]], size_bytes: int) -> list[str]:
    """Return one line for each buffer, with a bar that begins where the one above it ends."""
    total = sum(need for _, need in rows)
    wide = max(len(name) for name, _ in rows)
    end = min(_WIDTH, round(_WIDTH * size_bytes / total))
    lines, at = list[str](), 0
    for name, need in rows:
        start, stop = round(_WIDTH * at / total), round(_WIDTH * (at + need) / total)
        at += need
        cells = ["#" if start <= i < max(stop, start + 1) else " " for i in range(_WIDTH + 1)]
        cells.insert(end, "|")
        lines.append(f"    {name:{wide}}  {need:>9} bytes  [{''.join(cells).rstrip()}")
    return lines
