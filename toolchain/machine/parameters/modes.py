"""Makers of parameters that select features of a unit: flags, functions, dataflows; and restrictions of other
parameters.

Each function returns a dataclass field for an operation's class, with the parameter's unit and the values that a chip
allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import IntEnum
from typing import Any

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SUMS
from toolchain.machine.parameters.description import Need, Parameter, Values, choice, parameter


def flag() -> Any:
    """Make a flag: 0 or 1."""
    return parameter("", lambda operation, chip: Need(0, 1, "a flag"))


def transpose_flag() -> Any:
    """Make the flag whether a copy transposes."""

    def values(operation: Any, chip: Chip) -> Need:
        can = any(unit.dma.transpose_block for unit in chip.of_kind("dma"))
        return Need(0, int(can), f"{chip.key('dma')}.transpose_block")

    return choice("", values)


def post_flag(post: str) -> Any:
    """Make the flag whether outputs pass through a step of the arrays' `post`."""

    def values(operation: Any, chip: Chip) -> Need:
        return Need(0, int(_has_post(post, chip)), f"{chip.key('mac_array')}.post")

    return on_the_way_out(parameter("", values))


def only_with(post: str, parameter_field: Any) -> Any:
    """Return the parameter restricted to 0 on machines whose arrays have no step `post`.

    `parameter_field`: a field that a maker of this package returned.
    """
    inner: Parameter = parameter_field.metadata["parameter"]

    def values(operation: Any, chip: Chip) -> Need:
        if _has_post(post, chip):
            return inner.values(operation, chip)
        return Need(0, 0, f"{chip.key('mac_array')}.post has no {post}")

    return on_the_way_out(_field(replace(inner, values=values)))


def on_the_way_out(parameter_field: Any) -> Any:
    """Return the parameter marked as one of an array's output; it is 0 where all sums leave by the operation emit."""
    inner: Parameter = parameter_field.metadata["parameter"]

    def values(operation: Any, chip: Chip) -> Need:
        return _find_emit_limit(operation, chip) or inner.values(operation, chip)

    return _field(replace(inner, values=values, way_out=True))


def _field(description: Parameter) -> Any:
    """Return the dataclass field of this parameter. A choice that is not given has its absent value."""
    metadata = {"parameter": description}
    return field(default=description.absent, metadata=metadata) if description.choice else field(metadata=metadata)


def _has_post(post: str, chip: Chip) -> bool:
    """Return whether any array of the machine has this step in its `post`."""
    return any(post in unit.array.post for unit in chip.of_kind("mac_array"))


def _find_emit_limit(operation: Any, chip: Chip) -> Need | None:
    """Return the value 0 for operations of arrays whose sums all lie in a memory; None for all other operations."""
    arrays = chip.of_kind("mac_array")
    if operation.ENGINE != "mac_array" or not all(SUMS in unit.roles for unit in arrays):
        return None
    return Need(0, 0, f"{chip.key('mac_array')}.accumulators.memory")


def function(kinds: type[IntEnum], names: Mapping[str, IntEnum], chosen: bool = False) -> Any:
    """Make the number of a vector engine's function.

    `names`: the number of each name of `functions` in the machine's file.
    `chosen`: whether the number may be left out; it is then 0.
    """

    def values(operation: Any, chip: Chip) -> Need:
        used = [int(names[name]) for name in chip.functions if name in names] or [0]
        return Need(min(used), max(used), f"{chip.key('vector')}.functions")

    return choice("", values, kinds(0), kinds=kinds) if chosen else parameter("", values, kinds=kinds)


def sums_kind(kinds: type[IntEnum]) -> Any:
    """Make the kind of the operation that made the sums: the second kind are products of activations."""

    def values(operation: Any, chip: Chip) -> Need:
        return Need(0, int(chip.limits.matrix_product.computed_operand), "limits.matrix_product.computed_operand")

    return parameter("", values, kinds=kinds)


def dataflow() -> Any:
    """Make the number of the array's dataflow: no bits where every array has one."""
    return choice("", _array_choice("more_dataflows"))


def depthwise_mode() -> Any:
    """Make the number of the array's depthwise mode: no bits where every array has one."""
    return choice("", _array_choice("more_depthwise"))


def _array_choice(key: str) -> Values:
    """Return the values of a number that chooses among the entries of an array's key; 0 is the first choice."""

    def values(operation: Any, chip: Chip) -> Need:
        most = max((len(getattr(unit.array, key)) for unit in chip.of_kind("mac_array")), default=0)
        return Need(0, most, f"{chip.key('mac_array')}.{key}")

    return values
