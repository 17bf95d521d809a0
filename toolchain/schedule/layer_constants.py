"""Collect the constant blocks of layers: those that several layers share, those that are loaded again, and parts for
prefetch.

A constant block is bytes that an operation needs: weights, parameters or a table of one tile. A ring is the tile buffer
that it passes through.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np

from toolchain.foundation.type_guards import is_array, is_sequence
from toolchain.hw.unit_map import Unit
from toolchain.machine import Space
from toolchain.ops.kit.nest import Nest
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import ConstantBlock, Tiling, round_up
from toolchain.schedule.nodes import Fetch, Prefetch


def find_shared_constants(layers: Iterable[tuple[int, Layer]]) -> frozenset[int]:
    """Return the indices of those layers whose operator and constants equal another's among these layers.

    `layers`: (index, layer) pairs.
    """
    # Few layers share their constants, so that few operators are digested.
    candidates_by_constants: dict[bytes, list[tuple[int, Layer]]] = {}
    for index, layer in layers:
        constants = [layer.constants[n] for n in layer.node.inputs if n in layer.constants]
        candidates_by_constants.setdefault(_digest(constants), []).append((index, layer))
    shared: set[int] = set()
    for candidates in candidates_by_constants.values():
        groups: dict[bytes, list[int]] = {}
        for index, layer in candidates if len(candidates) > 1 else ():
            groups.setdefault(_digest(layer.node.op), []).append(index)
        shared.update(index for group in groups.values() if len(group) > 1 for index in group)
    return frozenset(shared)


def holds_constants(layer: Layer) -> bool:
    """Return whether the layer reads constants, or its operator has a table."""
    return not layer.constants.keys().isdisjoint(layer.node.inputs) or _has_array(layer.node.op)


def _has_array(value: Any) -> bool:
    """Return whether a value is an array, or a dataclass or sequence that has one somewhere inside."""
    if is_dataclass(value):
        return any(_has_array(getattr(value, field.name)) for field in fields(value))
    return is_array(value) or (is_sequence(value) and any(map(_has_array, value)))


def _digest(value: Any) -> bytes:
    """Return a digest of an operator, or of a list of constants, that is equal where these are."""
    digest = hashlib.sha256()
    for part in _parts(value):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield the parts of a value for a digest: arrays with type and shape, dataclasses by class and fields, sequences by their
    length and elements.
    """
    if is_array(value):
        yield f"{value.dtype}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif is_dataclass(value):
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
        for field in fields(value):
            yield from _parts(getattr(value, field.name))
    elif is_sequence(value):
        yield f"{len(value)} elements".encode()
        for one in value:
            yield from _parts(one)
    else:
        yield repr(value).encode()


class LayerConstants(NamedTuple):
    """The constant blocks of a layer in the order of their first use, each with the index of the tile that uses it
    first.

    `space`: number of the memory in which units read them.
    """

    blocks: Mapping[ConstantBlock, int]
    space: int


def collect_constants(layer: Layer, tiling: Tiling, units: Sequence[Unit]) -> LayerConstants | None:
    """Return the constants of a layer; None where units read them in several memories, so that they cannot be
    prefetched.

    `units`: those that run its tiles. A layer without constants has no blocks, and the SRAM as `space`.
    """
    first_uses: dict[Hashable, tuple[ConstantBlock, int]] = {}
    for number, tile in enumerate(layer.tiled.nest(layer, tiling).iterate_tasks()):
        for block in tile.blocks:
            first_uses.setdefault(block.key, (block, number))
    spaces = {unit.roles[block.role] for block, _ in first_uses.values() for unit in units}
    return LayerConstants(dict(first_uses.values()), spaces.pop() if spaces else Space.SRAM) if len(spaces) < 2 else None


def count_reloaded(nest: Nest) -> dict[str, int]:
    """Return how many constants an outer loop would load again, by the key of their ring; rings without such are left
    out.

    That is so where a loop that changes the constants has one around it that does not. Two neighbouring steps in its
    middle show whether a loop changes them.
    """
    point = tuple(axis.steps[len(axis.steps) // 2] for axis in nest.axes)
    at_point, counts = _keys_by_ring(nest, point), dict[str, int]()
    changing = [
        _keys_by_ring(nest, (*point[:i], axis.steps[len(axis.steps) // 2 - 1], *point[i + 1 :]))
        for i, axis in enumerate(nest.axes)
    ]
    for ring, keys in at_point.items():
        loops = [(len(axis.steps), other.get(ring) != keys) for axis, other in zip(nest.axes, changing) if len(axis.steps) > 1]
        around = next((i for i, (_, changes) in enumerate(loops) if not changes), len(loops))
        if any(changes for _, changes in loops[around:]):
            counts[ring] = len(keys) * prod(steps for steps, changes in loops if changes)
    return counts


def _keys_by_ring(nest: Nest, point: tuple[Any, ...]) -> dict[str, frozenset[Hashable]]:
    """Return the keys of the constants at one point of a nest, by the key of the ring that they pass through."""
    keys: dict[str, set[Hashable]] = {}
    for tile in nest.body(point):
        for i, block in enumerate(tile.blocks):
            keys.setdefault(f"b{i}", set()).add(block.key)
    return {ring: frozenset(blocks) for ring, blocks in keys.items()}


def split_constants(constants: LayerConstants, cuts: Iterable[tuple[Prefetch, int]], pitch: int) -> tuple[Fetch, ...]:
    """Return the first constants of a layer, in order, as prefetches.

    `cuts`: each prefetch with the index of the layer after whose loads it is. `pitch`: each block begins at a multiple
    of so many bytes.
    """
    rest = iter(constants.blocks.items())
    fetches: list[Fetch] = []
    for prefetch, since in cuts:
        offsets: dict[Hashable, int] = {}
        read_bytes: dict[int, int] = {}
        end = 0
        blocks = list(islice(rest, prefetch.constants))
        for block, tile in blocks:
            offsets[block.key] = round_up(end, pitch)
            read_bytes[tile] = end = offsets[block.key] + block.size_bytes
        number, ordered = len(fetches), tuple(block for block, _ in blocks)
        fetches.append(
            Fetch(
                prefetch,
                "",
                number=number,
                blocks=ordered,
                offsets=offsets,
                bytes_by_tile=read_bytes,
                size_bytes=end,
                since=since,
                space=constants.space,
            )
        )
    return tuple(fetches)
