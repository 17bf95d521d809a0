"""Where the integer network leaves the float one: the layer behind which the signal to noise ratio falls most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quant.calibrate import observe
from quant.error import Compared
from toolchain.codegen import Container, Island
from toolchain.frontend import NormalModel
from toolchain.ir.graph import Node
from toolchain.ops.base import same_scale
from toolchain.ops.layout import INNER
from toolchain.report.fidelity import real_values
from toolchain.runtime import Run

CEILING_DB = 60.0  # no int8 or int16 tensor is better for long; an exact one counts as this


@dataclass(frozen=True)
class Origin:
    """`layer`, of operator `op`, makes `tensor` of the model at sqnr_db, from tensors that have before_db at least.
    A tensor that comes into a region has no layer; `op` is then "input", or "host" where an island makes it."""

    tensor: str
    layer: str | None
    op: str
    sqnr_db: float
    before_db: float

    def as_json(self) -> dict[str, Any]:
        return {
            "tensor": self.tensor,
            "layer": self.layer,
            "op": self.op,
            "sqnr_db": self.sqnr_db,
            "before_db": self.before_db,
        }


class _Shown:
    """Compares what float gives of a tensor with the chip's codes of it."""

    def __init__(self, codes: Mapping[str, np.ndarray], container: Container, layouts: Mapping[str, str]) -> None:
        self._codes, self._graph, self._layouts = codes, container.graph, layouts
        self.decibels: dict[str, float] = {}
        self.poor: set[str] = set()

    def update(self, x: np.ndarray) -> None:
        for name, layout in self._layouts.items():
            got = real_values(self._codes[name], self._graph, name, layout)
            sums = Compared()
            sums.update(x, got.reshape(x.shape))  # the chip's tensor may have other dimensions of size one
            self.poor |= {name} if sums.fidelity(name).poor else set()
            self.decibels[name] = float(np.clip(sums.sqnr_db, -CEILING_DB, CEILING_DB))


def origin(
    model: NormalModel,
    container: Container,
    origins: Mapping[str, tuple[str, str]],
    sample: dict[str, np.ndarray],
    run: Run,
) -> Origin | None:
    """origins: chip tensor -> (model tensor, layout); run: what the integer reference makes of the sample. None where nothing
    can be compared.

    A tensor that is not poor itself is named only where none is. Inner tensors have no float counterpart: what they lose shows
    at the next tensor of the model, and is put down to the last layer on the way there that computes.
    """
    by_tensor: dict[str, dict[str, str]] = {}
    for name, (tensor, layout) in origins.items():
        kind = container.graph.types.get(name)
        own = layout != INNER and name in run.codes
        if own and kind is not None and kind.quant is not None and model.types[tensor].dtype == "float32":
            by_tensor.setdefault(tensor, {})[name] = layout
    sinks = {tensor: _Shown(run.codes, container, layouts) for tensor, layouts in by_tensor.items()}
    observe(model.proto, [sample], sinks, computed_by=model)
    decibels = {name: found for sink in sinks.values() for name, found in sink.decibels.items()}
    rows = _rows(container, origins, decibels)
    poor = {name for sink in sinks.values() for name in sink.poor}
    worst = {n: row for n, row in rows.items() if n in poor} or rows
    return max(worst.values(), key=lambda row: row.before_db - row.sqnr_db, default=None)


def _rows(container: Container, origins: Mapping[str, tuple[str, str]], decibels: Mapping[str, float]) -> dict[str, Origin]:
    made = {name for node in container.graph.nodes for name in node.outputs}
    rows = {n: _given(container, origins, decibels, n) for n in decibels if n not in made}
    levels, makers = dict(decibels), dict[str, Node]()
    for node in container.graph.nodes:
        name = node.outputs[0]
        before = min((levels[i] for i in node.inputs if i in levels), default=CEILING_DB)
        maker = makers.get(node.inputs[0], node) if same_scale(node.op) else node
        if name in decibels:
            rows[name] = Origin(origins[name][0], maker.name, type(maker.op).__name__, decibels[name], before)
        else:
            levels[name], makers[name] = before, maker
    return rows


def _given(container: Container, origins: Mapping[str, tuple[str, str]], decibels: Mapping[str, float], name: str) -> Origin:
    """A tensor that comes into a region: the model's input, or an island's output, made of what the chip gave the island."""
    tensor, known = origins[name][0], {origins[n][0]: found for n, found in decibels.items()}
    island = next((s for s in container.segments if isinstance(s, Island) and tensor in s.outputs), None)
    if island is None:
        return Origin(tensor, None, "input", decibels[name], CEILING_DB)
    before = min((known[i] for i in island.inputs if i in known), default=CEILING_DB)
    return Origin(tensor, None, "host", decibels[name], before)
