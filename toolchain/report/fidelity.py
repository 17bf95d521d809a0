"""How far the integer network is from the float one: each output, and each operand of each Concat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quant.error import Compared, Fidelity
from quant.float_session import FloatSession
from toolchain.codegen import Container, Port
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Graph
from toolchain.ops.movement import Join
from toolchain.runtime import Run
from toolchain.runtime.ports import to_real

Sample = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Part(Fidelity):
    """`tensor`: the model's, of which this is the figure."""

    tensor: str


@dataclass(frozen=True)
class _Operand:
    """Of a Concat: `tensor` is the model's, `code` the chip's."""

    label: str
    tensor: str
    layout: str
    code: str


def fidelity(
    model: NormalModel,
    container: Container,
    runs: Iterable[tuple[Sample, Run]],
    parts: Mapping[str, Sequence[tuple[str, str]]],
) -> tuple[list[Part], list[Part]]:
    """runs: samples with what the integer reference makes of them, read once, one held at a time; parts: Concat node ->
    (model tensor, layout) of each operand. -> (outputs, concat operands), over all samples."""
    outputs = [t.name for t in container.outputs if np.dtype(t.dtype).kind == "f"]
    operands = _operands(container.graph, parts)
    wanted = list(dict.fromkeys([*outputs, *(o.tensor for o in operands)]))
    whole = {name: Compared() for name in outputs}
    part = {o.label: Compared() for o in operands}
    session = FloatSession(model, wanted)
    for sample, run in runs:
        values = dict(zip(wanted, session.run(sample)))
        for name, sums in whole.items():
            sums.update(values[name], run.outputs[name])
        for o in operands:
            part[o.label].update(values[o.tensor], real_values(run.codes[o.code], container.graph, o.code, o.layout))
    tensors = {o.label: o.tensor for o in operands}
    return [_part(n, sums, n) for n, sums in whole.items()], [_part(n, sums, tensors[n]) for n, sums in part.items()]


def _part(name: str, sums: Compared, tensor: str) -> Part:
    return Part(**sums.fidelity(name).__dict__, tensor=tensor)


def _operands(graph: Graph, parts: Mapping[str, Sequence[tuple[str, str]]]) -> list[_Operand]:
    joins = [n for n in graph.nodes if isinstance(n.op, Join) and n.name in parts]
    return [
        _Operand(f"{node.name}[{i}] {tensor}", tensor, layout, node.inputs[i])
        for node in joins
        for i, (tensor, layout) in enumerate(parts[node.name])
    ]


def real_values(codes: np.ndarray, graph: Graph, name: str, layout: str) -> np.ndarray:
    """What the codes of a chip tensor stand for, in the model's order."""
    kind = graph.types[name]
    assert kind.quant is not None
    return to_real(codes, Port(name, name, layout, 0, kind.shape, kind.dtype, kind.quant.scale, kind.quant.zero_point))
