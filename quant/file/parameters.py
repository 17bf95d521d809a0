"""Defines `Parameters`, the content of a parameters file: ranges or scales of tensors, types, and what repair chose.

`quant.file.read` makes it from a file and `quant.file.write` writes it.
"""

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
    """A set of quantization parameters.

    `tensors`: for each float tensor a range, whose scale the build chooses for its machine, or the scale and zero point.
    `observer`, `samples`, `data`, `model`, `hardware`: how they were measured, for people; nothing is computed from them.
    `sources`: by tensor, a comment on what it is, written to the file and not read back.
    `repair`: what repair chose; None: it did not run.
    `types`: types of tensors whose codes are not of the machine's first type.
    `weights`: by node of the selected graph, which of its weights share a scale, where that is not the machine's choice.
    `weight_types`: type of a node's weights, where it is not the machine's choice.
    """

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
        """All of it as one Quantization: ranges, types, sharing of weights' scales, and what was repaired."""
        repaired = Quantization({}) if self.repair is None else self.repair.quantization
        scaled = {n: replace(repaired.layers.get(n, AS_IN_THE_MODEL), scaling=s) for n, s in self.weights.items()}
        layers = {**repaired.layers, **scaled}
        return replace(repaired, ranges=self.tensors, types=self.types, layers=layers, weight_types=self.weight_types)

    def quant(self, name: str, numerics: Numerics) -> Quant:
        """Return scale and zero point of a tensor on a machine: the file's own, or chosen from the range. KeyError without an
        entry."""
        entry = self.tensors[name]
        return entry if isinstance(entry, Quant) else activation_quant(entry, of_type(self.types.get(name), numerics))


def of_type(codes: CodeType | None, numerics: Numerics) -> Numerics:
    """Return the numerics of tensors of this type; None is the machine's first type."""
    return numerics.of(numerics.activation if codes is None else codes)
