"""Defines `Numerics`, the one description of how a machine computes: types of codes, scales, rounding, accumulators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.core.scale import ScaleForm
from quant.fixed_point.core.weight_scaling import GroupForm, WeightScaling

# Operations that may round in a way of their own.
RoundedOperation = Literal["convolution", "matrix_product", "average_pool", "add", "sub", "mul", "rescale", "prelu"]
ROUNDED_OPERATIONS: tuple[str, ...] = get_args(RoundedOperation)


@dataclass(frozen=True)
class Numerics:
    """A description of a machine's arithmetic. FixedPointError for a field without meaning.

    The quantizer chooses within it, the integer reference and the simulator compute by it, and test vectors are drawn for it. It
    is made from a machine's file once (`toolchain.hw`), and answers what follows from it.

    `activation`, `weight`: the default types of codes, named as in `CodeType`.
    `more_activations`: other types that a single tensor may have (`of`).
    `more_weights`: other types of weights (`with_weights`).
    `symmetric_activations`: zero points are 0.
    `weights_per_channel`: each output channel has a scale.
    `scale`: scales by which a requantization may multiply.
    `rounding`: rounding of the machine; `per_op` names the operations (ROUNDED_OPERATIONS) with another one.
    `overflow`: overflow of a requantization's result, before its clamp.
    `accumulator_bits`: width at which sums wrap.
    `add_left_shift`: bits by which both operands of a sum are shifted before they are added (0: none).
    `interpolation`: interpolation between entries of 16-bit tables.
    `groups`: supported groups of weights, None without groups.
    `weight_group`: weights that share a scale by default, 0: those of an output channel, or all.
    """

    activation: CodeType = CodeType.INT8
    weight: CodeType = CodeType.INT8
    symmetric_activations: bool = False
    weights_per_channel: bool = True
    scale: ScaleForm = field(default_factory=ScaleForm)
    rounding: Rounding = Rounding.DOUBLE_ROUND
    per_op: Mapping[str, Rounding] = field(default_factory=dict[str, Rounding], hash=False)
    overflow: Literal["saturate", "wrap"] = "saturate"
    accumulator_bits: int = 32
    add_left_shift: int = 20
    interpolation: Literal["tosa", "tflite"] = "tosa"
    groups: GroupForm | None = None
    weight_group: int = 0
    more_activations: tuple[CodeType, ...] = ()
    more_weights: tuple[CodeType, ...] = ()

    def __post_init__(self) -> None:
        for name, allowed, convert in (
            ("activation", CodeType, CodeType),
            ("weight", (CodeType.INT4, CodeType.INT8, CodeType.UINT8), CodeType),
            ("rounding", Rounding, Rounding),
            ("overflow", ("saturate", "wrap"), str),
            ("interpolation", ("tosa", "tflite"), str),
        ):
            value = getattr(self, name)
            if value not in tuple(allowed):
                raise FixedPointError(f"numerics: {name}={str(value)!r}; must be one of {', '.join(allowed)}")
            object.__setattr__(self, name, convert(value))
        unknown = sorted(set(self.per_op) - set(ROUNDED_OPERATIONS))
        if unknown:
            raise FixedPointError(f"numerics: per_op names {', '.join(unknown)}; known are {', '.join(ROUNDED_OPERATIONS)}")
        sizes = () if self.groups is None else self.groups.sizes
        if self.weight_group and self.weight_group not in sizes:
            raise FixedPointError(f"numerics: weight_group={self.weight_group}; must be 0 or one of groups.sizes={sizes}")
        object.__setattr__(self, "per_op", {operation: Rounding(rounding) for operation, rounding in self.per_op.items()})

    def of(self, codes: CodeType) -> Numerics:
        """Return the same arithmetic for activations of this type, without `more_activations`.

        The operands of a sum take no more headroom than 32 bits leave, and wide codes are symmetric.
        Raise KeyError where the machine has no such activations.
        """
        return self._by_type[codes]

    @cached_property
    def _by_type(self) -> Mapping[CodeType, Numerics]:
        if not self.more_activations:
            return {self.activation: self}
        return {t: self._with(t) for t in self.types}

    def _with(self, codes: CodeType) -> Numerics:
        """Return the arithmetic with this type of activations alone."""
        symmetric, shift = self.symmetric_activations or codes.is_wide, self.headroom(codes)
        return replace(self, activation=codes, more_activations=(), symmetric_activations=symmetric, add_left_shift=shift)

    def with_weights(self, codes: CodeType) -> Numerics:
        """Return the same arithmetic where weights are of this type, without `more_weights`. Raise KeyError without such
        weights."""
        return self._by_weights[codes]

    @cached_property
    def _by_weights(self) -> Mapping[CodeType, Numerics]:
        if not self.more_weights:
            return {self.weight: self}
        return {t: replace(self, weight=t, more_weights=()) for t in self.weight_types}

    @property
    def types(self) -> tuple[CodeType, ...]:
        """The types of activations, the default first."""
        return (self.activation, *self.more_activations)

    @property
    def weight_types(self) -> tuple[CodeType, ...]:
        """The types of weights, the default first."""
        return (self.weight, *self.more_weights)

    @property
    def wide_weights(self) -> Mapping[CodeType, CodeType]:
        """Types that weights may have as sums of two bit slices, each with the type of a slice, which has half the bits.

        Types that the machine has by themselves are left out.
        """
        doubled = {CodeType.INT4: CodeType.INT8, CodeType.INT8: CodeType.INT16}
        plane_by_type = {doubled[plane]: plane for plane in self.weight_types if plane in doubled}
        return {wide: plane for wide, plane in plane_by_type.items() if wide not in self.weight_types}

    def headroom(self, codes: CodeType) -> int:
        """Return the bits by which both operands of a sum are shifted left, where the wider of them has this type."""
        return min(self.add_left_shift, max(0, 31 - codes.bits))

    def rounding_of(self, operation: str) -> Rounding:
        """Return the rounding of an operation's requantizations; the machine's rounding where `per_op` does not name it."""
        return self.per_op.get(operation, self.rounding)

    def sums_in_float32(self, operation: str) -> bool:
        """Return whether sums, "add" or "sub", are computed in float32, where their operands' order matters."""
        return self.rounding_of(operation) is Rounding.FP32_RNE

    def requant(
        self,
        operation: str,
        multiplier: ArrayLike,
        shift: ArrayLike,
        *,
        zero_point: int,
        low: int,
        high: int,
        codes: CodeType | None = None,
    ) -> Requant:
        """Return a requantization of the operation with the machine's rounding, overflow and kind of scale.

        `multiplier`, `shift`: integers, or int64[c] for a scale of each channel.
        `zero_point`: of the output.
        `low`, `high`: its clamp, inclusive.
        `codes`: type of the output; None: an int32 inside the operation.

        Raise FixedPointError as `Requant`.
        """
        scale, right = np.atleast_1d(np.asarray(multiplier, np.int64)), np.atleast_1d(np.asarray(shift, np.int64))
        rounding, kind = self.rounding_of(operation), self.scale.kind
        return Requant(scale, right, rounding, zero_point, low, high, self.wraps, kind, codes=codes)

    def scaling_of(self, axis: int, reduction: int, groups: bool) -> WeightScaling:
        """Return which weights share a scale by default.

        `axis`: of the output channels.
        `reduction`: number of weights that are summed.
        `groups`: the weights may be in groups.
        """
        group = self.weight_group if groups and reduction > self.weight_group else 0
        return WeightScaling(axis if self.weights_per_channel else None, group)

    @cached_property
    def wraps(self) -> bool:
        """True where a requantization's result beyond its type wraps."""
        return self.overflow == "wrap"

    @cached_property
    def largest_sum(self) -> int:
        """The largest sum that an accumulator holds."""
        return (1 << (self.accumulator_bits - 1)) - 1
