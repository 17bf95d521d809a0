"""What is found of each layer's loss: figures, cause and remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quant.observe import Range
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Quant
from toolchain.report.comparison_blocks import ComparisonBlock
from toolchain.report.layer_types import LayerTypes

Cause = Literal[
    "clipped tail",
    "range dominated by few values",
    "range wider than its values",
    "coarse output scale",
    "weight rounding",
    "cancelling operands",
    "steep function",
    "accumulator overflow",
    "input rounding",
    "nothing lost",
]


@dataclass(frozen=True)
class AdviceContext:
    """What the remedies turn on. given: model tensor -> its scale or range in --quant, the file; observer: that chose those
    of calibration; repair: of --repair, what was done beyond it."""

    chip: Chip
    observer: str
    given: Mapping[str, Range | Quant] | None = None
    file: str | None = None
    repair: str | None = None


@dataclass(frozen=True)
class LayerError:
    """Of one block, in dB against float. alone: fed with float's tensors; own: its tensor's rounding; weights: of the rounded
    weights, None without; activations: of the rest; at_int16: alone, with 16 bits for 8; effect: of the worst output, where
    this error alone is put into float, None where that was not tried. clipped_share: of its values, outside its codes.

    layer: the node it is named for, None for a tensor that comes into a region; nodes: the model's own; tensor: of the model's
    normal form; name: what people are told, the file's; types: of float's tensors that it is fed with, of that tensor, and of
    its weights;
    position: in the order of the network.
    """

    layer: str | None
    op: str
    nodes: tuple[str, ...]
    tensor: str
    name: str
    types: LayerTypes
    alone_db: float
    own_db: float
    accumulated_db: float | None
    weights_db: float | None
    activations_db: float
    at_int16_db: float
    clipped_share: float
    effect_db: float | None
    cause: Cause | None
    why: str
    remedy: str
    position: int
    block: ComparisonBlock

    def as_json(self) -> dict[str, Any]:
        """JSON has no infinity: what is exact, or tells nothing, gives null."""
        keys = [k for k in self.__dataclass_fields__ if k not in ("block", "types", "name")]
        return {**{k: _finite(getattr(self, k)) for k in keys}, "tensor": self.name, **self.types.as_json()}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return list(value) if isinstance(value, tuple) else value


LOST_DB = 6.0  # a tensor that has so much more than what is made of it is not to blame
