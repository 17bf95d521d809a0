"""Makers of parameters that are addresses, strides in bytes, and base registers that are added to addresses.

Each returns a dataclass field for an operation's class. `role` names an operand of the unit: input, weights, output and
so on.
"""

from __future__ import annotations

from dataclasses import field
from math import gcd
from typing import Any

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SUMS, Space
from toolchain.machine.parameters.description import Need, Parameter, choice, parameter

OUTER = -1  # the dimension around dimension 0, which few machines have


def operand_address(role: str) -> Any:
    """Make the address of a byte in the memory that holds operands of this role."""
    return parameter("bytes", lambda operation, chip: Need(0, *_operand_size(operation, role, chip)))


def block_address(role: str) -> Any:
    """Make the address of a separate block of constants, on a multiple of the memory's alignment."""
    return parameter("bytes", lambda operation, chip: _make_aligned_values(operation, role, chip))


def parameter_address(role: str) -> Any:
    """Make the address of the first of several requantization entries, which may lie behind weights."""

    def values(operation: Any, chip: Chip) -> Need:
        return _make_aligned_values(operation, role, chip, chip.layout.parameters.alignment_bytes)

    return parameter("bytes", values)


def _make_aligned_values(operation: Any, role: str, chip: Chip, *steps: int) -> Need:
    """Return addresses on multiples that all alignments of these memories, and `steps`, allow."""
    high, reason = _operand_size(operation, role, chip)
    memories = [space.memory.alignment_bytes for space in _operand_spaces(operation, role, chip)]
    return Need(0, high, reason.removesuffix(".size"), gcd(*memories, *steps))


def operand_stride(role: str) -> Any:
    """Make a stride in bytes in the memory that holds operands of this role."""
    return parameter("bytes", lambda operation, chip: Need(0, *_operand_size(operation, role, chip)))


def surface_stride(role: str) -> Any:
    """Make the stride between granules of an operand's channels.

    It is 0 where its channels lie together, and has no bits where those of all operands do.
    """

    def values(operation: Any, chip: Chip) -> Need:
        if chip.layout.feature_maps is None:
            return Need(0, 0, "layout.feature_maps is not given")
        return Need(0, *_operand_size(operation, role, chip))

    return choice("bytes", values)


def batch_stride(role: str) -> Any:
    """Make the stride between the operands of neighbouring products.

    It is 0 where all share one, and where an operation has one product.
    """

    def values(operation: Any, chip: Chip) -> Need:
        most = chip.limits.matrix_product.max_batches
        single = Need(0, 0, f"limits.matrix_product.max_batches {most}")
        return single if most == 1 else Need(0, *_operand_size(operation, role, chip))

    return choice("bytes", values)


def _operand_spaces(operation: Any, role: str, chip: Chip) -> list[Space]:
    """Return the memories that hold this role, over all units that run the operation; the sram where there is no unit."""
    codes = dict.fromkeys(unit.roles[role] for unit in chip.of_kind(operation.ENGINE))
    return [chip.spaces[code] for code in codes] or [chip.spaces[chip.space_code("sram")]]


def _operand_size(operation: Any, role: str, chip: Chip) -> tuple[int, str]:
    """Return (highest address, key of the size) of the largest of these memories."""
    largest = max(_operand_spaces(operation, role, chip), key=lambda space: space.memory.size)
    return largest.memory.size - 1, f"memories.{largest.key}.size"


def sums_address(choice: bool = True) -> Any:
    """Make the address of a sum in the memory of accumulators.

    It is 0 on machines without such a memory, and has no bits there if the parameter is a choice.
    """

    def values(operation: Any, chip: Chip) -> Need:
        named = [chip.spaces[u.roles[SUMS]] for u in chip.of_kind(operation.ENGINE) if SUMS in u.roles]
        if not named:
            return Need(0, 0, f"{chip.key('mac_array')}.accumulators names no memory")
        largest = max(named, key=lambda space: space.memory.size)
        return Need(0, largest.memory.size - 1, f"memories.{largest.key}.size")

    address_parameter = Parameter("bytes", values, choice=choice)
    return (
        field(default=0, metadata={"parameter": address_parameter})
        if choice
        else field(metadata={"parameter": address_parameter})
    )


def memory_address() -> Any:
    """Make the address of a byte of any memory."""
    return parameter("bytes", any_memory)


def move_stride(dimension: int) -> Any:
    """Make the stride between the runs of dimension OUTER, 0, 1 or 2 of a strided move; 0 where the DMA has fewer
    dimensions.
    """

    def values(operation: Any, chip: Chip) -> Need:
        return absent_dimension(dimension, 0, chip) or any_memory(operation, chip)

    return choice("bytes", values) if dimension == OUTER else parameter("bytes", values)


def base_of(address: str) -> Any:
    """Make the number of the base register that the front end adds to parameter `address`; 0: none.

    It has no bits on machines without base registers.
    """
    return choice("", _bases, adds_to=address)


def operand_base_of(address: str) -> Any:
    """Make the base register of an address of an array or a vector engine, which few machines let have one."""
    return field(default=0, metadata={"parameter": Parameter("", _operand_bases, choice=True, adds_to=address)})


def _bases(operation: Any, chip: Chip) -> Need:
    return Need(0, chip.control.bases, "control.bases")


def _operand_bases(operation: Any, chip: Chip) -> Need:
    return Need(0, chip.control.bases if chip.control.operand_bases else 0, "control.operand_bases")


def base_number(least: int) -> Any:
    """Make the number of a base register; register 0 holds 0."""
    return parameter("", lambda operation, chip: Need(least, max(least, chip.control.bases), "control.bases"))


def base_offset() -> Any:
    """Make an offset in bytes, of either sign, as large as the largest memory."""

    def values(operation: Any, chip: Chip) -> Need:
        most = any_memory(operation, chip)
        return Need(-most.high, most.high, most.reason)

    return parameter("bytes", values)


def base_scale() -> Any:
    """Make the bytes by which one step of a number that is read from memory moves an address."""
    return parameter("bytes", any_memory)


def any_memory(operation: Any, chip: Chip) -> Need:
    """Return the addresses of the largest memory."""
    return Need(0, max(m.size for m in chip.memories.values()) - 1, "memories.dram.size")


def absent_dimension(dimension: int, value: int, chip: Chip) -> Need | None:
    """Return the only value of a parameter of this dimension on machines whose DMA lacks it; None where they have it."""
    dimensions = max(u.dma.dimensions for u in chip.of_kind("dma"))
    return Need(value, value, f"{chip.key('dma')}.dimensions {dimensions}") if dimension < 3 - dimensions else None
