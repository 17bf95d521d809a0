"""Where the integer network leaves the float one: the layer behind which the signal to noise ratio falls most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quant.calibrate import observe
from quant.error import Compared
from toolchain.codegen.container import Container
from toolchain.frontend import NormalModel
from toolchain.report.fidelity import real_values
from toolchain.runtime import Run

CEILING_DB = 60.0  # no int8 or int16 tensor is better for long; an exact one counts as this


@dataclass(frozen=True)
class Origin:
    """`layer`, of operator `op`, makes `tensor` of the model at sqnr_db, from tensors that have before_db at least.
    A tensor that comes into a region has no layer."""

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

    def update(self, x: np.ndarray) -> None:
        for name, layout in self._layouts.items():
            got = real_values(self._codes[name], self._graph, name, layout)
            if got.size != x.size:
                continue
            sums = Compared()
            sums.update(x, got.reshape(x.shape))  # the chip's tensor may have other dimensions of size one
            self.decibels[name] = float(np.clip(sums.sqnr_db, -CEILING_DB, CEILING_DB))


def origin(
    model: NormalModel,
    container: Container,
    origins: Mapping[str, tuple[str, str]],
    sample: dict[str, np.ndarray],
    run: Run,
) -> Origin | None:
    """origins: chip tensor -> (model tensor, layout); run: what the integer reference makes of the sample. None where nothing
    can be compared."""
    by_tensor: dict[str, dict[str, str]] = {}
    for name, (tensor, layout) in origins.items():
        kind = container.graph.types.get(name)
        if name in run.codes and kind is not None and kind.quant is not None and model.types[tensor].dtype == "float32":
            by_tensor.setdefault(tensor, {})[name] = layout
    sinks = {tensor: _Shown(run.codes, container, layouts) for tensor, layouts in by_tensor.items()}
    observe(model.proto, [sample], sinks, computed_by=model)
    decibels = {name: found for sink in sinks.values() for name, found in sink.decibels.items()}
    made = {name for node in container.graph.nodes for name in node.outputs}
    rows = [Origin(origins[n][0], None, "input", found, CEILING_DB) for n, found in decibels.items() if n not in made]
    for node in container.graph.nodes:
        name = node.outputs[0]
        if name in decibels:
            before = min((decibels[i] for i in node.inputs if i in decibels), default=CEILING_DB)
            rows.append(Origin(origins[name][0], node.name, type(node.op).__name__, decibels[name], before))
    return max(rows, key=lambda row: row.before_db - row.sqnr_db, default=None)
