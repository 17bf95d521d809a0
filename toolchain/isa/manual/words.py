"""The manual's sections on words and registers: where the bits of a program lie. Other sections use its texts of
fields.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolchain.isa.encoding import BitField, slot
from toolchain.isa.instruction_table import DescriptorTable, RegisterTable
from toolchain.isa.machine import Machine
from toolchain.isa.manual.figures import Fields, Figure


def bits_text(bits: tuple[int, int]) -> str:
    """Return bits as `7:0`, or as `3` for a single one."""
    return f"{bits[0]}:{bits[1]}" if bits[0] != bits[1] else f"{bits[0]}"


def bits_named(bits: tuple[int, int]) -> str:
    """Return bits as `bits 7:0`, or as `bit 3`."""
    return f"{'bits' if bits[0] != bits[1] else 'bit'} {bits_text(bits)}"


def value_text(s: BitField) -> str:
    """Return how a field's value follows from what is stored."""
    text = "signed" if s.signed else "stored"
    text += f" * {s.step}" if s.step != 1 else ""
    return f"{text} {'+' if s.bias > 0 else '-'} {abs(s.bias)}" if s.bias else text


def place_text(s: BitField) -> str:
    """Return the text of where a field lies."""
    return bits_text((s.low + s.width - 1, s.low)) + (f" of {s.register}" if s.register else "")


def words(machine: Machine) -> Iterator[str | Figure]:
    """Yield the sections on forms of words and, for such machines, on registers."""
    table = machine.isa.table
    yield "## Words"
    yield (
        f"A program is a row of words of {table.word_bits} bits, {machine.isa.word_bytes} bytes each, least significant byte "
        "first, without gaps. The front end reads them from the first on, one after another. Bits are counted from 0, the "
        "least significant. Reserved bits are 0; a word that has one set, an opcode that is none, and a word behind `end` are "
        "faults."
    )
    yield (
        "A field's value follows from the number that is stored in its bits: `stored` is that number, `signed` the same as two's "
        "complement; a step and a bias stand behind it (`stored * 8`, `stored + 1`)."
    )
    yield from _descriptor(table) if isinstance(table, DescriptorTable) else _registers(table)


def _descriptor(table: DescriptorTable) -> Iterator[str | Figure]:
    yield (
        f"One word is one operation. The opcode is in {bits_named(table.opcode)}; where the parameters of each lie is in "
        "its table. Every word stands alone: nothing of one is left for the next."
    )
    fields = [("opcode", *table.opcode)]
    if table.sync:
        bits_by_field = {
            "wait": table.sync.wait,
            "wait_semaphore": table.sync.wait_semaphore,
            "signal": table.sync.signal,
            "signal_semaphore": table.sync.signal_semaphore,
        }
        yield (
            "A word of an operation that runs on an engine can carry a wait in front of it and a signal behind it, on its own "
            f"engine: where {bits_named(bits_by_field['wait'])} (wait) is 1, the engine first waits for the semaphore of the "
            "number "
            f"in {bits_named(bits_by_field['wait_semaphore'])}; where {bits_named(bits_by_field['signal'])} (signal) is 1, "
            "it signals "
            f"the semaphore in {bits_named(bits_by_field['signal_semaphore'])} when the operation has ended. It is the same "
            "as an "
            "operation `wait` before and an operation `signal` after it."
        )
        fields += [(name, *bits) for name, bits in bits_by_field.items()]
    yield Fields("What every word has.", tuple(sorted(fields, key=lambda f: -f[1])))


def _registers(table: RegisterTable) -> Iterator[str | Figure]:
    write, start = table.write, table.start
    width = write.value[0] - write.value[1] + 1
    yield (
        f"There are two forms of words. A **write word** has {write.tag.value} in {bits_named(write.tag.bits)}, a "
        f"register's address in {bits_named(write.register_)} and {width} bits of its value in bits "
        f"{bits_text(write.value)}. A **start word** has {start.tag.value} in {bits_named(start.tag.bits)} and the opcode "
        f"in {bits_named(start.opcode)}."
    )
    yield Fields(
        "A write word.", _sort_fields([("tag", *write.tag.bits), ("address", *write.register_), ("value", *write.value)])
    )
    yield Fields(
        "A start word.",
        _sort_fields([("tag", *start.tag.bits), ("opcode", *start.opcode), ("parameters", start.opcode[1] - 1, 0)]),
    )
    yield (
        "A start word starts one operation, which takes its parameters from its own word and from the registers as they are "
        "then; later writes do not change it. Registers keep their values from one operation to the next, and hold nothing of "
        "use before their first write. The order of writes before a start does not matter."
    )
    wide = {name: register for name, register in table.registers.items() if register.words > 1}
    if wide:
        yield (
            f"A register of several addresses is wider than a write word's {width} bits: the first address holds its bits "
            f"{width - 1}:0, the next one bits {2 * width - 1}:{width}, and so on. Each is written by a word of its own, in "
            "any order, and keeps what it holds when another is written."
        )
    yield "## Registers"
    rows = ["| address | register | bits | field | value |", "|---|---|---|---|---|"]
    for name, register in sorted(table.registers.items(), key=lambda item: item[1].address):
        last = register.address + register.words - 1
        address = f"{register.address:#04x}" if register.words == 1 else f"{register.address:#04x} to {last:#04x}"
        for field, bits in register.fields.items():
            rows.append(f"| {address} | {name} | {bits_text(bits.bits)} | {field} | {value_text(slot(field, bits))} |")
            address = ""
    yield "\n".join(rows)


def _sort_fields(fields: list[tuple[str, int, int]]) -> tuple[tuple[str, int, int], ...]:
    return tuple(sorted(fields, key=lambda f: -f[1]))
