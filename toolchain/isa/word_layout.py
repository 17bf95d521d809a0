"""Check an instruction table by itself: every bit is a field or reserved, none overlap, no two encodings are equal.

Whether it suits a chip is checked by `isa.encoding_needs`.
Types: `Broken` is (path of a key, reason); `Span` is (what lies there, its bits, path of the key that says so).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from toolchain.hw import KeyPath, suggest
from toolchain.isa.encoding import WIDEST_FIELD, WIDEST_VALUE, slot
from toolchain.isa.instruction_table import Bits, DescriptorTable, FieldBits, Register, RegisterTable, Row, Table
from toolchain.machine.registry import OPERATIONS

Broken = tuple[KeyPath, str]
Span = tuple[str, Bits, KeyPath]


def broken_layout(table: Table) -> list[Broken]:
    """Return every rule that the table breaks, as (path of the key, reason); empty where it is sound."""
    row_faults = [*_opcodes(table), *_rows(table)]
    if isinstance(table, RegisterTable):
        return [*_forms(table), *_registers(table), *row_faults]
    return [*_descriptor_header(table), *row_faults]


def cover(width: int, spans: Iterable[Span], word_path: KeyPath) -> Iterator[Broken]:
    """Yield faults of spans in a word of `width` bits: outside it, overlapping, or bits that no span names.

    `word_path`: the path for faults of the word as a whole.
    """
    good: list[Span] = []
    for name, (high, low), path in spans:
        if low > high:
            yield path, f"bits [{high}, {low}]: write the high bit first"
        elif high >= width:
            yield path, f"bits [{high}, {low}] lie outside the {width} bits"
        else:
            good.append((name, (high, low), path))
    good.sort(key=lambda span: (span[1][1], span[1][0]))
    next_bit, last = 0, ""
    for name, (high, low), path in good:
        if low < next_bit:
            yield path, f"bits [{high}, {low}] overlap {last}"
        elif low > next_bit:
            yield word_path, f"bits [{low - 1}, {next_bit}] are neither a field nor reserved"
        if high >= next_bit:
            next_bit, last = high + 1, name
    if next_bit < width:
        yield word_path, f"bits [{width - 1}, {next_bit}] are neither a field nor reserved"


def _fields(fields: Mapping[str, FieldBits], path: KeyPath) -> Iterator[Span]:
    """Yield the span of each field."""
    for name, field in fields.items():
        yield name, field.bits, (*path, name, "bits")


def _list_reserved_spans(reserved: tuple[Bits, ...], path: KeyPath) -> Iterator[Span]:
    """Yield the span of each entry of `reserved`."""
    for i, bits in enumerate(reserved):
        yield f"reserved[{i}]", bits, (*path, "reserved", i)


def _field_widths(fields: Mapping[str, FieldBits], path: KeyPath) -> Iterator[Broken]:
    """Yield fields that are wider than the codecs take."""
    for name, field in fields.items():
        width = field.bits[0] - field.bits[1] + 1
        if width > WIDEST_FIELD:
            yield (*path, name, "bits"), f"{width} bits; a field has at most {WIDEST_FIELD}"


def _opcodes(table: Table) -> Iterator[Broken]:
    """Yield opcodes that do not fit their bits or occur twice."""
    high, low = table.opcode if isinstance(table, DescriptorTable) else table.start.opcode
    largest = (1 << max(0, high - low + 1)) - 1
    owners: dict[int, str] = {}
    for name, row in table.operations.items():
        path: KeyPath = ("operations", name, "opcode")
        if row.opcode > largest:
            yield path, f"{row.opcode} does not fit the opcode's bits [{high}, {low}] (0 to {largest})"
        if row.opcode in owners:
            yield path, f"{row.opcode} is also the opcode of {owners[row.opcode]}: two encodings alike"
        owners.setdefault(row.opcode, name)


def _forms(table: RegisterTable) -> Iterator[Broken]:
    """Yield faults of write and start words: bits, tags, and the width of a value."""
    write, start = table.write, table.start
    spans = [
        ("tag", write.tag.bits, ("write", "tag", "bits")),
        ("register", write.register_, ("write", "register")),
        ("value", write.value, ("write", "value")),
        *_list_reserved_spans(write.reserved, ("write",)),
    ]
    yield from cover(table.word_bits, spans, ("write",))
    for form, tag in (("write", write.tag), ("start", start.tag)):
        width = tag.bits[0] - tag.bits[1] + 1
        if width < 1 or tag.value >= 1 << width:
            yield (form, "tag", "value"), f"{tag.value} does not fit bits [{tag.bits[0]}, {tag.bits[1]}]"
    if write.tag.bits != start.tag.bits:
        yield ("start", "tag", "bits"), "must be the bits of write.tag, which tells the two words apart"
    elif write.tag.value == start.tag.value:
        yield ("start", "tag", "value"), f"{start.tag.value} is also the tag of write: two encodings alike"
    width = write.value[0] - write.value[1] + 1
    if width > WIDEST_VALUE:
        yield ("write", "value"), f"{width} bits; at most {WIDEST_VALUE}"


def _registers(table: RegisterTable) -> Iterator[Broken]:
    """Yield faults of registers: addresses, widths, bits, and registers that no operation uses."""
    part_bits = max(1, table.write.value[0] - table.write.value[1] + 1)
    last = (1 << max(0, table.write.register_[0] - table.write.register_[1] + 1)) - 1
    owners: dict[int, str] = {}
    for name, register in table.registers.items():
        path: KeyPath = ("registers", name)
        for address in range(register.address, register.address + register.words):
            if address > last:
                yield (*path, "address"), f"{address} does not fit the register bits of a write word (0 to {last})"
            if address in owners:
                yield (*path, "address"), f"{address} is also an address of {owners[address]}: two encodings alike"
            owners.setdefault(address, name)
        yield from _field_widths(register.fields, (*path, "fields"))
        yield from _register_cover(register, part_bits, path)
    used = {target for row in table.operations.values() for target in (*row.bind.values(), *row.constants)}
    used_registers = {target.partition(".")[0] for target in used}
    for name in table.registers:
        if name not in used_registers:
            yield ("registers", name), "no operation uses it"


def _register_cover(register: Register, part_bits: int, path: KeyPath) -> Iterator[Broken]:
    """Yield faults of a register's bits."""
    spans = [*_fields(register.fields, (*path, "fields")), *_list_reserved_spans(register.reserved, path)]
    yield from cover(part_bits * register.words, spans, path)


