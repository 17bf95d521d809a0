"""Run a program whose tiles are merged: few large operations in a memory of their own, then what the DRAM holds at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quant.fixed_point import ConvWeights, FixedPointError
from simulator.decode_constants import ConstantDecoder
from simulator.execute import execute
from simulator.machine_state import MachineState
from simulator.merging.box_copies import ValueBox
from simulator.merging.gathered_maps import boxes_of_map
from simulator.merging.tiles import Evaluation, split_place
from simulator.merging.value_numbers import ARRAY_BITS, INITIAL, INITIAL_NUMBER, array_of
from simulator.merging.windows import cut_gathered, find_valid_window, list_operands
from simulator.semantics.context import Context
from simulator.zero_bytes import zero_bytes
from toolchain.hw.chip import Chip
from toolchain.machine import (
    Convolution,
    Depthwise,
    MachineOp,
    MatrixProduct,
    Table,
    WeightedWindowOp,
    WindowOp,
    parameter_bytes,
    table_bytes,
)

Array = np.ndarray[Any, Any]

_DRAM, _ARENA, _PHYSICAL = range(3)  # memories of a run: the image, the arrays, and from there on those of the machine
_ALIGNMENT = 64  # a cache line, source: x86


@dataclass(frozen=True, slots=True)
class SingleOperation:
    """An operation that runs at its own addresses. reads, writes: memory and box of each operand."""

    op: MachineOp
    reads: tuple[tuple[int, ValueBox], ...]
    writes: tuple[tuple[int, ValueBox], ...]


@dataclass(frozen=True, slots=True)
class _MemoryCopy:
    """A strided copy between two memories of a run."""

    counts: tuple[int, ...]
    source: tuple[int, int, tuple[int, ...]]
    target: tuple[int, int, tuple[int, ...]]

    def run(self, memories: Sequence[Array]) -> None:
        (source, from_address, from_strides), (target, to_address, to_strides) = self.source, self.target
        np.copyto(
            np.ndarray(self.counts, np.uint8, memories[target], to_address, to_strides),
            np.ndarray(self.counts, np.uint8, memories[source], from_address, from_strides),
        )

    def reads_dram(self, first: int, last: int) -> bool:
        """Return whether it reads between these addresses of the image, as far as its first and last bytes tell."""
        memory, address, strides = self.source
        reaches = [(n - 1) * stride for n, stride in zip(self.counts, strides)]
        low, high = address + sum(r for r in reaches if r < 0), address + sum(r for r in reaches if r > 0)
        return memory == _DRAM and low < last and first <= high


@dataclass(frozen=True, slots=True)
class _Step:
    """An operation between copies. merged: it runs on arrays, else at its own addresses."""

    before: tuple[_MemoryCopy, ...]
    op: MachineOp
    merged: bool
    after: tuple[_MemoryCopy, ...]

    def run(self, memories: Sequence[Array], context: Context) -> None:
        for copy in self.before:
            copy.run(memories)
        execute(self.op, context)
        for copy in self.after:
            copy.run(memories)


class _MergedContext(Context):
    """A context in which all memories are the arena, and weights are decoded before."""

    def __init__(self, chip: Chip, arena: Array, decoder: ConstantDecoder, weights: Mapping[int, ConvWeights]):
        state = MachineState(chip, arena)
        state.memory = (arena,) * len(chip.spaces)
        super().__init__(chip, state, decoder)
        self._weights = weights

    def dense_weights(self, op: Convolution) -> ConvWeights:
        return self._weights[op.weight_address]

    def depthwise_weights(self, op: Depthwise) -> ConvWeights:
        return self._weights[op.weight_address]


@dataclass(frozen=True)
class MergedProgram:
    """A program with its layers' tiles merged. It is only read by runs, any number of which may overlap.

    `constants`: parameters and tables, which lie at the begin of the arena.
    `weights`: by the address that the merged operations name.
    `stores`: what the DRAM holds in the end.
    `reads_constants`: runs read constants in the DRAM, beyond those that are kept here.
    """

    chip: Chip
    arena_bytes: int
    constants: Array
    weights: Mapping[int, ConvWeights]
    steps: tuple[_Step, ...]
    stores: tuple[_MemoryCopy, ...]
    decoder: ConstantDecoder
    reads_constants: bool

    def run(self, dram: Array) -> bool:
        """Compute what the program leaves in the DRAM. `dram`: uint8 with inputs in place, changed at the end.

        Constants need to be in place only where it `reads_constants`.
        Return False, and change nothing, where an operation's parameters describe no arithmetic.
        """
        arena = zero_bytes(self.arena_bytes)
        arena[: self.constants.size] = self.constants
        merged = _MergedContext(self.chip, arena, self.decoder, self.weights)
        # zeros take memory only where an operation runs at its own addresses
        physical = Context(self.chip, MachineState(self.chip, zero_bytes(dram.size)), self.decoder)
        memories = (dram, arena, *physical.state.memory)
        try:
            for step in self.steps:
                step.run(memories, merged if step.merged else physical)
        except FixedPointError:  # the operations one by one say which it is
            return False
        for copy in self.stores:
            copy.run(memories)
        return True


@dataclass
class _Layout:
    """The addresses of arrays in the arena. grids: pitches of rows and columns, least place and item bytes of evaluations."""

    addresses: dict[int, int]
    grids: dict[int, tuple[int, int, tuple[int, int, int]]]

    def locate(self, number: int) -> tuple[int, int]:
        """Return memory and address of the value with this number."""
        array = array_of(number)
        if array == INITIAL:
            return _DRAM, number - INITIAL_NUMBER
        if array not in self.grids:
            return _ARENA, self.addresses[array] + number - (array << ARRAY_BITS)
        row_pitch, column_pitch, low = self.grids[array]
        y, x, byte = split_place(number)
        return _ARENA, self.addresses[array] + (y - low[0]) * row_pitch + (x - low[1]) * column_pitch + byte - low[2]

    def stride(self, number: int, step: int, count: int) -> int:
        """Return the bytes from the value of a number to that one step further; 0 where there is one."""
        return self.locate(number + step)[1] - self.locate(number)[1] if count > 1 else 0

    def place(self, box: ValueBox) -> tuple[int, int, tuple[int, ...]]:
        """Return memory, address and strides of a box's values."""
        return *self.locate(box.number), tuple(self.stride(box.number, s, n) for n, s in zip(box.counts, box.steps))


