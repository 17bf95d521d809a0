"""Write programs as listings: text, word for word, which `toolchain.isa.assembler` reads back.

On registers:

    isa registers64
    00000: write IFM_BASE = 0x000040001200     ; address=4608 row_stride=64
    00001: start convolution accumulate=0 emit=1 layer=5  ; op 0 conv_7
    ...

On descriptors:

    isa descriptors1024
    00000: convolution wait=3 signal=4 layer=5  ; op 0-2 conv_7
           input_address=4608 input_row_stride=64 ...

Text after `;` is a comment, and the word number before `:` is for the reader. The operation's number is a comment too;
the simulator names the operation by it. A wait and a signal that a descriptor carries are operations too. A value of
several words is written part by part: `write ADDRESS.1 = 0x2`.

`layer=` gives the number of the layer that an operation belongs to. Where a carried wait or signal belongs to another
layer, it is `layer=4/5/-`, one for each (`-`: none). An operation without `layer=` is of no known layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolchain.errors import ProgramError, comment_name
from toolchain.isa import descriptors, registers
from toolchain.isa.columns import Words, any_set, get, get_bits
from toolchain.isa.encoding import Isa, OperationPlan, slot
from toolchain.isa.instruction_table import DescriptorTable, RegisterTable
from toolchain.isa.registers import part_name, register_table

_LINE_WIDTH = 120


def disassemble(program: bytes, isa: Isa, layers: Sequence[int] = (), names: Sequence[str] = ()) -> str:
    """Return the listing of a program.

    `layers`: number of the layer of each operation, -1 for none; operations beyond its end have none.
    `names`: name of each layer by its number, for comments. Raise ProgramError for a word that the table does not allow.
    """
    shown = _Layers(layers, names)
    lines = (
        _descriptor_lines(program, isa, shown) if isinstance(isa.table, DescriptorTable) else _register_lines(program, isa, shown)
    )
    return "".join(f"{line}\n" for line in (f"isa {isa.name}", *lines))


class _Layers:
    """The layer of each operation, as listings write it."""

    def __init__(self, layers: Sequence[int], names: Sequence[str]):
        self._layers, self._names = layers, names

    def text(self, index: int, first: int, last: int) -> str:
        """Return the text of operation `index`, which stands with its wait and its signal as operations first..last."""
        layer_numbers = [self._layers[i] if i < len(self._layers) else -1 for i in range(first, last + 1)]
        operation_layer = layer_numbers[index - first]
        layer_words = [
            str(layer) if layer >= 0 else "-" for layer in ([operation_layer] if len({*layer_numbers}) == 1 else layer_numbers)
        ]
        # A name is the model's: it must not end the comment's line.
        name = comment_name(self._names[operation_layer]) if 0 <= operation_layer < len(self._names) else ""
        field = "" if layer_words == ["-"] else f" layer={'/'.join(layer_words)}"
        return f"{field}  ; op {first}{f'-{last}' if last > first else ''}{f' {name}' if name else ''}"


def _descriptor_lines(program: bytes, isa: Isa, layers: _Layers) -> Iterator[str]:
    """Yield the lines of a program of descriptors, the parameters of each word in lines behind it."""
    index = 0
    for place, descriptor in enumerate(descriptors.unpack(program, isa)):
        op = descriptor.op
        op_index, first = index + (descriptor.wait is not None), index
        index += len(descriptor.unfold(isa))
        sync = "".join(f" {n}={v}" for n, v in (("wait", descriptor.wait), ("signal", descriptor.signal)) if v is not None)
        yield f"{place:05d}: {op.NAME}{sync}{layers.text(op_index, first, index - 1)}"
        words = [f"{s.name}={int(getattr(op, s.name))}" for s in isa.plans[op.NAME].slots]
        yield from _wrap_words(words)


def _wrap_words(words: list[str]) -> Iterator[str]:
    """Yield the words in indented lines of limited width."""
    line = ""
    for word in words:
        if line and len(line) + len(word) > _LINE_WIDTH:
            yield line
            line = ""
        line = f"{line} {word}" if line else f"       {word}"
    if line:
        yield line


def _register_lines(program: bytes, isa: Isa, layers: _Layers) -> Iterator[str]:
    """Return the lines of a program on registers, in the order of its words."""
    table = register_table(isa)
    written = registers.classify_words(program, isa)
    parts = registers.all_parts(isa)
    lines: dict[int, str] = {}
    for place, address, value in zip(written.write_places.tolist(), written.addresses.tolist(), written.values.tolist()):
        part = parts[address]
        note = _field_note(part.register, value, table) if table.registers[part.register].words == 1 else ""
        lines[place] = f"{place:05d}: write {part_name(part, table)} = {value:#x}{note}"
    for index, place in enumerate(written.start_places.tolist()):
        word = written.starts[index : index + 1]
        plan = _get_started_plan(word, place, isa)
        fields = "".join(f" {s.name}={int(get(word, s)[0])}" for s in plan.slots if s.register is None)
        lines[place] = f"{place:05d}: start {plan.operation.NAME}{fields}{layers.text(index, index, index)}"
    return (lines[place] for place in sorted(lines))


def _field_note(register: str, value: int, table: RegisterTable) -> str:
    """Return a comment with the values of a register's fields."""
    fields = table.registers[register].fields
    shown = (f"{name}={(s := slot(name, f)).value(value >> s.low & s.mask)}" for name, f in fields.items())
    return f"  ; {' '.join(shown)}"


def _get_started_plan(word: Words, place: int, isa: Isa) -> OperationPlan:
    """Return the encoding of the operation that a start word starts. Raise ProgramError for an unknown one or reserved
    bits.
    """
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
