"""What repair chooses, and what a step of it gives: data alone. `toolchain.repair` runs steps on a network (docs/repair.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from quant.fit_sample import Sample
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.weight_scaling import WeightScaling
from quant.observe import Range
from quant.parameters import WeightQuant
from quant.structural_ranges import AdjustedRanges
from toolchain.ir.file_quantization import FileWeights
from toolchain.ir.graph import Quant
from toolchain.ir.range_constraints import ClippedRange

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class LayerParameters:
    """Of one layer with weights: what the build takes instead of rounding the model's own.

    weight: codes in the shape that the layer's weights have on the chip, [o, kh, kw, i / groups], and their scales along
    axis 0; None: the model's weights rounded to nearest. bias: float64[o], real, in the model's place; None: the model's.
    scaling: which of the model's weights share a scale; None: as the file of a quantized model has them, or as the machine does.
    """

    weight: WeightQuant | None = None
    bias: Array | None = None
    scaling: WeightScaling | None = None


NO_LAYERS: Mapping[str, LayerParameters] = MappingProxyType({})
AS_IN_THE_MODEL = LayerParameters()


@dataclass(frozen=True)
class Offset:
    """Of an operator without a bias (sum, average, change of scale): codes by which the zero points it is given for its
    operands, and for its output, differ from those of the tensors. A machine that rounds down is set right by them."""

    operands: tuple[int, ...]
    output: int


NO_OFFSET = Offset((), 0)
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Quantization:
    """All that makes an integer network of a model and a machine; what the parameters file holds.

    ranges: of each of the model's tensors that the chip holds. factors: model tensor -> float64[c], by which each of its
    channels (axis 1 of the model's order, the last of two or three dimensions) is multiplied on the chip: equalization.
    layers, offsets: by node of the selected graph (`Selection.graph` with its clamps fused). hosted: the model's nodes that
    stay on the host because repair found their integers to be worse than the trip.
    types: of tensors of the model whose codes are not of the machine's first type; of those that it only moves, one is enough.
    weight_types: by node of the selected graph, of weights that are not of the machine's first type, or not of the file's.
    held: by node of the model, how the file of a model that is quantized already holds its constants.
    over_sequences: tensors of the model that depend on all earlier steps of a sequence, with what their values lie in.
    alike: by tensor of a block of the model that is like one before it, the tensor that it has one range with.
    """

    ranges: Mapping[str, Range | Quant]
    factors: Mapping[str, Array] = field(default_factory=lambda: _NONE)
    layers: Mapping[str, LayerParameters] = field(default_factory=lambda: NO_LAYERS)
    offsets: Mapping[str, Offset] = field(default_factory=lambda: _NONE)
    hosted: tuple[str, ...] = ()
    held: Mapping[str, FileWeights] = field(default_factory=lambda: _NONE)
    types: Mapping[str, CodeType] = field(default_factory=lambda: _NONE)
    weight_types: Mapping[str, CodeType] = field(default_factory=lambda: _NONE)
    over_sequences: Mapping[str, ClippedRange] = field(default_factory=lambda: _NONE)
    alike: Mapping[str, str] = field(default_factory=lambda: _NONE)

    @property
    def levelled(self) -> Quantization:
        """With one range for tensors of blocks that are alike: what holds those of all of them."""
        return replace(self, ranges={**self.ranges, **self.joined}, alike=_NONE)

    @property
    def joined(self) -> dict[str, Range]:
        """By tensor of blocks that are alike, the range that holds those of all of them."""
        together: dict[str, list[str]] = {}
        for name, one in self.alike.items():
            together.setdefault(one, [one]).append(name)
        found: dict[str, Range] = {}
        for names in together.values():
            ranges = {n: r for n, r in ((n, self.ranges.get(n)) for n in names) if isinstance(r, Range)}
            if ranges:
                found |= dict.fromkeys(ranges, reduce(Range.union, ranges.values()))
        return found


Measure = Callable[[Iterable[Sample]], AdjustedRanges]  # of what samples show


@dataclass(frozen=True)
class Gain:
    """Of one layer, on the samples that a step saw: mean squared error of its output over the mean square of float's."""

    layer: str
    before: float
    after: float


@dataclass(frozen=True, eq=False)
class StepOutcome:
    """Of one step. Whether it is kept is not its own to say: that is for samples it has not seen.

    measure: gives the ranges that go with its choices, of other samples; None where it chose nothing that ranges hang on.
    """

    quantization: Quantization
    gains: tuple[Gain, ...] = ()
    notes: tuple[str, ...] = ()
    measure: Measure | None = None
