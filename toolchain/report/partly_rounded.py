"""Tensors that a quantized model rounds for some of their readers and leaves in float for others: the chip has them once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

import numpy as np

from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.float_session import FloatSession
from quant.parameters import quant_range
from toolchain.errors import percent
from toolchain.frontend import NormalModel
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, TensorType
from toolchain.report.warnings import NEGLIGIBLE_LOSS, is_saturated

_SAMPLES = 4


def make_shared_warnings(
    model: NormalModel,
    integer: Graph,
    origins: Mapping[str, tuple[str, str]],
    shared: Collection[str],
    chip: Chip,
    samples: Iterable[Sample],
) -> list[str]:
    """Warn of tensors with shared qparams too many of whose values lie outside the codes.
    In the file, only their rounded consumers clip these values.

    `shared`: as in `passes.fold_qdq.FoldedQdq`.
    `origins`: (model tensor, layout) by chip tensor.
    """
    type_by_tensor = {
        origins[name][0]: kind for name, kind in integer.types.items() if name in origins and kind.quant is not None
    }
    names = sorted(type_by_tensor.keys() & set(shared))
    if not names:
        return []
    session, sums = FloatSession(model, names, few_runs=True), np.zeros((len(names), 4))
    for sample in islice(samples, _SAMPLES):
        for total, name, x in zip(sums, names, session.run(sample), strict=True):
            total += _beyond(x, type_by_tensor[name], chip)
    many = (
        (name, clipped / count)
        for name, (clipped, count, lost, signal) in zip(names, sums.tolist(), strict=True)
        if is_saturated(int(clipped), int(count)) and lost > NEGLIGIBLE_LOSS * signal
    )
    return [
        f"{model.name(name)} is rounded to codes for some of what reads it and left in float for others, and {chip.name} has it "
        f"once, in these codes: {percent(share)} of its values lie outside them; quantize it so that they hold all of it"
        for name, share in many
    ]


def _beyond(x: np.ndarray, kind: TensorType, chip: Chip) -> tuple[int, int, float, float]:
    """Return the number of values outside the codes, the number of all, the energy of the loss, and the energy of all."""
    assert kind.quant is not None
    ends = quant_range(kind.quant, chip.numerics.of(CodeType(kind.dtype)))
    beyond = np.maximum(np.maximum(ends.low - x, x - ends.high) - kind.quant.scale / 2, 0)
    lost, signal = (float(np.sum(np.square(v, dtype=np.float64))) for v in (beyond, x))
    return int(np.count_nonzero(beyond)), x.size, lost, signal
