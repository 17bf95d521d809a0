"""Programs as text and back, word for word.

    isa registers64
    00000: write IFM_BASE = 0x000040001200     ; address=4608 row_stride=64
    00001: start convolution accumulate=0 emit=1  ; op 0 layer

    isa descriptors1024
    00000: convolution wait=3 signal=4  ; op 0-2 layer
           input_address=4608 input_row_stride=64 ...

After `;` to the end of a line is comment, the word number before `:` is for the reader; so is the operation's number, by which
the simulator names it (a wait and a signal that a descriptor carries are operations too). A value of several words is written
part by part: `write ADDRESS.1 = 0x2`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from toolchain.bounds import LISTING_LINES, NUMBER_CHARACTERS
from toolchain.errors import CompileError, ProgramError
from toolchain.isa import descriptors, registers
from toolchain.isa.columns import Words, any_set, get, get_bits, words_to_bytes
from toolchain.isa.descriptors import Descriptor
from toolchain.isa.plan import BitField, Isa, OperationPlan, slot
from toolchain.isa.registers import Part, part_name, register_table
from toolchain.isa.table import Bits, DescriptorTable, RegisterTable, width_of
from toolchain.machine.registry import OPERATIONS

_LINE_WIDTH = 120
_LABEL = re.compile(r"^\s*[0-9]+:")
_WRITE = re.compile(r"^write\s+([A-Z][A-Z0-9_]*(?:\.[0-9]+)?)\s*=\s*(\S+)$")


def disassemble(program: bytes, isa: Isa, comments: Sequence[str] = ()) -> str:
    """The listing of a program; comments[i] is shown at the i-th operation. Raises ProgramError for a word that is none."""
    if isinstance(isa.table, DescriptorTable):
        lines = _descriptor_lines(program, isa, comments)
    else:
        lines = _register_lines(program, isa, comments)
    return "".join(f"{line}\n" for line in (f"isa {isa.name}", *lines))


def assemble(text: str, isa: Isa) -> bytes:
    """The program of a listing; assemble(disassemble(p)) == p. Raises ProgramError naming the line."""
    statements = list(_statements(text, isa))
    if isinstance(isa.table, DescriptorTable):
        found = [_descriptor(line, statement, isa) for line, statement in statements]
        try:
            return descriptors.pack(found, isa)
        except CompileError as fault:
            raise ProgramError(f"listing: {fault}") from None
    targets = _write_targets(isa)
    words = [_register_word(line, statement, isa, targets) for line, statement in statements]
    return b"".join(word.to_bytes(isa.word_bytes, "little") for word in words)


def split_listings(text: str) -> list[str]:
    """The listings of a text that holds several, each from its line `isa NAME` on, with its place in the whole kept.

    Raises ProgramError where it is too long."""
    count = text.count("\n")
    if count > LISTING_LINES:
        raise ProgramError(f"listing: has {count:,} lines, {LISTING_LINES:,} are the most")
    lines = text.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.split()[:1] == ["isa"]]
    # Empty lines stand for what comes before, so that a fault names the line of the whole text.
    return ["\n" * start + "".join(lines[start:end]) for start, end in zip(starts, [*starts[1:], len(lines)])]


def _write_targets(isa: Isa) -> dict[str, tuple[int, Part]]:
    """By the name a listing uses: the write word of value 0, and the register's part."""
    table = register_table(isa)
    parts = registers.all_parts(isa).values()
    addresses = np.array([part.address for part in parts], np.uint64)
    words = words_to_bytes(registers.write_words(addresses, np.zeros(len(addresses), np.uint64), table), isa.word_bytes)
    size = isa.word_bytes
    return {
        part_name(part, table): (int.from_bytes(words[i * size : (i + 1) * size], "little"), part) for i, part in enumerate(parts)
    }


def _comment(comments: Sequence[str], index: int, first: int, last: int) -> str:
    """Of operation `index`, which stands with its wait and its signal as operations first..last."""
    # A name is the model's: it must not end the comment's line.
    text = " ".join(comments[index].split()) if index < len(comments) else ""
    return f"  ; op {first}{f'-{last}' if last > first else ''}{f' {text}' if text else ''}"


