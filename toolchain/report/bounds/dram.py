"""The least that any schedule of a region moves between the chip and its DRAM (docs/bounds.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SUMS
from toolchain.machine import Space, parameter_bytes
from toolchain.ops.convolution.integer import IntegerConvolution
from toolchain.ops.kit.operator import Layer, MoveOp, TiledOp
from toolchain.ops.matrix_product import IntegerMatrixProduct
from toolchain.report.bounds.reload_bound import ChipCapacity, Edge, FlowStage, min_reload_bytes
from toolchain.report.bounds.required_reads import (
    Read,
    RequiredElements,
    get_required_elements,
    needed_together,
    reads_of,
    windows_of,
    with_parts,
)


@dataclass(frozen=True)
class MinTraffic:
    """Of each layer, in order. constants, inputs: that come at least once, with the first layer that needs them; outputs: that
    leave; again: that do not stay on the chip from one use to the next, at the moment of this layer."""

    constants: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    again: tuple[int, ...]

    @property
    def read_bytes(self) -> int:
        return sum(self.constants) + sum(self.inputs) + sum(self.again)

    @property
    def write_bytes(self) -> int:
        return sum(self.outputs)

    @property
    def total_bytes(self) -> int:
        return self.read_bytes + self.write_bytes


def get_chip_capacity(chip: Chip, element_bytes: int) -> ChipCapacity:
    """All memories of the chip but those of sums, and the sums. element_bytes: most of an element."""
    held = {unit.roles[SUMS] for unit in chip.units if SUMS in unit.roles}
    size = sum(s.memory.size for code, s in enumerate(chip.spaces) if code != Space.DRAM and code not in held)
    arrays = [unit.array for unit in chip.of_kind("mac_array")]
    widths = [mac.accumulators.sum_bytes for mac in arrays]
    apart = sum(mac.accumulators.entries for mac in arrays if mac.accumulators.memory is None)
    together = sum(chip.spaces[code].memory.size for code in held) // min(widths, default=1)
    return ChipCapacity(size, apart + together, element_bytes, min(widths) if held else math.inf)


def min_traffic(layers: Sequence[Layer], inputs: Sequence[str], outputs: Sequence[str]) -> MinTraffic:
    """layers: all of a region's nodes, in order; inputs, outputs: its ports."""
    if not layers:
        return MinTraffic((), (), (), ())
    reads = [reads_of(layer) for layer in layers]
    needed, computed = _needed(layers, reads, outputs)
    used = [_constants(layer, needed.get(layer.node.outputs[0], RequiredElements())) for layer in layers]
    stages = _stages(layers, reads, needed, used)
    widest = max(layer.output.item_bytes for layer in layers)
    again = min_reload_bytes(stages, get_chip_capacity(layers[0].chip, widest))
    return MinTraffic(_once(used), _arriving(layers, inputs, computed), _leaving(layers, outputs), again)


def held_bytes(layers: Sequence[Layer], inputs: Sequence[str], outputs: Sequence[str]) -> int:
    """The least that lies in DRAM beside each other: what comes and leaves at least once. outputs: without the next values of
    states, which lie where the last ones were."""
    if not layers:
        return 0
    needed, computed = _needed(layers, [reads_of(layer) for layer in layers], outputs)
    used = [_constants(layer, needed.get(layer.node.outputs[0], RequiredElements())) for layer in layers]
    return sum((*_once(used), *_arriving(layers, inputs, computed), *_leaving(layers, outputs)))


def _needed(
    layers: Sequence[Layer], reads: Sequence[Mapping[str, Read]], outputs: Sequence[str]
) -> tuple[dict[str, RequiredElements], dict[str, RequiredElements]]:
    """Of each tensor, by what the layers do with it that must be done; and for what is computed alone: what only goes to outputs
    under other names or places may lie there already."""
    types = layers[0].types
    found = {n: RequiredElements(types[n].elements, True, True) for n in outputs}
    computed: dict[str, RequiredElements] = {}
    for layer, own in zip(reversed(layers), reversed(reads)):
        made = layer.node.outputs[0]
        for known in (found, computed):
            if made in known:
                known[made] = with_parts(known[made], types[made].shape)
        behind = computed if isinstance(layer.node.op, MoveOp) else found
        for name, read in own.items():
            for known, asked in ((found, found.get(made)), (computed, behind.get(made))):
                more = get_required_elements(asked or RequiredElements(), read, types[name].elements)
                known[name] = needed_together(known.get(name, RequiredElements()), more)
    ports = [n for n in computed if n not in {layer.node.outputs[0] for layer in layers}]
    return found, computed | {n: with_parts(computed[n], types[n].shape) for n in ports}


@dataclass(frozen=True)
class _Constant:
    """key: equal for equal values. pixel_bytes: that all channels of one pixel need."""

    key: object
    size_bytes: int
    pixel_bytes: int


