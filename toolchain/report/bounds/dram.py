"""Compute the least bytes that any schedule of a region moves between the chip and its DRAM (docs/bounds.md).

Inputs, outputs and constants count once each, as far as the layers cannot do without their elements. Bytes that the memories
cannot hold until their next use count again. `min_traffic` says it layer by layer for the report's bounds; `min_dram_bytes` is
the least size of DRAM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SUMS
from toolchain.machine import Space, parameter_bytes
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit.operator import Layer, MoveOp, TiledOp
from toolchain.ops.matrix_product import IntegerMatrixProduct
from toolchain.report.bounds.reload_bound import ChipCapacity, Edge, FlowStage, min_reload_bytes
from toolchain.report.bounds.required_reads import (
    Read,
    RequiredElements,
    get_required_elements,
    join_required,
    reads_of,
    windows_of,
    with_parts,
)


@dataclass(frozen=True)
class MinTraffic:
    """The least DRAM traffic of each layer, in bytes, in the order of the layers.

    `constants`, `inputs`: bytes that come at least once, counted at the first layer that needs them.
    `outputs`: bytes that leave.
    `again`: bytes that do not stay on the chip from one use to the next, at the moment of this layer.
    `last_constants`: as `constants`, counted at the last layer that needs them.
    """

    constants: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    again: tuple[int, ...]
    last_constants: tuple[int, ...]

    @property
    def read_bytes(self) -> int:
        """Return the bytes read from DRAM by all layers, those that come again included."""
        return sum(self.constants) + sum(self.inputs) + sum(self.again)

    @property
    def write_bytes(self) -> int:
        """Return the bytes written to DRAM by all layers."""
        return sum(self.outputs)

    @property
    def total_bytes(self) -> int:
        """Return the bytes read and written."""
        return self.read_bytes + self.write_bytes


def get_chip_capacity(chip: Chip, element_bytes: int) -> ChipCapacity:
    """Return what the chip can hold: bytes of all memories but DRAM and those of sums, and the number of sums.

    `element_bytes`: bytes of the widest element.
    """
    sum_spaces = {unit.roles[SUMS] for unit in chip.units if SUMS in unit.roles}
    size = sum(s.memory.size for code, s in enumerate(chip.spaces) if code != Space.DRAM and code not in sum_spaces)
    arrays = [unit.array for unit in chip.of_kind("mac_array")]
    widths = [mac.accumulators.sum_bytes for mac in arrays]
    accumulator_entries = sum(mac.accumulators.entries for mac in arrays if mac.accumulators.memory is None)
    together = sum(chip.spaces[code].memory.size for code in sum_spaces) // min(widths, default=1)
    return ChipCapacity(size, accumulator_entries + together, element_bytes, min(widths) if sum_spaces else math.inf)


def min_traffic(layers: Sequence[Layer], inputs: Sequence[str], outputs: Sequence[str]) -> MinTraffic:
    """Return the least DRAM traffic of each layer of a region; empty tuples without layers.

    `layers`: all nodes of the region, in order.
    `inputs`, `outputs`: ports of the region.
    """
    if not layers:
        return MinTraffic((), (), (), (), ())
    reads = [reads_of(layer) for layer in layers]
    required, computed = _propagate_required(layers, reads, outputs)
    used = [_constants(layer, required.get(layer.node.outputs[0], RequiredElements())) for layer in layers]
    stages = _stages(layers, reads, required, used)
    widest = max(layer.output.item_bytes for layer in layers)
    again = min_reload_bytes(stages, get_chip_capacity(layers[0].chip, widest))
    arriving, leaving = _arriving(layers, inputs, computed), _leaving(layers, outputs)
    return MinTraffic(_once(used), arriving, leaving, again, _once(used[::-1])[::-1])


def min_dram_bytes(layers: Sequence[Layer], inputs: Sequence[str], outputs: Sequence[str]) -> int:
    """Return the least bytes that lie in DRAM together: everything that comes and leaves at least once; 0 without layers.

    `outputs`: without the next values of states, which replace the previous ones.
    """
    if not layers:
        return 0
    required, computed = _propagate_required(layers, [reads_of(layer) for layer in layers], outputs)
    used = [_constants(layer, required.get(layer.node.outputs[0], RequiredElements())) for layer in layers]
    return sum((*_once(used), *_arriving(layers, inputs, computed), *_leaving(layers, outputs)))


def _propagate_required(
    layers: Sequence[Layer], reads: Sequence[Mapping[str, Read]], outputs: Sequence[str]
) -> tuple[dict[str, RequiredElements], dict[str, RequiredElements]]:
    """Return the elements of each tensor that the region cannot do without, by tensor, from the outputs backwards.

    The second result counts only what is computed with. A tensor that merely moves to an output may lie there already.
    """
    types = layers[0].types
    required = {n: RequiredElements(types[n].elements, True, True) for n in outputs}
    computed: dict[str, RequiredElements] = {}
    for layer, layer_reads in zip(reversed(layers), reversed(reads)):
        output = layer.node.outputs[0]
        for requirements in (required, computed):
            if output in requirements:
                requirements[output] = with_parts(requirements[output], types[output].shape)
        output_requirements = computed if isinstance(layer.node.op, MoveOp) else required
        for name, read in layer_reads.items():
            for requirements, required_output in ((required, required.get(output)), (computed, output_requirements.get(output))):
                more = get_required_elements(required_output or RequiredElements(), read, types[name].elements)
                requirements[name] = join_required(requirements.get(name, RequiredElements()), more)
    produced_tensors = {layer.node.outputs[0] for layer in layers}
    ports = [n for n in computed if n not in produced_tensors]
    return required, computed | {n: with_parts(computed[n], types[n].shape) for n in ports}


@dataclass(frozen=True)
class _Constant:
    """A constant of a layer.

    `key`: equal for equal values.
    `size_bytes`: bytes of it that come at least once.
    `pixel_bytes`: bytes that all channels of one pixel need.
    """

    key: object
    size_bytes: int
    pixel_bytes: int


def _constants(layer: Layer, required: RequiredElements) -> tuple[_Constant, ...]:
    """Return the constants that come at least for the required elements of a layer's output; empty unless they include every
    channel."""
    if not required.channels or not isinstance(layer.node.op, TiledOp):
        return ()
    if isinstance(layer.node.op, IntegerConvolution):
        return _convolution_constants(layer, layer.node.op, required)
    tiling = next(iter(layer.tiled.tilings(layer)))
    blocks = {b.key: b for task in layer.tiled.nest(layer, tiling).distinct() for b in task.blocks} if required.is_whole else {}
    return tuple(_Constant(b.data(), b.size_bytes, 0) for b in blocks.values())


def _convolution_constants(layer: Layer, op: IntegerConvolution, required: RequiredElements) -> tuple[_Constant, ...]:
    """Return the constants of a convolution: weights that meet more than padding, entries of the channels, and a table if it
    has one."""
    axes = windows_of(layer)
    assert axes is not None
    weights, bias = (layer.constants[n] for n in layer.node.inputs[1:3])
    outputs, _, _, inner = weights.shape
    fewest, taps = axes[0].fewest * axes[1].fewest, axes[0].taps * axes[1].taps
    sizes = [ceil(outputs * count * inner * op.weight_type.bits / 8) for count in (taps if required.is_whole else fewest, fewest)]
    groups = op.array(layer).groups if op.group else None
    scale_bytes = 0 if groups is None else outputs * ceil(inner / op.group) * groups.entry_bytes
    entries = int(parameter_bytes(outputs, layer.chip))
    r = op.requant
    constants = [
        _Constant(("weights", weights.shape, weights.tobytes()), sizes[0] + scale_bytes, sizes[1] + scale_bytes),
        _Constant((bias.tobytes(), r.multiplier.tobytes(), r.shift.tobytes()), entries, entries),
    ]
    if op.table is not None:
        block = op.table.block("", "")
        constants.append(_Constant(block.data(), block.size_bytes, block.size_bytes))
    return tuple(constants)


def _once(used: Sequence[Sequence[_Constant]]) -> tuple[int, ...]:
    """Return the bytes of constants by layer, each counted at the first layer that needs it. Equal constants count once."""
    size_by_key: dict[object, int] = {}
    new_bytes: list[int] = []
    for layer_constants in used:
        more = 0
        for constant in layer_constants:
            before = size_by_key.get(constant.key, 0)
            more += max(0, constant.size_bytes - before)
            size_by_key[constant.key] = max(before, constant.size_bytes)
        new_bytes.append(more)
    return tuple(new_bytes)


def _arriving(layers: Sequence[Layer], inputs: Sequence[str], required: Mapping[str, RequiredElements]) -> tuple[int, ...]:
    """Return the required bytes of the region's inputs, each at the first layer that reads it."""
    remaining_bytes = {n: required[n].elements * layers[0].types[n].item_bytes for n in inputs if n in required}
    return tuple(sum(remaining_bytes.pop(n, 0) for n in dict.fromkeys(layer.activations)) for layer in layers)


