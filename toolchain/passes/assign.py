"""Assign a type of codes, a scale and a zero point to each tensor of the chip, before its operators are lowered.

`passes.quantize` calls it with the float graph and the calibrated ranges. Tensors that share codes get the same of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.observe import Range
from quant.parameters import activation_quant, quant_range, with_room
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, OnnxOp, Operator, Quant
from toolchain.ir.masks import MASK_LOW
from toolchain.ir.range_constraints import ClippedRange
from toolchain.ops.data_movement import ModelConcat, Pad
from toolchain.ops.kit.operator import FloatOp, get_forced_qparams, get_inserted_values, one_type, operator_of, same_scale
from toolchain.ops.pool.geometry import Geometry, all_windows_meet
from toolchain.ops.pool.select_pool import MaxPool
from toolchain.ops.scalar_functions import clip_bounds, multiple
from toolchain.ops.unary import Unary
from toolchain.passes.state_windows import only_moves, share_window_scales

_AS_GOOD = 1 / 64  # of a scale: 0.1 dB


def assign_types(graph: Graph, chip: Chip, requested_types: Mapping[str, CodeType]) -> dict[str, CodeType]:
    """Return the type of every tensor of the chip.

    A tensor has the type requested for the model's tensor that it is or becomes, else the machine's first.
    Outputs of data-movement operators, and of operators of one type, have their first input's type.
    The next value of a state has the type in which a run reads it.
    Parts of a Concat that nothing else reads have the result's type where nothing asks for another.
    Functions of one tensor do so too on machines that cannot rescale, since a table has one type.
    Tensors that are bound so share the widest type that is requested of one of them or that an operator needs (`least_type`).
    `requested_types`: by the model's tensor.
    """
    can_rescale = "rescale" in chip.functions
    nodes = [n for n in graph.nodes if not isinstance(n.op, OnnxOp)]
    root: dict[str, str] = {}
    for node in nodes:
        for name in node.inputs:
            if name and name not in graph.constants:
                root.setdefault(name, name)
        for name in node.outputs:
            keeps_type = same_scale(node.op) or one_type(node.op) or (isinstance(node.op, Unary) and not can_rescale)
            root[name] = root[node.inputs[0]] if keeps_type else name
    for state in graph.states:
        present_root, read = root[state.present_tensor], root[state.past]
        root = {name: read if root_name == present_root else root_name for name, root_name in root.items()}
    adopted = find_shared_concat_parts(nodes, graph)
    least = {n.outputs[0]: operator_of(n, FloatOp).least_type(n, graph, chip) for n in nodes}
    type_by_root: dict[str, CodeType] = {}
    for name, root_name in root.items():
        for request in (requested_types.get(graph.origins[name].tensor), least.get(name)):
            if request is not None:
                type_by_root[root_name] = max(request, type_by_root.get(root_name, request), key=lambda t: t.bits)
    first = chip.code_types[0]
    chosen = {name: type_by_root.get(root_name) for name, root_name in root.items()}
    return {name: chosen[name] or chosen.get(adopted.get(name, "")) or first for name in root}


def get_file_type(tensor: str, codes: CodeType, requested_types: Mapping[str, CodeType]) -> CodeType:
    """Return the type in which a tensor's given scale counts codes: `codes`, or the type requested for it unless that has 32
    bits.

    No file has scales of 32-bit types.
    """
    requested_type = requested_types.get(tensor, codes)
    return codes if requested_type.is_wide else requested_type


def assign_qparams(
    graph: Graph,
    chip: Chip,
    types: Mapping[str, CodeType],
    ranges: Mapping[str, Range | Quant],
    widened: Mapping[str, Range],
    requested_types: Mapping[str, CodeType],
    over_sequences: Mapping[str, ClippedRange],
    joined: Mapping[str, Quant] | None = None,
) -> dict[str, Quant]:
    """Return scale and zero point of every tensor of the chip.

    Outputs of data-movement operators have their input's qparams where those hold the numbers that the operator inserts.
    So have clamps that these make finer, and products with a constant have their input's scale times it, where that fits.
    Parts of a Concat that nothing else reads take the result's, except parts whose scale is given.
    Where an operator can make one scale only, its output has that.
    The output of a state has the qparams of its input, which the next run reads.
    A window of a state, cut out of older and newer rows, has the scale of these rows.

    `ranges`: by the model's tensor, its range, or its qparams where they are given.
    `widened`: by chip tensor without a given scale, the range that it takes in place of its own.
    `requested_types`: by the model's tensor, the type in which a given scale counts codes.
    `over_sequences`: as in `Quantization`.
    `joined`: qparams of such windows' tensors, None in the first call; the function calls itself with them.
    """
    fixed_quants = joined or {}

    def get_range(name: str, codes: CodeType) -> Range | Quant:
        """A given scale; of codes of another type than it is given in, its range."""
        tensor = graph.origins[name].tensor
        range_or_quant = ranges[tensor]
        given_in = get_file_type(tensor, chip.code_types[0] if codes.is_wide else codes, requested_types)
        return (
            quant_range(range_or_quant, chip.numerics.of(given_in))
            if isinstance(range_or_quant, Quant) and given_in is not codes
            else range_or_quant
        )

    read = {state.present_tensor: state.past for state in graph.states}
    one_scale = {
        name: (state.past, state.present_tensor) for state in graph.states for name in (state.past, state.present_tensor)
    }

    def of_state(name: str) -> bool:
        """Return whether the tensor has one scale with the state that it is read from or left to."""
        within = over_sequences.get(graph.origins[name].tensor)
        return name in one_scale or (within is not None and bool(within.as_one))

    def calibrated(name: str, codes: CodeType, producer: Node | None = None) -> Quant:
        """Return the calibrated qparams of a tensor.

        `producer`: the node that makes the tensor, where it says what the values lie in.
        """
        if name in fixed_quants:
            return fixed_quants[name]
        source_range = get_range(name, codes)
        if isinstance(source_range, Quant):
            return source_range
        wider = [widened[n] for n in one_scale.get(name, (name,)) if n in widened]
        plain_range = reduce(Range.union, wider) if wider else source_range
        roomy = with_room(plain_range, over_sequences.get(graph.origins[name].tensor), chip.numerics.of(codes))
        if producer is not None and roomy != plain_range and not of_state(name):
            x = quants.get(producer.inputs[0])  # None of a constant
            read = roomy if x is None else quant_range(x, chip.numerics.of(types[producer.inputs[0]]))
            low, high = operator_of(producer, FloatOp).reach(read)
            low, high = roomy.low if low is None else low, roomy.high if high is None else high
            roomy = Range(max(roomy.low, min(plain_range.low, low)), min(roomy.high, max(plain_range.high, high)))
        return activation_quant(roomy, chip.numerics.of(codes), zero_at_entry=name in bent)

    chip_nodes = [n for n in graph.nodes if not isinstance(n.op, OnnxOp)]
    adopted, consumers, bent = find_shared_concat_parts(chip_nodes, graph), graph.consumers(), _find_bent_at_zero(chip_nodes)
    quants: dict[str, Quant] = {}
    for node in chip_nodes:
        for name in node.inputs:
            if name and name not in quants and name not in graph.constants:
                quants[name] = calibrated(name, types[name])
        for name in node.outputs:
            numerics = chip.numerics.of(types[name])
            fixed = get_forced_qparams(node.op, types[name])
            lost = _lost(node, quants[node.inputs[0]], graph, consumers, numerics) if same_scale(node.op) else ()
            if read.get(name) in node.inputs:
                quants[name] = quants[read[name]]
            elif lost:
                source_range = get_range(name, types[name])
                quants[name] = (
                    source_range if isinstance(source_range, Quant) else activation_quant(_with(source_range, lost), numerics)
                )
            elif same_scale(node.op):
                file_quant, input_quant = get_range(name, types[name]), quants[node.inputs[0]]
                finer = (
                    file_quant
                    if isinstance(file_quant, Quant)
                    else activation_quant(_with(file_quant, get_inserted_values(node.op)), numerics)
                )
                quants[name] = (
                    finer
                    if finer.scale <= input_quant.scale / 2 and _blurs_values(node, input_quant, finer.scale)
                    else input_quant
                )
            elif fixed is not None:
                quants[name] = fixed
            else:
                file_quant = isinstance(ranges.get(graph.origins[name].tensor), Quant)
                concat_name = name if file_quant else adopted.get(name, name)
                calibrated_quant = calibrated(concat_name, types[name], node if concat_name == name else None)
                free = not file_quant and name not in adopted and name not in fixed_quants and not of_state(name)
                finer = free and _clamps_finer(node, quants, types, calibrated_quant, numerics)
                same = _find_input_quant(node, quants, types, calibrated_quant, numerics) if free else None
                quants[name] = quants[node.inputs[0]] if finer else same or calibrated_quant
    if joined is None and (cut := share_window_scales(graph, chip, types, ranges, widened, quants)):
        return assign_qparams(graph, chip, types, ranges, widened, requested_types, over_sequences, cut)
    return quants


def _find_bent_at_zero(nodes: Sequence[Node]) -> set[str]:
    """Return the tensors that a function reads whose slope changes at zero, and those that are only moved on their way there."""
    bent: set[str] = set()
    for node in reversed(nodes):
        is_moved = same_scale(node.op) and not bent.isdisjoint(node.outputs)
        if is_moved or (isinstance(node.op, Unary) and node.op.bends_at_zero):
            bent.add(node.inputs[0])
    return bent


def _find_input_quant(
    node: Node, quants: Mapping[str, Quant], types: Mapping[str, CodeType], output_quant: Quant, numerics: Numerics
) -> Quant | None:
    """Return the input's zero point with the scaled scale, for an operator that multiplies by a constant; None if that does
    not fit.

    It fits where it is within 1/64 and one code of `output_quant`; then nothing is computed.
    `numerics`: of the output's codes.
    """
    x, y = node.inputs[0], node.outputs[0]
    factor = multiple(node.op.function) if isinstance(node.op, Unary) else None
    if factor is None or types[x] is not types[y] or numerics.scale.kind == "pow2":
        return None
    same = Quant(quants[x].scale * factor, quants[x].zero_point)
    near = abs(same.scale / output_quant.scale - 1) <= _AS_GOOD and abs(same.zero_point - output_quant.zero_point) <= 1
    return same if near else None


def _clamps_finer(
    node: Node, quants: Mapping[str, Quant], types: Mapping[str, CodeType], output_quant: Quant, numerics: Numerics
) -> bool:
    """Return whether all that a clamp makes are codes of its input, and these are finer than those found for the
    output.

    `numerics`: of the input's codes.
    """
    x, y = node.inputs[0], node.outputs[0]
    bounds = clip_bounds(node.op.function) if isinstance(node.op, Unary) else None
    if bounds is None or types[x] is not types[y] or quants[x].scale >= output_quant.scale:
        return False
    (low, high), input_range = bounds, quant_range(quants[x], numerics)
    return (low is None or low <= input_range.high) and (high is None or high >= input_range.low)


def _lost(node: Node, x: Quant, graph: Graph, consumers: Mapping[str, Sequence[Node]], numerics: Numerics) -> tuple[float, ...]:
    """Return the numbers that a data-movement operator brings and its input's codes do not hold.

    Numbers below the codes do not count where only a MaxPool reads them, each of whose windows has something
    larger.
    """
    input_range = quant_range(x, numerics)
    lost = tuple(
        v for v in get_inserted_values(node.op) if not input_range.low - x.scale / 2 <= v <= input_range.high + x.scale / 2
    )
    if not lost or max(lost) > input_range.high or node.outputs[0] in graph.outputs:
        return lost
    readers = consumers.get(node.outputs[0], ())
    hidden = all(isinstance(n.op, MaxPool) and _sees_data(node, n.op.geometry, graph) for n in readers)
    return () if hidden else lost


def _blurs_values(node: Node, x: Quant, step: float) -> bool:
    """Return whether a number that a data-movement operator brings is more than a step from what its input's codes
    make of it.
    """
    return any(abs(np.rint(v / x.scale) * x.scale - v) > step for v in get_inserted_values(node.op) if v > MASK_LOW)


def _sees_data(node: Node, geometry: Geometry, graph: Graph) -> bool:
    """Return whether every window over a Pad's output meets some of its input; False for other operators."""
    if not isinstance(node.op, Pad):
        return False
    (_, height, width, _), before = graph.types[node.inputs[0]].shape, node.op.before
    _, *padded, _ = graph.types[node.outputs[0]].shape
    places = ((0, before[1], height), (1, before[2], width))
    return all(all_windows_meet(geometry, axis, padded[axis], start, size) for axis, start, size in places)