def _descriptor_header(table: DescriptorTable) -> Iterator[Broken]:
    """Yield flags of a descriptor's wait and signal that are not one bit."""
    if table.sync:
        for name in ("wait", "signal"):
            high, low = getattr(table.sync, name)
            if high != low:
                yield ("sync", name), f"bits [{high}, {low}]: must be one bit"


def _rows(table: Table) -> Iterator[Broken]:
    """Yield faults of operations: unknown names, parameters bound twice or not at all, and bits of their words."""
    for name, row in table.operations.items():
        path: KeyPath = ("operations", name)
        if name not in OPERATIONS:
            yield path, f"no such operation{suggest(name, OPERATIONS)}"
            continue
        yield from _bound_once(name, row, path)
        yield from _field_widths(row.fields, (*path, "fields"))
        spans = [*_word_header(table), *_fields(row.fields, (*path, "fields")), *_list_reserved_spans(row.reserved, path)]
        yield from cover(table.word_bits, spans, path)
        if isinstance(table, RegisterTable):
            yield from _targets(row, table, path)


def _word_header(table: Table) -> Iterator[Span]:
    """Yield the spans that all words of operations have."""
    if isinstance(table, RegisterTable):
        yield "tag", table.start.tag.bits, ("start", "tag", "bits")
        yield "opcode", table.start.opcode, ("start", "opcode")
        return
    yield "opcode", table.opcode, ("opcode",)
    if table.sync:
        for name in ("wait", "wait_semaphore", "signal", "signal_semaphore"):
            yield f"sync.{name}", getattr(table.sync, name), ("sync", name)


def _bound_once(name: str, row: Row, path: KeyPath) -> Iterator[Broken]:
    """Yield parameters of an operation that are unknown, bound twice, or bound to nothing."""
    parameters = OPERATIONS[name].parameters()
    places: dict[str, str] = {}
    for place in ("fields", "bind", "fixed"):
        for parameter in getattr(row, place, {}):
            if parameter not in parameters:
                yield (*path, place, parameter), f"{name} has no such parameter{suggest(parameter, parameters)}"
            elif parameter in places:
                yield (*path, place, parameter), f"is bound twice, in {places[parameter]} too"
            places.setdefault(parameter, place)
    for parameter, parameter_info in OPERATIONS[name].get_descriptions().items():
        if parameter not in places and not parameter_info.choice:
            yield path, f"parameter {parameter} is bound to nothing; give it bits, or a fixed value"


def _targets(row: Any, table: RegisterTable, path: KeyPath) -> Iterator[Broken]:
    """Yield register fields of an operation that are unknown, bound twice, left open, or too narrow for their constant."""
    owners: dict[str, str] = {}
    register_fields = [f"{register}.{field}" for register, r in table.registers.items() for field in r.fields]
    for place, target, key in [("bind", t, p) for p, t in row.bind.items()] + [("constants", t, t) for t in row.constants]:
        if target not in register_fields:
            yield (*path, place, key), f"no register field {target}{_near(target, register_fields)}"
        elif target in owners:
            yield (*path, place, key), f"{target} is bound twice, to {owners[target]} too"
        elif place == "constants":
            register, _, field = target.partition(".")
            bits = slot(target, table.registers[register].fields[field])
            if not bits.holds(row.constants[target]):
                yield (*path, place, key), f"{row.constants[target]} does not fit {target} ({bits.lowest} to {bits.highest})"
        owners.setdefault(target, key)
    touched = {target.partition(".")[0] for target in owners}
    for target in register_fields:
        if target.partition(".")[0] in touched and target not in owners:
            yield path, f"{target} is left open; bind it, or give it in constants"


def _near(target: str, candidates: list[str]) -> str:
    """Return a hint at the nearest candidate; "" where none is near."""
    text = suggest(target, candidates)
    return text if "did you mean" in text else ""
