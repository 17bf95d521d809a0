"""Define what is reported on each layer's loss: figures, cause and remedy."""

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
    """A context that decides which advice applies.

    `file_ranges`: scale or range of each model tensor in the file of --quant.
    `file`: that file.
    `observer`: observer of the calibration.
    `repair`: effort of --repair that was run.
    """

    chip: Chip
    observer: str
    file_ranges: Mapping[str, Range | Quant] | None = None
    file: str | None = None
    repair: str | None = None


@dataclass(frozen=True)
class LayerError:
    """A record of the error of one block, in dB against float.

    `alone_db`: fed with float's tensors.
    `own_db`: rounding of its tensor.
    `weights_db`: rounded weights, None without weights.
    `activations_db`: the rest.
    `at_int16_db`: alone, with 16 bits for 8.
    `effect_db`: the worst output where this error alone is put into float, None where that was not tried.
    `clipped_share`: share of its values outside its codes.
    `layer`: the node that it is named for, None for a tensor that enters a region.
    `nodes`: nodes of the model itself.
    `tensor`: tensor of the model's canonical form.
    `name`: source name that users see.
    `types`: types of the float tensors that feed it, of its tensor, and of its weights.
    `position`: place in the order of the network.
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
