"""How far the integer network is from the float one: each output, and each operand of each Concat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quant.error import Fidelity
from quant.error import fidelity as measure
from quant.float_session import open_tapped
from toolchain.codegen.container import Port
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Graph
from toolchain.ops.movement import Join
from toolchain.runtime import Session
from toolchain.runtime.ports import to_real

Sample = Mapping[str, np.ndarray]


def fidelity(
    model: NormalModel, session: Session, samples: Sequence[Sample], parts: Mapping[str, Sequence[tuple[str, str]]]
) -> tuple[list[Fidelity], list[Fidelity]]:
    """parts: Concat node -> (model tensor, layout) of each operand. -> (outputs, concat operands), over all samples."""
    outputs = [t.name for t in session.get_outputs() if np.dtype(t.dtype).kind == "f"]
    joins = {n.name: n for n in session.container.graph.nodes if isinstance(n.op, Join) and n.name in parts}
    wanted = list(dict.fromkeys([*outputs, *(tensor for name in joins for tensor, _ in parts[name])]))
    real: dict[str, list[np.ndarray]] = {}
    got: dict[str, list[np.ndarray]] = {}
    runner = _float_session(model, wanted)
    for sample in samples:
        run = session.run_detailed(sample)
        values = dict(zip(wanted, runner(sample)))
        for name in outputs:
            real.setdefault(name, []).append(values[name])
            got.setdefault(name, []).append(run.outputs[name])
        for name, node in joins.items():
            for i, (tensor, layout) in enumerate(parts[name]):
                key = f"{name}[{i}] {tensor}"
                real.setdefault(key, []).append(values[tensor])
                got.setdefault(key, []).append(_operand(run.codes, session.container.graph, node.inputs[i], layout))
    whole = [measure(n, np.stack(real[n]), np.stack(got[n])) for n in outputs]
    operands = [
        measure(key, np.stack(real[key]), np.stack(got[key]))
        for name in joins
        for i, (tensor, _) in enumerate(parts[name])
        for key in [f"{name}[{i}] {tensor}"]
    ]
    return whole, operands


def _operand(codes: Mapping[str, np.ndarray], graph: Graph, name: str, layout: str) -> np.ndarray:
    kind = graph.types[name]
    assert kind.quant is not None
    port = Port(name, name, layout, 0, kind.shape, kind.dtype, kind.quant.scale, kind.quant.zero_point)
    return to_real(codes[name], port)


def _float_session(model: NormalModel, names: Sequence[str]) -> Any:
    available = {o for n in model.proto.graph.node for o in n.output}
    asked = [n for n in names if n in available]
    if not asked:  # no float output: onnxruntime takes no model without any
        return lambda sample: [np.asarray(sample[n]) for n in names]
    session = open_tapped(model.proto, asked)

    def run(sample: Sample) -> list[np.ndarray]:
        found: dict[str, Any] = dict(zip(asked, session.run(asked, dict(sample))))
        return [found[n] if n in found else np.asarray(sample[n]) for n in names]

    return run
