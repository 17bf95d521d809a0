"""What a parameter of a machine operation is: its unit, and the values that programs for a chip may give it.

Encodings (their fields must hold these values), first instruction tables, manuals and the checks of a program read it
here; a limit of the machine's YAML is named once, at the parameter that it limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import gcd
from typing import Any

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.groups import GROUP_STEP
from toolchain.hw.chip import Chip
from toolchain.hw.engines import Memory
from toolchain.hw.units import SUMS
from toolchain.machine.columns import is_column

# A parameter whose limit the chip leaves open is at most this.
OPEN_LIMIT = (1 << 16) - 1


class Space(IntEnum):
    """Codes of `chip.spaces`: those beyond the two of every machine by their place in its map."""

    DRAM = 0
    SRAM = 1
    MEMORY2 = 2
    MEMORY3 = 3
    MEMORY4 = 4
    MEMORY5 = 5
    MEMORY6 = 6
    MEMORY7 = 7
    MEMORY8 = 8
    MEMORY9 = 9
    MEMORY10 = 10
    MEMORY11 = 11
    MEMORY12 = 12
    MEMORY13 = 13
    MEMORY14 = 14
    MEMORY15 = 15


def space_of(value: Any, chip: Chip) -> Any:
    """The Space of a code, or the column itself. Raises ValueError where the machine has no such memory."""
    if is_column(value):
        return value
    if not 0 <= value < len(chip.spaces):
        raise ValueError(f"{value} is no memory; the machine has {_spaces(chip)}")
    return Space(value)


def _spaces(chip: Chip) -> str:
    return ", ".join(f"{s.name} {i}" for i, s in enumerate(chip.spaces))


@dataclass(frozen=True)
class Need:
    """Every value low..high that `step` divides; `reason` is the key of the chip that says so."""

    low: int
    high: int
    reason: str
    step: int = 1


# The operation's class and the chip -> the values.
Values = Callable[[Any, Chip], Need]


@dataclass(frozen=True)
class Limit:
    """A key of the operation's section of `limits`; `index` of a pair [height, width]. text: what exceeds it, `{}` its value."""

    key: str
    text: str
    index: int | None = None

    def of(self, operation: Any, chip: Chip) -> int | None:
        """The largest value that the operation, a class, may have here; None: no limit."""
        value = getattr(getattr(chip.limits, operation.NAME), self.key, None)
        return value if value is None or self.index is None else value[self.index]


@dataclass(frozen=True)
class TypeList:
    """Types of codes of a chip, which operations name by their numbers; keys: of its file that say them, more: all but the
    first."""

    keys: str
    more: str
    of: Callable[[Chip], tuple[CodeType, ...]]


ACTIVATION_TYPES = TypeList("numerics.activation and more_activations", "numerics.more_activations", lambda chip: chip.code_types)
WEIGHT_TYPES = TypeList("numerics.weight and more_weights", "numerics.more_weights", lambda chip: chip.weight_types)


@dataclass(frozen=True)
class Parameter:
    """unit: bytes, elements, bits, codes or none. least: checked in every program. kinds: the enumeration of its codes.
    choice: tables of machines where it has one value, `absent`, may leave it out. adds_to: the address a base is added to.
    names_type: the types among which it is a number; typed_by: of a code, the parameter that names its type.
    way_out: of an array's operation: what becomes of its sums, and nothing that they depend on."""

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
    """A field of an operation's dataclass."""
    return field(metadata={"parameter": Parameter(unit, values, **more)})


def choice(unit: str, values: Values, absent: Any = 0, **more: Any) -> Any:
    """One that is `absent` where it is not given, and takes no bits where a machine has no other value."""
    return field(default=absent, metadata={"parameter": Parameter(unit, values, choice=True, absent=int(absent), **more)})


# Addresses and strides


def operand_address(role: str, alignment_bytes: int = 0) -> Any:
    """Of a byte of the memory that this operand lies in; alignment_bytes: a block that starts on a multiple of it and of
    the memory's alignment."""

    def values(operation: Any, chip: Chip) -> Need:
        high, reason = _operand_size(operation, role, chip)
        if not alignment_bytes:
            return Need(0, high, reason)
        steps = [m.alignment_bytes for m in _operand_memories(operation, role, chip)]
        step = gcd(*steps) if alignment_bytes == 1 else gcd(*steps, alignment_bytes)
        return Need(0, high, reason.removesuffix(".size"), step)

    return parameter("bytes", values)


def operand_stride(role: str) -> Any:
    return parameter("bytes", lambda operation, chip: Need(0, *_operand_size(operation, role, chip)))


