"""What an operation does of what a unit can: flags, functions, dataflows, and parameters that only some units have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import IntEnum
from typing import Any

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SUMS
from toolchain.machine.parameters.description import Need, Parameter, Values, choice, parameter


def flag() -> Any:
    return parameter("", lambda operation, chip: Need(0, 1, "a flag"))


def transpose_flag() -> Any:
    """Whether a copy transposes."""

    def values(operation: Any, chip: Chip) -> Need:
        can = any(unit.dma.transpose_block for unit in chip.of_kind("dma"))
        return Need(0, int(can), f"{chip.key('dma')}.transpose_block")

    return choice("", values)


def post_flag(post: str) -> Any:
    """Whether outputs pass through what the arrays' `post` has."""

    def values(operation: Any, chip: Chip) -> Need:
        return Need(0, int(_posted(post, chip)), f"{chip.key('mac_array')}.post")

    return on_the_way_out(parameter("", values))


def only_with(post: str, wanted: Any) -> Any:
    """The same parameter, 0 on machines whose arrays have no such `post`."""
    inner: Parameter = wanted.metadata["parameter"]

    def values(operation: Any, chip: Chip) -> Need:
        if _posted(post, chip):
            return inner.values(operation, chip)
        return Need(0, 0, f"{chip.key('mac_array')}.post has no {post}")

    return on_the_way_out(_field(replace(inner, values=values)))


def on_the_way_out(wanted: Any) -> Any:
    """The same parameter, of what becomes of an array's sums; 0 where all of them leave by the operation emit."""
    inner: Parameter = wanted.metadata["parameter"]

    def values(operation: Any, chip: Chip) -> Need:
        return _emitted_elsewhere(operation, chip) or inner.values(operation, chip)

    return _field(replace(inner, values=values, way_out=True))


def _field(known: Parameter) -> Any:
    """A choice is absent where it is not given."""
    metadata = {"parameter": known}
    return field(default=known.absent, metadata=metadata) if known.choice else field(metadata=metadata)


def _posted(post: str, chip: Chip) -> bool:
    return any(post in unit.array.post for unit in chip.of_kind("mac_array"))


def _emitted_elsewhere(operation: Any, chip: Chip) -> Need | None:
    arrays = chip.of_kind("mac_array")
    if operation.ENGINE != "mac_array" or not all(SUMS in unit.roles for unit in arrays):
        return None
    return Need(0, 0, f"{chip.key('mac_array')}.accumulators.memory")


def function(kinds: type[IntEnum], names: Mapping[str, IntEnum], chosen: bool = False) -> Any:
    """Which of the vector engines' functions; names: of `functions`. chosen: a choice, absent as code 0."""

    def values(operation: Any, chip: Chip) -> Need:
        used = [int(names[name]) for name in chip.functions if name in names] or [0]
        return Need(min(used), max(used), f"{chip.key('vector')}.functions")

    return choice("", values, kinds(0), kinds=kinds) if chosen else parameter("", values, kinds=kinds)


def sums_kind(kinds: type[IntEnum]) -> Any:
    """What made sums: the second kind are products of activations."""

    def values(operation: Any, chip: Chip) -> Need:
        return Need(0, int(chip.limits.matrix_product.computed_operand), "limits.matrix_product.computed_operand")

    return parameter("", values, kinds=kinds)


def dataflow() -> Any:
    """Which of the array's dataflows: no bits where every array has one."""
    return choice("", _array_choice("more_dataflows"))


def depthwise_mode() -> Any:
    """Which of the array's depthwise modes: no bits where every array has one."""
    return choice("", _array_choice("more_depthwise"))


def _array_choice(key: str) -> Values:
    def values(operation: Any, chip: Chip) -> Need:
        most = max((len(getattr(unit.array, key)) for unit in chip.of_kind("mac_array")), default=0)
        return Need(0, most, f"{chip.key('mac_array')}.{key}")

    return values
