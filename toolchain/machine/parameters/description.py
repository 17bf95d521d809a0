"""Describe a parameter of a machine operation: its unit, and the values that programs for a chip may give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip

# A parameter whose limit the chip leaves open is at most this.
OPEN_LIMIT = (1 << 16) - 1


@dataclass(frozen=True)
class Need:
    """The values that a parameter may have: every one from `low` to `high` that `step` divides.

    `reason`: the key of the machine's file that says so.
    """

    low: int
    high: int
    reason: str
    step: int = 1


# The operation's class and the chip -> the values.
Values = Callable[[Any, Chip], Need]


@dataclass(frozen=True)
class Limit:
    """A key of the operation's section of `limits`. `index`: the element, where the key is a pair [height, width].

    `text`: what exceeds it, with `{}` for the value, for messages.
    """

    key: str
    text: str
    index: int | None = None

    def of(self, operation: Any, chip: Chip) -> int | None:
        """Return the largest value that operations of this class may have here; None where there is no limit."""
        value = getattr(getattr(chip.limits, operation.NAME), self.key, None)
        return value if value is None or self.index is None else value[self.index]


@dataclass(frozen=True)
class TypeList:
    """A list of types of codes of a chip, which operations name by number.

    `keys`: the file's keys that give the list. `more`: the key of all but the first. `of`: returns the list.
    """

    keys: str
    more: str
    of: Callable[[Chip], tuple[CodeType, ...]]


@dataclass(frozen=True)
class Parameter:
    """The description of an operation's parameter.

    `unit`: bytes, elements, bits, codes or none. `values`: returns the values that programs may use, by operation and
    chip. `least`: least value, checked in every program; None: not checked. `kinds`: the enumeration of its codes.
    `choice`: instruction tables may leave it out where only the value `absent` is possible. `adds_to`: for a base
    register, the address parameter that it is added to. `names_type`: for a number of a type, the list that it indexes.
    `typed_by`: for a code, the parameter that names its type. `way_out`: it concerns an array operation's output; the
    sums do not depend on it.
    """

    unit: str
    values: Values
    least: int | None = None
    limit: Limit | None = None
    kinds: type[IntEnum] | None = None
    choice: bool = False
    absent: int = 0
    adds_to: str | None = None
    way_out: bool = False
    names_type: TypeList | None = None
    typed_by: str | None = None


def parameter(unit: str, values: Values, **more: Any) -> Any:
    """Return a dataclass field for a parameter of an operation. `more`: further fields of Parameter."""
    return field(metadata={"parameter": Parameter(unit, values, **more)})


def choice(unit: str, values: Values, absent: Any = 0, **more: Any) -> Any:
    """Return a dataclass field for a parameter that may be left out.

    It is then `absent`. It takes no bits where a machine has no other value.
    """
    return field(default=absent, metadata={"parameter": Parameter(unit, values, choice=True, absent=int(absent), **more)})
