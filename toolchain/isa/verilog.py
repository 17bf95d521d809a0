"""Write an instruction set as a SystemVerilog package: its constants, and a packed struct for each word and register.

It is an output of `npu-hw manual`, for those who build the machine. Names that SystemVerilog reserves get an
underscore.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from toolchain.isa.constants import Constant, constants, identifier
from toolchain.isa.instruction_table import Bits, DescriptorTable, FieldBits, RegisterTable
from toolchain.isa.machine import Machine

# Words that SystemVerilog keeps for itself: IEEE 1800-2023, annex B.
_WORDS = """
accept_on alias always always_comb always_ff always_latch and assert assign assume automatic before begin bind bins
binsof bit break buf bufif0 bufif1 byte case casex casez cell chandle checker class clocking cmos config const
constraint context continue cover covergroup coverpoint cross deassign default defparam design disable dist do edge else
end endcase endchecker endclass endclocking endconfig endfunction endgenerate endgroup endinterface endmodule endpackage
endprimitive endprogram endproperty endspecify endsequence endtable endtask enum event eventually expect export extends
extern final first_match for force foreach forever fork forkjoin function generate genvar global highz0 highz1 if iff
ifnone ignore_bins illegal_bins implements implies import incdir include initial inout input inside instance int integer
interconnect interface intersect join join_any join_none large let liblist library local localparam logic longint
macromodule matches medium modport module nand negedge nettype new nexttime nmos nor noshowcancelled not notif0 notif1
null or output package packed parameter pmos posedge primitive priority program property protected pull0 pull1 pulldown
pullup pulsestyle_ondetect pulsestyle_onevent pure rand randc randcase randsequence rcmos real realtime ref reg
reject_on release repeat restrict return rnmos rpmos rtran rtranif0 rtranif1 s_always s_eventually s_nexttime s_until
s_until_with scalared sequence shortint shortreal showcancelled signed small soft solve specify specparam static string
strong strong0 strong1 struct super supply0 supply1 sync_accept_on sync_reject_on table tagged task this throughout time
timeprecision timeunit tran tranif0 tranif1 tri tri0 tri1 triand trior trireg type typedef union unique unique0 unsigned
until until_with untyped use uwire var vectored virtual void wait wait_order wand weak weak0 weak1 while wildcard wire
with within wor xnor xor
"""
SYSTEMVERILOG = frozenset(_WORDS.split())
Member = tuple[int, int, str, bool]  # high, low, name, signed


def verilog_package(machine: Machine) -> str:
    """Return the text of the package `MACHINE_pkg`; a `-` in the machine's name becomes `_`.

    It has a struct `OPERATION_word_t` for each operation. Tables of registers add `write_word_t` and a
    `REGISTER_register_t` for each. In each struct the highest bits come first.
    A field's value is stored * STEP + BIAS, by its constants.
    """
    isa, name = machine.isa, machine.chip.name
    lines = [f"// {name}, instruction table {isa.name}: made from its files.", f"package {identifier(machine)}_pkg;"]
    for group, members in groupby(constants(machine), key=lambda c: c.group):
        lines += ["", f"  // {group}", *(f"  {_parameter(constant)}" for constant in members)]
    lines.append("")
    if isinstance(isa.table, RegisterTable):
        lines += _registers(isa.table)
    for operation in isa.plans:
        row = isa.table.operations[operation]
        lines += _struct(f"{operation}_word", isa.table.word_bits, [*_header(isa.table), *_members(row.fields)], row.fields)
    return "\n".join([*lines, "endpackage", ""])


def _parameter(constant: Constant) -> str:
    """Return the declaration of a constant; a tuple becomes an unpacked array."""
    if isinstance(constant.value, tuple):
        values = ", ".join(map(str, constant.value))
        return f"localparam int {constant.name} [{len(constant.value)}] = '{{{values}}};"
    return f"localparam int {constant.name} = {constant.value};"


def _header(table: RegisterTable | DescriptorTable) -> Iterator[Member]:
    """Yield the members that all words of operations have."""
    if isinstance(table, RegisterTable):
        yield _member(table.start.tag.bits, "word_tag")
        yield _member(table.start.opcode, "opcode")
        return
    yield _member(table.opcode, "opcode")
    if table.sync:
        yield _member(table.sync.wait, "sync_wait")
        yield _member(table.sync.wait_semaphore, "sync_wait_semaphore")
        yield _member(table.sync.signal, "sync_signal")
        yield _member(table.sync.signal_semaphore, "sync_signal_semaphore")


def _registers(table: RegisterTable) -> Iterator[str]:
    """Yield the structs of a write word and of each register."""
    write = table.write
    forms = [_member(write.tag.bits, "word_tag"), _member(write.register_, "address"), _member(write.value, "data")]
    yield from _struct("write_word", table.word_bits, forms, {})
    part_bits = write.value[0] - write.value[1] + 1
    for name, register in table.registers.items():
        yield from _struct(f"{name.lower()}_register", part_bits * register.words, _members(register.fields), register.fields)


def _member(bits: Bits, name: str, signed: bool = False) -> Member:
    return bits[0], bits[1], name, signed


def _members(fields: Mapping[str, FieldBits]) -> Iterator[Member]:
    for name, field in fields.items():
        yield _member(field.bits, _escape_keyword(name), field.signed)


def _escape_keyword(field: str) -> str:
    """Return the name, with an underscore where SystemVerilog reserves it."""
    return f"{field}_" if field in SYSTEMVERILOG else field


def _struct(name: str, width: int, members: Iterable[Member], fields: Mapping[str, FieldBits]) -> Iterator[str]:
    """Yield the lines of a packed struct of `width` bits; bits that no member has are reserved."""
    yield "  typedef struct packed {"
    top = width
    notes = {_escape_keyword(n): _note(f) for n, f in fields.items()}
    for high, low, member, signed in [*sorted(members, reverse=True), (-1, -1, "", False)]:
        if high < top - 1:
            yield f"    logic [{top - 1 - high - 1}:0] reserved_{high + 1};"
        if member:
            yield f"    logic {'signed ' if signed else ''}[{high - low}:0] {member};{notes.get(member, '')}"
        top = low
    yield f"  }} {name}_t;"


def _note(field: FieldBits) -> str:
    """Return a comment with the field's formula, or nothing where the field holds its value as it is."""
    if field.bias == 0 and field.step == 1:
        return ""
    return f"  // value = stored * {field.step} + {field.bias}"
