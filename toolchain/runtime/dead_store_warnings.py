"""Warn of bytes that a program writes or holds and nothing reads.

The session adds the warnings to a run. The simulator finds such bytes (`DeadStore`). Bytes that a network itself drops are not
counted here. Examples are the rows after the last window of a pool, and elements that a Slice leaves out. Pixels that strides
skip in a box that is loaded whole are not counted, either.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from simulator import DeadStore
from toolchain.codegen import Container, Region
from toolchain.errors import format_count
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph
from toolchain.machine import Copy, InstructionStream, MachineOp, Space, in_granules, op_number
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.data_movement import IntegerConcat, Slice
from toolchain.ops.kit.operator import Layer, TiledOp
from toolchain.ops.kit.tile import Move
from toolchain.ops.kit.window import Window
from toolchain.ops.permutation import Reshape
from toolchain.ops.pool.integer_pool import IntegerAveragePool, IntegerMaxPool
from toolchain.schedule.channel_blocks import find_blocked_tensors

Masks = dict[str, np.ndarray]  # by tensor: True for the elements that a layer reads or a port takes


def find_dead_stores(
    container: Container, region: Region, ops: InstructionStream, dead_stores: Sequence[DeadStore]
) -> tuple[str, ...]:
    """Return a sentence for each layer with bytes that nothing reads, and one for each range of constants that is never read.

    A layer's results are left out if their unread bytes are no more than those that the network itself drops. The tuple is
    empty
    where nothing is left.
    `ops`: the program's flow; `dead_stores`: the simulator's findings in it.
    """
    if not dead_stores:
        return ()
    network = _Network(container.graph, region, container.machine.chip)
    warnings = [f"constants: {u.text} are never read" for u in dead_stores if u.index < 0]
    layers: dict[int, list[DeadStore]] = {}
    for u in dead_stores:
        if u.index >= 0:
            layers.setdefault(region.layer_of(ops, u.index), []).append(u)
    unknown = layers.pop(-1, [])  # of an edited listing
    if sum(u.bytes for u in unknown) > network.all_dropped_bytes:
        warnings.append(_sentence(unknown, ops, "no known layer"))
    for layer, unread in sorted(layers.items()):
        name = region.layers[layer].name
        faulty = [u for u in unread if not network.drops(name, ops[u.index])]
        results = [u for u in faulty if not network.is_load(name, ops[u.index])]
        if sum(u.bytes for u in results) <= network.count_dropped_bytes(name):
            faulty = [u for u in faulty if u not in results]
        if faulty:
            warnings.append(_sentence(faulty, ops, f"layer {name} ({region.layers[layer].op})"))
    return tuple(warnings)


def _sentence(unread: Sequence[DeadStore], ops: InstructionStream, layer: str) -> str:
    first = unread[0]
    more = f", as {format_count(len(unread) - 1, 'other operation')} of it" if len(unread) > 1 else ""
    return (
        f"{op_number(ops, first.index)} {ops[first.index].NAME} of {layer} writes {first.text} that nothing reads before they "
        f"are overwritten or the program ends{more}"
    )


class _Network:
    """The elements of each result that layers of the region or its outputs read, to tell which bytes the network itself
    drops."""

    def __init__(self, graph: Graph, region: Region, chip: Chip):
        region_nodes = set(region.nodes)
        self._constants = sorted((a, a + len(data), data.endswith(b"\0")) for a, data in region.constants)
        self._layers = {n.name: Layer(n, graph.types, graph.constants, chip) for n in graph.nodes if n.name in region_nodes}
        nodes = [layer.node for layer in self._layers.values()]
        states = {n for s in region.states for n in (s.port.tensor, s.present_tensor)}
        maps = find_blocked_tensors(nodes, graph, {*region.read, *region.result_tensors}, chip, states)
        granule = 0 if chip.layout.feature_maps is None else chip.layout.feature_maps.granule
        self._granules = {n.name: granule for n in nodes if n.outputs[0] in maps}
        tensors = {t for n in nodes for t in (*n.inputs, *n.outputs) if t in graph.types}
        self._read: Masks = {t: np.zeros(graph.types[t].shape, np.bool_) for t in tensors}
        for tensor in region.result_tensors:
            self._read[tensor][...] = True
        for layer in reversed(self._layers.values()):
            _mark(layer, self._read)

    def is_load(self, name: str, op: MachineOp) -> bool:
        """Return whether an operation brings an operand of a tiled layer into a memory of the chip.

        Data-movement layers copy their results alone, and so does what moves rows within a memory.
        """
        if not isinstance(self._layers[name].node.op, TiledOp) or not isinstance(op, Copy):
            return False
        return op.destination_space not in (Space.DRAM, op.source_space)

    def drops(self, name: str, op: MachineOp) -> bool:
        """Return whether a load has a reason to bring more than the layer reads.

        Reasons are a box with gaps, weights that meet padding, several constants in one load.
        """
        if not self.is_load(name, op) or not isinstance(op, Copy):
            return False
        constant = self._constant(op.source_address) if op.source_space == Space.DRAM else None
        if constant is None:
            return _has_gaps(self._layers[name])
        first, end, filled = constant
        # Pieces of several that are fetched ahead, with what fills each up to where the next begins.
        together = filled or (first, end) != (op.source_address, op.source_address + op.inner_bytes * math.prod(op.counts()))
        return together or _meets_padding(self._layers[name])

    def _constant(self, address: int) -> tuple[int, int, bool] | None:
        """Return the constant at a DRAM address: its first byte, one past its last, and whether it ends with a zero; None
        without one."""
        at = bisect_right(self._constants, address, key=itemgetter(0)) - 1
        return self._constants[at] if at >= 0 and address < self._constants[at][1] else None

    @property
    def all_dropped_bytes(self) -> int:
        """Return the bytes of all layers' results that the network reads nowhere."""
        return sum(self.count_dropped_bytes(name) for name in self._layers)

    def count_dropped_bytes(self, name: str) -> int:
        """Return the bytes of a layer's result that the network reads nowhere, with those that fill its last granules of
        channels."""
        layer, granule = self._layers[name], self._granules.get(name, 0)
        read = self._read[layer.node.outputs[0]]
        dropped = int((~(in_granules(read, granule) if granule else read)).sum())
        return layer.output.item_bytes * (dropped + (_count_refilled(layer, granule) if granule else 0))