def _descriptor_lines(program: bytes, isa: Isa, comments: Sequence[str]) -> Iterator[str]:
    index = 0
    for place, descriptor in enumerate(descriptors.unpack(program, isa)):
        op = descriptor.op
        own, first = index + (descriptor.wait is not None), index
        index += len(descriptor.unfolded(isa))
        sync = "".join(f" {n}={v}" for n, v in (("wait", descriptor.wait), ("signal", descriptor.signal)) if v is not None)
        yield f"{place:05d}: {op.NAME}{sync}{_comment(comments, own, first, index - 1)}"
        words = [f"{s.name}={int(getattr(op, s.name))}" for s in isa.plans[op.NAME].slots]
        yield from _wrapped(words)


def _wrapped(words: list[str]) -> Iterator[str]:
    line = ""
    for word in words:
        if line and len(line) + len(word) > _LINE_WIDTH:
            yield line
            line = ""
        line = f"{line} {word}" if line else f"       {word}"
    if line:
        yield line


def _register_lines(program: bytes, isa: Isa, comments: Sequence[str]) -> Iterator[str]:
    table = register_table(isa)
    written = registers.split(program, isa)
    parts = registers.all_parts(isa)
    lines: dict[int, str] = {}
    for place, address, value in zip(written.write_places.tolist(), written.addresses.tolist(), written.values.tolist()):
        part = parts[address]
        note = _field_note(part.register, value, table) if table.registers[part.register].words == 1 else ""
        lines[place] = f"{place:05d}: write {part_name(part, table)} = {value:#x}{note}"
    for index, place in enumerate(written.start_places.tolist()):
        word = written.starts[index : index + 1]
        plan = _started(word, place, isa)
        fields = "".join(f" {s.name}={int(get(word, s)[0])}" for s in plan.slots if s.register is None)
        lines[place] = f"{place:05d}: start {plan.operation.NAME}{fields}{_comment(comments, index, index, index)}"
    return (lines[place] for place in sorted(lines))


def _field_note(register: str, value: int, table: RegisterTable) -> str:
    fields = table.registers[register].fields
    shown = (f"{name}={(s := slot(name, f)).value(value >> s.low & s.mask)}" for name, f in fields.items())
    return f"  ; {' '.join(shown)}"


def _started(word: Words, place: int, isa: Isa) -> OperationPlan:
    table = register_table(isa)
    high, low = table.start.opcode
    opcode = int(get_bits(word, low, high - low + 1)[0])
    plan = isa.by_opcode.get(opcode)
    if plan is None:
        raise ProgramError(f"instruction word {place}: opcode {opcode} is unknown (instruction set {isa.name})")
    for high, low in table.operations[plan.operation.NAME].reserved:
        if any_set(word, low, high)[0]:
            raise ProgramError(f"instruction word {place}: {plan.operation.NAME} has reserved bits [{high}, {low}] set")
    return plan


def _statements(text: str, isa: Isa) -> Iterator[tuple[int, str]]:
    """(line number, statement) with comments and labels off and continued lines joined."""
    pending: tuple[int, str] | None = None
    named = False
    for number, raw in enumerate(text.splitlines(), 1):
        body = raw.partition(";")[0].rstrip()
        if not body.strip():
            continue
        if not named:
            if body.split() != ["isa", isa.name]:
                raise ProgramError(f"listing line {number}: must be 'isa {isa.name}', got {body.strip()[:40]!r}")
            named = True
        elif body[0].isspace() and pending and not _LABEL.match(body):
            pending = (pending[0], f"{pending[1]} {body.strip()}")
        else:
            if pending:
                yield pending
            pending = (number, _LABEL.sub("", body).strip())
    if not named:
        raise ProgramError(f"listing: is empty; its first line must be 'isa {isa.name}'")
    if pending:
        yield pending