@dataclass(frozen=True, slots=True)
class _OperandParts:
    """An operand of an evaluation: one box where it lies, or what is loaded of it from several places.

    `parts`: addresses count from where it is loaded.
    `size_bytes`, `pitches`: of what is loaded, and from one row and column to the next.
    """

    parts: tuple[ValueBox, ...]
    is_loaded: bool = False
    size_bytes: int = 0
    pitches: tuple[int, int] = (0, 0)


def build_merged_program(
    chip: Chip,
    steps: Sequence[Evaluation | SingleOperation],
    stores: Sequence[ValueBox],
    dram: Array,
    constants_at: Sequence[tuple[int, int]],
) -> MergedProgram:
    """Return the program of these steps, whose arrays lie in one arena. constants_at: their ranges in the DRAM."""
    operands = {e.array: _list_parts(e) for e in steps if isinstance(e, Evaluation)}
    constants, constant_places = _pack_constants(chip, steps, dram)
    initial_boxes = [box for box in stores if array_of(box.number) == INITIAL]
    addresses, arena_bytes = _place_arrays(steps, operands, stores, initial_boxes, constants.size)
    grids: dict[int, tuple[int, int, tuple[int, int, int]]] = {}
    for e in steps:
        if isinstance(e, Evaluation):
            (_, width, channels), item, (y, x, c) = e.shape, e.first.item_bytes, e.low
            grids[e.array] = (width * channels * item, channels * item, (y, x, c * item))
    layout = _Layout(addresses, grids)
    built = [
        _build_merged_step(s, operands[s.array], layout, constant_places.get(s.array, (0, 0)))
        if isinstance(s, Evaluation)
        else _build_single_step(s, layout)
        for s in steps
    ]
    weights = {
        e.array: _merge_weights(e, dram) for e in steps if isinstance(e, Evaluation) and isinstance(e.first.op, WeightedWindowOp)
    }
    last_copies = _build_stores(stores, initial_boxes, layout)
    copies = [*(copy for step in built for copy in step.before), *last_copies]
    reads_constants = any(copy.reads_dram(first, last) for copy in copies for first, last in constants_at)
    decoder = ConstantDecoder(chip)
    return MergedProgram(chip, arena_bytes, constants, weights, tuple(built), last_copies, decoder, reads_constants)


def _pack_constants(
    chip: Chip, steps: Sequence[Evaluation | SingleOperation], dram: Array
) -> tuple[Array, dict[int, tuple[int, int]]]:
    """Return parameters and tables of all evaluations, and where those of each array begin."""
    blocks: list[Array] = []
    places: dict[int, tuple[int, int]] = {}
    at = 0
    for e in steps:
        if not isinstance(e, Evaluation) or not isinstance(e.first.op, WeightedWindowOp | Table):
            continue
        op, begin = e.first.op, at
        for placed, (_, count) in sorted(e.channels.items(), key=lambda item: item[1]):
            size_bytes = int(parameter_bytes(count, chip))
            blocks.append(dram[placed.parameters : placed.parameters + size_bytes])
            at += size_bytes
        table, address = at, e.first.table
        if address is not None:
            size_bytes = int(table_bytes(op.element_type if isinstance(op, Table) else op.code_types()[1], chip))
            blocks.append(dram[address : address + size_bytes])
            at += size_bytes
        places[e.array] = (begin, table)
    return np.concatenate(blocks) if blocks else np.zeros(0, np.uint8), places


