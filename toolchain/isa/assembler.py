"""Encode machine operations as a program's bytes, decode them, and assemble listings.

`encode` and `decode` choose the codec by the kind of table: `isa.descriptors` or `isa.registers`. `assemble` reads the
text that `isa.listing` writes, and says in each fault which line is wrong. The first line names the instruction set,
`isa NAME`; numbers before `:` and text after `;` are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from toolchain.errors import CompileError, ProgramError, format_count
from toolchain.input_limits import LISTING_LINES, NUMBER_CHARACTERS
from toolchain.isa import descriptors, registers
from toolchain.isa.columns import words_to_bytes
from toolchain.isa.descriptors import Descriptor
from toolchain.isa.encoding import BitField, Isa, OperationPlan
from toolchain.isa.instruction_table import Bits, DescriptorTable, RegisterTable, width_of
from toolchain.isa.registers import RegisterPart, part_name, register_table
from toolchain.machine import MachineOp
from toolchain.machine.registry import OPERATIONS

_LABEL = re.compile(r"^\s*[0-9]+:")
_WRITE = re.compile(r"^write\s+([A-Z][A-Z0-9_]*(?:\.[0-9]+)?)\s*=\s*(\S+)$")


@dataclass(frozen=True)
class AssembledProgram:
    """A program that was assembled from a listing. `layers`: the layer of each operation, -1 where the listing says
    none.
    """

    program: bytes
    layers: tuple[int, ...]


def assemble(text: str, isa: Isa) -> bytes:
    """Return the program of a listing. assemble(disassemble(p)) == p. Raise ProgramError, which names the line."""
    return assemble_words(text, isa, None).program


def assemble_words(text: str, isa: Isa, layers: int | None) -> AssembledProgram:
    """Return the program of a listing with the layers that it names. Raise ProgramError, which names the line.

    `layers`: number of layers that there are; None: any number.
    """
    all_layers: list[int] = []
    if isinstance(isa.table, DescriptorTable):
        instructions: list[Descriptor] = []
        for line, statement in _statements(text, isa):
            rest, operation_layers = _layer(line, statement, layers)
            instructions.append(_descriptor(line, rest, isa))
            all_layers += _spread(line, operation_layers, len(instructions[-1].unfold(isa)))
        try:
            return AssembledProgram(descriptors.pack(instructions, isa), tuple(all_layers))
        except CompileError as fault:
            raise ProgramError(f"listing: {fault}") from None
    targets = _write_targets(isa)
    words: list[int] = []
    for line, statement in _statements(text, isa):
        rest, operation_layers = _layer(line, statement, layers)
        words.append(_register_word(line, rest, isa, targets))
        if rest.split()[0] == "start":
            all_layers += _spread(line, operation_layers, 1)
        elif operation_layers:
            raise ProgramError(f"listing line {line}: a write belongs to no layer; give it at the start word behind it")
    return AssembledProgram(b"".join(word.to_bytes(isa.word_bytes, "little") for word in words), tuple(all_layers))


def _layer(line: int, statement: str, layers: int | None) -> tuple[str, list[int]]:
    """Return the statement without its `layer=`, and the layers that it names. Raise ProgramError where it has two, or
    a layer that there is not.
    """
    layer_words = [word for word in statement.split() if word.startswith("layer=")]
    if not layer_words:
        return statement, []
    if len(layer_words) > 1:
        raise ProgramError(f"listing line {line}: {layer_words[1]!r} is given twice")
    numbers = [-1 if part == "-" else _number(line, part) for part in layer_words[0].removeprefix("layer=").split("/")]
    for layer in numbers:
        if layer < -1 or (layers is not None and layer >= layers):
            layer_range = (
                f"the program has {format_count(layers, 'layer')}, from 0 on" if layers is not None else "layers count from 0"
            )
            raise ProgramError(f"listing line {line}: layer={layer}: {layer_range}; - or nothing is for none")
    return " ".join(word for word in statement.split() if word != layer_words[0]), numbers


def _spread(line: int, layers: list[int], operations: int) -> list[int]:
    """Return a layer for each operation of a word; the wait and the signal that it carries count as operations.

    One layer stands for all of them, none for -1. Raise ProgramError for another number.
    """
    if len(layers) == operations:
        return layers
    if len(layers) > 1:
        raise ProgramError(f"listing line {line}: layer= names {len(layers)} layers for {format_count(operations, 'operation')}")
    return (layers or [-1]) * operations


def split_listings(text: str) -> list[str]:
    """Return the listings of a text with several, each from its line `isa NAME` on; empty where there is no such line.

    Empty lines stand for all text before, so that faults name lines of the whole. Raise ProgramError for a text of too
    many lines.
    """
    count = text.count("\n")
    if count > LISTING_LINES:
        raise ProgramError(f"listing: has {count:,} lines, {LISTING_LINES:,} are the most")
    lines = text.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.split()[:1] == ["isa"]]
    # Empty lines stand for what comes before, so that a fault names the line of the whole text.
    return ["\n" * start + "".join(lines[start:end]) for start, end in zip(starts, [*starts[1:], len(lines)])]


def _write_targets(isa: Isa) -> dict[str, tuple[int, RegisterPart]]:
    """Return (write word of value 0, part of a register) by the name that listings use."""
    table = register_table(isa)
    parts = registers.all_parts(isa).values()
    addresses = np.array([part.address for part in parts], np.uint64)
    words = words_to_bytes(registers.write_words(addresses, np.zeros(len(addresses), np.uint64), table), isa.word_bytes)
    size = isa.word_bytes
    return {
        part_name(part, table): (int.from_bytes(words[i * size : (i + 1) * size], "little"), part) for i, part in enumerate(parts)
    }


def _statements(text: str, isa: Isa) -> Iterator[tuple[int, str]]:
    """Yield (line number, statement) without comments and labels, continued lines joined. Raise ProgramError for
    another first line.
    """
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
            pending = (pending[0], f"{pending[1]} {body}".strip())
        else:
            if pending:
                yield pending
            pending = (number, _LABEL.sub("", body).strip())
    if not named:
        raise ProgramError(f"listing: is empty; its first line must be 'isa {isa.name}'")
    if pending:
        yield pending


def _descriptor(line: int, statement: str, isa: Isa) -> Descriptor:
    """Return the descriptor of a statement. Raise ProgramError for an unknown operation, a missing field, or a value
    that does not fit.
    """
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
    """Raise ProgramError where words of this operation carry no such signal or wait, or the number does not fit."""
    if bits is None or OPERATIONS[name].ENGINE is None:
        raise ProgramError(f"listing line {line}: {name} cannot carry a {key}")
    largest = (1 << width_of(bits)) - 1
    if not 0 <= semaphore <= largest:
        raise ProgramError(f"listing line {line}: {key}={semaphore} does not fit (0 to {largest})")


def _register_word(line: int, statement: str, isa: Isa, targets: dict[str, tuple[int, RegisterPart]]) -> int:
    """Return the word of a statement `write ...` or `start ...`. Raise ProgramError for another one."""
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
        word |= s.get_stored_bits(values[s.name]) << s.low
    return word


def _write_word(line: int, name: str, value_text: str, table: RegisterTable, targets: dict[str, tuple[int, RegisterPart]]) -> int:
    """Return a write word. Raise ProgramError where there is no such register, or the value does not fit it."""
    if name not in targets:
        sibling_parts = [n for n in targets if n.partition(".")[0] == name.partition(".")[0]]
        raise ProgramError(
            f"listing line {line}: there is no register {name}{'; it has ' if sibling_parts else ''}{', '.join(sibling_parts)}"
        )
    word, part = targets[name]
    value = _number(line, value_text)
    high, low = table.write.value
    if not 0 <= value < 1 << (high - low + 1):
        raise ProgramError(f"listing line {line}: {name} = {value} does not fit (0 to {(1 << (high - low + 1)) - 1})")
    if value & part.reserved_mask:
        raise ProgramError(f"listing line {line}: reserved bits of {name} are set")
    return word | value << low


def _known_plan(line: int, name: str, isa: Isa) -> OperationPlan:
    """Return the encoding of an operation. Raise ProgramError where the instruction set lacks it."""
    plan = isa.plans.get(name)
    if plan is None:
        raise ProgramError(f"listing line {line}: no operation {name!r}; {isa.name} has {', '.join(isa.plans)}")
    return plan


def _assignments(line: int, words: list[str]) -> dict[str, int]:
    """Return the values of words NAME=VALUE. Raise ProgramError for another word or a repeated name."""
    values: dict[str, int] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name in values:
            raise ProgramError(f"listing line {line}: {word!r} {'is given twice' if equals else 'is not NAME=VALUE'}")
        values[name] = _number(line, text)
    return values


def _number(line: int, text: str) -> int:
    """Return the number that a text means, in the notations of Python. Raise ProgramError where it is none or too long."""
    if len(text) > NUMBER_CHARACTERS:
        raise ProgramError(f"listing line {line}: a number of {len(text):,} characters; {NUMBER_CHARACTERS} are the most")
    try:
        return int(text, 0)
    except ValueError:
        raise ProgramError(f"listing line {line}: {text!r} is not a whole number") from None


def _refuse_unfit(line: int, plan: OperationPlan, values: dict[str, int], slots: Sequence[BitField]) -> None:
    """Raise ProgramError for unknown or missing fields and values that do not fit. `slots`: the fields to be given."""
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


@dataclass(frozen=True)
class Decoded:
    """The operations of a decoded program.

    `words[i]`: instruction words that are read before ops[i] can start: its register writes and its own word. Of a
    descriptor that carries a wait or a signal, the first operation has 1, the others 0.
    """

    ops: tuple[MachineOp, ...]
    words: tuple[int, ...]


def encode(ops: Sequence[MachineOp], isa: Isa) -> bytes:
    """Return the program of operations, which are in program order.

    Raise CompileError, which names operation, field, value and limit, for a value that does not fit or an operation
    that the table lacks.
    """
    if isinstance(isa.table, DescriptorTable):
        return descriptors.pack(descriptors.fold(ops, isa), isa)
    return registers.pack(ops, isa)


def decode(program: bytes, isa: Isa) -> Decoded:
    """Return the operations of a program. decode(encode(ops)).ops == ops. Raise ProgramError for whatever the machine
    does not accept.
    """
    if not isinstance(isa.table, DescriptorTable):
        ops, words = registers.unpack(program, isa)
        return Decoded(tuple(ops), tuple(words))
    decoded_ops: list[MachineOp] = []
    counts: list[int] = []
    for descriptor in descriptors.unpack(program, isa):
        carried = descriptor.unfold(isa)
        decoded_ops += carried
        counts += [1] + [0] * (len(carried) - 1)
    return Decoded(tuple(decoded_ops), tuple(counts))
