"""How far the integer network is from the float one: each output, and each operand of each Concat."""

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
    """`tensor`: the model's, of which this is the figure; steps_of: where it is that of one step of a sequence, the name that it
    has at all of them."""

    tensor: str
    steps_of: str | None = None


@dataclass(frozen=True)
class Fidelities:
    """Of outputs and of operands of Concats over all samples; levels: of each sample, dB of the output that suffers most."""

    outputs: list[FidelityPart]
    concats: list[FidelityPart]
    levels: list[float]


@dataclass(frozen=True)
class _Operand:
    """Of a Concat: `tensor` is the model's, `code` the chip's; steps_of: as of `Part`."""

    label: str
    tensor: str
    layout: str
    code: str
    steps_of: str | None


class Measured:
    """Sums over samples of how far the integer network's outputs, and the operands of its Concats, are from float's.

    container: of the integer network; parts: Concat node -> (model tensor, layout) of each operand that is to be looked at;
    states: what the chip keeps for the next run counts as an output; factors: what channels of the operands are multiplied by,
    in whose numbers none is judged; each broadcasts to its tensor.
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
        self._whole = {name: ErrorSums() for name in outputs}
        self._part = {o.label: ErrorSums() for o in self._operands}
        self.wanted = tuple(dict.fromkeys([*outputs, *(o.tensor for o in self._operands)]))  # of the float network's tensors

    def update(self, values: Mapping[str, np.ndarray], run: Run) -> None:
        """values: float's, of the tensors that are wanted."""
        for name, sums in self._whole.items():
            sums.update(values[name], run.outputs[name] if name in run.outputs else run.real[name])
        for o in self._operands:
            own, factors = real_values(run.codes[o.code], self._graph, o.code, o.layout), self._factors.get(o.tensor, 1)
            self._part[o.label].update(values[o.tensor] / factors, own / factors)

    @property
    def outputs(self) -> list[FidelityPart]:
        return [_part(n, sums, n) for n, sums in self._whole.items()]

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
    """runs: samples with what the integer reference makes of them, read once, one held at a time; few: of which there are no
    more than a fast session pays for; factors: as of `Measured`."""
    measured, levels = Measured(container, parts, factors=factors), list[float]()
    session = FloatSession(model, measured.wanted, few_runs=few)
    for sample, run in runs:
        values = dict(zip(measured.wanted, session.run(sample)))
        measured.update(values, run)
        outputs = [name for name in values if name in run.outputs]
        levels.append(min((sqnr_db(values[n], run.outputs[n]) for n in outputs), default=math.inf))
    return Fidelities(measured.outputs, measured.concats, levels)


def _operands(graph: Graph, parts: Mapping[str, Sequence[tuple[str, str]]]) -> list[_Operand]:
    joins = [n for n in graph.nodes if isinstance(n.op, IntegerConcat) and n.name in parts]
    told = [(n, i, graph.origins[n.inputs[i]].tensor, *part) for n in joins for i, part in enumerate(parts[n.name])]
    steps = Counter(name for name, _ in {(name, tensor) for _, _, name, tensor, _ in told})
    return [
        _Operand(f"{n.name}[{i}] {tensor}", tensor, layout, n.inputs[i], name if steps[name] > 1 else None)
        for n, i, name, tensor, layout in told
    ]


def real_values(codes: np.ndarray, graph: Graph, name: str, layout: str) -> np.ndarray:
    """What the codes of a chip tensor stand for, in the model's order."""
    kind = graph.types[name]
    assert kind.quant is not None
    return to_real(codes, Port(name, name, layout, 0, kind.shape, kind.dtype, kind.quant.scale, kind.quant.zero_point))