def _with(r: Range, values: Sequence[float]) -> Range:
    """Return the range extended to the values, without those that stand for minus infinity in a mask."""
    finite_values = [v for v in values if v > MASK_LOW]
    return Range(min(r.low, *finite_values), max(r.high, *finite_values)) if finite_values else r


def _any_scale(op: Operator) -> bool:
    """Return whether the operator can make its output at any scale."""
    return not same_scale(op) and get_forced_qparams(op, CodeType.INT8) is None and not isinstance(op, ModelConcat)


def find_shared_concat_parts(nodes: list[Node], graph: Graph) -> dict[str, str]:
    """Return the Concat result by part, for parts that nothing else reads and whose producer can make any scale.

    Where parts are moved on their way to the Concat, every tensor on the way is a key too.
    """
    consumers = graph.consumers()
    producers = {n.outputs[0]: n for n in nodes}
    concat_by_part: dict[str, str] = {}
    for node in nodes:
        if not isinstance(node.op, ModelConcat):
            continue
        for name in node.inputs:
            way = [name]
            while graph.read_once(way[-1], consumers) and way[-1] in producers and only_moves(producers[way[-1]].op):
                way.append(producers[way[-1]].inputs[0])
            free = way[-1] in producers and _any_scale(producers[way[-1]].op)
            if free and graph.read_once(way[-1], consumers):
                concat_by_part.update(dict.fromkeys(way, node.outputs[0]))
    return concat_by_part