def _constants(layer: Layer, needed: RequiredElements) -> tuple[_Constant, ...]:
    """That come for what is needed of a layer's output."""
    if not needed.channels or not isinstance(layer.node.op, TiledOp):
        return ()
    if isinstance(layer.node.op, IntegerConvolution):
        return _convolution_constants(layer, layer.node.op, needed)
    tiling = next(iter(layer.tiled.tilings(layer)))
    blocks = {b.key: b for work in layer.tiled.nest(layer, tiling).distinct() for b in work.blocks} if needed.whole else {}
    return tuple(_Constant(b.data(), b.size_bytes, 0) for b in blocks.values())


def _convolution_constants(layer: Layer, op: IntegerConvolution, needed: RequiredElements) -> tuple[_Constant, ...]:
    """Weights that meet more than padding, with what lies beside their groups; entries of the channels; a table."""
    axes = windows_of(layer)
    assert axes is not None
    weights, bias = (layer.constants[n] for n in layer.node.inputs[1:3])
    outputs, _, _, inner = weights.shape
    fewest, taps = axes[0].fewest * axes[1].fewest, axes[0].taps * axes[1].taps
    sizes = [ceil(outputs * count * inner * op.weight_type.bits / 8) for count in (taps if needed.whole else fewest, fewest)]
    groups = op.array(layer).groups if op.group else None
    beside = 0 if groups is None else outputs * ceil(inner / op.group) * groups.entry_bytes
    entries = int(parameter_bytes(outputs, layer.chip))
    r = op.requant
    found = [
        _Constant(("weights", weights.shape, weights.tobytes()), sizes[0] + beside, sizes[1] + beside),
        _Constant((bias.tobytes(), r.multiplier.tobytes(), r.shift.tobytes()), entries, entries),
    ]
    if op.table is not None:
        block = op.table.block("", "")
        found.append(_Constant(block.data(), block.size_bytes, block.size_bytes))
    return tuple(found)


def _once(used: Sequence[Sequence[_Constant]]) -> tuple[int, ...]:
    """Equal constants come with the first layer that needs them."""
    seen: dict[object, int] = {}
    found: list[int] = []
    for own in used:
        more = 0
        for constant in own:
            before = seen.get(constant.key, 0)
            more += max(0, constant.size_bytes - before)
            seen[constant.key] = max(before, constant.size_bytes)
        found.append(more)
    return tuple(found)


def _arriving(layers: Sequence[Layer], inputs: Sequence[str], needed: Mapping[str, RequiredElements]) -> tuple[int, ...]:
    left = {n: needed[n].elements * layers[0].types[n].item_bytes for n in inputs if n in needed}
    return tuple(sum(left.pop(n, 0) for n in dict.fromkeys(layer.activations)) for layer in layers)


def _leaving(layers: Sequence[Layer], outputs: Sequence[str]) -> tuple[int, ...]:
    """Outputs that are arrangements of one another or of an input may share bytes: only the largest of them counts, and none with
    an input."""
    group: dict[str, str] = {}

    def of(name: str) -> str:
        while group.get(name, name) != name:
            name = group[name]
        return name

    made = {layer.node.outputs[0] for layer in layers}
    for layer in layers:
        if isinstance(layer.node.op, MoveOp):
            for name in layer.activations:
                group[of(name)] = of(layer.node.outputs[0])
    shared = {of(n) for layer in layers for n in layer.activations if n not in made}
    types, most = layers[0].types, dict[str, str]()
    for name in outputs:
        if of(name) not in shared and types[name].size_bytes > (types[most[of(name)]].size_bytes if of(name) in most else 0):
            most[of(name)] = name
    counted = frozenset(most.values())
    return tuple(types[n].size_bytes if (n := layer.node.outputs[0]) in counted else 0 for layer in layers)


def _stages(
    layers: Sequence[Layer],
    reads: Sequence[Mapping[str, Read]],
    needed: Mapping[str, RequiredElements],
    used: Sequence[Sequence[_Constant]],
) -> list[FlowStage]:
    maker = {layer.node.outputs[0]: index for index, layer in enumerate(layers)}
    shared = _shared(used)
    found: list[FlowStage] = []
    for layer, own, constants in zip(layers, reads, used):
        name = layer.node.outputs[0]
        edges = tuple(Edge(maker[n], r.even, r.mixes, r.keeps) for n, r in own.items() if n in maker)
        summed = isinstance(layer.node.op, IntegerConvolution | IntegerMatrixProduct)
        size = sum(c.pixel_bytes for c in constants if c.key not in shared)
        whole = needed.get(name, RequiredElements()).whole and isinstance(layer.node.op, TiledOp)
        found.append(FlowStage(size, layer.output.size_bytes, edges, whole, layer.output.elements if summed else 0))
    return found


def _shared(used: Sequence[Sequence[_Constant]]) -> set[object]:
    """Constants of several layers: what is held of them is of all."""
    seen, found = set[object](), set[object]()
    for own in used:
        for constant in own:
            (found if constant.key in seen else seen).add(constant.key)
    return found
