"""List the tensors around each normalization that hold rows of unlike size, as the residual sums of transformers do.

A few tokens have values of hundreds there, where the others have values of 1. One scale for all of them leaves the others few
codes. A norm divides every row by its own size, so that the network depends on the small rows as much as on the large ones. The
loss follows from the values of one float run; repair.solve_types gives such tensors wider codes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quant.fit_sample import Sample
from quant.float_session import FloatSession
from toolchain.frontend import NormalModel
from toolchain.frontend.source_names import MOVES
from toolchain.ir.graph import OnnxNode
from toolchain.ops.normalization import DECOMPOSITIONS as NORMALIZATIONS

_BY_ROW = frozenset({"LayerNormalization", "RMSNormalization"})  # others have statistics of channels' maps


@dataclass(frozen=True)
class NormStream:
    """The tensors of one normalization that need the same type of codes.

    `output`: output of the normalization, which names it.
    `tensors`: the tensor that it reads, what that is summed from, its steps on the chip, and its output where a sum reads it.
    `loss`: noise of codes over the power of the median row, added up over what it reads and what that is summed from. Only
    float32 tensors of free type count, and no output of a norm.
    """

    output: str
    tensors: tuple[str, ...]
    loss: float


def list_norm_streams(
    model: NormalModel, groups: Mapping[str, Sequence[str]], free: Collection[str], samples: Iterable[Sample], codes: int
) -> list[NormStream]:
    """Return the norms whose tensors may have wider codes, in the order of loss, largest first.

    Each tensor is listed once, by the first norm in the graph that has it, but counts in the loss of each norm. Norms
    without tensors are left out.
    `groups`: by the output of an operator, its tensors whose type is to be chosen, all of them free.
    `free`: tensors of the chip whose type nobody gives.
    `samples`: samples whose float values are measured, all in memory.
    `codes`: number of codes of the narrow type.
    """
    norms, graph = [n for n in (model.undivided or model).graph.nodes if n.op.op_type in NORMALIZATIONS], _SumGraph(model)
    normalized = {norm.outputs[0] for norm in norms}
    sources = [
        [n for n in graph.list_sources(norm) if n in free and n not in normalized and model.types[n].dtype == "float32"]
        for norm in norms
    ]
    names = sorted({n for read in sources for n in read})
    if not names:
        return []
    session = FloatSession(model, names, few_runs=True)
    rows = [dict(zip(names, session.run(sample), strict=True)) for sample in samples]
    streams, listed_tensors = list[NormStream](), set[str]()
    for norm, read in zip(norms, sources, strict=True):
        by_row = norm.op.op_type in _BY_ROW
        loss = sum(measure_row_loss(np.concatenate([_split_rows(r[n], by_row) for r in rows]), codes) for n in read)
        left_out = listed_tensors if norm.outputs[0] in graph.summed else {*listed_tensors, norm.outputs[0]}
        tensors = [n for n in (*read, *groups.get(norm.outputs[0], ())) if n not in left_out]
        listed_tensors.update(tensors)
        streams.append(NormStream(norm.outputs[0], tuple(tensors), loss))
    return sorted((s for s in streams if s.tensors), key=lambda s: (-s.loss, s.output))


def measure_row_loss(rows: NDArray[np.float64], codes: int) -> float:
    """Return the noise of rounding to so many codes over the power of the median row; rows of zeros count as none.

    `rows`: float64[rows, elements].
    """
    power = np.mean(rows * rows, axis=1)
    if not power.any():
        return 0.0
    step = (max(rows.max(), 0.0) - min(rows.min(), 0.0)) / (codes - 1)
    return float(step * step / 12 / np.median(power[power > 0]))


def _split_rows(values: NDArray[np.float32], by_row: bool) -> NDArray[np.float64]:
    """Return the values over which a norm takes one statistic each, as rows."""
    count = int(np.prod(values.shape[:-1] if by_row else values.shape[:2]))
    return values.reshape(count, -1).astype(np.float64)


class _SumGraph:
    """The sums of a model, with their operands before they were moved.

    `summed`: tensors that a sum reads.
    """

    def __init__(self, model: NormalModel) -> None:
        self._producers = model.graph.producers()
        self.summed = {self._follow_moves(n) for node in model.graph.nodes if node.op.op_type == "Add" for n in node.inputs}

    def list_sources(self, norm: OnnxNode) -> list[str]:
        """Return the tensor that a norm reads, and those that it is summed from."""
        source = self._follow_moves(norm.inputs[0])
        is_sum = source in self._producers and self._producers[source].op.op_type == "Add"
        addends = self._producers[source].inputs if is_sum else ()
        return list(dict.fromkeys([source, *map(self._follow_moves, addends)]))

    def _follow_moves(self, tensor: str) -> str:
        """Return the tensor that this one is in another shape or order."""
        while tensor in self._producers and self._producers[tensor].op.op_type in MOVES:
            tensor = self._producers[tensor].inputs[0]
        return tensor