def _descriptor(line: int, statement: str, isa: Isa) -> Descriptor:
    name, *words = statement.split() or [""]
    plan = _known_plan(line, name, isa)
    values = _assignments(line, words)
    wait, signal = values.pop("wait", None), values.pop("signal", None)
    _refuse_unfit(line, plan, values, plan.slots)
    sync = isa.table.sync if isinstance(isa.table, DescriptorTable) else None
    for key, semaphore, bits in (
        ("wait", wait, sync and sync.wait_semaphore),
        ("signal", signal, sync and sync.signal_semaphore),
    ):
        if semaphore is not None:
            _refuse_semaphore(line, name, key, semaphore, bits)
    return Descriptor(OPERATIONS[name](**values, **dict(plan.fixed)), wait, signal)


def _refuse_semaphore(line: int, name: str, key: str, semaphore: int, bits: Bits | None) -> None:
    if bits is None or OPERATIONS[name].ENGINE is None:
        raise ProgramError(f"listing line {line}: {name} cannot carry a {key}")
    largest = (1 << width_of(bits)) - 1
    if not 0 <= semaphore <= largest:
        raise ProgramError(f"listing line {line}: {key}={semaphore} does not fit (0 to {largest})")


def _register_word(line: int, statement: str, isa: Isa, targets: dict[str, tuple[int, Part]]) -> int:
    table = register_table(isa)
    match = _WRITE.match(statement)
    if match:
        return _write_word(line, match.group(1), match.group(2), table, targets)
    verb, *words = statement.split()
    if verb != "start" or not words:
        raise ProgramError(
            f"listing line {line}: must be 'write REGISTER = VALUE' or 'start OPERATION ...', got {statement[:40]!r}"
        )
    plan = _known_plan(line, words[0], isa)
    direct = tuple(s for s in plan.slots if s.register is None)
    values = _assignments(line, words[1:])
    _refuse_unfit(line, plan, values, direct)
    word = table.start.tag.value << table.start.tag.bits[1] | plan.opcode << table.start.opcode[1]
    for s in direct:
        word |= s.stored(values[s.name]) << s.low
    return word


def _write_word(line: int, name: str, value_text: str, table: RegisterTable, targets: dict[str, tuple[int, Part]]) -> int:
    if name not in targets:
        known = [n for n in targets if n.partition(".")[0] == name.partition(".")[0]]
        raise ProgramError(f"listing line {line}: there is no register {name}{'; it has ' if known else ''}{', '.join(known)}")
    word, part = targets[name]
    value = _number(line, value_text)
    high, low = table.write.value
    if not 0 <= value < 1 << (high - low + 1):
        raise ProgramError(f"listing line {line}: {name} = {value} does not fit (0 to {(1 << (high - low + 1)) - 1})")
    if value & part.reserved_mask:
        raise ProgramError(f"listing line {line}: reserved bits of {name} are set")
    return word | value << low


def _known_plan(line: int, name: str, isa: Isa) -> OperationPlan:
    plan = isa.plans.get(name)
    if plan is None:
        raise ProgramError(f"listing line {line}: no operation {name!r}; {isa.name} has {', '.join(isa.plans)}")
    return plan


def _assignments(line: int, words: list[str]) -> dict[str, int]:
    values: dict[str, int] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name in values:
            raise ProgramError(f"listing line {line}: {word!r} {'is given twice' if equals else 'is not NAME=VALUE'}")
        values[name] = _number(line, text)
    return values


def _number(line: int, text: str) -> int:
    if len(text) > NUMBER_CHARACTERS:
        raise ProgramError(f"listing line {line}: a number of {len(text):,} characters; {NUMBER_CHARACTERS} are the most")
    try:
        return int(text, 0)
    except ValueError:
        raise ProgramError(f"listing line {line}: {text!r} is not a whole number") from None


def _refuse_unfit(line: int, plan: OperationPlan, values: dict[str, int], slots: Sequence[BitField]) -> None:
    name = plan.operation.NAME
    by_name = {s.name: s for s in slots}
    for key, value in values.items():
        if key not in by_name:
            raise ProgramError(f"listing line {line}: {name} has no field {key}")
        s = by_name[key]
        if not s.holds(value):
            raise ProgramError(f"listing line {line}: {key}={value} does not fit its {s.width} bits ({s.lowest} to {s.highest})")
    missing = [key for key in by_name if key not in values]
    if missing:
        raise ProgramError(f"listing line {line}: {name} lacks {', '.join(missing)}")
