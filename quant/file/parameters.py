"""What a parameters file holds, of ranges or scales, types and what was repaired."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.weight_scaling import WeightScaling
from quant.observe import Range
from quant.parameters import activation_quant
from quant.repair.choices import AS_IN_THE_MODEL, Quantization
from quant.repair.file import Repair
from toolchain.ir.graph import Quant


@dataclass(frozen=True)
class Parameters:
    """`tensors`: for each float tensor a range, whose scale the build chooses for its machine, or the scale and zero point.
    types: of those whose codes are not of the machine's first type. By node of the selected graph, `weights`: which of its
    weights share a scale where that is not the machine's choice; `weight_types`: their type, where it is not."""

    tensors: Mapping[str, Range | Quant]
    observer: str = "minmax"
    samples: int = 0
    data: str = ""
    model: str = ""
    hardware: str = ""
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    repair: Repair | None = None
    types: Mapping[str, CodeType] = field(default_factory=lambda: MappingProxyType({}))
    weights: Mapping[str, WeightScaling] = field(default_factory=lambda: MappingProxyType({}))
    weight_types: Mapping[str, CodeType] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def quantization(self) -> Quantization:
        """All of it: ranges, types, scales of weights, and what was repaired."""
        found = Quantization({}) if self.repair is None else self.repair.quantization
        scaled = {n: replace(found.layers.get(n, AS_IN_THE_MODEL), scaling=s) for n, s in self.weights.items()}
        layers = {**found.layers, **scaled}
        return replace(found, ranges=self.tensors, types=self.types, layers=layers, weight_types=self.weight_types)

    def quant(self, name: str, numerics: Numerics) -> Quant:
        """Scale and zero point of a tensor on a machine."""
        entry = self.tensors[name]
        return entry if isinstance(entry, Quant) else activation_quant(entry, of_type(self.types.get(name), numerics))


def of_type(codes: CodeType | None, numerics: Numerics) -> Numerics:
    """Of tensors of this type, None: of the machine's first."""
    return numerics.of(numerics.activation if codes is None else codes)
