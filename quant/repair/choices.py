"""Defines what repair chooses and what a step of it returns, as data alone; `toolchain.repair` runs the steps (docs/repair.md).

`Quantization` is the central type: with a model and a machine it determines the integer network.
"""

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
    """Parameters of one layer with weights, in the place of those that would be computed from the model.

    `weight`: codes in the chip's shape of the layer's weights, [o, kh, kw, i / groups], with their scales along axis 0. None: the
    model's weights rounded to nearest.
    `bias`: float64[o], real, in the model's place; None: the model's.
    `scaling`: which of the model's weights share a scale; None: as in the file of a quantized model, or as the machine does.
    """

    weight: WeightQuant | None = None
    bias: Array | None = None
    scaling: WeightScaling | None = None


NO_LAYERS: Mapping[str, LayerParameters] = MappingProxyType({})
AS_IN_THE_MODEL = LayerParameters()


@dataclass(frozen=True)
class Offset:
    """An offset of an operator without a bias (sum, average, change of scale), which corrects a machine that rounds down.

    The codes are added to the zero points that the operator gets for its tensors; the tensors themselves keep theirs.
    `operands`: one for each operand.
    `output`: for its output.
    """

    operands: tuple[int, ...]
    output: int


NO_OFFSET = Offset((), 0)
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Quantization:
    """A quantization: all that makes an integer network of a model and a machine, and what the parameters file holds.

    `ranges`: range of each of the model's tensors that the chip holds.
    `factors`: model tensor -> float64[c], by which each of its channels is multiplied on the chip: equalization. Channels are
    axis 1 of the model's order, the last of two or three dimensions.
    `layers`, `offsets`: by node of the selected graph (`Selection.graph` with its clamps fused).
    `hosted`: the model's nodes that stay on the host because repair found their integers to be worse than the trip.
    `types`: types of tensors of the model whose codes are not of the machine's first type; tensors that are only moved need
    one entry.
    `weight_types`: by node of the selected graph, types of weights that are not of the machine's first type, or not of the
    file's.
    `compiler_weights`: nodes of the selected graph whose weights the compiler makes.
    `file_weights`: by node of the model, how the file of a quantized model holds its constants.
    `over_sequences`: tensors of the model that depend on all earlier steps of a sequence, with the bounds of their values.
    `range_owners`: by tensor of a repeated block, the tensor of an earlier block that it shares its range with.
    """

    ranges: Mapping[str, Range | Quant]
    factors: Mapping[str, Array] = field(default_factory=lambda: _NONE)
    layers: Mapping[str, LayerParameters] = field(default_factory=lambda: NO_LAYERS)
    offsets: Mapping[str, Offset] = field(default_factory=lambda: _NONE)
    hosted: tuple[str, ...] = ()
    file_weights: Mapping[str, FileWeights] = field(default_factory=lambda: _NONE)
    types: Mapping[str, CodeType] = field(default_factory=lambda: _NONE)
    weight_types: Mapping[str, CodeType] = field(default_factory=lambda: _NONE)
    compiler_weights: frozenset[str] = frozenset()
    over_sequences: Mapping[str, ClippedRange] = field(default_factory=lambda: _NONE)
    range_owners: Mapping[str, str] = field(default_factory=lambda: _NONE)

    @property
    def levelled(self) -> Quantization:
        """The quantization in which corresponding tensors of repeated blocks share one range, the union of their ranges.

        Its `range_owners` is empty.
        """
        return replace(self, ranges={**self.ranges, **self.joined}, range_owners=_NONE)

    @property
    def joined(self) -> dict[str, Range]:
        """The union of the ranges of tensors that share one by `range_owners`, by tensor; entries that are no Range are left
        out."""
        together: dict[str, list[str]] = {}
        for name, one in self.range_owners.items():
            together.setdefault(one, [one]).append(name)
        joint_ranges: dict[str, Range] = {}
        for names in together.values():
            ranges = {n: r for n, r in ((n, self.ranges.get(n)) for n in names) if isinstance(r, Range)}
            if ranges:
                joint_ranges |= dict.fromkeys(ranges, reduce(Range.union, ranges.values()))
        return joint_ranges


Measure = Callable[[Iterable[Sample]], AdjustedRanges]  # of what samples show


@dataclass(frozen=True)
class Gain:
    """The improvement of one layer by a step, on the samples that the step saw.

    `before`, `after`: mean squared error of the layer's output over the mean square of float's; less is better.
    """

    layer: str
    before: float
    after: float


@dataclass(frozen=True, eq=False)
class Alternative:
    """The choices that a step would make if the user gave an option.

    `quantization`: as it would be with these choices.
    `what`: the choices, such as `17 tensors in int16`; `price`: what they cost, as a clause; `option`: as the user gives it.
    """

    quantization: Quantization
    what: str
    price: str
    option: str


@dataclass(frozen=True, eq=False)
class StepOutcome:
    """The result of one step of repair. Samples that the step has not seen decide whether it is kept.

    `quantization`: as it would be with the step's choices.
    `gains`: by layer, for the report.
    `notes`: sentences for the user, where the step is kept.
    `measure`: returns, for other samples, the ranges that go with its choices; None where its choices do not change ranges.
    `alternative`: what the user may ask for instead, None without such. It is judged as the step itself is.
    """

    quantization: Quantization
    gains: tuple[Gain, ...] = ()
    notes: tuple[str, ...] = ()
    measure: Measure | None = None
    alternative: Alternative | None = None
