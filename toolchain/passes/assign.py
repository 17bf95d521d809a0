"""Which type, and which scale and zero point, each tensor of the chip has."""

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
from toolchain.ops.pool.rules import MaxPool
from toolchain.ops.scalar_functions import clip_bounds, multiple
from toolchain.ops.unary import Unary
from toolchain.passes.state_windows import only_moves, share_window_scales

_AS_GOOD = 1 / 64  # of a scale: 0.1 dB


def assign_types(graph: Graph, chip: Chip, asked: Mapping[str, CodeType]) -> dict[str, CodeType]:
    """The type of every tensor of the chip: what is asked of the model's tensor that it is or becomes, else the machine's first.
    Movers keep their input's, as do operators of one type; what is asked of one of their tensors, the widest where they differ,
    holds for all of them, as does what an operator must have. So do functions of one tensor where the machine cannot rescale: a
    table has one type."""
    apart = "rescale" in chip.functions
    nodes = [n for n in graph.nodes if not isinstance(n.op, OnnxOp)]
    root: dict[str, str] = {}
    for node in nodes:
        for name in node.inputs:
            if name and name not in graph.constants:
                root.setdefault(name, name)
        for name in node.outputs:
            kept = same_scale(node.op) or one_type(node.op) or (isinstance(node.op, Unary) and not apart)
            root[name] = root[node.inputs[0]] if kept else name
    for state in graph.states:
        left, read = root[state.made], root[state.past]
        root = {name: read if own == left else own for name, own in root.items()}
    adopted = find_shared_concat_parts(nodes, graph)
    least = {n.outputs[0]: operator_of(n, FloatOp).least_type(n, graph, chip) for n in nodes}
    wanted: dict[str, CodeType] = {}
    for name, own in root.items():
        for found in (asked.get(graph.origins[name].tensor), least.get(name)):
            if found is not None:
                wanted[own] = max(found, wanted.get(own, found), key=lambda t: t.bits)
    first = chip.code_types[0]
    chosen = {name: wanted.get(own) for name, own in root.items()}
    return {name: chosen[name] or chosen.get(adopted.get(name, "")) or first for name in root}


def get_file_type(tensor: str, codes: CodeType, asked: Mapping[str, CodeType]) -> CodeType:
    """In which a scale is given: that of the codes, where no narrow type is said. Wide ones are asked for; no file has their
    scales."""
    said = asked.get(tensor, codes)
    return codes if said.is_wide else said


def assign_qparams(
    graph: Graph,
    chip: Chip,
    types: Mapping[str, CodeType],
    ranges: Mapping[str, Range | Quant],
    widened: Mapping[str, Range],
    asked: Mapping[str, CodeType],
    over_sequences: Mapping[str, ClippedRange],
    joined: Mapping[str, Quant] | None = None,
) -> dict[str, Quant]:
    """Scale and zero point of every tensor of the chip. Movers keep their input's, where it holds the numbers that they bring;
    parts of a Concat take the whole's, but those whose scale is given; what makes a scale of its own has that. What a run
    leaves of a state has what the next one reads; a state that is cut out of what it and newer values are joined to has the
    scale of these.

    widened: what tensors without a given scale take in place of their ranges; asked: types of the model's tensors, which given
    scales are in; over_sequences: as Quantization has them; joined: of the tensors of states that are cut out so, whatever is
    found of each by itself; None: not known yet.
    """
    held = joined or {}

    def known(name: str, codes: CodeType) -> Range | Quant:
        """A given scale; of codes of another type than it is given in, its range."""
        tensor = graph.origins[name].tensor
        found = ranges[tensor]
        given_in = get_file_type(tensor, chip.code_types[0] if codes.is_wide else codes, asked)
        return quant_range(found, chip.numerics.of(given_in)) if isinstance(found, Quant) and given_in is not codes else found

    read = {state.made: state.past for state in graph.states}
    one_scale = {name: (state.past, state.made) for state in graph.states for name in (state.past, state.made)}

    def of_state(name: str) -> bool:
        """Whether it has one scale with the state that it is read from or left to."""
        within = over_sequences.get(graph.origins[name].tensor)
        return name in one_scale or (within is not None and bool(within.as_one))

    def calibrated(name: str, codes: CodeType, made: Node | None = None) -> Quant:
        """made: what makes it, where that says what its values lie in."""
        if name in held:
            return held[name]
        given = known(name, codes)
        if isinstance(given, Quant):
            return given
        wider = [widened[n] for n in one_scale.get(name, (name,)) if n in widened]
        found = reduce(Range.union, wider) if wider else given
        roomy = with_room(found, over_sequences.get(graph.origins[name].tensor), chip.numerics.of(codes))
        if made is not None and roomy != found and not of_state(name):
            x = quants.get(made.inputs[0])  # None of a constant
            read = roomy if x is None else quant_range(x, chip.numerics.of(types[made.inputs[0]]))
            low, high = operator_of(made, FloatOp).reach(read)
            low, high = roomy.low if low is None else low, roomy.high if high is None else high
            roomy = Range(max(roomy.low, min(found.low, low)), min(roomy.high, max(found.high, high)))
        return activation_quant(roomy, chip.numerics.of(codes))

    chip_nodes = [n for n in graph.nodes if not isinstance(n.op, OnnxOp)]
    adopted, consumers = find_shared_concat_parts(chip_nodes, graph), graph.consumers()
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
                given = known(name, types[name])
                quants[name] = given if isinstance(given, Quant) else activation_quant(_with(given, lost), numerics)
            elif same_scale(node.op):
                own, kept = known(name, types[name]), quants[node.inputs[0]]
                finer = own if isinstance(own, Quant) else activation_quant(_with(own, get_inserted_values(node.op)), numerics)
                quants[name] = finer if finer.scale <= kept.scale / 2 and _blurred(node, kept, finer.scale) else kept
            elif fixed is not None:
                quants[name] = fixed
            else:
                own = isinstance(ranges.get(graph.origins[name].tensor), Quant)
                whole = name if own else adopted.get(name, name)
                found = calibrated(whole, types[name], node if whole == name else None)
                free = not own and name not in adopted and name not in held and not of_state(name)
                finer = free and _clamps_finer(node, quants, types, found, numerics)
                same = _renamed(node, quants, types, found, numerics) if free else None
                quants[name] = quants[node.inputs[0]] if finer else same or found
    if joined is None and (cut := share_window_scales(graph, chip, types, ranges, widened, quants)):
        return assign_qparams(graph, chip, types, ranges, widened, asked, over_sequences, cut)
    return quants


