"""The section `numerics` of a machine's YAML, and the arithmetic (`Numerics`) that follows from it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics, RoundedOperation
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.core.scale import ScaleForm, ScaleKind
from quant.fixed_point.core.weight_scaling import GroupForm
from toolchain.hw.section import NonNegative, Section

# Of the types there are, those that arrays of machines take, and those that activations may have beside the first.
ActivationName = Literal["int8", "uint8", "int16"]
AnyActivationName = Literal["int8", "uint8", "int16", "int32"]
WeightName = Literal["int4", "int8"]
# A text of a file is the member of that name.
RoundingName = Annotated[Rounding, Field(strict=False)]


class ScaleKeys(Section):
    """The scales that the machine has: multiplier and shift, powers of two, or float32.

    `shift_min` below 0 is a left shift, which powers of two alone may have.
    """

    kind: ScaleKind
    multiplier_bits: Annotated[int, Field(ge=1, le=31)] = 31
    shift_min: Annotated[int, Field(ge=-31, le=62)] = 0  # below 0: a left shift, powers of two only
    shift_max: Annotated[int, Field(ge=0, le=62)] = 62

    @property
    def form(self) -> ScaleForm:
        """The scales that the machine has. Raise FixedPointError where its shifts are not possible."""
        return ScaleForm(self.kind, self.multiplier_bits, self.shift_min, self.shift_max)


class TableKeys(Section):
    """The section on lookup tables for non-linear functions: 256 entries for 8 bits, 513 interpolated entries for 16
    bits.

    `interpolation`: between entries, as TOSA or TFLite computes it; `none` for 8 bits alone.
    """

    entries: Literal[256, 513]
    interpolation: Literal["none", "tosa", "tflite"] = "none"


class NumericsKeys(Section):
    """The section on types of codes, scales, rounding and overflow.

    `more_activations`, `more_weights`: further types that a tensor or a layer may have. `symmetric_activations`: zero
    points are 0. `weight_group`: weights that share a scale where the model does not say so; 0: those of a channel.
    `per_op`: rounding of single operations. `add_left_shift`: bits of headroom of both operands of a sum.
    """

    activation: ActivationName
    # That tensors may have instead, each its own; an operation says which its operands have.
    more_activations: Annotated[tuple[AnyActivationName, ...], Field(examples=[["int16"]])] = ()
    weight: WeightName
    more_weights: Annotated[tuple[WeightName, ...], Field(examples=[["int4"]])] = ()  # that layers may have instead, each its own
    symmetric_activations: bool = False
    weights_per_channel: bool = True
    weight_group: NonNegative = 0  # weights that share a scale where the model does not say so; 0: those of a channel, or all
    scale: ScaleKeys
    rounding: RoundingName
    per_op: dict[RoundedOperation, RoundingName] = Field(default_factory=dict[RoundedOperation, RoundingName])
    overflow: Literal["saturate", "wrap"] = "saturate"
    add_left_shift: Annotated[int, Field(ge=0, le=20)] = 20  # headroom given to both operands of a sum
    table: TableKeys


def make_numerics(keys: NumericsKeys, accumulator_bits: int, groups: GroupForm | None = None) -> Numerics:
    """Return the arithmetic of a machine with these keys and accumulators. `groups`: form of its weight groups, None:
    it has none.

    Raise FixedPointError where the scale's shifts are not possible.
    """
    return Numerics(
        activation=CodeType(keys.activation),
        more_activations=tuple(CodeType(name) for name in keys.more_activations),
        weight=CodeType(keys.weight),
        more_weights=tuple(CodeType(name) for name in keys.more_weights),
        symmetric_activations=keys.symmetric_activations,
        weights_per_channel=keys.weights_per_channel,
        scale=keys.scale.form,
        rounding=keys.rounding,
        per_op={**keys.per_op},
        overflow=keys.overflow,
        accumulator_bits=accumulator_bits,
        add_left_shift=keys.add_left_shift,
        groups=groups,
        weight_group=keys.weight_group,
        interpolation="tosa" if keys.table.interpolation == "none" else keys.table.interpolation,
    )
