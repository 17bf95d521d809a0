"""Make a first instruction table for a machine that has none: every operation that it needs, every field as narrow as
it can be.

The text is YAML, as a file to go on from: move the bits to where the machine has them, and let `npu-hw check` watch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from toolchain.errors import ConfigError
from toolchain.hw import TABLE_FORMAT, Chip
from toolchain.isa.encoding import WIDEST_VALUE
from toolchain.isa.encoding_needs import list_needed_operations
from toolchain.isa.instruction_table import WORD_BITS
from toolchain.machine import Need
from toolchain.machine.registry import OPERATIONS

_OPCODE_BITS = 8
_ADDRESS_BITS = 16  # of a register, at most
_DESCRIPTIONS = {
    "descriptors": "one descriptor of {} bits an operation, which can carry a wait before and a signal after itself",
    "registers": "words of {} bits that write one register or start an operation",
}
_IN_START_WORD = ("kind", "accumulate", "emit", "use_table", "use_add", "engine", "semaphore", "channel")


@dataclass(frozen=True)
class _Field:
    """A field that is `width` bits wide: value = stored * step + bias."""

    width: int
    signed: bool
    bias: int
    step: int

    def text(self, low: int) -> str:
        """Return the field as YAML, from bit `low` on."""
        parts = [f"bits: [{low + self.width - 1}, {low}]"]
        parts += ["signed: true"] if self.signed else []
        parts += [f"bias: {self.bias}"] if self.bias else []
        parts += [f"step: {self.step}"] if self.step > 1 else []
        return "{" + ", ".join(parts) + "}"


def make_default_table(chip: Chip, kind: str = "descriptors", word_bits: int | None = None) -> str:
    """Return the YAML of an instruction table that holds all of the chip's programs.

    `kind`: descriptors or registers. `word_bits`: bits of a word. None: 32 for registers, as many as the widest
    operation needs for descriptors. Raise ConfigError where there is no such kind, no word of `word_bits`, or they are
    too few.
    """
    rule = word_bits_rule(kind)
    if word_bits is not None and word_bits not in WORD_BITS[kind]:
        raise ConfigError([f"{kind} of {word_bits} bits: {rule}"])
    needs = {name: _needs(name, chip) for name in list_needed_operations(chip)}
    opcodes = {name: i for i, name in enumerate(needs, 1)}
    if kind == "descriptors":
        return _descriptors(chip, needs, opcodes, word_bits or 0)
    return _registers(chip, needs, opcodes, word_bits or 32)


def word_bits_rule(kind: str) -> str:
    """Return the rule for numbers of bits of a word, as faults say it. Raise ConfigError where there is no such kind."""
    if kind not in WORD_BITS:
        raise ConfigError([f"no kind of instruction table {kind!r}; there are descriptors and registers"])
    allowed = WORD_BITS[kind]
    return f"must be a multiple of {allowed.step} from {allowed[0]:,} to {allowed[-1]:,}"


def _needs(operation: str, chip: Chip) -> dict[str, Need]:
    """Return the values of each parameter. Parameters that may be left out, and have no other value here, are missing."""
    need_by_parameter = {
        p: (OPERATIONS[operation].need(p, chip), parameter_info)
        for p, parameter_info in OPERATIONS[operation].get_descriptions().items()
    }
    return {
        p: need
        for p, (need, parameter_info) in need_by_parameter.items()
        if not parameter_info.choice or {need.low, need.high} != {parameter_info.absent}
    }


def _field(needs: Sequence[Need]) -> _Field:
    """Return the narrowest field that holds all of these values."""
    low, high = min(w.low for w in needs), max(w.high for w in needs)
    step = min(gcd(*(w.step for w in needs), *(w.low for w in needs)), 1 << 12)
    bias = low if low > 0 else 0
    span = (high - bias) // step
    width = max(span.bit_length(), (-low // step - 1).bit_length() if low < 0 else 0) + (low < 0)
    return _Field(max(1, width), low < 0, bias, step)


def _split(needs: dict[str, Need]) -> tuple[dict[str, int], list[str]]:
    """Return (parameters with only one value, names of the others)."""
    fixed = {p: n.low for p, n in needs.items() if n.low == n.high}
    return fixed, [p for p in needs if p not in fixed]


def _write_fixed_values(fixed: dict[str, int]) -> list[str]:
    """Return the line `fixed` for these values; no line without any."""
    return ["    fixed: {" + ", ".join(f"{p}: {v}" for p, v in fixed.items()) + "}"] if fixed else []


def _write_reserved_bits(*spans: tuple[int, int]) -> list[str]:
    """Return the line `reserved` for spans (high, low); empty spans, with high below low, are left out."""
    used = [f"[{high}, {low}]" for high, low in spans if high >= low]
    return [f"    reserved: [{', '.join(used)}]"] if used else []


def _descriptors(chip: Chip, needs: dict[str, dict[str, Need]], opcodes: dict[str, int], word_bits: int) -> str:
    """Return a table of descriptors. `word_bits`: 0: as many as the widest operation needs. Raise ConfigError where
    they are too few.
    """
    semaphore_bits = max(1, (chip.sync.semaphores - 1).bit_length())
    first = _OPCODE_BITS + 2 * (1 + semaphore_bits)
    rows: dict[str, tuple[list[str], int]] = {}
    for name, operation_needs in needs.items():
        fixed, free = _split(operation_needs)
        lines, at = list[str](), first
        for parameter in free:
            field = _field([operation_needs[parameter]])
            lines.append(f"      {parameter}: {field.text(at)}")
            at += field.width
        head = ["    fields:"] if lines else []
        rows[name] = ([*head, *lines, *_write_fixed_values(fixed)], at)
    least = max(at for _, at in rows.values())
    width = max(word_bits, -(-least // 8) * 8)
    if word_bits and width > word_bits:
        raise ConfigError([f"descriptors of {word_bits} bits: {chip.name} needs {least}; give at least {width} bits"])
    wait, signal = _OPCODE_BITS, _OPCODE_BITS + 1 + semaphore_bits
    lines = _head(chip, "descriptors", width)
    lines += [
        f"opcode: [{_OPCODE_BITS - 1}, 0]",
        f"sync: {{wait: [{wait}, {wait}], wait_semaphore: [{signal - 1}, {wait + 1}], "
        f"signal: [{signal}, {signal}], signal_semaphore: [{first - 1}, {signal + 1}]}}",
        "operations:",
    ]
    for name, (body, at) in rows.items():
        lines += [f"  {name}:", f"    opcode: {opcodes[name]}", *body, *_write_reserved_bits((width - 1, at))]
    return "\n".join(lines) + "\n"


def _registers(chip: Chip, needs: dict[str, dict[str, Need]], opcodes: dict[str, int], word_bits: int) -> str:
    """Return a table with one register for each parameter, shared by all operations that have it; small ones lie in the
    start word.
    """
    shared: dict[str, list[Need]] = {}
    for parameter_needs in needs.values():
        for parameter in _split(parameter_needs)[1]:
            if not _in_start_word(parameter):
                shared.setdefault(parameter, []).append(parameter_needs[parameter])
    fields = {parameter: _field(parameter_needs) for parameter, parameter_needs in shared.items()}
    value_bits = _value_bits(fields, word_bits, chip)
    opcode_bits = max(max(opcodes.values()).bit_length(), 1)
    # What a wide word has left between address and value is reserved.
    address_low = max(value_bits, word_bits - 1 - _ADDRESS_BITS)
    spare = f", reserved: [[{address_low - 1}, {value_bits}]]" if address_low > value_bits else ""
    tag, opcode_low = word_bits - 1, word_bits - 1 - opcode_bits
    lines = _head(chip, "registers", word_bits)
    lines += [
        f"write: {{tag: {{bits: [{tag}, {tag}], value: 1}}, register: [{tag - 1}, {address_low}], "
        f"value: [{value_bits - 1}, 0]{spare}}}",
        f"start: {{tag: {{bits: [{tag}, {tag}], value: 0}}, opcode: [{tag - 1}, {opcode_low}]}}",
        "registers:",
    ]
    address = 0
    for parameter, field in fields.items():
        words = -(-field.width // value_bits)
        many, spare = (f", words: {words}" if words > 1 else ""), words * value_bits - field.width
        reserved = f", reserved: [[{words * value_bits - 1}, {field.width}]]" if spare else ""
        lines.append(f"  {parameter.upper()}: {{address: {address:#04x}{many}, fields: {{value: {field.text(0)}}}{reserved}}}")
        address += words
    lines.append("operations:")
    for name, parameter_needs in needs.items():
        lines += [f"  {name}:", f"    opcode: {opcodes[name]}", *_register_row(parameter_needs, opcode_low, name)]
    return "\n".join(lines) + "\n"


def _in_start_word(parameter: str) -> bool:
    """Return whether a parameter lies in the start word, and not in a register."""
    return parameter in _IN_START_WORD or parameter.endswith("_space")


def _value_bits(fields: dict[str, _Field], word_bits: int, chip: Chip) -> int:
    """Return the bits of a register's value in a write word: all that the registers' addresses leave.

    Raise ConfigError where the registers do not fit words of so many bits.
    """
    for address_bits in range(1, word_bits - 2):
        value_bits = min(WIDEST_VALUE, word_bits - 1 - address_bits)
        words = [-(-field.width // value_bits) for field in fields.values()]
        if sum(words) <= 1 << address_bits and max(words) <= 4:
            return value_bits
    raise ConfigError([f"register words of {word_bits} bits do not hold the {len(fields)} registers of {chip.name}; give more"])


def _register_row(need_by_parameter: dict[str, Need], opcode_low: int, name: str) -> list[str]:
    """Return the lines of an operation, without its name and opcode. Raise ConfigError where its start word is too
    narrow.
    """
    fixed, free = _split(need_by_parameter)
    lines: list[str] = []
    at = 0
    for parameter in free:
        if _in_start_word(parameter):
            field = _field([need_by_parameter[parameter]])
            lines.append(f"      {parameter}: {field.text(at)}")
            at += field.width
    if at > opcode_low:
        raise ConfigError([f"the start word of {name} has {opcode_low} bits beside the opcode and needs {at}; give wider words"])
    bound = [f"      {p}: {p.upper()}.value" for p in free if not _in_start_word(p)]
    head, binds = (["    fields:"] if lines else []), (["    bind:"] if bound else [])
    return [*head, *lines, *binds, *bound, *_write_fixed_values(fixed), *_write_reserved_bits((opcode_low - 1, at))]


def _head(chip: Chip, kind: str, word_bits: int) -> list[str]:
    """Return the first lines of a table: comment, format, name, kind, description, word_bits."""
    return [
        f"# A first table for {chip.name}: every field as wide as this machine needs. Bits are [high, low].",
        f"format: {TABLE_FORMAT}",
        f"name: {chip.name.replace('-', '_')}_{kind}",
        f"kind: {kind}",
        f"description: {_DESCRIPTIONS[kind].format(word_bits)}",
        f"word_bits: {word_bits}",
    ]
