"""What becomes of a tensor's values where people wrote its range: how many are clipped, how many codes are left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quant.calibrate import Sample, observe
from quant.float_session import FloatModel
from quant.observe import Range
from quant.parameters import activation_quant, code_range
from toolchain.hw.chip import Numerics
from toolchain.ir.graph import Quant

MOST_CLIPPED = 0.5  # of a tensor's values


class _Codes:
    """Counts what lies half a step or more outside the codes, and notes the extremes of values and codes."""

    def __init__(self, quant: Quant, numerics: Numerics) -> None:
        self.quant, (self.first, self.last) = quant, code_range(numerics)
        self.count = self.clipped = 0
        self.values: Range | None = None
        self.codes: Range | None = None

    def update(self, x: NDArray[Any]) -> None:
        if not x.size:
            return
        codes = np.rint(x.astype(np.float64) / self.quant.scale) + self.quant.zero_point
        self.count += x.size
        self.clipped += int(np.count_nonzero((codes < self.first) | (codes > self.last)))
        values, kept = Range.of(x), Range.of(codes.clip(self.first, self.last))
        self.values = values if self.values is None else self.values.union(values)
        self.codes = kept if self.codes is None else self.codes.union(kept)

    def fault(self) -> str | None:
        if self.values is None or self.codes is None:
            return None
        span = f"[{self.values.low:.4g}, {self.values.high:.4g}]"
        if self.clipped > MOST_CLIPPED * self.count:
            return f"{self.clipped / self.count:.0%} of its values, in {span}, are clipped; widen its range"
        if self.codes.span == 0 and self.values.span > 0:
            return f"its values, in {span}, all become one code; narrow its range"
        return None


def lost_tensors(
    model: onnx.ModelProto,
    samples: Iterable[Sample],
    ranges: Mapping[str, Range | Quant],
    numerics: Numerics,
    computed_by: FloatModel | None = None,
) -> list[str]:
    """A sentence for each tensor whose values in the float model mostly lie outside its range, or all have one code."""
    quants = {name: r if isinstance(r, Quant) else activation_quant(r, numerics) for name, r in ranges.items()}
    sinks = {name: _Codes(quant, numerics) for name, quant in quants.items()}
    observe(model, samples, sinks, computed_by=computed_by)
    faults = {name: sink.fault() for name, sink in sinks.items()}
    return [f"tensor {name!r}: {fault}" for name, fault in faults.items() if fault is not None]