def _operand_memories(operation: Any, role: str, chip: Chip) -> list[Memory]:
    """Different ones, over the units that run the operation; the sram where none does."""
    codes = dict.fromkeys(unit.roles[role] for unit in chip.of_kind(operation.ENGINE))
    return [chip.spaces[code].memory for code in codes] or [chip.sram]


def _operand_size(operation: Any, role: str, chip: Chip) -> tuple[int, str]:
    """The last byte's address, and the key that says so."""
    largest = max(_operand_memories(operation, role, chip), key=lambda m: m.size)
    return largest.size - 1, f"memories.{next(n for n, m in chip.memories.items() if m is largest)}.size"


def sums_address(choice: bool = True) -> Any:
    """Of a sum in the memory of accumulators; 0, and no bits where that is a choice, on machines that have none."""

    def values(operation: Any, chip: Chip) -> Need:
        named = [chip.spaces[u.roles[SUMS]] for u in chip.of_kind(operation.ENGINE) if SUMS in u.roles]
        if not named:
            return Need(0, 0, f"{chip.key('mac_array')}.accumulators names no memory")
        largest = max(named, key=lambda space: space.memory.size)
        return Need(0, largest.memory.size - 1, f"memories.{largest.key}.size")

    known = Parameter("bytes", values, choice=choice)
    return field(default=0, metadata={"parameter": known}) if choice else field(metadata={"parameter": known})


def sums_kind(kinds: type[IntEnum]) -> Any:
    """What made sums: the second kind are products of activations."""

    def values(operation: Any, chip: Chip) -> Need:
        return Need(0, int(chip.limits.matrix_product.computed_operand), "limits.matrix_product.computed_operand")

    return parameter("", values, kinds=kinds)


def on_the_way_out(wanted: Any) -> Any:
    """The same parameter, of what becomes of an array's sums; 0 where all of them leave by the operation emit."""
    inner: Parameter = wanted.metadata["parameter"]

    def values(operation: Any, chip: Chip) -> Need:
        return _emitted_elsewhere(operation, chip) or inner.values(operation, chip)

    return field(metadata={"parameter": replace(inner, values=values, way_out=True)})


def _emitted_elsewhere(operation: Any, chip: Chip) -> Need | None:
    arrays = chip.of_kind("mac_array")
    if operation.ENGINE != "mac_array" or not all(SUMS in unit.roles for unit in arrays):
        return None
    return Need(0, 0, f"{chip.key('mac_array')}.accumulators.memory")


def memory_address() -> Any:
    """Of a byte of any memory."""
    return parameter("bytes", _any_memory)


def _any_memory(operation: Any, chip: Chip) -> Need:
    return Need(0, max(m.size for m in chip.memories.values()) - 1, "memories.dram.size")


OUTER = -1  # the dimension around dimension 0, which few machines have


def move_stride(dimension: int) -> Any:
    """Between the runs of dimension OUTER, 0, 1 or 2 of a strided move; 0 where the DMA has fewer dimensions."""

    def values(operation: Any, chip: Chip) -> Need:
        return _absent_dimension(dimension, 0, chip) or _any_memory(operation, chip)

    return choice("bytes", values) if dimension == OUTER else parameter("bytes", values)


def move_count(dimension: int) -> Any:
    """Runs along dimension OUTER, 0, 1 or 2 of a strided move; 1 where the DMA has fewer dimensions."""

    def values(operation: Any, chip: Chip) -> Need:
        return _absent_dimension(dimension, 1, chip) or Need(1, *_largest_on_chip(chip))

    return choice("", values, 1, least=1) if dimension == OUTER else parameter("", values, least=1)


def turned() -> Any:
    """Whether a copy transposes."""

    def values(operation: Any, chip: Chip) -> Need:
        can = any(unit.dma.transpose_block for unit in chip.of_kind("dma"))
        return Need(0, int(can), f"{chip.key('dma')}.transpose_block")

    return choice("", values)


def _absent_dimension(dimension: int, value: int, chip: Chip) -> Need | None:
    dimensions = max(u.dma.dimensions for u in chip.of_kind("dma"))
    return Need(value, value, f"{chip.key('dma')}.dimensions {dimensions}") if dimension < 3 - dimensions else None


def memory_space() -> Any:
    return parameter("", lambda operation, chip: Need(0, len(chip.spaces) - 1, _spaces(chip)), kinds=Space)


# Extents


def extent(limit: Limit | None = None, unit: str = "elements", least: int = 1) -> Any:
    """A size of at least `least`, at most what the machine's limit says, or what fits the largest memory on the chip."""

    def values(operation: Any, chip: Chip) -> Need:
        highest = limit.of(operation, chip) if limit else None
        if limit and highest is not None:
            return Need(1, highest, f"limits.{operation.NAME}.{limit.key}")
        return Need(least, *_largest_on_chip(chip))

    return parameter(unit, values, least=least or None, limit=limit)


