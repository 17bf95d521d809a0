"""Write passages of a machine's manual that several operations share, as blocks of Markdown.

Operations call them in `MachineOp.meaning`; `toolchain.isa.manual` puts the manual together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SUMS
from toolchain.machine.columns import IntOrColumn

# of tables of 513 entries, by the key `numerics.table.interpolation`: entry and place of a code, and what lies there
SEGMENT = "i = floor((q + 32768) / 128),  f = (q + 32768) mod 128"
BETWEEN = {
    "tosa": "table[q] = T[i] + floor(((T[i + 1] - T[i]) f + 64) / 128)",
    "tflite": (
        "table[q] = T[i] + floor((d f + 64) / 128),  d = T[i + 1] - T[i] wrapped to 16 bits; the sum is wrapped to 16 bits"
    ),
}


def formula(*lines: str) -> str:
    """Return a code block of these lines."""
    return "\n".join(["```text", *lines, "```"])


def element(parameter: str, chip: Chip) -> str:
    """Return the bytes of an element of the type that a parameter names, as the manual writes them."""
    first, *others = chip.code_types
    return f"size({parameter})" if others else str(first.size_bytes)


def scale_index(index: str, parameter: str, chip: Chip) -> str:
    """Return an index times the bytes of an element of the type that `parameter` names, as the manual writes it."""
    size = element(parameter, chip)
    return index if size == "1" else f"{size} {index}"


def lies(name: str, indices: str, address: str, chip: Chip, kind: str, stride: str = "") -> str:
    """Return the sentence on where an element such as `in[iy, ix, i]` lies.

    `indices`: the three as the formula writes them. `kind`: the parameter that names the type. `stride`: the parameter
    of the last index, if it has one.
    """
    y, x, c = indices.split(", ")
    stem = address.removesuffix("_address")
    last = f"{c} {stride}" if stride else scale_index(c, kind, chip)
    if chip.layout.feature_maps is not None:
        last = f"channel({c}, {stem}_surface_stride)" + (f", 0 where {stride} is 0" if stride else "")
    return f"{name}[{indices}] lies at  {address} + {y} {stem}_row_stride + {x} {stem}_column_stride + {last}"


def describe_base_registers(names: tuple[tuple[str, str], ...], chip: Chip, operands: bool) -> Iterator[str]:
    """Describe what base registers add to addresses.

    `operands`: of an array or a vector engine, which few machines let have base registers.
    """
    if chip.control.bases and (chip.control.operand_bases or not operands):
        pairs = ", ".join(f"`{base}` to `{address}`" for base, address in names)
        yield (
            f"Base registers are added to addresses ({pairs}): the register of that number, with what it holds when the front "
            "end dispatches the operation; register 0 holds 0."
        )


def sums_in_memory(chip: Chip) -> bool:
    """Return whether all arrays leave their sums in memory, for the operation emit."""
    return all(SUMS in unit.roles for unit in chip.of_kind("mac_array"))


def sums_kept(shape: str, chip: Chip) -> Iterator[str]:
    """Describe the place of an array operation's sums.

    `shape`: shape of the sums, as the formula has it.
    """
    size = chip.array.accumulators.sum_bytes
    if any(SUMS in unit.roles for unit in chip.of_kind("mac_array")):
        yield (
            f"The sums lie in the array's memory of accumulators from `sums_address` on, [{shape}] without gaps, {size} bytes "
            "each, two's complement, least significant byte first. `accumulate` = 1: the sums that lie there are added to; 0: "
            "they are overwritten. Nothing else is written: `emit` is 0, and the operation `emit` takes the sums out."
        )
        return
    yield (
        "`accumulate` = 0: the sums start from 0. `accumulate` = 1: they are added to those that the operation before this "
        f"one on the same array left with `emit` = 0; that one's [{shape}] is the same, element for element. After each "
        "operation every sum is wrapped to the accumulators' width."
    )
    yield (
        "`emit` = 0: the sums stay in the accumulators, and nothing is written to memory; parameters that say how results are "
        "made and where they go are not used. `emit` = 1: results are made and written, and the accumulators hold nothing "
        "afterwards: the array's next operation has `accumulate` = 0. Results are made from the sums of the whole chain, "
        "rounded once."
    )


def chosen(depthwise: bool, chip: Chip) -> Iterator[str]:
    """Describe dataflows and depthwise modes, on machines where an operation may choose one.

    `depthwise`: the operation also chooses a mode.
    """
    arrays = chip.of_kind("mac_array")
    lists = [("dataflow", [unit.array.dataflows for unit in arrays])]
    lists += [("mode", [unit.array.depthwise_modes for unit in arrays])] if depthwise else []
    for parameter, each in lists:
        if max(map(len, each)) == 1:
            continue
        choices = [
            f"{unit.name}: {', '.join(f'{i} {name}' for i, name in enumerate(names))}" for unit, names in zip(arrays, each)
        ]
        same = ", and an operation that accumulates has that of the one before it" if parameter == "dataflow" else ""
        yield f"`{parameter}`: how the array makes the sums ({'; '.join(choices)}). The time hangs on it, no value does{same}."


def has(value: IntOrColumn) -> bool:
    """Return whether programs give a parameter any value but 0."""
    return bool(value)


def kinds_text(names: Mapping[str, IntEnum], chip: Chip) -> str:
    """Return the codes of an enumeration that the machine's vector engines have, such as `0 ADD, 1 SUB`.

    `names`: code by name of the engine's function.
    """
    return ", ".join(f"{names[name].value} {names[name].name}" for name in names if name in chip.functions)
