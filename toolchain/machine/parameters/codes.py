"""Makers of parameters that are codes, zero points, scales, and numbers of types of activations and weights.

Each function returns a dataclass field for an operation's class, with the parameter's unit and the values that a chip
allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.machine.parameters.description import Need, TypeList, choice, parameter

ACTIVATION_TYPES = TypeList("numerics.activation and more_activations", "numerics.more_activations", lambda chip: chip.code_types)
WEIGHT_TYPES = TypeList("numerics.weight and more_weights", "numerics.more_weights", lambda chip: chip.weight_types)


def code(of: str) -> Any:
    """Make the parameter for a code of activations, such as a bound of a clamp. `of`: the parameter that names its type.

    The chip allows the codes of all its types; `machine.capability` checks a value by the type that the operation names.
    """
    return parameter("codes", _code, typed_by=of)


def zero_point(of: str) -> Any:
    """Make the parameter for a zero point, which is 0 on machines of symmetric codes. `of`: the parameter that names its type."""
    return parameter("codes", _zero_point, typed_by=of)


def _code(operation: Any, chip: Chip) -> Need:
    return _span_types(chip.code_types)


def _span_types(types: Sequence[CodeType]) -> Need:
    """Return the values from the least to the largest code of all of these types."""
    return Need(min(c.low for c in types), max(c.high for c in types), f"numerics.activation {', '.join(types)}")


def _zero_point(operation: Any, chip: Chip) -> Need:
    """Return the values of zero points; those of wide codes are 0."""
    symmetric, types = chip.numerics.symmetric_activations, chip.operand_types
    return Need(0, 0, "numerics.symmetric_activations") if symmetric else _span_types(types)


def multiplier() -> Any:
    """Make the parameter for the multiplier of a scale."""
    return parameter("", _multiplier)


def _multiplier(operation: Any, chip: Chip) -> Need:
    scale = chip.numerics.scale
    return Need(0, (1 << scale.word_bits) - 1, f"numerics.scale, kind {scale.kind}")


def shift() -> Any:
    """Make the parameter for the shift of a scale, to the right; below 0 to the left where `numerics.scale` allows that."""
    return parameter("bits", _shift)


def _shift(operation: Any, chip: Chip) -> Need:
    return Need(*chip.numerics.scale.shifts, "numerics.scale")


def make_left_shift() -> Any:
    """Make the parameter for the left shift of the operands of a sum."""
    return parameter("bits", _get_left_shift_values)


def _get_left_shift_values(operation: Any, chip: Chip) -> Need:
    return Need(0, chip.numerics.add_left_shift, "numerics.add_left_shift")


def code_type() -> Any:
    """Make the parameter for the type of an operand's codes: its number in `chip.code_types`, no bits where a machine has one."""
    return _type_number(ACTIVATION_TYPES)


def weight_type() -> Any:
    """Make the parameter for the type of weights: its number in `chip.weight_types`, no bits where a machine has one."""
    return _type_number(WEIGHT_TYPES)


def _type_number(types: TypeList) -> Any:
    return choice("", lambda operation, chip: Need(0, len(types.of(chip)) - 1, types.more), names_type=types)