def _largest_on_chip(chip: Chip) -> tuple[int, str]:
    """Bytes of the largest memory beside the dram, and the key that says so."""
    name = max((n for n in chip.memories if n != "dram"), key=lambda n: (chip.memories[n].size, n == "sram"))
    return chip.memories[name].size, f"memories.{name}.size"


def batch_count() -> Any:
    """Of products of one operation."""
    limit = Limit("max_batches", "{} products")

    def values(operation: Any, chip: Chip) -> Need:
        return Need(1, limit.of(operation, chip) or 1, f"limits.{operation.NAME}.{limit.key}")

    return choice("", values, 1, least=1, limit=limit)


def batch_stride(role: str) -> Any:
    """Between the operands of neighbouring products; 0 where all share one, and where an operation has one product."""

    def values(operation: Any, chip: Chip) -> Need:
        most = chip.limits.matrix_product.max_batches
        single = Need(0, 0, f"limits.matrix_product.max_batches {most}")
        return single if most == 1 else Need(0, *_operand_size(operation, role, chip))

    return choice("bytes", values)


def window_extent_of(name: str, index: int) -> Any:
    """Kernel, stride, dilation (from 1) or padding (from 0) of a window; index: 0 height, 1 width."""
    least = 0 if name == "pad" else 1
    limit = Limit(f"max_{name}", f"{name} {{}}", index)

    def values(operation: Any, chip: Chip) -> Need:
        if operation.NAME == "pool" and name in ("pad", "dilation"):
            # A pool is padded by less than its kernel; its dilation has no limit of its own.
            kernel = chip.limits.pool.max_kernel
            reason = f"limits.pool.max_kernel{'' if kernel else ' is not set'}"
            return Need(least, kernel[index] - (name == "pad") if kernel else OPEN_LIMIT, reason)
        highest = limit.of(operation, chip)
        reason = f"limits.{operation.NAME}.{limit.key}" if highest else f"limits.{operation.NAME} sets no {limit.key}"
        return Need(least, OPEN_LIMIT if highest is None else highest, reason)

    return parameter("elements", values, least=least or None, limit=limit)


# Codes and scales


def code(of: str) -> Any:
    """An activation's code: a bound of a clamp, a value. of: the parameter that names its type."""
    return parameter("codes", _code, typed_by=of)


def zero_point(of: str) -> Any:
    return parameter("codes", _zero_point, typed_by=of)


def _code(operation: Any, chip: Chip) -> Need:
    low, high = min(c.low for c in chip.code_types), max(c.high for c in chip.code_types)
    return Need(low, high, f"numerics.activation {', '.join(chip.code_types)}")


def _zero_point(operation: Any, chip: Chip) -> Need:
    return Need(0, 0, "numerics.symmetric_activations") if chip.numerics.symmetric_activations else _code(operation, chip)


def multiplier() -> Any:
    return parameter("", _multiplier)


def _multiplier(operation: Any, chip: Chip) -> Need:
    scale = chip.numerics.scale
    bits = {"pow2": 1, "float32": 31}.get(scale.kind, scale.multiplier_bits)
    return Need(0, (1 << bits) - 1, f"numerics.scale, kind {scale.kind}")


def shift() -> Any:
    return parameter("bits", _shift)


def _shift(operation: Any, chip: Chip) -> Need:
    scale = chip.numerics.scale
    return Need(min(0, scale.shift_min), 0 if scale.kind == "float32" else scale.shift_max, "numerics.scale")


def left_shift() -> Any:
    return parameter("bits", _left_shift)


def _left_shift(operation: Any, chip: Chip) -> Need:
    return Need(0, chip.numerics.add_left_shift, "numerics.add_left_shift")


# Choices


def flag() -> Any:
    return parameter("", lambda operation, chip: Need(0, 1, "a flag"))


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

    return on_the_way_out(field(metadata={"parameter": replace(inner, values=values)}))


def _posted(post: str, chip: Chip) -> bool:
    return any(post in unit.array.post for unit in chip.of_kind("mac_array"))


def function(kinds: type[IntEnum], names: Mapping[str, IntEnum], chosen: bool = False) -> Any:
    """Which of the vector engines' functions; names: of `functions`. chosen: a choice, absent as code 0."""

    def values(operation: Any, chip: Chip) -> Need:
        used = [int(names[name]) for name in chip.functions if name in names] or [0]
        return Need(min(used), max(used), f"{chip.key('vector')}.functions")

    return choice("", values, kinds(0), kinds=kinds) if chosen else parameter("", values, kinds=kinds)


