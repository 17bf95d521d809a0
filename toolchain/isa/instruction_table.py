"""The typed instruction table: the keys of a file in `hw_configs/isa/`. Bits are `[high, low]`, both inclusive, 0 the
least.

Classes check names and ranges of single keys; whether fields overlap or lie beyond the word is checked by `isa.word_layout`.
`WORD_BITS` has the widths of words in bits that a table of each kind may have.

There are two kinds. `registers`: a write word sets one register, a start word starts an operation with the values that
the registers hold then. `descriptors`: one wide word holds a whole operation.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from toolchain.hw import TABLE_FORMAT, NonNegative, Section, format_schema

Bits = Annotated[tuple[NonNegative, NonNegative], Field(description="[high, low]", examples=[[31, 26]])]
Reserved = Annotated[tuple[Bits, ...], Field(description="list of [high, low]", examples=[[[31, 26], [15, 12]]])]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
RegisterName = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
FieldPath = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*\.[a-z][a-z0-9_]*$")]
Constant = Annotated[int, Field(ge=-(1 << 48), le=1 << 48)]
WORD_BITS = {"registers": range(16, 1024 + 8, 8), "descriptors": range(64, 4096 + 8, 8)}  # what a word of each kind may have


def _word_bits(kind: str) -> Any:
    allowed = WORD_BITS[kind]
    return Field(ge=allowed[0], le=allowed[-1], multiple_of=allowed.step)


def width_of(bits: Bits) -> int:
    """Return the number of bits from high to low, both inclusive."""
    return bits[0] - bits[1] + 1


class FieldBits(Section):
    """The bits of a field: value = stored * step + bias; stored is two's complement when signed."""

    bits: Bits
    signed: bool = False
    bias: Annotated[int, Field(ge=-(1 << 31), le=1 << 31)] = 0
    step: Annotated[int, Field(ge=1, le=1 << 12)] = 1


class Tag(Section):
    """Bits that tell one form of word from another."""

    bits: Bits
    value: NonNegative


class WriteWord(Section):
    """The form of a word that sets one register: bits of its tag, of the register's address, and of the value."""

    tag: Tag
    register_: Bits = Field(alias="register")
    value: Bits
    reserved: Reserved = ()


class StartWord(Section):
    """The form of a word that starts an operation: bits of its tag and of the opcode."""

    tag: Tag
    opcode: Bits


class Register(Section):
    """A register of `words` addresses, each as wide as a write word's value: the lowest bits at `address`, the next at
    `address` + 1.
    """

    address: NonNegative
    words: Annotated[int, Field(ge=1, le=4)] = 1
    fields: dict[Name, FieldBits]
    reserved: Reserved = ()


class RegisterRow(Section):
    """One operation: `fields` lie in the start word, `bind` names REGISTER.field for the other parameters.

    `constants` are register fields that this operation needs at one value; `fixed` are parameters with one value on
    this machine.
    """

    opcode: NonNegative
    fields: dict[Name, FieldBits] = Field(default_factory=dict)
    bind: dict[Name, FieldPath] = Field(default_factory=dict)
    constants: dict[FieldPath, Constant] = Field(default_factory=dict)
    fixed: dict[Name, Constant] = Field(default_factory=dict)
    reserved: Reserved = ()


class DescriptorRow(Section):
    """One operation: `fields` lie in the descriptor; `fixed` are parameters with one value on this machine."""

    opcode: NonNegative
    fields: dict[Name, FieldBits] = Field(default_factory=dict)
    fixed: dict[Name, Constant] = Field(default_factory=dict)
    reserved: Reserved = ()


class SyncFields(Section):
    """The bits of a descriptor's own wait (before its operation) and signal (after it), both on its engine."""

    wait: Bits
    wait_semaphore: Bits
    signal: Bits
    signal_semaphore: Bits


class RegisterTable(Section):
    """The instruction table of a machine that is programmed by register writes and start words."""

    name: Name
    kind: Literal["registers"]
    description: str = ""
    word_bits: Annotated[int, _word_bits("registers")]
    write: WriteWord
    start: StartWord
    registers: dict[RegisterName, Register]
    operations: dict[Name, RegisterRow]


class DescriptorTable(Section):
    """The instruction table of a machine with one word for each operation. `sync`: words carry a wait and a signal; not
    given: they do not.
    """

    name: Name
    kind: Literal["descriptors"]
    description: str = ""
    word_bits: Annotated[int, _word_bits("descriptors")]
    opcode: Bits
    sync: SyncFields | None = None
    operations: dict[Name, DescriptorRow]


Table = RegisterTable | DescriptorTable
Row = RegisterRow | DescriptorRow
TABLES: dict[str, type[RegisterTable] | type[DescriptorTable]] = {
    "registers": RegisterTable,
    "descriptors": DescriptorTable,
}


def table_schema() -> str:
    """Return the JSON schema of the files `hw_configs/isa/*.yaml` as text, for editors."""
    schema = TypeAdapter(Table).json_schema(by_alias=True)
    for table in (d for d in schema["$defs"].values() if "kind" in d.get("properties", {}) and "word_bits" in d["properties"]):
        table["properties"]["format"] = format_schema(TABLE_FORMAT)
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1, sort_keys=True) + "\n"
