"""The base of every section of a machine's YAML: a frozen pydantic model that refuses unknown keys and other types.

Quantities as people write them (`512 KiB`, `500 MHz`) become integers in base units.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema

Positive = Annotated[int, Field(ge=1, le=1 << 40)]
NonNegative = Annotated[int, Field(ge=0, le=1 << 40)]
MOST_UNITS = 64  # queues of a machine
Units = Annotated[int, Field(ge=1, le=MOST_UNITS)]
PositiveFloat = Annotated[float, Field(gt=0)]


_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_HERTZ = {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9}
WRITTEN = "written by people"  # the validation context in which a number below 1000 needs its unit
_LARGEST = 1 << 48
_LEAST_BARE = 1000  # numbers without a unit are bytes or hertz, and no memory or clock is so small


class Section(BaseModel):
    """The base of all sections: frozen and strict, without unknown keys, infinity and NaN."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, serialize_by_alias=True, defer_build=True
    )

    def __copy__(self) -> Self:
        """Copy the section without the values of cached properties: they follow from fields that the copy may change."""
        copied = super().__copy__()
        for members in map(vars, type(self).__mro__):
            for name in (n for n, member in members.items() if isinstance(member, cached_property)):
                vars(copied).pop(name, None)
        return copied


def _parse(value: object, info: ValidationInfo, units: dict[str, int], example: str) -> int:
    """Return a quantity of a file in base units. Raise ValueError where it is none.

    A bare number below 1000 is refused where the validation context is WRITTEN itself.
    """
    return _read(value, info.context == WRITTEN, units, example)


def _read(value: object, written: bool, units: dict[str, int], example: str) -> int:
    """Return a quantity in base units. Raise ValueError where the value is none.

    `written`: a person wrote the value, so a small number without a unit is refused.
    """
    unit_list = ", ".join(units)
    if isinstance(value, int) and not isinstance(value, bool):
        if written and 0 < value < _LEAST_BARE:
            base = next(iter(units))
            raise ValueError(f"{value} has no unit; write it as {example!r}, or as '{value} {base}' where {base} is meant")
        quantity = value
    elif isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*", value)
        if not match or match.group(2) not in units:
            raise ValueError(f"{value!r} is no quantity; write it as {example!r} (units: {unit_list})")
        exact = Fraction(match.group(1)) * units[match.group(2)]
        if exact.denominator != 1:
            raise ValueError(f"{value!r} is {float(exact)} in base units, not a whole number")
        quantity = int(exact)
    else:
        raise ValueError(f"{value!r} is no quantity; write it as {example!r} (units: {unit_list})")
    if not 1 <= quantity <= _LARGEST:
        raise ValueError(f"{value!r} must be at least 1 and at most 2^48 in base units")
    return quantity


def _schema(units: dict[str, int], example: str) -> WithJsonSchema:
    """Return the JSON schema of a quantity: a whole number, or text with one of the units."""
    pattern = f"^\\s*[0-9]+(\\.[0-9]+)?\\s*({'|'.join(units)})\\s*$"
    text = {"type": "string", "pattern": pattern, "examples": [example]}
    return WithJsonSchema({"anyOf": [{"type": "integer", "minimum": _LEAST_BARE, "maximum": _LARGEST}, text]})


def _written(value: int, units: dict[str, int]) -> str:
    """Return a quantity as text with the largest unit that divides it; 0 in base units."""
    exact = [(factor, unit) for unit, factor in units.items() if factor == 1 or (value and value % factor == 0)]
    factor, unit = max(exact)
    return f"{value // factor} {unit}"


def read_bytes(text: str) -> int:
    """Return the bytes of a text such as '512 KiB', '512KiB' or '524288'.

    Raise ValueError where it is no such quantity: for a number below 1000 without a unit, and for sizes outside 1 to 2^48.
    """
    return _read(int(text) if text.isdecimal() else text, True, _BYTES, "512 KiB")


def write_bytes(size_bytes: int) -> str:
    """Return bytes as text with the largest binary unit that divides them: 524288 as '512 KiB'."""
    return _written(size_bytes, {unit: factor for unit, factor in _BYTES.items() if "i" in unit or unit == "B"})


def write_hertz(frequency_hz: int) -> str:
    """Return a frequency as text with the largest unit that divides it: 500000000 as '500 MHz'."""
    return _written(frequency_hz, _HERTZ)


Bytes = Annotated[int, BeforeValidator(lambda v, info: _parse(v, info, _BYTES, "512 KiB")), _schema(_BYTES, "512 KiB")]
Hertz = Annotated[int, BeforeValidator(lambda v, info: _parse(v, info, _HERTZ, "500 MHz")), _schema(_HERTZ, "500 MHz")]