def _count_refilled(layer: Layer, granule: int) -> int:
    """Return how many elements behind the last channel a data-movement layer writes once more; 0 for other layers."""
    *pixels, channels = layer.output.shape
    return 0 if isinstance(layer.node.op, TiledOp | Reshape) else -channels % granule * math.prod(pixels)


def _has_gaps(layer: Layer) -> bool:
    """Return whether the windows of a layer, or of a tile of it, skip rows or columns of the box around everything they read."""
    return any(
        window.get_input_span(start, count)[1] > len(_list_reached(window, count, start))
        for window, outputs in windows_of(layer) or ()
        for start, count in ((0, outputs), *((at, 1) for at in range(outputs)))
    )


def _meets_padding(layer: Layer) -> bool:
    """Return whether programs may leave out weights of the layer: of a grouped convolution with padding, parts of the kernel
    may meet it."""
    op = layer.node.op
    return isinstance(op, IntegerConvolution) and op.groups > 1 and any(op.pads)


def _mark(layer: Layer, read: Masks) -> None:
    """Mark the elements that the layer reads of its inputs, in `read`.

    Inputs that may be made or read in place count only where the layer's own result is read. So layers must come in reverse
    order.
    """
    node = layer.node
    if isinstance(node.op, Reshape):
        source = read[node.inputs[0]]
        source |= read[node.outputs[0]].reshape(source.shape)
    elif isinstance(node.op, TiledOp):
        _mark_tiled(layer, read)
    else:
        for move in layer.move_op.moves(layer)[1]:
            source, target = _ends(move)
            index = layer.move_op.row_index(layer) if move.indexed else None
            if index is not None and index.tensor == node.inputs[move.source]:
                source = (...,)  # wherever its row is
            in_place = isinstance(node.op, IntegerConcat | Slice)
            read[node.inputs[move.source]][source] |= read[node.outputs[0]][target] if in_place else True


def _mark_tiled(layer: Layer, read: Masks) -> None:
    """Mark the elements that a layer with tiles reads: those that its windows reach, and all of its other operands' boxes."""
    windows, slid = windows_of(layer), layer.node.inputs[0]
    if windows is not None:
        (vertical, height), (horizontal, width) = windows
        read[slid][:, _list_reached(vertical, height)[:, None], _list_reached(horizontal, width)] = True
    tiling = next(iter(layer.tiled.tilings(layer)))
    for task in layer.tiled.nest(layer, tiling).iterate_tasks():
        for box in task.reads:
            if windows is None or box.tensor != slid:
                read[box.tensor][tuple(slice(a, a + n) for a, n in zip(box.start, box.size))] = True


def windows_of(layer: Layer) -> tuple[tuple[Window, int], tuple[Window, int]] | None:
    """Return (window, number of outputs) of rows and of columns; None for a layer that slides no window."""
    op = layer.node.op
    if isinstance(op, IntegerConvolution):
        _, height, width, _ = layer.input_type(0).shape
        _, kh, kw, _ = layer.constants[layer.node.inputs[1]].shape
        vertical = Window(height, kh, op.strides[0], op.dilations[0], op.pads[0])
        horizontal = Window(width, kw, op.strides[1], op.dilations[1], op.pads[1])
    elif isinstance(op, IntegerMaxPool | IntegerAveragePool):
        vertical, horizontal = op.geometry.axes(*layer.input_type(0).shape[1:3])
    else:
        return None
    return (vertical, layer.output.shape[1]), (horizontal, layer.output.shape[2])


def _list_reached(window: Window, outputs: int, start: int = 0) -> np.ndarray:
    """Return the indices of the inputs that some of the outputs from `start` on read, rising."""
    positions = np.unique(window.elements(outputs, start))
    return positions[positions >= 0]


def _ends(move: Move) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Return the elements of source and target that a move copies, as indices of numpy."""
    steps = np.indices([loop.count for loop in move.loops])
    source = [np.full(steps.shape[1:], start) for start in move.source_start]
    target = [np.full(steps.shape[1:], start) for start in move.target_start]
    for step, loop in zip(steps, move.loops):
        if loop.source_dim >= 0:
            source[loop.source_dim] += step * loop.source_step
        if loop.target_dim >= 0:
            target[loop.target_dim] += step * loop.target_step
    return tuple(source), tuple(target)
