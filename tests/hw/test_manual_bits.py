"""Check that a manual's text on bits is enough to read programs.

Decoded by its tables alone, every case has its original parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.accumulator_machines import emitting
from tests.support.control_flow_machines import with_control
from tests.support.instructions import cases_of
from tests.support.machine_variants import with_keys
from toolchain.isa import Machine, load_machine
from toolchain.isa.manual import manual
from toolchain.vectors import instruction_cases

SHIPPED = ("edge16", "ethos_u55_256", "transformer64", "ws8_pow2")  # of each table one
MACHINES = {name: load_machine(name) for name in SHIPPED}
MACHINES["emitting"] = emitting(load_machine("edge16"))
MACHINES["control"] = with_control(load_machine("edge16"), "registers", 64)
MACHINES["granules"] = with_keys(load_machine("edge16"), layout={"feature_maps": {"granule": 16, "order": "line"}})


@dataclass(frozen=True)
class Field:
    """A row of a table of fields: bits of a register, or of the word ("")."""

    high: int
    low: int
    register: str
    signed: bool
    step: int
    bias: int

    def read(self, content: int) -> int:
        width = self.high - self.low + 1
        stored = content >> self.low & (1 << width) - 1
        if self.signed and stored >> width - 1:
            stored -= 1 << width
        return stored * self.step + self.bias


def field(bits: str, value: str) -> Field:
    place, _, register = bits.partition(" of ")
    high, _, low = place.partition(":")
    match = re.fullmatch(r"(stored|signed)(?: \* (\d+))?(?: ([+-]) (\d+))?", value)
    assert match is not None, value
    sign, step, side, bias = match.groups()
    return Field(int(high), int(low or high), register, sign == "signed", int(step or 1), int((side or "") + (bias or "0")))


def rows(text: str, head: str) -> Iterator[list[str]]:
    """Cells of the rows of the table that begins with this line."""
    table = text.partition(head + "\n")[2].partition("\n\n")[0].splitlines()
    yield from ([cell.strip() for cell in line.strip("|").split("|")] for line in table[1:])


@dataclass(frozen=True)
class Read:
    """A manual, read: operations by opcode, each with its fields and what has one value; registers by address."""

    operations: dict[int, tuple[str, dict[str, Field], dict[str, int]]]
    registers: dict[str, range]
    word_bytes: int
    opcode: tuple[int, int]
    tag: tuple[int, int] | None
    address: tuple[int, int]
    value: tuple[int, int]
    carried: dict[str, tuple[int, int]]


def bits(text: str) -> tuple[int, int]:
    high, _, low = text.partition(":")
    return int(high), int(low or high)


def read(text: str) -> Read:
    operations = {}
    for part in re.split(r"(?m)^### ", text.partition("\n## Operations\n")[2])[1:]:
        name, opcode = re.match(r"(\w+) \(opcode (\d+)\)", part).groups()  # type: ignore[union-attr]
        fields = {r[0]: field(r[1], r[2]) for r in rows(part, "| parameter | bits | value | range | used | unit |")}
        once = part.partition("which have no bits: ")[2].partition(".\n")[0].split(", ")
        operations[int(opcode)] = name, fields, {p.split()[0]: int(p.split()[1]) for p in once if p}
    registers = {}
    for address, name, *_ in rows(text, "| address | register | bits | field | value |"):
        if address:
            first, _, last = address.partition(" to ")
            registers[name] = range(int(first, 16), int(last or first, 16) + 1)
    words = text.partition("\n## Words\n")[2].partition("\n## ")[0]
    size = int(re.search(r"bits, (\d+) bytes each", words)[1])  # type: ignore[index]
    drawn = {n: bits(b) for b, n in re.findall(r"(?m)^ +([\d:]+)  (\w+)$", words)}
    tag = drawn.get("tag")
    carried = {n: b for n, b in drawn.items() if n in ("wait", "wait_semaphore", "signal", "signal_semaphore")}
    return Read(
        operations, registers, size, drawn["opcode"], tag, drawn.get("address", (0, 0)), drawn.get("value", (0, 0)), carried
    )


def cut(word: int, place: tuple[int, int]) -> int:
    return word >> place[1] & (1 << place[0] - place[1] + 1) - 1


def decode_program(program: bytes, tables: Read) -> Iterator[tuple[str, dict[str, int]]]:
    """Name and parameters of each operation, those that a word carries beside its own among them."""
    byte_by_address: dict[int, int] = {}
    width = tables.value[0] - tables.value[1] + 1
    for at in range(0, len(program), tables.word_bytes):
        word = int.from_bytes(program[at : at + tables.word_bytes], "little")
        if tables.tag and cut(word, tables.tag):
            byte_by_address[cut(word, tables.address)] = cut(word, tables.value)
            continue
        name, fields, once = tables.operations[cut(word, tables.opcode)]
        wholes = {
            r: sum(byte_by_address[a] << width * i for i, a in enumerate(tables.registers[r]))
            for r in {f.register for f in fields.values()} - {""}
        }
        if tables.carried and cut(word, tables.carried["wait"]):
            yield "wait", {"semaphore": cut(word, tables.carried["wait_semaphore"])}
        yield name, {p: f.read(wholes.get(f.register, word)) for p, f in fields.items()} | once
        if tables.carried and cut(word, tables.carried["signal"]):
            yield "signal", {"semaphore": cut(word, tables.carried["signal_semaphore"])}


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_programs_read_by_the_manual_are_what_was_written(name: str) -> None:
    machine: Machine = MACHINES[name]
    tables = read(manual(machine))
    count = 0
    for case in cases_of(name) if name in SHIPPED else instruction_cases(machine):
        operations = [*decode_program(case.words, tables)]
        assert [n for n, _ in operations] == [op.NAME for op in case.ops], case.name
        for op, (_, parameters) in zip(case.ops, operations):
            assert all(int(getattr(op, p)) == value for p, value in parameters.items()), (case.name, op.NAME)
            assert set(parameters) == {*op.parameters()} or op.NAME in ("wait", "signal")
            count += 1
    assert count > 150
