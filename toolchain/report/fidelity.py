"""Measure how far the integer network is from the float one: each output, and each operand of each Concat."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from quant.fidelity import ErrorSums, Fidelity, sqnr_db
from quant.float_session import FloatSession
from toolchain.codegen import Container, Port
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Graph
from toolchain.ops.data_movement import IntegerConcat
from toolchain.runtime import Run
from toolchain.runtime.ports import to_real

Sample = Mapping[str, np.ndarray]
Factors = Mapping[str, np.ndarray]
UNSCALED: Factors = MappingProxyType({})


@dataclass(frozen=True)
class FidelityPart(Fidelity):
    """A fidelity of one part.

    `tensor`: the model tensor that the figure describes.
    `steps_of`: for one step of a sequence, the name that all steps share.
    """

    tensor: str
    steps_of: str | None = None


@dataclass(frozen=True)
class Fidelities:
    """A record of the fidelity of outputs and of operands of Concats over all samples.

    `levels`: dB of each sample at the output that suffers most.
    """

    outputs: list[FidelityPart]
    concats: list[FidelityPart]
    levels: list[float]


@dataclass(frozen=True)
class _Operand:
    """An operand of a Concat: `tensor` is the model's, `code` the chip's.

    `steps_of`: as in `FidelityPart`.
    """

    label: str
    tensor: str
    layout: str
    code: str
    steps_of: str | None


class Measured:
    """A collector of error sums of the integer network's outputs and Concat operands against float.

    `container`: container of the integer network.
    `parts`: (model tensor, layout) of each operand to compare, by Concat node.
    `states`: what the chip keeps for the next run counts as an output.
    `factors`: factors of the channels of operands, which are divided out before the comparison; each broadcasts to its tensor.
    """

    def __init__(
        self,
        container: Container,
        parts: Mapping[str, Sequence[tuple[str, str]]],
        *,
        states: bool = False,
        factors: Factors = UNSCALED,
    ) -> None:
        outputs = [t.name for t in container.outputs if np.dtype(t.dtype).kind == "f"]
        outputs += dict.fromkeys(state.output for _, state in container.states) if states else []
        self._graph, self._factors = container.graph, factors
        self._operands = _operands(container.graph, parts)
        self._output_sums = {name: ErrorSums() for name in outputs}
        self._part = {o.label: ErrorSums() for o in self._operands}
        self.tensors = tuple(dict.fromkeys([*outputs, *(o.tensor for o in self._operands)]))  # of the float network's tensors

    def update(self, values: Mapping[str, np.ndarray], run: Run) -> None:
        """Add a run to the sums.

        `values`: float values of the required tensors.
        """
        for name, sums in self._output_sums.items():
            sums.update(values[name], run.outputs[name] if name in run.outputs else run.real[name])
        for o in self._operands:
            chip_values, factors = real_values(run.codes[o.code], self._graph, o.code, o.layout), self._factors.get(o.tensor, 1)
            self._part[o.label].update(values[o.tensor] / factors, chip_values / factors)

    @property
    def outputs(self) -> list[FidelityPart]:
        return [_part(n, sums, n) for n, sums in self._output_sums.items()]

    @property
    def concats(self) -> list[FidelityPart]:
        return [_part(o.label, self._part[o.label], o.tensor, o.steps_of) for o in self._operands]


def _part(name: str, sums: ErrorSums, tensor: str, steps_of: str | None = None) -> FidelityPart:
    return FidelityPart(**sums.fidelity(name).__dict__, tensor=tensor, steps_of=steps_of)


def fidelity(
    model: NormalModel,
    container: Container,
    runs: Iterable[tuple[Sample, Run]],
    parts: Mapping[str, Sequence[tuple[str, str]]],
    *,
    few: bool = False,
    factors: Factors = UNSCALED,
) -> Fidelities:
    """Return the fidelity over all runs.

    `runs`: samples with their runs of the integer reference, read once, one in memory at a time.
    `few`: there are no more runs than a fast session pays for.
    `factors`: as in `Measured`.
    """
    measured, levels = Measured(container, parts, factors=factors), list[float]()
    session = FloatSession(model, measured.tensors, few_runs=few)
    for sample, run in runs:
        values = dict(zip(measured.tensors, session.run(sample)))
        measured.update(values, run)
        outputs = [name for name in values if name in run.outputs]
        levels.append(min((sqnr_db(values[n], run.outputs[n]) for n in outputs), default=math.inf))
    return Fidelities(measured.outputs, measured.concats, levels)


def _operands(graph: Graph, parts: Mapping[str, Sequence[tuple[str, str]]]) -> list[_Operand]:
    joins = [n for n in graph.nodes if isinstance(n.op, IntegerConcat) and n.name in parts]
    located_parts = [(n, i, graph.origins[n.inputs[i]].tensor, *part) for n in joins for i, part in enumerate(parts[n.name])]
    steps = Counter(name for name, _ in {(name, tensor) for _, _, name, tensor, _ in located_parts})
    return [
        _Operand(f"{n.name}[{i}] {tensor}", tensor, layout, n.inputs[i], name if steps[name] > 1 else None)
        for n, i, name, tensor, layout in located_parts
    ]


def real_values(codes: np.ndarray, graph: Graph, name: str, layout: str) -> np.ndarray:
    """Return the real values of the codes of a chip tensor, in the model's order."""
    kind = graph.types[name]
    assert kind.quant is not None
    return to_real(codes, Port(name, name, layout, 0, kind.shape, kind.dtype, kind.quant.scale, kind.quant.zero_point))