def _renamed(
    node: Node, quants: Mapping[str, Quant], types: Mapping[str, CodeType], found: Quant, numerics: Numerics
) -> Quant | None:
    """Of a multiple, that of its input's codes under another scale, where it is what was found for the output but for what
    calibration leaves: then nothing is computed. numerics: of its codes."""
    x, y = node.inputs[0], node.outputs[0]
    factor = multiple(node.op.function) if isinstance(node.op, Unary) else None
    if factor is None or types[x] is not types[y] or numerics.scale.kind == "pow2":
        return None
    same = Quant(quants[x].scale * factor, quants[x].zero_point)
    near = abs(same.scale / found.scale - 1) <= _AS_GOOD and abs(same.zero_point - found.zero_point) <= 1
    return same if near else None


def _clamps_finer(
    node: Node, quants: Mapping[str, Quant], types: Mapping[str, CodeType], found: Quant, numerics: Numerics
) -> bool:
    """Whether all that a clamp makes are codes of its input, which are finer than those found for it. numerics: of its codes."""
    x, y = node.inputs[0], node.outputs[0]
    bounds = clip_bounds(node.op.function) if isinstance(node.op, Unary) else None
    if bounds is None or types[x] is not types[y] or quants[x].scale >= found.scale:
        return False
    (low, high), held = bounds, quant_range(quants[x], numerics)
    return (low is None or low <= held.high) and (high is None or high >= held.low)


def _lost(node: Node, x: Quant, graph: Graph, consumers: Mapping[str, Sequence[Node]], numerics: Numerics) -> tuple[float, ...]:
    """The numbers that a mover brings and its input's codes do not hold; not those below them that only a MaxPool reads,
    each of whose windows has something larger."""
    held = quant_range(x, numerics)
    lost = tuple(v for v in get_inserted_values(node.op) if not held.low - x.scale / 2 <= v <= held.high + x.scale / 2)
    if not lost or max(lost) > held.high or node.outputs[0] in graph.outputs:
        return lost
    readers = consumers.get(node.outputs[0], ())
    hidden = all(isinstance(n.op, MaxPool) and _sees_data(node, n.op.geometry, graph) for n in readers)
    return () if hidden else lost


def _blurred(node: Node, x: Quant, step: float) -> bool:
    """Whether a number that a mover brings is more than a step from what its input's codes make of it."""
    return any(abs(np.rint(v / x.scale) * x.scale - v) > step for v in get_inserted_values(node.op) if v > MASK_LOW)


def _sees_data(node: Node, geometry: Geometry, graph: Graph) -> bool:
    """True where every window over a Pad's output meets some of its input."""
    if not isinstance(node.op, Pad):
        return False
    (_, height, width, _), before = graph.types[node.inputs[0]].shape, node.op.before
    _, *padded, _ = graph.types[node.outputs[0]].shape
    places = ((0, before[1], height), (1, before[2], width))
    return all(all_windows_meet(geometry, axis, padded[axis], start, size) for axis, start, size in places)


def _with(r: Range, values: Sequence[float]) -> Range:
    """The range and the values; where one masks, the range ends already where it should: at its bound, or at the value."""
    held = [v for v in values if v > MASK_LOW]
    return Range(min(r.low, *held), max(r.high, *held)) if held else r


def _any_scale(op: Operator) -> bool:
    return not same_scale(op) and get_forced_qparams(op, CodeType.INT8) is None and not isinstance(op, ModelConcat)


def find_shared_concat_parts(nodes: list[Node], graph: Graph) -> dict[str, str]:
    """part -> whole, for parts of a Concat that nothing else reads and whose producer can make any scale; where they are moved on
    their way there, all that they are until then."""
    consumers = graph.consumers()
    made = {n.outputs[0]: n for n in nodes}
    found: dict[str, str] = {}
    for node in nodes:
        if not isinstance(node.op, ModelConcat):
            continue
        for name in node.inputs:
            way = [name]
            while graph.read_once(way[-1], consumers) and way[-1] in made and only_moves(made[way[-1]].op):
                way.append(made[way[-1]].inputs[0])
            free = way[-1] in made and _any_scale(made[way[-1]].op)
            if free and graph.read_once(way[-1], consumers):
                found.update(dict.fromkeys(way, node.outputs[0]))
    return found
