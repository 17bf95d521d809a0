"""Give a state and the newer values that are joined to it one scale, where the new state is cut out of the whole.

Then no run rescales the values that stay. `passes.assign` calls it.
"""

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
    """A state that is a window of the latest values, as the last samples that a layer reads again.

    `past`, `present_tensor`: the state that a run reads, and its new value.
    `concat_tensor`: the tensor that `present_tensor` is cut out of; a Concat makes it of the state and of what is newer.
    `newer`: the other operands of that Concat.
    """

    past: str
    present_tensor: str
    concat_tensor: str
    newer: tuple[str, ...]


def only_moves(op: Operator) -> bool:
    """Return whether an operator's output has its input's codes and inserts no others."""
    return same_scale(op) and not get_inserted_values(op)


def find_state_windows(graph: Graph) -> Iterator[StateWindow]:
    """Yield the states of the graph that are such windows."""
    producers = {n.outputs[0]: n for n in graph.nodes if not isinstance(n.op, OnnxOp)}

    def source(name: str) -> str:
        while name in producers and only_moves(producers[name].op):
            name = producers[name].inputs[0]
        return name

    for state in graph.states:
        writer = producers[state.present_tensor]
        concat_tensor = source(writer.inputs[0] if isinstance(writer.op, RescalingConcat) else state.present_tensor)
        join = producers.get(concat_tensor)
        if join is not None and isinstance(join.op, ModelConcat):
            newer = tuple(n for n in join.inputs if source(n) != state.past)
            if len(newer) < len(join.inputs):
                yield StateWindow(state.past, state.present_tensor, concat_tensor, newer)


def share_window_scales(
    graph: Graph,
    chip: Chip,
    types: Mapping[str, CodeType],
    ranges: Mapping[str, Range | Quant],
    widened: Mapping[str, Range],
    separate_quants: Mapping[str, Quant],
) -> dict[str, Quant]:
    """Return the shared scale by tensor, for each window whose tensors have no given scale.

    The scale is that of a newer tensor, where it holds all that was seen of the joined tensor.
    Then the newer tensor need not be rescaled either. Otherwise the scale is the joined tensor's.
    `types`, `ranges`, `widened`: as in `assign_qparams`.
    `separate_quants`: the scale that each tensor has by itself.
    """
    quant_by_tensor: dict[str, Quant] = {}
    for window in find_state_windows(graph):
        names = (window.past, window.present_tensor, window.concat_tensor)
        concat_range = ranges[graph.origins[window.concat_tensor].tensor]
        if isinstance(concat_range, Quant) or any(isinstance(ranges[graph.origins[n].tensor], Quant) for n in names):
            continue
        value_range, codes = widened.get(window.concat_tensor, concat_range), types[window.concat_tensor]
        newer = (separate_quants[n] for n in window.newer if types[n] is codes)
        quant = next(
            (q for q in newer if _holds(quant_range(q, chip.numerics.of(codes)), value_range, q.scale / 2)),
            separate_quants[window.concat_tensor],
        )
        quant_by_tensor.update(dict.fromkeys(names, quant))
    return quant_by_tensor


def _holds(code_range: Range, values: Range, within: float) -> bool:
    return code_range.low - within <= values.low and values.high <= code_range.high + within