def _leaving(layers: Sequence[Layer], outputs: Sequence[str]) -> tuple[int, ...]:
    """Return the bytes of outputs that each layer makes.

    Outputs that are arrangements of one another may share bytes, so only the largest counts. An arrangement of an input counts
    nothing.
    """
    group: dict[str, str] = {}

    def of(name: str) -> str:
        while group.get(name, name) != name:
            name = group[name]
        return name

    layer_outputs = {layer.node.outputs[0] for layer in layers}
    for layer in layers:
        if isinstance(layer.node.op, MoveOp):
            for name in layer.activations:
                group[of(name)] = of(layer.node.outputs[0])
    shared = {of(n) for layer in layers for n in layer.activations if n not in layer_outputs}
    types, most = layers[0].types, dict[str, str]()
    for name in outputs:
        if of(name) not in shared and types[name].size_bytes > (types[most[of(name)]].size_bytes if of(name) in most else 0):
            most[of(name)] = name
    counted = frozenset(most.values())
    return tuple(types[n].size_bytes if (n := layer.node.outputs[0]) in counted else 0 for layer in layers)


def _stages(
    layers: Sequence[Layer],
    reads: Sequence[Mapping[str, Read]],
    required: Mapping[str, RequiredElements],
    used: Sequence[Sequence[_Constant]],
) -> list[FlowStage]:
    """Return the layers as stages of the flow whose reloads report.bounds.reload_bound bounds."""
    maker = {layer.node.outputs[0]: index for index, layer in enumerate(layers)}
    shared = _find_shared_constants(used)
    stages: list[FlowStage] = []
    for layer, layer_reads, constants in zip(layers, reads, used):
        name = layer.node.outputs[0]
        edges = tuple(Edge(maker[n], r.even, r.mixes, r.keeps) for n, r in layer_reads.items() if n in maker)
        summed = isinstance(layer.node.op, IntegerConvolution | IntegerMatrixProduct)
        size = sum(c.pixel_bytes for c in constants if c.key not in shared)
        is_whole_required = required.get(name, RequiredElements()).is_whole and isinstance(layer.node.op, TiledOp)
        stages.append(FlowStage(size, layer.output.size_bytes, edges, is_whole_required, layer.output.elements if summed else 0))
    return stages


def _find_shared_constants(used: Sequence[Sequence[_Constant]]) -> set[object]:
    """Return the keys of constants that occur more than once: a byte of them that stays on the chip serves several layers."""
    first_keys, shared_keys = set[object](), set[object]()
    for layer_constants in used:
        for constant in layer_constants:
            (shared_keys if constant.key in first_keys else first_keys).add(constant.key)
    return shared_keys