def _place_arrays(
    steps: Sequence[Evaluation | SingleOperation],
    operands: Mapping[int, Sequence[_OperandParts]],
    stores: Sequence[ValueBox],
    initial_boxes: Sequence[ValueBox],
    begin: int,
) -> tuple[dict[int, int], int]:
    """Return the address of each array, and the bytes of all. Arrays that are not live at once share bytes.

    An initial value that an evaluation reads, or that is stored, is an array of its own: its key is negative.
    """
    last: dict[int, int] = {}
    sizes: list[tuple[int, int, int]] = []  # step, array, bytes
    for index, step in enumerate(steps):
        if isinstance(step, Evaluation):
            boxes = [part for parts in operands[step.array] for part in parts.parts]
            for k, parts in enumerate(operands[step.array]):
                if parts.is_loaded:
                    sizes.append((index, _make_load_key(step.array, k), parts.size_bytes))
                    last[_make_load_key(step.array, k)] = index
            sizes.append((index, step.array, int(np.prod(step.shape)) * step.first.item_bytes))
        else:
            boxes = [box for _, box in step.reads]
            sizes += [(index, array_of(box.number), int(np.prod(box.counts))) for _, box in step.writes]
        last |= {array_of(box.number): index for box in boxes}
    last |= {array_of(box.number): len(steps) for box in stores}
    for k, box in enumerate(initial_boxes):
        sizes.append((len(steps), _make_load_key(0, k), int(np.prod(box.counts))))
        last[_make_load_key(0, k)] = len(steps)
    addresses: dict[int, int] = {}
    live: list[tuple[int, int, int]] = []  # begin, end, last step; by address
    total = begin = -(-begin // _ALIGNMENT) * _ALIGNMENT
    for index, array, size_bytes in sizes:
        live = [a for a in live if a[2] >= index]
        end = begin
        for first, after, _ in live:
            if first - end >= size_bytes:
                break
            end = max(end, after)
        addresses[array] = end
        after = end + -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        live = sorted([*live, (end, after, last.get(array, index))])
        total = max(total, after)
    return addresses, total


def _make_load_key(array: int, operand: int) -> int:
    return -1 - 2 * array - operand if array else -(1 << ARRAY_BITS) - operand


def _list_parts(evaluation: Evaluation) -> list[_OperandParts]:
    """Return the parts of each operand of an evaluation."""
    operands: list[_OperandParts] = []
    for k, box in enumerate(list_operands(evaluation)):
        if k in evaluation.maps:
            (_, width, pixel_bytes), (row, column, _) = box.counts, box.steps
            pitches = (width * pixel_bytes if row else 0, pixel_bytes if column else 0)
            parts = tuple(boxes_of_map(cut_gathered(evaluation, k, box)))
            operands.append(_OperandParts(parts, True, int(np.prod(box.counts)), pitches))
        elif array_of(box.number) == INITIAL:
            size_bytes = box.last_number - box.number + 1
            span = ValueBox(0, box.number, (size_bytes,), (1,), (1,))
            operands.append(_OperandParts((span,), True, size_bytes, (box.steps[0], box.steps[1])))
        else:
            operands.append(_OperandParts((box,)))
    return operands


def _build_merged_step(
    evaluation: Evaluation, operands: Sequence[_OperandParts], layout: _Layout, constants: tuple[int, int]
) -> _Step:
    op: Any = evaluation.first.op
    loads: list[_MemoryCopy] = []
    fields: dict[str, int] = {}
    for k, (operand, name) in enumerate(zip(operands, (o.name for o in evaluation.first.operands))):
        if operand.is_loaded:
            begin, pitches = layout.addresses[_make_load_key(evaluation.array, k)], operand.pitches
            loads += [_MemoryCopy(p.counts, layout.place(p), (_ARENA, begin + p.address, p.strides)) for p in operand.parts]
        else:
            _, begin, (*pitches, _) = layout.place(operand.parts[0])
        fields |= dict(zip((f"{name}_address", f"{name}_row_stride", f"{name}_column_stride"), (begin, *pitches)))
    address, (row_pitch, column_pitch, _) = layout.addresses[evaluation.array], layout.grids[evaluation.array]
    fields |= {"output_address": address, "output_row_stride": row_pitch, "output_column_stride": column_pitch}
    if isinstance(op, MatrixProduct):
        fields = _product_fields(evaluation, fields)
    elif isinstance(op, WindowOp):
        fields |= _window_fields(evaluation)
    else:
        fields |= dict(zip(("height", "width", "channels"), evaluation.shape))
    if evaluation.first.table is not None:
        fields["table_address"] = constants[1]
    if isinstance(op, WeightedWindowOp):
        fields |= {"weight_address": evaluation.array, "parameter_address": constants[0]}
    return _Step(tuple(loads), replace(op, **fields), True, ())


def _window_fields(evaluation: Evaluation) -> dict[str, int]:
    """Return the sizes, strides and padding of an evaluation of windows."""
    window = find_valid_window(evaluation)
    assert window is not None
    (top, bottom), (left, right) = window
    h, w, c = evaluation.shape
    return {
        "input_height": bottom - top,
        "input_width": right - left,
        "pad_top": top,
        "pad_left": left,
        "output_height": h,
        "output_width": w,
        "stride_height": evaluation.first.strides[0],
        "stride_width": evaluation.first.strides[1],
        "output_channels" if isinstance(evaluation.first.op, Convolution) else "channels": c,
    }


def _product_fields(evaluation: Evaluation, fields: Mapping[str, int]) -> dict[str, int]:
    """Return the fields of a product of matrices: rows of the evaluation are batches, or further rows where these lie evenly.

    `fields`: those of operands and output by rows and columns of the evaluation.
    """
    op: Any = evaluation.first.op
    (batches, rows, columns), right = evaluation.shape, evaluation.first.operands[1]
    if fields["a_row_stride"] == rows * fields["a_column_stride"]:
        batches, rows = 1, batches * rows
    item_bytes = right.pixel_bytes // (op.inner * op.columns)
    return {
        "batches": batches,
        "rows": rows,
        "a_address": fields["a_address"],
        "a_batch_stride": fields["a_row_stride"],
        "a_row_stride": fields["a_column_stride"],
        "b_address": fields["b_address"],
        "b_batch_stride": 0,
        "b_row_stride": columns * item_bytes,
        "b_column_stride": item_bytes,
        "output_address": fields["output_address"],
        "output_batch_stride": fields["output_row_stride"],
        "output_row_stride": fields["output_column_stride"],
    }


def _build_single_step(single: SingleOperation, layout: _Layout) -> _Step:
    before = [
        _MemoryCopy(box.counts, layout.place(box), (_PHYSICAL + space, box.address, box.strides)) for space, box in single.reads
    ]
    after = [
        _MemoryCopy(box.counts, (_PHYSICAL + space, box.address, box.strides), layout.place(box)) for space, box in single.writes
    ]
    return _Step(tuple(before), single.op, False, tuple(after))


def _build_stores(stores: Sequence[ValueBox], initial_boxes: Sequence[ValueBox], layout: _Layout) -> tuple[_MemoryCopy, ...]:
    """Return the copies to the DRAM; initial values that move there are read before anything is overwritten."""
    first: list[_MemoryCopy] = []
    then: list[_MemoryCopy] = []
    place_by_box: dict[int, tuple[int, int, tuple[int, ...]]] = {}
    for k, box in enumerate(initial_boxes):
        dense = tuple(int(np.prod(box.counts[d + 1 :])) for d in range(len(box.counts)))
        place_by_box[id(box)] = (_ARENA, layout.addresses[_make_load_key(0, k)], dense)
        first.append(_MemoryCopy(box.counts, layout.place(box), place_by_box[id(box)]))
    for box in stores:
        source = place_by_box.get(id(box)) or layout.place(box)
        then.append(_MemoryCopy(box.counts, source, (_DRAM, box.address, box.strides)))
    return (*first, *then)


def _merge_weights(evaluation: Evaluation, dram: Array) -> ConvWeights:
    """Return the weights of all channels, in the order of the output."""
    op: Any = evaluation.first.op
    channels, low, kernel = evaluation.shape[2], evaluation.low[2], (op.kernel_height, op.kernel_width)
    dense = isinstance(op, Convolution)
    taps, inputs = op.taps(), op.input_channels if dense else 1
    merged = np.empty((taps, inputs, channels), np.int8)
    for constants, (first, count) in evaluation.channels.items():
        outputs, begin = slice(first - low, first - low + count), 0
        for address, inner in constants.weights:
            block = dram[address : address + taps * inner * count].view(np.int8)
            ordered = block.reshape(count, taps, inner).transpose(1, 2, 0) if dense else block.reshape(taps, inner, count)
            merged[:, begin : begin + inner, outputs] = ordered
            begin += inner
    if dense:
        weights = ConvWeights(merged.reshape(*kernel, inputs, channels).transpose(3, 0, 1, 2))
        weights.matrices  # noqa: B018  made before threads share them
        return weights
    return ConvWeights(merged.reshape(*kernel, channels).transpose(2, 0, 1)[..., None], groups=channels)