def unit_number() -> Any:
    """Which unit of its kind runs the operation: no bits where a machine has one."""

    def values(operation: Any, chip: Chip) -> Need:
        units = chip.of_kind(operation.ENGINE)
        return Need(0, max(0, len(units) - 1), f"units {', '.join(u.name for u in units)}")

    return choice("", values)


def dataflow() -> Any:
    """Which of the array's dataflows: no bits where every array has one."""
    return choice("", _array_choice("more_dataflows"))


def depthwise_mode() -> Any:
    """Which of the array's depthwise modes: no bits where every array has one."""
    return choice("", _array_choice("more_depthwise"))


def weight_group() -> Any:
    """How many weights along the reduction share a scale; 0: there are no groups, and no bits where no array has them."""

    def values(operation: Any, chip: Chip) -> Need:
        form = chip.numerics.groups
        return Need(0, max(form.sizes) if form else 0, f"{chip.key('mac_array')}.groups.sizes", GROUP_STEP)

    return choice("", values)


def _array_choice(key: str) -> Values:
    def values(operation: Any, chip: Chip) -> Need:
        most = max((len(getattr(unit.array, key)) for unit in chip.of_kind("mac_array")), default=0)
        return Need(0, most, f"{chip.key('mac_array')}.{key}")

    return values


def code_type() -> Any:
    """The type of an operand's codes, by its number in `chip.code_types`: no bits where a machine has one."""
    return _type_number(ACTIVATION_TYPES)


def weight_type() -> Any:
    """The type of an operation's weights, by its number in `chip.weight_types`: no bits where a machine has one."""
    return _type_number(WEIGHT_TYPES)


def _type_number(types: TypeList) -> Any:
    return choice("", lambda operation, chip: Need(0, len(types.of(chip)) - 1, types.more), names_type=types)


def base_of(address: str) -> Any:
    """The base register that the front end adds to this address, a parameter: 0 for none, and no bits where there are none."""
    return choice("", _bases, adds_to=address)


def operand_base_of(address: str) -> Any:
    """The same of an operand of an array or a vector engine."""
    return field(default=0, metadata={"parameter": Parameter("", _operand_bases, choice=True, adds_to=address)})


def _operand_bases(operation: Any, chip: Chip) -> Need:
    return Need(0, chip.control.bases if chip.control.operand_bases else 0, "control.operand_bases")


def base_number(least: int) -> Any:
    """Of a base register; 0 holds 0."""
    return parameter("", lambda operation, chip: Need(least, max(least, chip.control.bases), "control.bases"))


def _bases(operation: Any, chip: Chip) -> Need:
    return Need(0, chip.control.bases, "control.bases")


def base_offset() -> Any:
    """Bytes by which addresses of any memory may lie apart."""

    def values(operation: Any, chip: Chip) -> Need:
        most = _any_memory(operation, chip)
        return Need(-most.high, most.high, most.reason)

    return parameter("bytes", values)


def base_scale() -> Any:
    """Bytes that an index which is read from memory counts."""
    return parameter("bytes", _any_memory)


def index_limit() -> Any:
    """The largest index that a program takes from memory."""

    def values(operation: Any, chip: Chip) -> Need:
        indirect = chip.control.indirect
        return Need(0, indirect.max_index if indirect else 0, "control.indirect.max_index")

    return parameter("", values)


def word_size() -> Any:
    """Of a number in memory."""
    return parameter("bytes", lambda operation, chip: Need(1, 4, "words of 1, 2 and 4 bytes"))


def repeat_count() -> Any:
    def values(operation: Any, chip: Chip) -> Need:
        repeat = chip.control.repeat
        return Need(1, repeat.max_count if repeat else 1, "control.repeat.max_count")

    return parameter("", values, least=1)


def block_number() -> Any:
    def values(operation: Any, chip: Chip) -> Need:
        call = chip.control.call
        return Need(0, call.blocks - 1 if call else 0, "control.call.blocks")

    return parameter("", values)


def dma_channel() -> Any:
    return parameter("", lambda operation, chip: Need(0, len(chip.of_kind("dma")) - 1, f"{chip.key('dma')}.channels"))


def engine_of_sync() -> Any:
    return parameter("", lambda operation, chip: Need(0, len(chip.units) - 1, f"units {', '.join(u.name for u in chip.units)}"))


def semaphore() -> Any:
    return parameter("", lambda operation, chip: Need(0, chip.sync.semaphores - 1, "sync.semaphores"))
