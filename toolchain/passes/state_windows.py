"""States that newer values are joined to, and that are cut out of the whole: all of one scale, so that nothing changes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from quant.parameters import quant_range
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, OnnxOp, Operator, Quant
from toolchain.ops.data_movement import ModelConcat, RescalingConcat
from toolchain.ops.kit.operator import get_inserted_values, same_scale


class StateWindow(NamedTuple):
    """Of a state, as the last samples are that a layer reads again. past, made: what a run reads of it, and what it leaves, which
    is cut out of `whole`, which a Concat makes of it and of what is newer."""

    past: str
    made: str
    whole: str
    newer: tuple[str, ...]


def only_moves(op: Operator) -> bool:
    """Whether its output has the codes of its input and no others."""
    return same_scale(op) and not get_inserted_values(op)


def find_state_windows(graph: Graph) -> Iterator[StateWindow]:
    made = {n.outputs[0]: n for n in graph.nodes if not isinstance(n.op, OnnxOp)}

    def source(name: str) -> str:
        while name in made and only_moves(made[name].op):
            name = made[name].inputs[0]
        return name

    for state in graph.states:
        left = made[state.made]
        whole = source(left.inputs[0] if isinstance(left.op, RescalingConcat) else state.made)
        join = made.get(whole)
        if join is not None and isinstance(join.op, ModelConcat):
            newer = tuple(n for n in join.inputs if source(n) != state.past)
            if len(newer) < len(join.inputs):
                yield StateWindow(state.past, state.made, whole, newer)


def share_window_scales(
    graph: Graph,
    chip: Chip,
    types: Mapping[str, CodeType],
    ranges: Mapping[str, Range | Quant],
    widened: Mapping[str, Range],
    apart: Mapping[str, Quant],
) -> dict[str, Quant]:
    """Of the tensors of each window of which no scale is given: that of what is newer, where it holds all that was seen of the
    whole, so that this need not be changed either; else the whole's. types, ranges, widened: as of `assign_qparams`; apart: the
    scale that each tensor has by itself."""
    found: dict[str, Quant] = {}
    for window in find_state_windows(graph):
        names = (window.past, window.made, window.whole)
        own = ranges[graph.origins[window.whole].tensor]
        if isinstance(own, Quant) or any(isinstance(ranges[graph.origins[n].tensor], Quant) for n in names):
            continue
        seen, codes = widened.get(window.whole, own), types[window.whole]
        newer = (apart[n] for n in window.newer if types[n] is codes)
        quant = next(
            (q for q in newer if _holds(quant_range(q, chip.numerics.of(codes)), seen, q.scale / 2)), apart[window.whole]
        )
        found.update(dict.fromkeys(names, quant))
    return found


def _holds(held: Range, values: Range, within: float) -> bool:
    return held.low - within <= values.low and values.high <= held.high + within
